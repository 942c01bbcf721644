"""Where one attempt goes: its leases, what was promised, and how its workers' guard hears of it.

A worker that is not sound is tried with one request at a time. The place of that request knows which trial of the worker it is:
when the place is given back undecided, another request may already be trying the worker.
"""

from dataclasses import dataclass

from forebay_router.accounting import Record
from forebay_router.choose import Choice
from forebay_router.errors import WorkerFailure
from forebay_router.health.guard import Guard
from forebay_router.learning import Trip
from forebay_router.leases import Lease
from forebay_router.metrics import PoolStats
from forebay_router.table import Worker


@dataclass(slots=True)
class Place:
    """The leases of one attempt, given back once, on any exit."""

    lease: Lease[Worker]
    """On the worker that answers the client."""
    prefill: Lease[Worker] | None
    """On the worker that computes the prompt, when that is another one."""
    choice: Choice
    trip: Trip
    """What was promised."""
    guard: Guard
    filler: bool = False
    """It is of low priority, and counted as such on its worker."""
    failed: bool = False
    """Its failure has been told to the guard."""
    trials: tuple[tuple[Worker, int], ...] = ()
    """Its workers that are not sound and are tried with it, and which trial of theirs that is."""

    @property
    def pools(self) -> tuple[PoolStats, ...]:
        """Pools that take part."""
        if self.prefill is None:
            return (self.lease.worker.pool_stats,)
        return (self.prefill.worker.pool_stats, self.lease.worker.pool_stats)

    def note(self, record: Record) -> None:
        """Tell who takes part."""
        record.chosen_s = self.trip.sent_s
        record.pools = self.pools
        record.worker = self.lease.worker.spec.name
        record.prefill_worker = self.prefill.worker.spec.name if self.prefill else None

    def prefilled(self, now_s: float) -> None:
        """The prefill leg has ended well, at this time."""
        if self.prefill is not None and self.prefill.held:
            self.trip.prefilled_s = now_s
            self.prefill.prefilled()
            self.prefill.release()

    def answered(self, worker: Worker) -> None:
        """A worker has begun to answer."""
        if not worker.health.sound:
            self.guard.answered(worker)

    def broke(self, worker: Worker, failure: WorkerFailure) -> None:
        """The attempt has failed, on this one of its workers."""
        self.failed = True
        self.guard.failed(worker, failure.reason, failure.message, self.trip.sent_s)

    def release(self) -> None:
        """Give everything back."""
        if self.prefill is not None and self.prefill.held:
            self.prefill.release()
        self.lease.release()
        if self.filler:
            self.lease.worker.fillers -= 1
        for worker, trial in self.trials:  # those whose answer or failure was told are on trial no more
            if worker.health.trial == trial:
                self.guard.undecided(worker)
