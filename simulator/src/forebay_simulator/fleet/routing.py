"""Which worker gets a request: what a policy is asked, and what simple routers do. The router's own choice is in choosing.py.

A policy sees what a router could see: the request's block ids (as the text of its prompt), the workers with what was sent to
them, and what came back. For pairs, the baselines choose the prefill worker by their rule and the decode worker by the least
requests, which is what their documentation advises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from forebay_router.admission.room import Held
from forebay_router.choose import Snapshot
from forebay_router.predicting import Candidate, Demand
from forebay_simulator.fleet.jobs import Job


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes."""

    worker: Candidate
    """Answers."""
    prefill: Candidate | None = None
    """Computes the prompt, when that is another worker."""
    prompt_tokens: int | None = None
    """Prompt tokens that are to be computed, where the policy predicts that; None is the whole prompt."""

    @property
    def computes(self) -> Candidate:
        """The worker that computes the prompt."""
        return self.prefill or self.worker


class Routing(Protocol):
    """A routing policy with whatever it remembers."""

    def choose(self, job: Job, demand: Demand, snapshot: Snapshot, now_s: float) -> Placement | Held | None:
        """The worker, or pair, for a request, to be carried out; why it is held, or None when no worker can take it."""
        ...

    def ended(self, job: Job) -> None:
        """The request has ended."""
        ...

    def gone(self, uid: str) -> None:
        """A worker is no more."""
        ...


Pick = Callable[[Job, Sequence[Candidate]], Candidate]
"""One of some workers, of which there is at least one."""
Forget = Callable[[str], None]
"""A worker is no more."""


class ByRule:
    """A rule for the worker that computes the prompt; the decode worker of a pair has the least requests."""

    def __init__(self, pick: Pick, chance: Random, forget: Forget | None = None) -> None:
        self._pick = pick
        self._chance = chance
        self._forget = forget

    def choose(self, job: Job, demand: Demand, snapshot: Snapshot, now_s: float) -> Placement | None:  # noqa: ARG002
        """Apply the rule to the workers that did not fail on the request."""
        if demand.splittable and snapshot.decode:
            prefill = [one for one in snapshot.prefill if one.uid not in demand.excluded]
            decode = [one for one in snapshot.decode if one.uid not in demand.excluded]
            if not prefill or not decode:
                return None
            return Placement(least_requests(decode, self._chance), self._pick(job, prefill))
        alone = [one for one in snapshot.mixed + snapshot.decode if one.uid not in demand.excluded]
        return Placement(self._pick(job, alone)) if alone else None

    def ended(self, job: Job) -> None:
        """Learns nothing from it."""

    def gone(self, uid: str) -> None:
        """Forget the worker."""
        if self._forget is not None:
            self._forget(uid)


def least_requests(candidates: Sequence[Candidate], chance: Random) -> Candidate:
    """The fewest requests in flight; ties at random."""
    lowest = min(one.load.requests for one in candidates)
    return chance.choice([one for one in candidates if one.load.requests == lowest])


def at_random(chance: Random) -> Routing:
    """Any worker."""
    return ByRule(lambda _job, candidates: chance.choice(candidates), chance)


def round_robin(chance: Random) -> Routing:
    """Each worker in turn."""
    turns = 0

    def pick(_job: Job, candidates: Sequence[Candidate]) -> Candidate:
        nonlocal turns
        turns += 1
        return candidates[(turns - 1) % len(candidates)]

    return ByRule(pick, chance)


def least_load(chance: Random) -> Routing:
    """The fewest requests in flight."""
    return ByRule(lambda _job, candidates: least_requests(candidates, chance), chance)
