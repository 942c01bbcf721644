"""What a request will see on a worker. Pure. `choose` has the formulas and what is made of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_router.backlog import Backlog
from forebay_router.fitting import chance_within, work_of
from forebay_router.speed import BUSY_MAX, TRAFFIC_S, PoolSpeed, Speed, Terms

_NO_OBJECTIVE: Final = Objective(ttft_s=1.0, tpot_s=0.05, target=0.9)
_PREFILL: Final = Role.PREFILL
_DECODE: Final = Role.DECODE
_HOPE_MIN: Final = 0.5
"""Least chance that sequences count with which decode where a prompt would go: those that are late are no reason to be later."""
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
NOTHING_S: Final = 1e-3
"""A prompt that takes less delays nobody to speak of."""
_DISPLACEMENT_MAX: Final = 4.0
AGAIN: Final = 1.0
"""What computing costs besides while what is pushed out of caches is missed, as a share of its time: the least price that first
tokens are no later by.

Without it choices are as good for the request and leave fewer hits; with several times as much, requests wait for hits that do
not pay (docs/router.md has the figures).
"""
LOADED_MAX: Final = 8
"""Adapters of a worker that are thought to be loaded."""


@dataclass(slots=True)
class Load:
    """What was sent to a worker and has not ended. Changed by leases only."""

    requests: int = 0
    """Requests in flight."""
    prompt_tokens: int = 0
    """Work of the prompt tokens to compute of requests whose first token has not come."""
    output_tokens: int = 0
    """Output tokens expected of the requests in flight."""
    backlog: Backlog = field(default_factory=Backlog)


class Adapters:
    """LoRA adapters that a worker has loaded, as far as is known: the last `LOADED_MAX` that it was sent requests for."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        """The one used last stands last."""

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def use(self, name: str) -> None:
        """A request for it was sent."""
        self._names.pop(name, None)
        self._names[name] = None
        while len(self._names) > LOADED_MAX:
            del self._names[next(iter(self._names))]


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
    adapters: Adapters = field(default_factory=Adapters)
    """Live: LoRA adapters that it has loaded."""

    @property
    def token_s(self) -> float:
        """Seconds a prompt token."""
        return self.speed.pool.first_token.slope * self.speed.first_token.value


class Displacement(NamedTuple):
    """What a prompt pushes out of caches will be missed; told for each worker as a share of the prompt's own computing time.

    Content that was idle for long is asked for again less likely: in inverse proportion. What is missed has to be computed again
    and pushes out something in its turn, which the odds (regret / (1 - regret)) count in.
    """

    odds_by_age: float
    """Odds that what is pushed out will be missed, times the age at which they are that."""
    now: int
    """Prompts sent so far: the clock that ages are told by."""
    victims: Mapping[str, int]
    """Worker -> when what it pushed out last had been used last; workers whose cache has room are left out."""

    def of(self, uid: str) -> float:
        """For one worker. Computing has its price where the cache has room, too: it soon has none."""
        victim = self.victims.get(uid)
        return AGAIN if victim is None else AGAIN + min(_DISPLACEMENT_MAX, self.odds_by_age / max(1, self.now - victim))


@dataclass(frozen=True, slots=True)
class Demand:
    """What is known of a request when it is placed."""

    prompt_tokens: int = 0
    """Estimate."""
    output_tokens: int = 0
    """Estimate, at most what the client allows."""
    splittable: bool = False
    """Prefill may run on one worker and decode on another."""
    excluded: frozenset[str] = frozenset()
    """Workers that failed on this request already."""
    cached: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    """Worker -> tokens of the prompt that it holds."""
    common_tokens: int = 0
    """Tokens at the start that nearly every request of the service shares."""
    objective: Objective = _NO_OBJECTIVE
    displacement: Displacement | None = None
    """What it costs to push content out of caches; None where nothing is missed."""
    adapter: str | None = None
    """The LoRA adapter that it is for."""
    start: int = 0
    """Names the first block of the prompt that not nearly every request shares; 0 where it is not known."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of one candidate."""

    uid: str
    wait_s: float
    """Until the prompts queued there are computed."""
    uncached_tokens: int
    """Of this prompt."""
    ttft_s: float
    tpot_s: float
    cost: float
    """Share of the objective's time that the choice uses up, and the chance to miss it."""
    chance: float
    """Of meeting the objective; comparable within one choice only."""
    comfortable: bool
    """Meets the objective with at least its target probability."""
    ahead_tokens: float = 0.0
    """Work queued ahead, in prompt tokens."""
    ahead_prompts: float = 0.0
    work_tokens: float = 0.0
    """What computing the uncached tokens takes, in tokens at the beginning of a prompt."""


def predict(candidates: Sequence[Candidate], demand: Demand, now_s: float) -> list[Prediction]:
    """What the request will see on each worker, and what it does to the others there."""
    objective, cached, adapter = demand.objective, demand.cached, demand.adapter
    prompt, common, displacement = demand.prompt_tokens, demand.common_tokens, demand.displacement
    per_output = 1 / (demand.output_tokens or 1)
    made = []
    for one in candidates:
        load, speed = one.load, one.speed
        pool = speed.pool
        terms = pool.terms(objective)
        base_s, token_s, prompt_s, _, _, stall_s, bounds, per_ttft, per_tpot, bend = terms
        requests, factor = load.requests, speed.first_token.value
        held = cached.get(one.uid, 0) if cached else 0
        uncached = prompt - held if held < prompt else 0
        to_compute = prompt - common if held < common <= prompt else uncached
        work = work_of(prompt, to_compute, bend)
        own_s = token_s * factor * work
        tokens = prompts = wait_s = 0.0
        if load.backlog.prompts:
            tokens, prompts = load.backlog.left(token_s * factor, now_s, prompt_s * factor)
            wait_s = (tokens * token_s + prompts * prompt_s) * factor
        ttft_s = wait_s + base_s * factor + own_s
        if adapter is not None and adapter not in one.adapters:
            ttft_s += pool.adapter_s
        later_s = 0.0
        if own_s > NOTHING_S:
            strain = speed.strain(now_s)
            later_s = strain * own_s * (wait_s + own_s / 2)
            if displacement is not None:
                later_s += displacement.of(one.uid) * own_s * (1 + strain * own_s / 2)
        cost = (ttft_s + later_s) * per_ttft
        tpot_s = 0.0
        if one.role is not _PREFILL:
            tpot_s, growth_s, pace = _pace(one, terms)
            cost += (tpot_s + requests * (work * stall_s * pace * per_output + growth_s)) * per_tpot
            if one.role is _DECODE and own_s > NOTHING_S:
                cost += harm_of(one, tpot_s, own_s, objective.tpot_s, now_s)
        comfortable = ttft_s <= bounds[0] and tpot_s <= bounds[1]
        chance = 1.0
        if not comfortable:
            chance = chance_of(objective, (ttft_s, tpot_s), pool, pool)
            cost += 1 - chance
        made.append(
            Prediction(
                one.uid,
                wait_s,
                uncached,
                ttft_s,
                tpot_s,
                cost,
                chance,
                comfortable,
                tokens,
                prompts,
                work_of(prompt, uncached, bend),
            )
        )
    return made


def harm_of(one: Candidate, tpot_s: float, own_s: float, tpot_max_s: float, now_s: float) -> float:
    """How many sequences miss their objective because a decode worker computes prompts, this one among them.

    A worker that spends a share b of its time on prompts has 1 - b of it for tokens, so each takes 1 / (1 - b) as long. All that
    it does to those that decode there is counted, not what one more prompt adds: on a worker where all are late already, one more
    would be for nothing.
    """
    spread2 = one.speed.pool.output_token.spread2
    busy = min(BUSY_MAX, one.speed.busy.at(now_s) + own_s / TRAFFIC_S)
    hope = max(_HOPE_MIN, chance_within(tpot_max_s, tpot_s, spread2))
    return one.load.requests * max(0.0, hope - chance_within(tpot_max_s, tpot_s / (1 - busy), spread2))


def _pace(one: Candidate, terms: Terms) -> tuple[float, float, float]:
    """Seconds per output token with one more sequence, what that one adds for everybody, and the worker's factor."""
    factor = one.speed.output_token.value
    growth_s = terms.growth_s * factor
    return terms.step_s * factor + growth_s * (one.load.requests + 1), growth_s, factor


def chance_of(objective: Objective, times: tuple[float, float], first: PoolSpeed, output: PoolSpeed) -> float:
    """Chance that these predicted times, of these pools, turn out to be within the objective."""
    chance = chance_within(objective.ttft_s, times[0], first.first_token.spread2)
    return chance * chance_within(objective.tpot_s, times[1], output.output_token.spread2)


def predict_decode(candidates: Sequence[Candidate], demand: Demand) -> list[Prediction]:
    """What the decode side of a pair adds: the transfer, and one more sequence."""
    objective = demand.objective
    made = []
    for one in candidates:
        pool = one.speed.pool
        terms = pool.terms(objective)
        tpot_s, growth_s, _ = _pace(one, terms)
        transfer_s = pool.transfer.at(demand.prompt_tokens)
        if demand.adapter is not None and demand.adapter not in one.adapters:
            transfer_s += pool.adapter_s
        cost = transfer_s * terms.per_ttft + (tpot_s + one.load.requests * growth_s) * terms.per_tpot
        comfortable = tpot_s <= terms.bounds[1]
        chance = 1.0 if comfortable else chance_of(objective, (0.0, tpot_s), pool, pool)
        made.append(Prediction(one.uid, 0.0, 0, transfer_s, tpot_s, cost + 1 - chance, chance, comfortable))
    return made


def join(first: Prediction, second: Prediction, pools: tuple[PoolSpeed, PoolSpeed], demand: Demand) -> Prediction:
    """A pair's prediction from its sides' and their pools'."""
    objective = demand.objective
    times = (first.ttft_s + second.ttft_s, second.tpot_s)
    ttft_max_s = pools[0].terms(objective).bounds[0]
    comfortable = times[0] <= ttft_max_s and times[1] <= pools[1].terms(objective).bounds[1]
    chance = 1.0 if comfortable else chance_of(objective, times, *pools)
    cost = first.cost + first.chance - 1 + second.cost + second.chance - 1
    return Prediction(
        second.uid,
        first.wait_s,
        first.uncached_tokens,
        times[0],
        times[1],
        cost + 1 - chance,
        chance,
        comfortable,
        first.ahead_tokens,
        first.ahead_prompts,
        first.work_tokens,
    )
