"""Which workers leave on scale-down, and when: a pure plan.

A victim is first *marked* (label and annotation; routers stop sending within a watch event), then waited for until it is
idle or its time is over, then *released* (its deletion cost goes to the bottom) and only then is the Deployment's `replicas`
lowered, by as many as were released. The ReplicaSet controller deletes pods in the order

    not ready first, then lowest pod-deletion-cost, then youngest

so for the Deployment to lose exactly the released pods, victims must be chosen by an order that starts the same way:

    not ready (nothing to lose), already marked (its drain is under way), fewest requests in flight, youngest

A number of requests in flight that could not be read is unknown, and unknown counts as busy: such a worker is chosen last
and is waited for until the timeout. A worker that is not ready and does not answer has none; one without an address never
had any.

Scaling up again while victims drain unmarks them: a warm worker is the cheapest capacity there is. A worker that somebody
else labelled as draining (no annotation of ours) is left as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from forebay_operator.pods import Worker

POLL_S: Final = 1.0
"""Pause between two looks at draining workers."""


@dataclass(frozen=True, slots=True)
class DrainTimes:
    """How long things may take, in seconds."""

    grace_s: float
    """An empty worker counts as idle only after this, since a router may just have sent to it."""
    timeout_s: float
    """Afterwards a worker is released whatever it does."""


@dataclass(frozen=True, slots=True)
class Release:
    """A victim that may go now."""

    worker: Worker
    timed_out: bool
    """Whether it still had (or may have had) requests."""


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """What to do now, in this order: unmark, mark, release, set replicas."""

    unmark: tuple[Worker, ...]
    mark: tuple[Worker, ...]
    release: tuple[Release, ...]
    replicas: int
    """What the Deployment's `replicas` should be now."""
    is_waiting: bool = False
    """Whether victims are left that have not been released."""

    @property
    def retry_after_s(self) -> float | None:
        """When to look again; None when nothing drains."""
        return POLL_S if self.is_waiting else None


Loads = Mapping[str, float | None]
"""Requests in flight by worker name; None or absent is unknown."""


def plan_drain(
    *, wanted: int, current: int | None, workers: Sequence[Worker], loads: Loads, times: DrainTimes, now: datetime
) -> DrainPlan:
    """The next step from `current` replicas of the Deployment (None before it exists) to `wanted`."""
    candidates = [worker for worker in workers if not worker.is_terminating]
    marked = [worker for worker in candidates if worker.drain_started_at is not None]
    leaving_count = max(0, len(candidates) - wanted)
    if current is None or wanted >= current:
        # Released workers stay marked until the ReplicaSet controller has deleted them, or it would take others.
        leaving = sorted(marked, key=lambda worker: _rank(worker, loads))[:leaving_count]
        stays = {worker.uid for worker in marked} - {worker.uid for worker in leaving}
        unmark = tuple(worker for worker in marked if worker.uid in stays)
        return DrainPlan(unmark=unmark, mark=(), release=(), replicas=wanted)
    victims = sorted(candidates, key=lambda worker: _rank(worker, loads))[:leaving_count]
    victim_uids = {worker.uid for worker in victims}
    released = [release for worker in victims if (release := _release(worker, loads, times=times, now=now))]
    released_uids = {release.worker.uid for release in released}
    # The Deployment may ask for more than exists (no room, a quota): what does not exist goes first, at no cost. And it may
    # have been lowered already for workers that are still about to be deleted.
    missing, surplus = max(0, current - len(candidates)), max(0, len(candidates) - current)
    return DrainPlan(
        unmark=tuple(worker for worker in marked if worker.uid not in victim_uids),
        mark=tuple(worker for worker in victims if worker.drain_started_at is None and worker.uid not in released_uids),
        release=tuple(release for release in released if not release.worker.is_released),
        replicas=max(wanted, current - missing - max(0, len(released) - surplus)),
        is_waiting=len(released) < len(victims),
    )


def _rank(worker: Worker, loads: Loads) -> tuple[bool, bool, bool, float, float]:
    """Order in which workers leave; the first parts follow the ReplicaSet controller's order."""
    load = loads.get(worker.name)
    return (
        worker.is_ready,
        not worker.is_released,
        worker.drain_started_at is None,
        float("inf") if load is None else load,
        -worker.created_at.timestamp(),
    )


def _release(worker: Worker, loads: Loads, *, times: DrainTimes, now: datetime) -> Release | None:
    """Whether a victim may go now; a victim must have been marked in an earlier look, unless it cannot have a request."""
    if worker.is_released or worker.pod_ip is None or (worker.cause is not None and not worker.is_ready):
        return Release(worker, timed_out=False)
    if worker.drain_started_at is None:
        return None
    drained_s = (now - worker.drain_started_at).total_seconds()
    load = loads.get(worker.name)
    is_busy = worker.is_ready if load is None else load > 0
    if not is_busy and drained_s >= times.grace_s:
        return Release(worker, timed_out=False)
    return Release(worker, timed_out=is_busy) if drained_s >= times.timeout_s else None
