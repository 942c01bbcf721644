"""Requests that wait here: for a first worker, or for room on one.

Who waits stands in a fair queue for each service (`admission.fair_queue`: shares by priority and tenant, bounded in number and
bytes). When workers or room appear, places are given out in its order and in one go: the place (with its leases) is taken for
the waiting request before its task runs, so that a first worker does not get everything that waited at once, and a newcomer
does not overtake. A request whose worker failed goes before all others: it had its turn. Some workers are left out for it, so
it does not stand in their way either. Nor does one that none of those that are there can take (it cannot be split, and the one
worker that need not split it is left alone): it is set aside, and stands with those, when its turn has come to be looked at.

`find` is asked again whenever something changes (a lease ends, a prompt is computed, a worker comes), and when the time has
come that it named itself. `WorkerTable.waiting` tells the table whether anybody would care.

How long. Without any worker, a request is held for `hold_s`: the pool may be asleep, and the pending count wakes it. While
there are workers and they are full, as long as it might have waited in the engine: until `Wait.until_s`. In both cases not
longer than its client waits; one that cannot be in time by the predicted wait is refused at once. The prediction is what will
be served before it, in seconds of a worker's time, over the rate at which the queue is being served; it is also what Retry-
After tells.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil, inf, isfinite
from typing import Final, Generic, TypeVar

from forebay_router import errors
from forebay_router.admission.claim import Claim, Priority
from forebay_router.admission.drain_rate import DrainRate
from forebay_router.admission.fair_queue import FairQueue
from forebay_router.admission.lane import Entry
from forebay_router.admission.room import ANYHOW, Cause, Held, Turn
from forebay_router.admission.turns import LOOK_AGAIN_MIN_S, give_out
from forebay_router.errors import RequestRefused
from forebay_router.table import Service, ServiceKey, WorkerTable

Place = TypeVar("Place")

RETRY_AFTER_MAX_S: Final = 60
"""Official clients take no heed of a longer one and come back at once."""


class Refusal(StrEnum):
    """Why a request was not let wait, or waited in vain. Values are metric labels."""

    FULL = "full"
    """Too many, or too large ones, wait already."""
    SHARE = "share"
    """The queue is full and its tenant has the most in it."""
    DEADLINE = "deadline"
    """Its client would not wait that long."""
    TIMEOUT = "timeout"
    """The workers had no room for as long as it may wait for that."""
    NO_WORKER = "no_worker"
    """There was none for as long as it is held for one."""


@dataclass(frozen=True, slots=True)
class Wait(Generic[Place]):
    """What a request waits for."""

    find: Callable[[Turn], Place | Held]
    """Takes a place, or tells why not yet."""
    claim: Claim
    cost: float
    """Predicted seconds of a worker's time."""
    size_bytes: int
    until_s: float
    """Monotonic time at which it stops to wait for room, while there are workers."""
    due_s: float = inf
    """Monotonic time from which it does not wait for the sake of the others' pace."""
    failed_s: float | None = None
    """It had its turn, and its worker failed: monotonic time from which it is held for another. None for all others."""


@dataclass(slots=True, eq=False)
class _Waiter(Generic[Place]):
    wait: Wait[Place]
    future: "asyncio.Future[Place]"
    since_s: float
    held_s: float | None
    """Monotonic time from which it is held for a worker that can take it, before all others; None while it is in the queue."""


@dataclass(slots=True)
class Counts:
    """Of one service's queue at one priority, so far."""

    served: int = 0
    waited_s: float = 0.0
    """Sum over those served."""
    refused: dict[Refusal, int] = field(default_factory=lambda: dict.fromkeys(Refusal, 0))


@dataclass(slots=True)
class Line(Generic[Place]):
    """One service's queue."""

    queue: FairQueue[_Waiter[Place]]
    again: dict[_Waiter[Place], None] = field(default_factory=dict)
    drain: DrainRate = field(default_factory=DrainRate)
    counts: dict[Priority, Counts] = field(default_factory=lambda: {one: Counts() for one in Priority})
    held: dict[Priority, Held] = field(default_factory=dict)
    """Why those that wait do, as of the last look."""
    timer: asyncio.TimerHandle | None = None
    """Looks again when a place was promised for later."""
    looking: bool = False
    """Places are being given out. To take one for a trial changes who is offered, which wakes the line again."""

    @property
    def requests(self) -> int:
        """How many wait."""
        return self.queue.requests + len(self.again)

    def predicted_wait_s(self, claim: Claim, now_s: float) -> float | None:
        """How long a newcomer would wait; None when unknown."""
        if not self.queue.requests:
            return 0.0
        rate = self.drain.per_s(now_s)
        return None if rate is None else self.queue.cost_ahead(claim) / rate


@dataclass(slots=True)
class Pending(Generic[Place]):
    """The queues of all services."""

    table: WorkerTable
    release: Callable[[Place], None]
    """Gives a place back that its request can no longer use."""
    requests_max: int
    """Most requests that wait for one service, at one priority."""
    size_bytes_max: int
    """Most bytes of bodies of those."""
    lines: dict[ServiceKey, Line[Place]] = field(default_factory=dict)

    def waiting(self, service: Service) -> bool:
        """Somebody waits in this service's queue."""
        line = self.lines.get(service.spec.key)
        return line is not None and line.queue.requests > 0

    def line_of(self, service: Service) -> Line[Place]:
        """The service's queue, made when it is needed first."""
        line = self.lines.get(service.spec.key)
        if line is None:
            line = self.lines[service.spec.key] = Line(FairQueue(self.requests_max, self.size_bytes_max))
        return line

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def wait(self, service: Service, wait: Wait[Place]) -> Place:
        """A place, once there is one; raises RequestRefused when there is no room to wait, or it waited in vain."""
        line = self.line_of(service)
        now_s = time.monotonic()
        waiter = _Waiter(wait, asyncio.get_running_loop().create_future(), now_s, wait.failed_s)
        entry = self._enter(service, line, waiter)
        service.stats.pending += 1
        self.table.waiting += 1
        self.wake(service)
        try:
            await self._until_placed(service, waiter)
            place: Place = waiter.future.result()
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise
        finally:
            service.stats.pending -= 1
            self.table.waiting -= 1
            line.again.pop(waiter, None)
            if entry is not None:
                line.queue.remove(entry)
            if not line.requests and line.timer is not None:
                line.timer.cancel()
                line.timer = None
        return place

    def _enter(self, service: Service, line: Line[Place], waiter: _Waiter[Place]) -> Entry[_Waiter[Place]] | None:
        """Stand in the queue; a request that had its turn stands before it."""
        wait, now_s = waiter.wait, waiter.since_s
        if wait.failed_s is not None:
            line.again[waiter] = None
            return None
        if not line.queue.requests:
            line.drain.begin(now_s, float(len(service.snapshot.by_uid)))
        claim = wait.claim
        self._check_deadline(service, line, wait, now_s)
        for victim in line.queue.make_room(claim, wait.size_bytes):
            refused = self.refuse(service, victim.claim, Refusal.SHARE)
            victim.item.future.set_exception(refused)
        entry = line.queue.add(waiter, claim, cost=wait.cost, size_bytes=wait.size_bytes, due_s=wait.due_s)
        if entry is None:
            alone = all(other.claim.tenant == claim.tenant for other in line.queue)
            raise self.refuse(service, claim, Refusal.FULL if alone else Refusal.SHARE)
        return entry

    def _check_deadline(self, service: Service, line: Line[Place], wait: Wait[Place], now_s: float) -> None:
        """Refuse now what would be refused later: its client gives up before its turn can come. The unknown refuses nobody."""
        patience_s = wait.claim.until_s - now_s
        if not isfinite(patience_s):
            return
        predicted_s = None if service.snapshot.empty else line.predicted_wait_s(wait.claim, now_s)
        if patience_s <= 0 or (predicted_s is not None and predicted_s > patience_s):
            raise self.refuse(service, wait.claim, Refusal.DEADLINE)

    async def _until_placed(self, service: Service, waiter: _Waiter[Place]) -> None:
        wait, future = waiter.wait, waiter.future
        while not future.done():
            now_s = time.monotonic()
            since_s = waiter.since_s if waiter.held_s is None else waiter.held_s
            limit_s, why = since_s + service.spec.timeouts.hold_s, Refusal.NO_WORKER
            if waiter.held_s is None and not service.snapshot.empty:
                limit_s, why = max(limit_s, wait.until_s), Refusal.TIMEOUT
            if now_s >= wait.claim.until_s:
                raise self.refuse(service, wait.claim, Refusal.DEADLINE)
            if now_s >= limit_s:
                raise self.refuse(service, wait.claim, why)
            await asyncio.wait((future,), timeout=min(limit_s, wait.claim.until_s) - now_s)

    def _give_back(self, waiter: _Waiter[Place]) -> None:
        """The place may have been taken in the moment in which the wait ended."""
        future = waiter.future
        if future.done() and not future.cancelled() and future.exception() is None:
            self.release(future.result())

    # -- refusing -----------------------------------------------------------------------------------------------------

    def refuse(self, service: Service, claim: Claim, why: Refusal) -> RequestRefused:
        """The error for a request that is not served here, counted; with the time after which it is worth coming back."""
        line = self.line_of(service)
        line.counts[claim.priority].refused[why] += 1
        model = service.spec.models[0]
        retry_after_s = self.retry_after_s(service, claim)
        match why:
            case Refusal.FULL:
                return errors.queue_full(model, retry_after_s)
            case Refusal.SHARE:
                return errors.queue_share(model, retry_after_s)
            case Refusal.DEADLINE:
                return errors.deadline(model, retry_after_s)
            case Refusal.TIMEOUT:
                return errors.overloaded(model, retry_after_s)
            case Refusal.NO_WORKER:
                return errors.no_worker(model, retry_after_s)

    def retry_after_s(self, service: Service, claim: Claim) -> int:
        """Whole seconds until a newcomer would get its turn; half the hold time when that is unknown."""
        predicted_s = None
        if not service.snapshot.empty:
            predicted_s = self.line_of(service).predicted_wait_s(claim, time.monotonic())
        if predicted_s is None:
            predicted_s = service.spec.timeouts.hold_s / 2
        return min(RETRY_AFTER_MAX_S, max(1, ceil(predicted_s)))

    # -- giving out places --------------------------------------------------------------------------------------------

    def wake(self, service: Service) -> None:
        """Give out places in order, as far as they go."""
        line = self.lines.get(service.spec.key)
        if line is None or not line.requests or line.looking:
            return  # a look within a look would give a second place to the request that is being given one
        line.looking = True
        try:
            self._give_out(service, line)
        finally:
            line.looking = False

    def _give_out(self, service: Service, line: Line[Place]) -> None:
        soonest_s = self._serve_again(line)
        now_s = time.monotonic()

        def take(entry: Entry[_Waiter[Place]]) -> Held | None:
            waiter = entry.item
            found = waiter.wait.find(Turn(entry.late, now_s >= entry.due_s))
            if isinstance(found, Held):
                if found.cause is Cause.NOT_HERE:
                    self._set_aside(service, line, waiter)
                return found
            line.drain.served(entry.cost, now_s)
            counts = line.counts[entry.claim.priority]
            counts.served += 1
            counts.waited_s += now_s - waiter.since_s
            waiter.future.set_result(found)
            return None

        line.held = give_out(line.queue, take, now_s)
        self._look_again(service, line, min([soonest_s, *(why.again_s for why in line.held.values())]))

    def _set_aside(self, service: Service, line: Line[Place], waiter: _Waiter[Place]) -> None:
        """It leaves the queue for those that had their turn, if they are not too many. It waits no longer for that."""
        if len(line.again) >= self.requests_max:
            waiter.future.set_exception(self.refuse(service, waiter.wait.claim, Refusal.FULL))
            return
        waiter.held_s = waiter.since_s
        line.again[waiter] = None

    @staticmethod
    def _serve_again(line: Line[Place]) -> float:
        """Requests that had their turn; after how many seconds it is worth looking again."""
        soonest_s = inf
        for waiter in tuple(line.again):
            if waiter.future.done():
                continue
            found = waiter.wait.find(ANYHOW)
            if isinstance(found, Held):
                soonest_s = min(soonest_s, found.again_s)
            else:
                waiter.future.set_result(found)
        return soonest_s

    def _look_again(self, service: Service, line: Line[Place], seconds: float) -> None:
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        if line.requests and isfinite(seconds):
            loop = asyncio.get_running_loop()
            line.timer = loop.call_later(max(LOOK_AGAIN_MIN_S, seconds), self.wake, service)
