"""Fleets with standing orders: what a ModelService asks for beside its objective, and loads to see what that is worth.

morning     chats that rise fourfold within three minutes at 08:00, for ten minutes, on workers that take five minutes to
            start, which is known from the day before
surges      chats that treble for a minute, three times, at no regular distance: over before a worker that is ordered for one
            of them is there, and no rhythm to learn
two-prices  a night, a day and a night on a pool of cheap workers that suffice for the night, and one of dear ones, which
            cost more per request, too
"""

from __future__ import annotations

from dataclasses import replace

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_api.schedules import Schedule
from forebay_simulator.fleet.spec import EngineSpec, FleetSpec, PoolSpec
from forebay_simulator.fleet.traces.generators import chat, curve, generate, steps
from forebay_simulator.fleet.traces.trace import Trace

CHAT = Objective(ttft_s=0.5, tpot_s=0.025, target=0.95)
EASY = Objective(ttft_s=1.0, tpot_s=0.05, target=0.95)
"""Within reach of an L40S."""

# ---- a morning

MORNING_BEGINS_S = 7.75 * 3600
MORNING_S = 2400.0
_PEAK_S = 900.0
"""08:00."""
_MORNING = ((0.0, 6.0), (_PEAK_S, 6.0), (_PEAK_S + 180, 24.0), (_PEAK_S + 600, 24.0), (_PEAK_S + 660, 6.0))
MORNING_HOURS = Schedule.model_validate({"name": "morning", "from": "08:00", "to": "08:10", "min": 8})


def morning(seed: int) -> Trace:
    """Requests of a seed."""
    return generate("morning", curve(_MORNING), chat, duration_s=MORNING_S, seed=seed)


def morning_fleet(*schedules: Schedule) -> FleetSpec:
    """A100s with a slow start."""
    engine = EngineSpec(accelerator="a100-80gb", block_tokens=128, prefix_caching=False)
    pool = PoolSpec(
        name="mixed",
        role=Role.MIXED,
        replicas=3,
        engine=engine,
        startup_s=(300.0, 300.0),
        schedules=schedules,
    )
    return FleetSpec(pools=(pool,), objective=CHAT)


# ---- surges

SURGES_S = 2400.0
_SURGES_AT_S = (480.0, 1090.0, 1830.0)
_SURGE_S = 60.0
_SURGES = tuple(change for at_s in _SURGES_AT_S for change in ((at_s, 24.0), (at_s + _SURGE_S, 8.0)))


def surges(seed: int) -> Trace:
    """Requests of a seed."""
    return generate("surges", steps((0.0, 8.0), *_SURGES), chat, duration_s=SURGES_S, seed=seed)


def surges_fleet(spare: int) -> FleetSpec:
    """H100s, of which one does the load between the surges."""
    engine = EngineSpec(block_tokens=128, prefix_caching=False)
    pool = PoolSpec(
        name="mixed", role=Role.MIXED, replicas=1 + spare, engine=engine, startup_s=(120.0, 120.0), spare=spare
    )
    return FleetSpec(pools=(pool,), objective=CHAT)


# ---- two prices

TWO_PRICES_S = 2700.0
_TWO_PRICES = ((0.0, 4.0), (600.0, 4.0), (900.0, 24.0), (1500.0, 24.0), (1800.0, 4.0))
CHEAP, DEAR = "l40s", "h100"


def two_prices(seed: int) -> Trace:
    """Requests of a seed."""
    return generate("two-prices", curve(_TWO_PRICES), chat, duration_s=TWO_PRICES_S, seed=seed)


def two_prices_fleet(*, dear_min: int = 0) -> FleetSpec:
    """L40S at 0.80 an hour, three at most, beside H100 at 3.00."""
    engine = EngineSpec(block_tokens=128, prefix_caching=False)
    dear = PoolSpec(
        name=DEAR,
        role=Role.MIXED,
        replicas=dear_min,
        replicas_min=dear_min,
        replicas_max=8,
        engine=engine,
        startup_s=(120.0, 120.0),
        price_per_hour=3.0,
    )
    cheap = replace(
        dear,
        name=CHEAP,
        replicas=2,
        replicas_min=1,
        replicas_max=3,
        engine=replace(engine, accelerator="l40s"),
        price_per_hour=0.8,
    )
    return FleetSpec(pools=(cheap, dear), objective=EASY)
