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
    timed: bool = False
    """Every candidate's rates are known, so work is in seconds."""

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> "Snapshot":
        """Group candidates by role."""
        return cls(
            mixed=tuple(one for one in candidates if one.role is Role.MIXED),
            prefill=tuple(one for one in candidates if one.role is Role.PREFILL),
            decode=tuple(one for one in candidates if one.role is Role.DECODE),
            timed=bool(candidates) and all(one.rates is not None for one in candidates),
        )

    @property
    def empty(self) -> bool:
        """No candidate that can answer alone or in a pair."""
        return not self.mixed and not self.decode


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
    work: float
    """Outstanding work of `worker` before this request: seconds where the snapshot is timed, else requests."""
    considered: tuple[tuple[str, float], ...]
    """Every candidate's uid and outstanding work, for people who ask why."""


def work_of(candidate: Candidate, *, timed: bool) -> float:
    """Outstanding work of a worker: seconds when timed, else requests in flight."""
    load = candidate.load
    if not timed or candidate.rates is None:
        return load.requests
    return (
        load.prompt_tokens / candidate.rates.prefill_tokens_per_s + load.output_tokens * candidate.rates.output_token_s
    )


def _usable(candidates: tuple[Candidate, ...], excluded: frozenset[str]) -> tuple[Candidate, ...] | list[Candidate]:
    """Candidates that did not fail on this request and have room."""
    if not excluded and all(one.limit is None for one in candidates):
        return candidates
    return [
        one for one in candidates if one.uid not in excluded and (one.limit is None or one.load.requests < one.limit)
    ]


def _least(candidates: Sequence[Candidate], work: Sequence[float], rng: Random) -> int:
    """Index of the least work; ties at random."""
    if len(candidates) == 1:
        return 0
    lowest = min(work)
    first = work.index(lowest)
    ties = work.count(lowest)
    if ties == 1:
        return first
    wanted = int(rng.random() * ties)
    for _ in range(wanted):
        first = work.index(lowest, first + 1)
    return first


def choose(demand: Demand, snapshot: Snapshot, rng: Random, now_s: float) -> Choice | None:  # noqa: ARG001
    """The best candidate for a request, or None when no worker can take it now.

    `now_s` is monotonic seconds; predictions that age will need it, so callers pass it from the start.
    """
    timed = snapshot.timed
    if demand.splittable and snapshot.prefill and snapshot.decode and not snapshot.mixed:
        pair = _choose_pair(demand, snapshot, rng)
        if pair is not None:
            return pair
    alone = _usable(snapshot.mixed + snapshot.decode if snapshot.decode else snapshot.mixed, demand.excluded)
    if not alone:
        return None
    work = [work_of(one, timed=timed) for one in alone]
    index = _least(alone, work, rng)
    if demand.splittable and alone[index].role is Role.DECODE:
        reason = Reason.NO_PREFILL
    else:
        reason = Reason.ONLY if len(alone) == 1 else Reason.LEAST_WORK
    return Choice(alone[index], None, reason, work[index], tuple(zip([one.uid for one in alone], work, strict=True)))


def _choose_pair(demand: Demand, snapshot: Snapshot, rng: Random) -> Choice | None:
    """Least-loaded decode worker that has a prefill partner, with the least-loaded such partner.

    Both sides are independent given the revision, so the best pair is the best of each side within one revision.
    """
    prefill = _usable(snapshot.prefill, demand.excluded)
    revisions = {one.revision for one in prefill}
    decode = [one for one in _usable(snapshot.decode, demand.excluded) if one.revision in revisions]
    if not decode:
        return None
    decode_work = [work_of(one, timed=snapshot.timed) for one in decode]
    chosen = _least(decode, decode_work, rng)
    partners = [one for one in prefill if one.revision == decode[chosen].revision]
    partner_work = [work_of(one, timed=snapshot.timed) for one in partners]
    partner = _least(partners, partner_work, rng)
    considered = tuple(
        [(one.uid, work) for one, work in zip(partners, partner_work, strict=True)]
        + [(one.uid, work) for one, work in zip(decode, decode_work, strict=True)]
    )
    return Choice(decode[chosen], partners[partner], Reason.PAIR, decode_work[chosen], considered)
