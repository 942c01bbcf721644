"""Which worker, or pair of workers, a request goes to. Pure: no loop, no clock, no I/O.

`choose(demand, snapshot, rng, now_s) -> Choice | None` predicts, for every candidate,

    TTFT = wait for the prompts queued there + base + uncached tokens of its own x seconds a token   (+ transfer for a pair)
    TPOT = seconds per output token with one more sequence in flight

from lines that are learnt from finished requests (`speed`), the queue (`backlog`) and what the prefix index says of each worker's
cache. Then, in this order:

1. Candidates that will meet the objective with at least its target probability come first: both predicted times, stretched by
   the error that predictions have had, are within their limits. With none such, the one with the best chance wins.
2. Among them the least cost. Cost is the share of the objective's time that the choice uses up, its own and the others':

       cost = TTFT / ttft + TPOT / tpot + others x (delay of each one's output by this prompt and by this sequence) / tpot

   Seconds before and after the first token are made comparable by the objective itself; there is nothing to tune.
3. Equal costs: fewest requests in flight, then the random generator, or the first of equal workers would take every burst.

A start that nearly every request shares counts as held by everybody here (`common_tokens`), or it would tie traffic to the
workers that are already warm. A prefix that a large share of requests has spreads by itself: when its workers' queues cost more
than computing it again, the next request goes elsewhere, and from then on one more worker has it.

Slow start: a worker that has answered few requests gets at most `SLOW_START` + twice that many in flight while others have room;
its speed is a guess, and its empty queue would draw a burst.

A request that may be split goes to a (prefill, decode) pair of one revision, since workers of different revisions cannot read
each other's KV cache. Both sides are independent given the revision, so the best pair is made of the best of each side. A worker
that can do both competes where its prefill speed is known; where no pair exists it takes the request anyway.

At most `FIELD_MAX` candidates a side are predicted: those that hold most of the prompt and a random run of the others. With 24
random ones of 1,000 the least loaded is as good as found, and the time is the same for 10 workers and 1,000.

Candidates hold live loads and speeds that others change; a snapshot is their grouping, made anew only when membership changes.
`choose` runs in one go on the loop's thread, so nothing moves under it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

from forebay_api.modelservice import Role
from forebay_router.predicting import Candidate, Demand, Prediction, join, predict, predict_decode
from forebay_router.speed import Origin

SLOW_START: Final = 4
FIELD_MAX: Final = 32
_HOLDERS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The workers of one service that may get a request now."""

    mixed: tuple[Candidate, ...] = ()
    prefill: tuple[Candidate, ...] = ()
    decode: tuple[Candidate, ...] = ()
    by_uid: Mapping[str, Candidate] = field(default_factory=dict)

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> "Snapshot":
        """Group candidates by role."""
        return cls(
            mixed=tuple(one for one in candidates if one.role is Role.MIXED),
            prefill=tuple(one for one in candidates if one.role is Role.PREFILL),
            decode=tuple(one for one in candidates if one.role is Role.DECODE),
            by_uid={one.uid: one for one in candidates},
        )

    @property
    def empty(self) -> bool:
        """No candidate that can answer alone or in a pair."""
        return not self.mixed and not self.decode


class Reason(StrEnum):
    """Why a choice is what it is."""

    ONLY = "only candidate"
    CACHED = "least cost, holds part of the prompt"
    LEAST_COST = "least cost"
    BEST_CHANCE = "best chance to meet the objective"
    PAIR = "least cost, prefill and decode apart"
    NO_PREFILL = "decode alone: no prefill worker of its revision"
    LOCAL = "decode alone: cheaper than prefill elsewhere"


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a request goes, and why."""

    worker: Candidate
    """Answers the client."""
    prefill: Candidate | None
    """Computes the prompt, when that is another worker."""
    reason: Reason
    prediction: Prediction
    """Of the choice: for a pair TTFT is the pair's, wait and uncached tokens the prefill worker's."""
    considered: tuple[Prediction, ...]
    """Of every candidate that was looked at, the chosen one included; of a pair each side by itself."""
    field: Mapping[str, Candidate]
    """The candidates by uid."""

    def name_of(self, uid: str) -> str:
        """A candidate's name, for people."""
        candidate = self.field.get(uid)
        return candidate.name if candidate is not None and candidate.name else uid


def choose(demand: Demand, snapshot: Snapshot, rng: Random, now_s: float) -> Choice | None:
    """The best candidate for a request, or None when no worker can take it now. `now_s` is monotonic seconds."""
    pair = None
    if demand.splittable and snapshot.prefill and snapshot.decode:
        pair = _choose_pair(demand, snapshot, rng, now_s)
    alone = _alone(demand, snapshot, rng, now_s, with_pair=pair is not None)
    if pair is None or alone is None:
        return alone or pair
    better = alone.prediction.cost < pair.prediction.cost
    return alone if better else pair


def _alone(demand: Demand, snapshot: Snapshot, rng: Random, now_s: float, *, with_pair: bool) -> Choice | None:
    """The best single worker; beside a pair, Decode workers take part only where their prefill speed is known."""
    pool = snapshot.mixed
    if snapshot.decode and not with_pair:
        pool += snapshot.decode
    elif snapshot.decode:
        pool += tuple(one for one in snapshot.decode if one.speed.pool.origin is not Origin.ASSUMED)
    usable = _usable(pool, demand, snapshot, rng)
    if not usable:
        return None
    predictions = predict(usable, demand, now_s)
    index = _best(predictions, usable, rng)
    chosen = usable[index]
    reason = _reason(predictions[index], demand, alone=len(usable) == 1)
    if demand.splittable and chosen.role is Role.DECODE:
        reason = Reason.LOCAL if with_pair else Reason.NO_PREFILL
    return Choice(chosen, None, reason, predictions[index], tuple(predictions), snapshot.by_uid)


def _reason(prediction: Prediction, demand: Demand, *, alone: bool) -> Reason:
    if alone:
        return Reason.ONLY
    if not prediction.comfortable:
        return Reason.BEST_CHANCE
    return Reason.CACHED if demand.cached.get(prediction.uid, 0) > demand.common_tokens else Reason.LEAST_COST


def _choose_pair(demand: Demand, snapshot: Snapshot, rng: Random, now_s: float) -> Choice | None:
    """The best pair of one revision."""
    prefill = _usable(snapshot.prefill, demand, snapshot, rng)
    revisions = {one.revision for one in prefill}
    decode = [one for one in _usable(snapshot.decode, demand, snapshot, rng) if one.revision in revisions]
    if not decode:
        return None
    revisions = {one.revision for one in decode}
    prefill = [one for one in prefill if one.revision in revisions]
    firsts = predict(prefill, demand, now_s)
    seconds = predict_decode(decode, demand)
    found: Choice | None = None
    for revision in sorted(revisions):
        first = _best_of(revision, firsts, prefill, rng)
        second = _best_of(revision, seconds, decode, rng)
        pools = (prefill[first].speed.pool, decode[second].speed.pool)
        whole = join(firsts[first], seconds[second], pools, demand)
        if found is None or whole.cost < found.prediction.cost:
            found = Choice(decode[second], prefill[first], Reason.PAIR, whole, (*firsts, *seconds), snapshot.by_uid)
    return found


def _best_of(revision: str, predictions: Sequence[Prediction], candidates: Sequence[Candidate], rng: Random) -> int:
    """Index of the best candidate of a revision."""
    indices = [index for index, one in enumerate(candidates) if one.revision == revision]
    if len(indices) == len(candidates):
        return _best(predictions, candidates, rng)
    return indices[_best([predictions[index] for index in indices], [candidates[index] for index in indices], rng)]


# -- who may take it --------------------------------------------------------------------------------------------------


def _usable(pool: Sequence[Candidate], demand: Demand, snapshot: Snapshot, rng: Random) -> Sequence[Candidate]:
    """Candidates to predict: with room, not failed on this request, not beyond their slow start; at most `FIELD_MAX`."""
    if len(pool) > FIELD_MAX:
        field_of_few = _with_room(_some(pool, demand, snapshot, rng), demand)
        if field_of_few:
            return field_of_few
    return _with_room(pool, demand)


def _some(pool: Sequence[Candidate], demand: Demand, snapshot: Snapshot, rng: Random) -> Sequence[Candidate]:
    """Those that hold most of the prompt, and a random run of all."""
    role = {one.role for one in (pool[0], pool[-1])}
    cached = demand.cached
    holders = sorted(cached, key=cached.__getitem__, reverse=True)[: 2 * _HOLDERS_MAX] if cached else ()
    some: dict[str, Candidate] = {}
    for uid in holders:
        held = snapshot.by_uid.get(uid)
        if held is not None and held.role in role and len(some) < _HOLDERS_MAX:
            some[uid] = held
    start = int(rng.random() * len(pool))
    run = pool[start : start + FIELD_MAX - _HOLDERS_MAX]
    if len(run) < FIELD_MAX - _HOLDERS_MAX:
        run = [*run, *pool[: FIELD_MAX - _HOLDERS_MAX - len(run)]]
    for one in run:
        some[one.uid] = one
    return list(some.values())


def _with_room(pool: Sequence[Candidate], demand: Demand) -> Sequence[Candidate]:
    excluded = demand.excluded
    room = warm = [
        one for one in pool if (one.limit is None or one.load.requests < one.limit) and one.uid not in excluded
    ]
    if any(one.load.requests >= SLOW_START and one.load.requests >= _allowance(one) for one in room):
        warm = [one for one in room if one.load.requests < _allowance(one)]
    return warm or room


def _allowance(one: Candidate) -> int:
    """Requests in flight that a worker has earned."""
    return SLOW_START + 2 * one.speed.finished


# -- picking ----------------------------------------------------------------------------------------------------------


def _best(predictions: Sequence[Prediction], candidates: Sequence[Candidate], rng: Random) -> int:
    """Index of the best prediction; among equal ones of the fewest requests in flight, at random."""
    if len(predictions) == 1:
        return 0
    lowest = min(one.cost for one in predictions)
    ties = [at for at, one in enumerate(predictions) if one.cost == lowest]
    if len(ties) == 1:
        return ties[0]
    fewest = min(candidates[at].load.requests for at in ties)
    ties = [at for at in ties if candidates[at].load.requests == fewest]
    return ties[int(rng.random() * len(ties))]
