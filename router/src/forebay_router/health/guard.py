"""Takes failing workers out of routing and lets them back in; never so many that the others could not do without them.

`failed` and `answered` are told of every attempt, `finished` of every end; a healthy worker's cost is one comparison each.
`sweep` ends rests.

Bounds. Of the ready workers of a role at most `SHARE_MAX` are ejected as failing or frozen, and always one that can be reached
is left, also when the number of ready workers shrinks later: then the one whose rest would end first is used again. A worker
that cannot be reached is left alone in any case, since sending to it does not help; requests wait for it, or for another. They
wait for no more than that: while nobody else is there, its trial is over when it accepts the connection. The answer may take
minutes.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from forebay_api.modelservice import Role
from forebay_router.errors import FailureReason
from forebay_router.health.breaker import Cause, Condition
from forebay_router.table import Service, Worker, WorkerState, WorkerTable
from forebay_router.upstream import Upstreams

log = logging.getLogger(__name__)

SHARE_MAX: Final = 0.5
NOT_THE_WORKERS: Final = frozenset(
    {FailureReason.TOTAL_TIMEOUT, FailureReason.SHUTDOWN, FailureReason.ROUTER_ERROR, FailureReason.DEADLINE}
)
"""Ways to fail that say nothing of the worker."""


@dataclass(slots=True)
class PoolCounts:
    """Of one pool, so far."""

    ejections: dict[Cause, int] = field(default_factory=lambda: dict.fromkeys(Cause, 0))
    spared: int = 0
    """Times that a failing worker was left in because too few others were there."""


@dataclass(slots=True)
class Guard:
    """Decides who is left alone."""

    table: WorkerTable
    counts: dict[tuple[str, str], PoolCounts] = field(default_factory=dict)
    """By service and pool."""

    def counts_of(self, service: Service, pool: str) -> PoolCounts:
        """Of a pool, from zero."""
        return self.counts.setdefault((str(service.spec.key), pool), PoolCounts())

    # -- what happens to requests -------------------------------------------------------------------------------------

    def failed(self, worker: Worker, reason: FailureReason, message: str, sent_s: float) -> None:
        """An attempt on a worker failed, that began at a monotonic time."""
        health = worker.health
        if reason in NOT_THE_WORKERS or health.condition is Condition.EJECTED or sent_s < health.ejected_s:
            return  # what was sent before the last ejection has been judged by it
        now_s = time.monotonic()
        health.failed()
        health.detail = f"{reason.value}: {message}"
        if reason is FailureReason.CONNECT:
            self._eject(worker, Cause.UNREACHABLE, now_s)
        elif health.condition is not Condition.SOUND or health.failing(self._others_share(worker)):
            self._eject_if_others(worker, Cause.FAILING, now_s)

    def answered(self, worker: Worker) -> None:
        """A worker that is not sound has begun to answer."""
        if worker.health.condition is Condition.TRIAL:
            worker.health.restore()
            log.info("worker is back", extra={"worker": worker.spec.name})
            self._regroup(worker)

    def undecided(self, worker: Worker) -> None:
        """A request has ended without telling anything of its worker."""
        if worker.health.condition is Condition.TRIAL:
            worker.health.probe()
            self._regroup(worker)

    def try_out(self, *workers: Worker) -> None:
        """A request is sent to a worker that is not sound, or to a pair of such. Who waits must not get one of them meanwhile."""
        begun = [worker for worker in workers if worker.health.condition is not Condition.TRIAL]
        for worker in begun:
            if worker.health.cause is Cause.UNREACHABLE:
                Upstreams.close_idle(worker.peer)  # whether it accepts a connection is what a trial has to tell
            worker.health.try_out()
        if begun:
            self._regroup(begun[0])

    def freeze(self, worker: Worker, detail: str) -> bool:
        """It makes no progress with anything. False when it is left in, since too few others are there."""
        worker.health.detail = detail
        return self._eject_if_others(worker, Cause.FROZEN, time.monotonic())

    # -- ejecting -----------------------------------------------------------------------------------------------------

    def _eject_if_others(self, worker: Worker, cause: Cause, now_s: float) -> bool:
        """Eject a worker that can be spared."""
        service = self.table.services.get(worker.spec.service)
        if worker.peer.gone or service is None:
            return False
        role = worker.spec.role
        out = sum(one is not worker and _out(one) for one in _of_role(service, role))
        if out + 1 > _spare(service, role):
            if cause is Cause.FAILING:
                self.counts_of(service, worker.spec.pool).spared += 1
            if not worker.health.sound:
                worker.health.restore()
                self._regroup(worker)
            return False
        self._eject(worker, cause, now_s)
        return True

    def _eject(self, worker: Worker, cause: Cause, now_s: float) -> None:
        health = worker.health
        health.eject(cause, now_s)
        service = self.table.services.get(worker.spec.service)
        if service is None:
            return
        self.counts_of(service, worker.spec.pool).ejections[cause] += 1
        log.warning(
            "worker is left alone for %.1f s",
            health.until_s - now_s,
            extra={"worker": worker.spec.name, "cause": cause.value, "detail": health.detail},
        )
        self._regroup(worker)

    def _others_share(self, worker: Worker) -> float:
        """Share of failures of the other workers of its role."""
        service = self.table.services.get(worker.spec.service)
        if service is None:
            return 0.0
        others = [one.health for one in _of_role(service, worker.spec.role) if one is not worker]
        attempts = sum(one.attempts for one in others)
        return sum(one.failing_share * one.attempts for one in others) / attempts if attempts else 0.0

    # -- coming back --------------------------------------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """End rests that are over, and those of workers that cannot be spared any more."""
        for service in self.table.services.values():
            if all(worker.health.sound for worker in service.workers.values()):
                continue
            due = [worker for worker in service.workers.values() if worker.health.due(now_s)]
            for worker in due:
                worker.health.probe()
            needed = [worker for role in Role for worker in self._needed(service, role)]
            needed += _reached(service)
            for worker in needed:
                worker.health.restore()
            if due or needed:
                self.table.regroup(service, now_s)

    @staticmethod
    def _needed(service: Service, role: Role) -> list[Worker]:
        """Ejected workers that are more than may be spared, those first whose rest ends first."""
        out = sorted((one for one in _of_role(service, role) if _out(one)), key=lambda one: one.health.until_s)
        return out[: max(0, len(out) - _spare(service, role))]

    def revive(self, worker: Worker) -> None:
        """A frozen worker has shown a sign of life: try it with a request."""
        if worker.health.condition is Condition.EJECTED:
            worker.health.probe()
            self._regroup(worker)

    def rest_on(self, worker: Worker, now_s: float) -> None:
        """A frozen worker has shown none."""
        worker.health.eject(Cause.FROZEN, now_s)

    def _regroup(self, worker: Worker) -> None:
        service = self.table.services.get(worker.spec.service)
        if service is not None and not worker.peer.gone:
            self.table.regroup(service, time.monotonic())


def _reached(service: Service) -> list[Worker]:
    """Workers on trial that accepted a connection since, which was what was in doubt, where nobody else is there to answer."""
    if not service.snapshot.empty:
        return []
    return [
        worker
        for worker in service.workers.values()
        if worker.health.condition is Condition.TRIAL
        and worker.health.cause is Cause.UNREACHABLE
        and worker.peer.accepted_s > worker.health.until_s
    ]


def _of_role(service: Service, role: Role) -> Iterable[Worker]:
    """Ready workers of a role."""
    return (one for one in service.workers.values() if one.spec.role is role and one.spec.state is WorkerState.READY)


def _out(worker: Worker) -> bool:
    """Ejected although it can be reached."""
    return worker.health.condition is Condition.EJECTED and worker.health.cause is not Cause.UNREACHABLE


def _spare(service: Service, role: Role) -> int:
    """How many workers of a role may be ejected at once."""
    ready = list(_of_role(service, role))
    unreachable = sum(
        one.health.condition is Condition.EJECTED and one.health.cause is Cause.UNREACHABLE for one in ready
    )
    return max(0, min(int(len(ready) * SHARE_MAX), len(ready) - unreachable - 1))
