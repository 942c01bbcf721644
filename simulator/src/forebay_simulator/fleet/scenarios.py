"""Situations to compare policies in: a fleet, requests, and what goes wrong. All are seeded and need no file.

The fleet is Llama 3.1 8B on H100s unless told otherwise. Objectives follow the kind of traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_simulator.fleet.autoscaling import AutoscalerSpec
from forebay_simulator.fleet.faults import Fault, NodeShortage, SlowWorker, WorkerLoss
from forebay_simulator.fleet.metrics import Scraping
from forebay_simulator.fleet.spec import EngineSpec, FleetSpec, PoolSpec, mocker_engine
from forebay_simulator.fleet.standing import (
    CHAT,
    MORNING_BEGINS_S,
    MORNING_HOURS,
    morning,
    morning_fleet,
    surges,
    surges_fleet,
    two_prices,
    two_prices_fleet,
)
from forebay_simulator.fleet.traces.generators import (
    chat,
    code,
    constant,
    fixed,
    generate,
    hot_prefixes,
    sinusoid,
    steps,
    switching,
)
from forebay_simulator.fleet.traces.herds import Herd, herds
from forebay_simulator.fleet.traces.trace import Trace

LONG = Objective(ttft_s=2.0, tpot_s=0.025, target=0.95)
COARSE = EngineSpec(block_tokens=64)
"""Blocks of 64 tokens: four times faster to simulate, and no difference beyond rounding."""
UNSHARED = EngineSpec(block_tokens=128, prefix_caching=False)
"""For prompts that share nothing: there is nothing to find in a prefix cache, and keeping none is faster."""
DAY_S = 1800.0
"""A day is compressed into half an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One situation."""

    name: str
    about: str
    fleet: FleetSpec
    trace: Callable[[int], Trace]
    """Requests of a seed."""
    faults: tuple[Fault, ...] = ()
    scraping: Scraping = field(default_factory=Scraping)
    autoscaler: AutoscalerSpec = field(default_factory=AutoscalerSpec)


def mixed(
    replicas: int,
    *,
    engine: EngineSpec = UNSHARED,
    startup_s: tuple[float, float] = (60.0, 60.0),
    objective: Objective = CHAT,
) -> FleetSpec:
    """One pool that does both."""
    pool = PoolSpec(name="mixed", role=Role.MIXED, replicas=replicas, startup_s=startup_s, engine=engine)
    return FleetSpec(pools=(pool,), objective=objective)


def split(
    prefill: int,
    decode: int,
    *,
    engine: EngineSpec = UNSHARED,
    startup_s: tuple[float, float] = (60.0, 60.0),
    objective: Objective = CHAT,
    budget_gpus: int | None = None,
) -> FleetSpec:
    """A prefill and a decode pool."""
    pools = tuple(
        PoolSpec(name=name, role=role, replicas=replicas, startup_s=startup_s, engine=engine)
        for name, role, replicas in (("prefill", Role.PREFILL, prefill), ("decode", Role.DECODE, decode))
    )
    return FleetSpec(pools=pools, objective=objective, budget_gpus=budget_gpus)


RAMP: Final = sinusoid(1, 24, 900)
"""Requests a second of the ramps."""


def _ramp(name: str, startup_s: float) -> Scenario:
    objective = Objective(ttft_s=3.0, tpot_s=0.035, target=0.95)
    return Scenario(
        name=name,
        about=f"1 to 24 req/s and back in 900 s, 8,000 tokens in, 1,000 out, start-up {startup_s:g} s, Dynamo's engine timing",
        fleet=split(
            2,
            2,
            engine=mocker_engine(128, prefix_caching=False),
            startup_s=(startup_s, startup_s),
            objective=objective,
            budget_gpus=24,
        ),
        trace=lambda seed: generate(name, RAMP, fixed(8000, 1000), duration_s=2100, seed=seed),
        # What an operator sets for load that rises and falls within minutes; every policy that has such a window gets it.
        autoscaler=AutoscalerSpec(scale_down_window_s=30.0),
    )


def _chats(name: str, seconds: float, *rates: tuple[float, float]) -> Callable[[int], Trace]:
    return lambda seed: generate(name, steps(*rates), chat, duration_s=seconds, seed=seed)


def _switch(seed: int) -> Trace:
    return generate("switch", constant(30), switching(chat, code, 600), duration_s=1200, seed=seed)


def _herd(seed: int) -> Trace:
    return herds(
        generate("herd", constant(10), chat, duration_s=600, seed=seed),
        Herd(size=400, within_s=5.0, prefix_blocks=8, own_tokens=(100, 600), output_tokens=(50, 200)),
        at_s=(120.0, 420.0),
        seed=seed,
    )


_STEADY = ((0.0, 40.0),)
_STEP = ((0.0, 10.0), (300.0, 40.0), (900.0, 10.0))

SCENARIOS: Mapping[str, Scenario] = {
    one.name: one
    for one in (
        _ramp("ramp", 120.0),
        _ramp("ramp-quick-start", 30.0),
        Scenario(
            name="step",
            about="chats at 10 req/s, 40 from 300 s to 900 s, then 10 again",
            fleet=mixed(2),
            trace=_chats("step", 1500, *_STEP),
        ),
        Scenario(
            name="day",
            about="chats between 3 and 40 req/s, a day in half an hour",
            fleet=mixed(1),
            trace=lambda seed: generate("day", sinusoid(3, 40, DAY_S), chat, duration_s=DAY_S, seed=seed),
        ),
        Scenario(
            name="switch",
            about="30 req/s of chats for 600 s, then of code: decode has little to do and prefill twice as much",
            fleet=split(2, 2),
            trace=_switch,
        ),
        Scenario(
            name="hot-prefix",
            about="38 % of 6.5 req/s share 6,144 tokens, 14 % share 2,560 (synthetic)",
            fleet=mixed(4, engine=COARSE, objective=LONG),
            trace=lambda seed: hot_prefixes(constant(6.5), duration_s=900, seed=seed),
        ),
        Scenario(
            name="herd",
            about="10 req/s of chats; at 120 s and 420 s, 400 agents come back at once with one 4,096-token prefix (synthetic)",
            fleet=mixed(4, engine=COARSE, objective=LONG),
            trace=_herd,
        ),
        Scenario(
            name="worker-loss",
            about="40 req/s of chats; two workers die at 300 s, one at 600 s",
            fleet=mixed(5),
            trace=_chats("worker-loss", 900, *_STEADY),
            faults=(WorkerLoss(300, "mixed", 2), WorkerLoss(600, "mixed")),
        ),
        Scenario(
            name="metrics-loss",
            about="a step from 10 to 40 req/s at 300 s; Prometheus is down from 250 s to 550 s",
            fleet=mixed(2),
            trace=_chats("metrics-loss", 1500, *_STEP),
            scraping=Scraping(outages=((250, 550),)),
        ),
        Scenario(
            name="slow-worker",
            about="40 req/s of chats; one worker takes three times as long from 200 s to 600 s",
            fleet=mixed(5),
            trace=_chats("slow-worker", 900, *_STEADY),
            faults=(SlowWorker(200, 600, "mixed-0", 3.0),),
        ),
        Scenario(
            name="cold-starts",
            about="a step from 10 to 40 req/s, workers take 30 to 300 s to start",
            fleet=mixed(2, startup_s=(30, 300)),
            trace=_chats("cold-starts", 1500, *_STEP),
        ),
        Scenario(
            name="node-shortage",
            about="a step from 10 to 40 req/s with 8 GPUs, of which 5 cannot be had from 250 s to 600 s",
            fleet=replace(mixed(2), gpus=8),
            trace=_chats("node-shortage", 1500, *_STEP),
            faults=(NodeShortage(250, 600, 5),),
        ),
        Scenario(
            name="morning",
            about="chats rise from 6 to 24 req/s at 08:00 for ten minutes, A100s, workers take 300 s to start",
            fleet=morning_fleet(),
            trace=morning,
            autoscaler=AutoscalerSpec(begins_s=MORNING_BEGINS_S, startups_known=True),
        ),
        Scenario(
            name="morning-scheduled",
            about="morning with a schedule that keeps 8 workers from 08:00 to 08:10",
            fleet=morning_fleet(MORNING_HOURS),
            trace=morning,
            autoscaler=AutoscalerSpec(begins_s=MORNING_BEGINS_S, startups_known=True),
        ),
        Scenario(
            name="surges",
            about="chats at 8 req/s, at 24 for a minute three times, workers take 120 s to start",
            fleet=surges_fleet(spare=0),
            trace=surges,
        ),
        Scenario(name="surges-spare", about="surges with one warm spare", fleet=surges_fleet(spare=1), trace=surges),
        Scenario(
            name="two-prices",
            about="4 req/s of chats by night and 24 by day, three L40S at 0.80 an hour before H100s at 3.00",
            fleet=two_prices_fleet(),
            trace=two_prices,
        ),
        Scenario(
            name="two-prices-untold",
            about="two-prices where the autoscaler is told no prices",
            fleet=two_prices_fleet(),
            trace=two_prices,
            autoscaler=AutoscalerSpec(prices_known=False),
        ),
        Scenario(
            name="two-prices-kept",
            about="two-prices with two H100s that are kept by night, too",
            fleet=two_prices_fleet(dear_min=2),
            trace=two_prices,
        ),
    )
}
"""Scenarios by name."""
