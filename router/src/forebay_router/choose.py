"""Which worker, or pair of workers, a request goes to. Pure: no loop, no clock, no I/O.

`choose(demand, snapshot, rng, now_s) -> Choice | None` picks the candidate with the least outstanding work. Work is counted at
dispatch (a lease), not when the worker says so, since a burst arrives before any worker could have said anything.

    work of a worker = (prompt tokens not yet prefilled) / prefill rate + (output tokens still expected) x seconds per token

where the rates of every candidate are known; else the number of requests in flight, which is the same order for equal
workers and equal requests. One unknown rate makes the whole comparison a count: seconds and counts never meet.

A request that may be split goes to a (prefill, decode) pair of one revision, since workers of different revisions cannot read
each other's KV cache; where no pair exists, to one worker that can do both: Mixed, or Decode, which computes the prompt itself.
Equal work is decided by the random generator, or the first of equal workers would take every burst.

Candidates hold live loads that the table changes; a snapshot is their grouping, made anew only when membership changes.
`choose` runs in one go on the loop's thread, so nothing moves under it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from forebay_api.modelservice import Role


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast one worker is."""

    prefill_tokens_per_s: float
    """Prompt tokens computed in a second."""
    output_token_s: float
    """Seconds of the worker that one more output token costs, at its usual batch size."""


@dataclass(slots=True)
class Load:
    """What was sent to a worker and has not ended. Changed by leases only."""

    requests: int = 0
    """Requests in flight."""
    prompt_tokens: int = 0
    """Estimated prompt tokens of requests whose first token has not come."""
    output_tokens: int = 0
    """Output tokens expected of the requests in flight."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker as `choose` sees it."""

    uid: str
    role: Role
    pool: str = ""
    revision: str = ""
    """Prefill and decode are paired only when these are equal."""
    load: Load = field(default_factory=Load)
    """Live."""
    rates: Rates | None = None
    """None while unknown."""
    limit: int | None = None
    """Most requests in flight at once; None is no limit."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The workers of one service that may get a request now."""

    mixed: tuple[Candidate, ...] = ()
    prefill: tuple[Candidate, ...] = ()
    decode: tuple[Candidate, ...] = ()
    alone: tuple[Candidate, ...] = ()
    """Those that can answer without a partner: Mixed and Decode."""
    timed: bool = False
    """Every candidate's rates are known, so work is in seconds."""
    limited: bool = False
    """Some candidate has a limit."""

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> "Snapshot":
        """Group candidates by role."""
        return cls(
            mixed=tuple(one for one in candidates if one.role is Role.MIXED),
            prefill=tuple(one for one in candidates if one.role is Role.PREFILL),
            decode=tuple(one for one in candidates if one.role is Role.DECODE),
            alone=tuple(one for one in candidates if one.role is not Role.PREFILL),
            timed=bool(candidates) and all(one.rates is not None for one in candidates),
            limited=any(one.limit is not None for one in candidates),
        )


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


class Reason(StrEnum):
    """Why a choice is what it is."""

    ONLY = "only candidate"
    LEAST_WORK = "least outstanding work"
    PAIR = "least outstanding work, prefill and decode apart"
    NO_PREFILL = "decode alone: no prefill worker of its revision"


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a request goes, and why."""

    worker: Candidate
    """Answers the client."""
    prefill: Candidate | None
    """Computes the prompt, when that is another worker."""
    reason: Reason
    candidates: tuple[Candidate, ...]
    """All that were considered."""
    works: tuple[float, ...]
    """Outstanding work of each before this request: seconds where the snapshot is timed, else requests."""

    def work_before(self, candidate: Candidate) -> float:
        """Outstanding work of one of the candidates when the choice was made."""
        return self.works[self.candidates.index(candidate)]


def work_of(candidate: Candidate, *, timed: bool) -> float:
    """Outstanding work of a worker: seconds when timed, else requests in flight."""
    load = candidate.load
    if not timed or candidate.rates is None:
        return load.requests
    return (
        load.prompt_tokens / candidate.rates.prefill_tokens_per_s + load.output_tokens * candidate.rates.output_token_s
    )


def _works(candidates: Sequence[Candidate], *, timed: bool) -> list[float]:
    if timed:
        return [work_of(one, timed=True) for one in candidates]
    return [one.load.requests for one in candidates]


def _usable(candidates: tuple[Candidate, ...], demand: Demand, snapshot: Snapshot) -> tuple[Candidate, ...]:
    """Candidates that did not fail on this request and have room."""
    excluded = demand.excluded
    if not excluded and not snapshot.limited:
        return candidates
    return tuple(
        one for one in candidates if one.uid not in excluded and (one.limit is None or one.load.requests < one.limit)
    )


def _least(works: Sequence[float], rng: Random) -> int:
    """Index of the least work; ties at random."""
    if len(works) == 1:
        return 0
    lowest = min(works)
    index = works.index(lowest)
    ties = works.count(lowest)
    if ties > 1:
        for _ in range(int(rng.random() * ties)):
            index = works.index(lowest, index + 1)
    return index


def choose(demand: Demand, snapshot: Snapshot, rng: Random, now_s: float) -> Choice | None:  # noqa: ARG001
    """The best candidate for a request, or None when no worker can take it now.

    `now_s` is monotonic seconds; predictions that age will need it, so callers pass it from the start.
    """
    if demand.splittable and snapshot.prefill and snapshot.decode and not snapshot.mixed:
        pair = _choose_pair(demand, snapshot, rng)
        if pair is not None:
            return pair
    alone = _usable(snapshot.alone, demand, snapshot)
    if not alone:
        return None
    works = _works(alone, timed=snapshot.timed)
    worker = alone[_least(works, rng)]
    if demand.splittable and worker.role is Role.DECODE:
        reason = Reason.NO_PREFILL
    else:
        reason = Reason.ONLY if len(alone) == 1 else Reason.LEAST_WORK
    return Choice(worker, None, reason, alone, tuple(works))


def _choose_pair(demand: Demand, snapshot: Snapshot, rng: Random) -> Choice | None:
    """Least-loaded decode worker that has a prefill partner, with the least-loaded such partner.

    Both sides are independent given the revision, so the best pair is the best of each side within one revision.
    """
    prefill = _usable(snapshot.prefill, demand, snapshot)
    revisions = {one.revision for one in prefill}
    decode = tuple(one for one in _usable(snapshot.decode, demand, snapshot) if one.revision in revisions)
    if not decode:
        return None
    decode_works = _works(decode, timed=snapshot.timed)
    worker = decode[_least(decode_works, rng)]
    if len(revisions) > 1:
        prefill = tuple(one for one in prefill if one.revision == worker.revision)
    prefill_works = _works(prefill, timed=snapshot.timed)
    partner = prefill[_least(prefill_works, rng)]
    return Choice(worker, partner, Reason.PAIR, prefill + decode, (*prefill_works, *decode_works))
