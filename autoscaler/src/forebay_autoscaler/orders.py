"""Workers that were ordered and do not answer yet: how many, since when, and what they teach about start-up time. Pure.

Orders are a queue: a worker that becomes ready fulfils the oldest order, an order that is taken back was the newest one. A
worker that is lost without the number being lowered is ordered anew at that moment. An order was given at the look before the
one that sees it. What was already on its way when we began to look counts from then, which is too short and soon corrected.

Start-up varies (an image that is cached, weights that are not): the estimate follows longer ones at once and shorter ones
slowly, and while an order waits longer than the estimate, its age is the estimate. An order that is `OVERDUE` is not counted
on any more.
"""

from dataclasses import dataclass, replace
from typing import Final

STARTUP_MAX_S: Final = 900.0
"""Longest start-up that is believed; what takes longer was stuck, not starting."""
SHORTER: Final = 0.25
"""Weight of a start-up that took less than the estimate."""
OVERDUE: Final = 2.0
"""Start-up times after which an order is given up."""
OVERDUE_S: Final = 60.0
"""And at least so many seconds beyond."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Open orders, oldest first, and what fulfilled ones taught."""

    waiting: tuple[tuple[float, int], ...] = ()
    """(when, how many workers)."""
    ready: int | None = None
    """Workers that were ready at the last look."""
    startup_s: float = 0.0
    """Learnt; 0 until measured."""
    high: int = 0
    """Most workers that have been ready, of those wanted since: one that is lost and comes back is no more than there were."""
    fulfilled_s: float = float("-inf")
    """When an order last made them more than that."""
    seen_s: float | None = None
    """When we last looked: a number that has changed since was ordered then."""

    def follow(self, *, wanted: int, ready: int, now_s: float) -> "Orders":
        """The orders after one more look."""
        waiting, startup_s = list(self.waiting), self.startup_s
        came = 0 if self.ready is None else max(0, ready - self.ready)
        while came and waiting:
            at_s, count = waiting.pop(0)
            startup_s = _learn(startup_s, now_s - at_s)
            if count > came:
                waiting.insert(0, (at_s, count - came))
            came -= min(came, count)
        # Those that drain are still ready, and no high that a later order would have to exceed.
        high, now_there = min(self.high, wanted), min(ready, wanted)
        fulfilled_s = now_s if self.ready is not None and ready > self.ready and now_there > high else self.fulfilled_s
        missing = max(0, wanted - ready) - sum(count for _, count in waiting)
        if missing > 0:
            waiting.append((now_s if self.seen_s is None else self.seen_s, missing))
        while missing < 0 and waiting:
            at_s, count = waiting.pop()
            if count + missing > 0:
                waiting.append((at_s, count + missing))
            missing += count
        return replace(
            self,
            waiting=tuple(waiting),
            ready=ready,
            startup_s=startup_s,
            high=max(high, now_there),
            fulfilled_s=fulfilled_s,
            seen_s=now_s,
        )

    def lead_s(self, now_s: float, unmeasured_s: float) -> float:
        """How long a worker takes that is ordered now."""
        ages = [now_s - at_s for at_s, _ in self.waiting if now_s - at_s <= STARTUP_MAX_S]
        return max(self.startup_s or unmeasured_s, *ages, 0.0)

    def coming(self, now_s: float, unmeasured_s: float) -> tuple[tuple[float, int], ...]:
        """(in how many seconds, how many workers) of the orders that may still be counted on."""
        startup_s = self.startup_s or unmeasured_s
        measured_s = max(OVERDUE * startup_s, startup_s + OVERDUE_S)
        given_up_s = measured_s if self.startup_s else STARTUP_MAX_S
        return tuple(
            (max(0.0, startup_s - (now_s - at_s)), count) for at_s, count in self.waiting if now_s - at_s <= given_up_s
        )


def _learn(startup_s: float, took_s: float) -> float:
    if took_s > STARTUP_MAX_S:
        return startup_s
    return max(took_s, startup_s + SHORTER * (took_s - startup_s)) if startup_s else took_s
