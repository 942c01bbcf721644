"""The cheapest of some workers for a request. Pure, and on the way of every request: one loop, no objects made.

The arithmetic is that of `predicting.predict`, term by term; a test holds the two to each other.

Passed over: workers that failed on the request, those at their limit, and, while others have room, those beyond their slow
start: a worker that has answered few requests gets at most `SLOW_START` + twice that many in flight. Its speed is a guess,
and its empty queue would draw a burst. For a single worker the pair beside it is such another.
"""

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Final

from forebay_api.modelservice import Role
from forebay_router.predicting import NOTHING_S, Candidate, Demand, chance_of, harm_of, predict
from forebay_router.speed import TRAFFIC_S

SLOW_START: Final = 4
RELIEF_SHARE: Final = 1 / 64
"""Of the time that a pool's prompts take: what relieving its workers may cost."""
_PREFILL: Final = Role.PREFILL
_DECODE: Final = Role.DECODE


def cheapest(
    candidates: Sequence[Candidate], demand: Demand, now_s: float, rng: Random, *, elsewhere: bool = False
) -> Candidate | None:
    """The candidate with the least cost, or None where none can take the request.

    Of equal ones the one with the fewest requests in flight, then that which had less to do of late of two random ones. While
    the request has somewhere to go `elsewhere`, nobody gets it beyond its slow start.
    """
    if len(candidates) == 1 and not elsewhere:
        only = candidates[0]
        return only if _has_room(only, demand) else None
    found = _cheapest(candidates, demand, now_s, rng, slow_start=SLOW_START)
    if found is not None or elsewhere:
        return found
    return _cheapest(candidates, demand, now_s, rng, slow_start=inf)


def _has_room(one: Candidate, demand: Demand) -> bool:
    return (one.limit is None or one.load.requests < one.limit) and one.uid not in demand.excluded


def _cheapest(  # noqa: C901, PLR0912, PLR0915  (every call in this loop is paid for by each request, once a worker)
    candidates: Sequence[Candidate], demand: Demand, now_s: float, rng: Random, *, slow_start: float
) -> Candidate | None:
    objective, displacement, adapter, excluded = demand.objective, demand.displacement, demand.adapter, demand.excluded
    prompt, cached, common = demand.prompt_tokens, demand.cached, demand.common_tokens
    per_output = 1 / (demand.output_tokens or 1)
    lowest = fewest = inf
    best: list[Candidate] = []
    pool = None
    small = False  # nothing but the requests in flight and the queue tells equal workers apart
    for one in candidates:
        load, speed, limit = one.load, one.speed, one.limit
        requests = load.requests
        if limit is not None and requests >= limit:
            continue
        if requests >= slow_start and requests >= slow_start + 2 * speed.finished:
            continue
        if excluded and one.uid in excluded:
            continue
        if speed.pool is not pool:
            pool = speed.pool
            base_s, token_s, prompt_s, step_s, growth_s, stall_s, (ttft_max_s, tpot_max_s), per_ttft, per_tpot, bend = (
                pool.terms(objective)
            )
            small = not cached and adapter is None and prompt * token_s <= NOTHING_S
            fewest = inf
        factor, pace = speed.first_token.value, speed.output_token.value
        if small and factor == pace == 1.0:
            if requests > fewest:
                continue
            if not load.backlog.prompts:
                fewest = float(requests)
        held = cached.get(one.uid, 0) if cached else 0
        to_compute = prompt - held if held < prompt else 0
        if held < common <= prompt:
            to_compute = prompt - common
        work = to_compute * (1 + bend * (2 * prompt - to_compute))
        own_s = work * token_s * factor
        wait_s = 0.0
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
            own_growth_s = growth_s * pace
            tpot_s = step_s * pace + own_growth_s * (requests + 1)
            cost += (tpot_s + requests * (work * stall_s * pace * per_output + own_growth_s)) * per_tpot
            if one.role is _DECODE and own_s > NOTHING_S:
                cost += harm_of(one, tpot_s, own_s, objective.tpot_s, now_s)
        if ttft_s > ttft_max_s or tpot_s > tpot_max_s:
            if cost > lowest:
                continue
            cost += 1 - chance_of(objective, (ttft_s, tpot_s), pool, pool)
        if cost < lowest:
            lowest = cost
            best = [one]
        elif cost == lowest:
            best.append(one)
    return best[0] if len(best) == 1 else _calm(best, rng, now_s)


def relief(
    chosen: Candidate, candidates: Sequence[Candidate], demand: Demand, now_s: float, rng: Random
) -> tuple[Candidate, float]:
    """The chosen one; or, while it gets far more than its share of the prompts, another one that is to hold this one's, too.

    Returns also the seconds that this costs: what is computed again, and what the request waits longer. In a pool they are at
    most `RELIEF_SHARE` of the time that its prompts take. This is how a hot prefix spreads before its worker has a queue: asked
    for what was sent to it twice in a row, and for single workers only, not for the prefill side of pairs.
    """
    speed = chosen.speed
    held = demand.cached.get(chosen.uid, 0)
    if held <= demand.common_tokens or not speed.overrun(now_s):
        return chosen, 0.0
    pool = speed.pool
    fair = pool.prompts.at(now_s) / pool.workers
    others = [one for one in candidates if one.speed.pool is pool and one.speed.prompts.at(now_s) <= fair]
    other = _cheapest(others, demand, now_s, rng, slow_start=SLOW_START)
    if other is None:
        return chosen, 0.0
    here, there = predict((chosen, other), demand, now_s)
    copied_s = max(0.0, there.work_tokens - here.work_tokens) * other.token_s
    cost_s = copied_s + max(0.0, there.wait_s - here.wait_s)
    affordable = pool.relief_s.at(now_s) + cost_s / TRAFFIC_S <= RELIEF_SHARE * pool.work_s.at(now_s)
    return (other, cost_s) if affordable and there.comfortable else (chosen, 0.0)


def calmest(candidates: Sequence[Candidate], demand: Demand, now_s: float, rng: Random) -> Candidate | None:
    """The decode worker for which one more sequence costs least, or None where none can take it. Ties as above.

    A slow start lasts while others have room within the objective: an answer takes so long to finish that a fresh worker would
    stand half idle beside late ones for minutes.
    """
    best: list[Candidate] = []
    for slow_start in (SLOW_START, inf):
        best, lowest, late = [], inf, True
        for one in candidates:
            requests, speed = one.load.requests, one.speed
            if requests >= slow_start and requests >= slow_start + 2 * speed.finished:
                continue
            if not _has_room(one, demand):
                continue
            pool = speed.pool
            terms = pool.terms(demand.objective)
            growth_s = terms.growth_s * speed.output_token.value
            tpot_s = terms.step_s * speed.output_token.value + growth_s * (requests + 1)
            cost = (tpot_s + requests * growth_s) * terms.per_tpot
            if demand.adapter is not None and demand.adapter not in one.adapters:
                cost += pool.adapter_s * terms.per_ttft
            misses = tpot_s > terms.bounds[1]
            if misses:
                cost += 1 - chance_of(demand.objective, (0.0, tpot_s), pool, pool)
            if cost < lowest:
                best, lowest, late = [one], cost, misses
            elif cost == lowest:
                best.append(one)
        if not late:
            break
    return best[0] if len(best) == 1 else _calm(best, rng, now_s)


def _calm(equal: Sequence[Candidate], rng: Random, now_s: float) -> Candidate | None:
    """Of equal ones those with the fewest requests in flight; of two of these at random the one that had less to do of late."""
    if not equal:
        return None
    fewest = min([one.load.requests for one in equal])
    equal = [one for one in equal if one.load.requests == fewest]
    count = len(equal)
    if count == 1:
        return equal[0]
    at = int(rng.random() * count)
    one, other = equal[at], equal[(at + 1 + int(rng.random() * (count - 1))) % count]
    return one if one.speed.busy.at(now_s) <= other.speed.busy.at(now_s) else other
