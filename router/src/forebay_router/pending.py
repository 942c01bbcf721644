"""Requests for a known model that no worker can take now.

First come, first served, bounded per service in number and in time. When workers or room appear, places are given out in order
and in one go: the place (with its leases) is taken for the waiting request before its task runs, so that a first worker does
not get everything that waited at once, and a newcomer does not overtake.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from forebay_router import errors
from forebay_router.table import Service, ServiceKey

Place = TypeVar("Place")


@dataclass(slots=True)
class _Waiter(Generic[Place]):
    find: Callable[[], Place | None]
    """Takes a place, or returns None when there is still none."""
    future: "asyncio.Future[Place]"
    picky: bool
    """Some workers are excluded for it: others may go ahead of it."""


@dataclass(slots=True)
class Pending(Generic[Place]):
    """The queues of all services."""

    limit: int
    """Most requests held for one service."""
    release: Callable[[Place], None]
    """Gives a place back that its request can no longer use."""
    queues: dict[ServiceKey, deque[_Waiter[Place]]] = field(default_factory=dict)

    def waiting(self, key: ServiceKey) -> bool:
        """Somebody waits for this service."""
        return bool(self.queues.get(key))

    async def wait(
        self, service: Service, find: Callable[[], Place | None], *, timeout_s: float, picky: bool = False
    ) -> Place:
        """A place, once there is one; raises RequestRefused when the queue is full or the time is over.

        A picky request, for which some workers are excluded, does not stand in the way of those behind it.
        """
        queue = self.queues.setdefault(service.spec.key, deque())
        model = service.spec.models[0]
        retry_after_s = max(1, round(timeout_s / 2))
        if len(queue) >= self.limit:
            raise errors.queue_full(model, retry_after_s)
        waiter = _Waiter(find, asyncio.get_running_loop().create_future(), picky)
        queue.append(waiter)
        service.stats.pending += 1
        self.wake(service)
        try:
            async with asyncio.timeout(timeout_s):
                place: Place = await waiter.future
                return place
        except TimeoutError as error:
            self._give_back(waiter)
            raise errors.no_worker(model, retry_after_s) from error
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise
        finally:
            service.stats.pending -= 1
            if waiter in queue:
                queue.remove(waiter)

    def _give_back(self, waiter: _Waiter[Place]) -> None:
        """The place may have been taken in the moment in which the wait ended."""
        if waiter.future.done() and not waiter.future.cancelled():
            self.release(waiter.future.result())

    def wake(self, service: Service) -> None:
        """Give out places in order, as far as they go."""
        queue = self.queues.get(service.spec.key)
        for waiter in tuple(queue or ()):
            if waiter.future.done():
                continue
            place = waiter.find()
            if place is not None:
                waiter.future.set_result(place)
            elif not waiter.picky:
                return
