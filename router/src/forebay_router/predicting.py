"""What a request will see on a worker. Pure. `choose` has the formulas and what is made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, sqrt
from types import MappingProxyType
from typing import Final, NamedTuple

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_router.backlog import Backlog
from forebay_router.speed import PoolSpeed, Speed, chance_within

_NO_OBJECTIVE: Final = Objective(ttft_s=1.0, tpot_s=0.05, target=0.9)
_PREFILL: Final = Role.PREFILL
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_DEVIATIONS: Final = ((0.5, 0.674), (0.75, 1.15), (0.9, 1.645), (0.95, 1.96), (0.99, 2.576), (0.999, 3.29))
"""Target -> standard deviations that leave both times within their limits together that often."""


@dataclass(slots=True)
class Load:
    """What was sent to a worker and has not ended. Changed by leases only."""

    requests: int = 0
    """Requests in flight."""
    prompt_tokens: int = 0
    """Prompt tokens to compute of requests whose first token has not come."""
    output_tokens: int = 0
    """Output tokens expected of the requests in flight."""
    backlog: Backlog = field(default_factory=Backlog)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker as `choose` sees it."""

    uid: str
    role: Role
    name: str = ""
    """For people."""
    pool: str = ""
    revision: str = ""
    """Prefill and decode are paired only when these are equal."""
    load: Load = field(default_factory=Load)
    """Live."""
    speed: Speed = field(default_factory=Speed)
    """Live."""
    limit: int | None = None
    """Most requests in flight at once; None is no limit."""

    @property
    def token_s(self) -> float:
        """Seconds a prompt token."""
        return self.speed.pool.first_token.slope * self.speed.first_token.value


class Demand(NamedTuple):
    """What is known of a request when it is placed."""

    prompt_tokens: int = 0
    """Estimate."""
    output_tokens: int = 0
    """Estimate, at most what the client allows."""
    splittable: bool = False
    """Prefill may run on one worker and decode on another."""
    excluded: frozenset[str] = frozenset()
    """Workers that failed on this request already."""
    cached: Mapping[str, int] = _NOTHING
    """Worker -> tokens of the prompt that it holds."""
    common_tokens: int = 0
    """Tokens at the start that nearly every request of the service shares."""
    objective: Objective = _NO_OBJECTIVE


class Prediction(NamedTuple):
    """What is expected of one candidate."""

    uid: str
    wait_s: float
    """Until the prompts queued there are computed."""
    uncached_tokens: int
    """Of this prompt."""
    ttft_s: float
    tpot_s: float
    cost: float
    """Share of the objective's time that the choice uses up."""
    chance: float
    """Of meeting the objective; comparable within one choice only."""
    comfortable: bool
    """Meets the objective with at least its target probability."""


class Bounds(NamedTuple):
    """What predicted times must keep to for an objective to be met with its target probability."""

    ttft_s: float
    tpot_s: float


@lru_cache(maxsize=64)
def deviations_for(target: float) -> float:
    """Standard deviations that a prediction must keep from its limit for a target share."""
    return next((deviations for share, deviations in _DEVIATIONS if target <= share), _DEVIATIONS[-1][1])


def bounds_for(objective: Objective, first: PoolSpeed, output: PoolSpeed) -> Bounds:
    """The objective's limits, each less the error that predictions of these pools have had."""
    deviations = deviations_for(objective.target)
    return Bounds(
        objective.ttft_s * exp(-deviations * sqrt(first.first_token.spread2)),
        objective.tpot_s * exp(-deviations * sqrt(output.output_token.spread2)),
    )


def predict(candidates: Sequence[Candidate], demand: Demand, now_s: float) -> list[Prediction]:
    """What the request will see on each worker, and what it does to the others there. One loop: it runs for every request."""
    objective, cached = demand.objective, demand.cached
    prompt, common = demand.prompt_tokens, demand.common_tokens
    per_output = 1 / (demand.output_tokens or 1)
    pool = bounds = None
    made = []
    for one in candidates:
        load, speed = one.load, one.speed
        if speed.pool is not pool or bounds is None:
            pool = speed.pool
            bounds = bounds_for(objective, pool, pool)
        first, factor = pool.first_token, speed.first_token.value
        token_s = first.slope * factor
        held = cached.get(one.uid, 0) if cached else 0
        uncached = prompt - held if held < prompt else 0
        own_s = token_s * (prompt - common if held < common <= prompt else uncached)
        wait_s = load.backlog.wait_s(token_s, now_s) if load.backlog.prompts else 0.0
        ttft_s = wait_s + first.base * factor + own_s
        cost = ttft_s / objective.ttft_s
        tpot_s = 0.0
        if one.role is not _PREFILL:
            tpot_s, growth_s = _pace(one)
            cost += (tpot_s + load.requests * (own_s * per_output + growth_s)) / objective.tpot_s
        comfortable = ttft_s <= bounds.ttft_s and tpot_s <= bounds.tpot_s
        chance = 1.0 if comfortable else _chance(objective, (ttft_s, tpot_s), pool, pool)
        made.append(Prediction(one.uid, wait_s, uncached, ttft_s, tpot_s, cost, chance, comfortable))
    return made


def _pace(one: Candidate) -> tuple[float, float]:
    """Seconds per output token with one more sequence, and what that one adds for everybody."""
    line, factor = one.speed.pool.output_token, one.speed.output_token.value
    growth_s = line.slope * factor
    return line.base * factor + growth_s * (one.load.requests + 1), growth_s


def _chance(objective: Objective, times: tuple[float, float], first: PoolSpeed, output: PoolSpeed) -> float:
    chance = chance_within(objective.ttft_s, times[0], first.first_token.spread2)
    return chance * chance_within(objective.tpot_s, times[1], output.output_token.spread2)


def predict_decode(candidates: Sequence[Candidate], demand: Demand) -> list[Prediction]:
    """What the decode side of a pair adds: the transfer, and one more sequence."""
    objective = demand.objective
    made = []
    for one in candidates:
        pool = one.speed.pool
        tpot_s, growth_s = _pace(one)
        transfer_s = pool.transfer.at(demand.prompt_tokens)
        cost = transfer_s / objective.ttft_s + (tpot_s + one.load.requests * growth_s) / objective.tpot_s
        comfortable = tpot_s <= bounds_for(objective, pool, pool).tpot_s
        chance = 1.0 if comfortable else _chance(objective, (0.0, tpot_s), pool, pool)
        made.append(Prediction(one.uid, 0.0, 0, transfer_s, tpot_s, cost, chance, comfortable))
    return made


def join(first: Prediction, second: Prediction, pools: tuple[PoolSpeed, PoolSpeed], demand: Demand) -> Prediction:
    """A pair's prediction from its sides' and their pools'."""
    objective = demand.objective
    times = (first.ttft_s + second.ttft_s, second.tpot_s)
    bounds = bounds_for(objective, *pools)
    comfortable = times[0] <= bounds.ttft_s and times[1] <= bounds.tpot_s
    return Prediction(
        second.uid,
        first.wait_s,
        first.uncached_tokens,
        *times,
        first.cost + second.cost,
        1.0 if comfortable else _chance(objective, times, *pools),
        comfortable,
    )
