"""Which worker, or pair of workers, a request goes to. Pure: no loop, no clock, no I/O.

`choose(demand, snapshot, rng, now_s) -> Choice | None` predicts, for every candidate,

    TTFT = wait for the prompts queued there + base + work of its own uncached tokens x seconds a token (+ adapter, + transfer)
    TPOT = seconds per output token with one more sequence in flight

from lines that are learnt from finished requests (`speed`), the queue (`backlog`) and what the prefix index says of each worker's
cache. The least cost wins. Cost is time as a share of the objective's, the request's own and the others':

    cost = (TTFT + later) / ttft + (TPOT + now) / tpot + chance to miss the objective

    later   what this prompt's computation delays prompts that come after it (`speed.strain`), and what has to be computed again
            because this prompt pushes it out of the cache (`predicting.Displacement`); while what is pushed out is missed, the
            computing itself counts twice: hits are worth a little more waiting, and first tokens come no later by that
    now     for each sequence that decodes there: the stall by this prompt, a token, and one more neighbour

Seconds before and after the first token are made comparable by the objective itself; there is nothing to tune. Equal costs:
fewest requests in flight, then the one of two random ones that had less to do of late.

A start that nearly every request shares counts as held by everybody here (`common_tokens`), or it would tie traffic to the
workers that are already warm. A prefix that a large share of requests has spreads by itself: when its workers' queues cost more
than computing it again, the next request goes elsewhere, and from then on one more worker has it. It need not come to a queue: a
worker that gets far more than its share of the prompts is relieved now and then of one that came twice in a row (`relief`; single
workers only: the prefill side of a pair waits for its queue to tell).

A request that may be split goes to a (prefill, decode) pair of one revision, since workers of different revisions cannot read
each other's KV cache. Both sides are independent given the revision, so the best pair is made of the best of each side. A worker
that can do both competes where its prefill speed is known, charged for the stall of the sequences that decode there and for those
that miss their objective by it (`predicting.harm_of`): it takes what its tokens leave time for. And while others decode there it
takes only prompts that hold them up for no longer than one token may take: in the queue of the prefill workers a long one is late
for itself alone, and grows the pool that is short. Where no pair exists the decode worker takes the request anyway.

At most `FIELD_MAX` candidates a side are looked at: four of those that hold most of the prompt, of equal ones random ones, and a
random run of the others. So 1,000 workers take hardly longer than 40.

Candidates hold live loads and speeds that others change; a snapshot is their grouping, made anew only when membership changes.
`choose` runs in one go on the loop's thread, so nothing moves under it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

from forebay_api.modelservice import Role
from forebay_router.fitting import work_of
from forebay_router.index.holders import Group, Held, deepest_of
from forebay_router.predicting import Candidate, Demand, Prediction, join, predict, predict_decode
from forebay_router.scoring import calmest, cheapest, relief
from forebay_router.speed import Origin

FIELD_MAX: Final = 20
_HOLDERS_MAX: Final = 4
_DECODE: Final = Role.DECODE


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The workers of one service that may get a request now."""

    mixed: tuple[Candidate, ...] = ()
    prefill: tuple[Candidate, ...] = ()
    decode: tuple[Candidate, ...] = ()
    by_uid: Mapping[str, Candidate] = field(default_factory=dict)
    pairs: tuple[tuple[tuple[Candidate, ...], tuple[Candidate, ...]], ...] = ()
    """Prefill and decode workers of each revision that has both."""
    decode_pools: tuple[tuple[Candidate, ...], ...] = ()
    """Decode workers of each pool: they are alike in what is known of their speed."""
    groups: dict[tuple[Role, Role, str | None, int], Group] = field(default_factory=dict, compare=False)
    """Pools that are too large to be looked at whole, made when first asked for."""

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> "Snapshot":
        """Group candidates by role, and tell their pools how many they are."""
        pools: dict[int, list[Candidate]] = {}
        for one in candidates:
            pools.setdefault(id(one.speed.pool), []).append(one)
        for members in pools.values():
            members[0].speed.pool.workers = len(members)
        prefill = tuple(one for one in candidates if one.role is Role.PREFILL)
        decode = tuple(one for one in candidates if one.role is Role.DECODE)
        revisions = sorted({one.revision for one in prefill} & {one.revision for one in decode})
        return cls(
            mixed=tuple(one for one in candidates if one.role is Role.MIXED),
            prefill=prefill,
            decode=decode,
            by_uid={one.uid: one for one in candidates},
            pairs=tuple(
                (
                    tuple(one for one in prefill if one.revision == revision),
                    tuple(one for one in decode if one.revision == revision),
                )
                for revision in revisions
            ),
            decode_pools=tuple(tuple(some) for some in pools.values() if some[0].role is Role.DECODE),
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
    BEST_CHANCE = "least cost, may miss the objective"
    RELIEF = "relieves a worker that holds the prompt and gets more than its share"
    PAIR = "least cost, prefill and decode apart"
    NO_PREFILL = "decode alone: no prefill worker of its revision"
    LOCAL = "decode alone: cheaper than prefill elsewhere"


@dataclass(slots=True)
class Choice:
    """Where a request goes, and why."""

    worker: Candidate
    """Answers the client."""
    prefill: Candidate | None
    """Computes the prompt, when that is another worker."""
    reason: Reason
    prediction: Prediction
    """Of the choice: for a pair TTFT is the pair's, wait and uncached tokens the prefill worker's."""
    sides: tuple[Prediction, ...]
    """Of the choice's workers, each by itself: prefill first."""
    looked_at: tuple[Sequence[Candidate], Sequence[Candidate]]
    """Workers that could compute the prompt, and those that could decode only."""
    demand: Demand
    now_s: float
    field: Mapping[str, Candidate]
    """The candidates by uid."""
    relief_s: float = 0.0
    """What it costs to relieve another worker: computing again what that one holds, and waiting longer than there."""

    def name_of(self, uid: str) -> str:
        """A candidate's name, for people."""
        candidate = self.field.get(uid)
        return candidate.name if candidate is not None and candidate.name else uid

    @property
    def considered(self) -> tuple[Prediction, ...]:
        """Predictions of every candidate that was looked at, of a pair each side by itself.

        Made when asked for, by the loads of that moment; those of the chosen ones are as they were.
        """
        chosen = {one.uid: one for one in self.sides}
        firsts, seconds = self.looked_at
        made = predict(firsts, self.demand, self.now_s) + predict_decode(seconds, self.demand)
        return tuple(chosen.get(one.uid, one) for one in made)


def choose(demand: Demand, snapshot: Snapshot, rng: Random, now_s: float) -> Choice | None:
    """The best candidate for a request, or None when no worker can take it now. `now_s` is monotonic seconds."""
    pair = None
    if demand.splittable and snapshot.pairs:
        pair = _choose_pair(demand, snapshot, rng, now_s)
    alone = _alone(demand, snapshot, rng, now_s, with_pair=pair is not None)
    if pair is None or alone is None:
        return alone or pair
    return alone if alone.prediction.cost < pair.prediction.cost else pair


def _alone(demand: Demand, snapshot: Snapshot, rng: Random, now_s: float, *, with_pair: bool) -> Choice | None:
    """The best single worker; beside a pair, of those where the prompt holds nobody up."""
    pool = _singles(snapshot, with_pair=with_pair)
    if not pool:
        return None
    field = _field(pool, demand, snapshot, rng)
    if with_pair:
        field = _holding_nobody_up(field, demand)
    chosen = cheapest(field, demand, now_s, rng, elsewhere=with_pair)
    if chosen is None and len(field) < len(pool) and not with_pair:
        field = pool
        chosen = cheapest(field, demand, now_s, rng)
    if chosen is None:
        return None
    relieved, relief_s = chosen, 0.0
    if demand.start and demand.start == chosen.speed.last_start:
        chosen, relief_s = relief(relieved, field, demand, now_s, rng)
    (prediction,) = sides = tuple(predict((chosen,), demand, now_s))
    reason = _reason(prediction, demand, alone=len(field) == 1 and not with_pair)
    if demand.splittable and chosen.role is Role.DECODE:
        reason = Reason.LOCAL if with_pair else Reason.NO_PREFILL
    if chosen is not relieved:
        reason = Reason.RELIEF
    return Choice(chosen, None, reason, prediction, sides, (field, ()), demand, now_s, snapshot.by_uid, relief_s)


def _singles(snapshot: Snapshot, *, with_pair: bool) -> tuple[Candidate, ...]:
    """Workers that can answer alone; beside a pair, Decode workers only where their prefill speed is known."""
    pool = snapshot.mixed
    if not with_pair:
        return pool + snapshot.decode if snapshot.decode else pool
    for some in snapshot.decode_pools:
        if some[0].speed.pool.origin is not Origin.ASSUMED:
            pool += some
    return pool


def _holding_nobody_up(field: Sequence[Candidate], demand: Demand) -> Sequence[Candidate]:
    """Those where no sequence that decodes waits for this prompt for longer than the objective gives it for a token."""
    prompt, cached, objective = demand.prompt_tokens, demand.cached, demand.objective
    kept = []
    for one in field:
        if one.role is _DECODE and one.load.requests:
            held = cached.get(one.uid, 0) if cached else 0
            bend = one.speed.pool.terms(objective).bend
            if work_of(prompt, prompt - held, bend) * one.token_s > objective.tpot_s:
                continue
        kept.append(one)
    return kept


def kept_out(demand: Demand, snapshot: Snapshot) -> tuple[Candidate, ...]:
    """Decode workers that no request like this one goes to alone, since those that decode there would wait for it too long."""
    if not (demand.splittable and snapshot.pairs):
        return ()
    pool = _singles(snapshot, with_pair=True)
    kept = {one.uid for one in _holding_nobody_up(pool, demand)}
    return tuple(one for one in pool if one.uid not in kept)


def _reason(prediction: Prediction, demand: Demand, *, alone: bool) -> Reason:
    if alone:
        return Reason.ONLY
    if not prediction.comfortable:
        return Reason.BEST_CHANCE
    return Reason.CACHED if demand.cached.get(prediction.uid, 0) > demand.common_tokens else Reason.LEAST_COST


def _choose_pair(demand: Demand, snapshot: Snapshot, rng: Random, now_s: float) -> Choice | None:
    """The best pair of one revision."""
    found: Choice | None = None
    for prefill, decode in snapshot.pairs:
        revision = prefill[0].revision
        firsts, seconds = (_field(side, demand, snapshot, rng, revision=revision) for side in (prefill, decode))
        first = cheapest(firsts, demand, now_s, rng) or cheapest(prefill, demand, now_s, rng)
        second = calmest(seconds, demand, now_s, rng) or calmest(decode, demand, now_s, rng)
        if first is None or second is None:
            continue
        sides = (predict((first,), demand, now_s)[0], predict_decode((second,), demand)[0])
        whole = join(sides[0], sides[1], (first.speed.pool, second.speed.pool), demand)
        if found is None or whole.cost < found.prediction.cost:
            looked_at = (firsts, seconds)
            found = Choice(second, first, Reason.PAIR, whole, sides, looked_at, demand, now_s, snapshot.by_uid)
    return found


def _field(
    pool: Sequence[Candidate], demand: Demand, snapshot: Snapshot, rng: Random, *, revision: str | None = None
) -> Sequence[Candidate]:
    """All of a few workers; of many, those that hold most of the prompt and a random run. `revision`: of one side of a pair."""
    if len(pool) <= FIELD_MAX:
        return pool
    # Decode workers join the single ones once their speed is known.
    key = pool[0].role, pool[-1].role, revision, len(pool)
    group = snapshot.groups.get(key)
    if group is None:
        group = snapshot.groups[key] = Group([one.uid for one in pool])
    some = {uid: snapshot.by_uid[uid] for uid in _holders(demand.cached, rng, group)}
    start = int(rng.random() * len(pool))
    run = pool[start : start + FIELD_MAX - _HOLDERS_MAX]
    if len(run) < FIELD_MAX - _HOLDERS_MAX:
        run = [*run, *pool[: FIELD_MAX - _HOLDERS_MAX - len(run)]]
    for one in run:
        some[one.uid] = one
    return list(some.values())


def _holders(cached: Mapping[str, int], rng: Random, group: Group) -> Sequence[str]:
    """Of a pool, some that hold most of the prompt. Others hold it, too: decode workers those of their pairs."""
    if isinstance(cached, Held):
        return cached.deepest(_HOLDERS_MAX, rng, group)
    return deepest_of(cached, _HOLDERS_MAX, rng, group) if cached else ()
