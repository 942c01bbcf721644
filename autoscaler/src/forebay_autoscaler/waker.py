"""Wakes pools that sleep, without Prometheus and between two cycles: the other task of the leading replica, beside the loop.

While a role of a service has no worker, the routers are asked every `interval_s`, and as soon as one holds a request the loop
decides on that service alone. Nothing asks while nothing sleeps.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from forebay_autoscaler.errors import AutoscalerError
from forebay_autoscaler.loop import Loop
from forebay_autoscaler.observation import ServiceKey

_log = logging.getLogger(__name__)


class Holders(Protocol):
    """Who holds requests."""

    async def held(self) -> dict[ServiceKey, float]:
        """Requests that wait for a worker, by model service; AutoscalerError."""
        ...


@dataclass(slots=True)
class Waker:
    """One replica's."""

    loop: Loop
    routers: Holders
    interval_s: float
    _failing: bool = False

    async def run(self) -> None:
        """Ask until cancelled. What fails is logged at the first failure and counted, and asked again."""
        while True:
            await asyncio.sleep(self.interval_s)
            try:
                if await self.check():
                    self.loop.metrics.wake_checks.labels("ok").inc()
            except Exception as error:  # noqa: BLE001 the task's boundary: the next one asks again
                self.loop.metrics.wake_checks.labels("failed").inc()
                if not self._failing:
                    _log.warning(
                        "routers cannot be asked for held requests, pools wake by Prometheus alone: %s: %s",
                        type(error).__name__,
                        error,
                        exc_info=not isinstance(error, AutoscalerError),
                    )
                self._failing = True
            else:
                self._failing = False

    async def check(self) -> bool:
        """Ask once, if anything sleeps; whether the routers were asked."""
        asleep = self.loop.asleep() if self.loop.leadership.leading else frozenset()
        if not asleep:
            return False
        held = await self.routers.held()
        await self.loop.wake({key: number for key, number in held.items() if key in asleep and number >= 1})
        return True
