"""Which schedule of a pool is in force at a moment. Pure, but for the time zone database.

A window is one of a day's clock in its time zone, so it follows summer time: where the clock jumps over its start or end, that
comes with the jump. One whose end is not after its start ends on the next day, and belongs to the day on which it starts.

Workers take time to start: a window counts from a start-up time before it begins, so that they are ready when it does. One that
is shorter than that counts from then until it ends, without a gap: both ends of [now, now + start-up time] may lie outside it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from forebay_api.schedules import DAYS
from forebay_api.schedules import Schedule as ScheduleSpec

MINUTES_PER_HOUR: Final = 60
MINUTES_PER_DAY: Final = 24 * MINUTES_PER_HOUR
STRIDE_S: Final = 60
"""Windows begin and end with a minute, so that looking once a minute misses none."""
JUMP_MAX_S: Final = 3 * 3600
"""By how much a change of the clock may shorten a window, at most."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One window, in numbers."""

    name: str
    days: tuple[int, ...]
    """On which it starts; 0 is Monday."""
    from_min: int
    """Minute of the day at which it starts."""
    to_min: int
    """Minute of the day at which it ends, of the next day if not above `from_min`."""
    time_zone: str
    replicas_min: int

    @property
    def length_s(self) -> float:
        """From its start to its end on a day on which the clock does not jump."""
        minutes = self.to_min - self.from_min
        return 60.0 * (minutes if minutes > 0 else minutes + MINUTES_PER_DAY)

    def is_on(self, at_s: float) -> bool:
        """Whether it is in force at a time, in seconds since 1970."""
        local = datetime.fromtimestamp(at_s, ZoneInfo(self.time_zone))
        minute, today = local.hour * MINUTES_PER_HOUR + local.minute, local.weekday()
        if self.from_min < self.to_min:
            return today in self.days and self.from_min <= minute < self.to_min
        yesterday = (local.date() - timedelta(days=1)).weekday()
        return (today in self.days and minute >= self.from_min) or (yesterday in self.days and minute < self.to_min)

    def is_on_within(self, from_s: float, over_s: float) -> bool:
        """Whether it is in force at any time of a span; its end belongs to the span."""
        if self.is_on(from_s) or self.is_on(from_s + over_s):
            return True
        if self.length_s > over_s + JUMP_MAX_S:  # it cannot lie between the two
            return False
        return any(self.is_on(from_s + STRIDE_S * number) for number in range(1, math.ceil(over_s / STRIDE_S)))


def schedule_of(spec: ScheduleSpec) -> Schedule:
    """From the resource."""
    return Schedule(
        name=spec.name,
        days=tuple(sorted(DAYS.index(day) for day in spec.days)),
        from_min=_minutes(spec.from_),
        to_min=_minutes(spec.to),
        time_zone=spec.time_zone,
        replicas_min=spec.min,
    )


def schedule_in_force(schedules: Sequence[Schedule], now_s: float, *, lead_s: float) -> Schedule | None:
    """The one that asks for most workers, now or when a worker that is ordered now is ready."""
    on = [one for one in schedules if one.is_on_within(now_s, lead_s)]
    return max(on, key=lambda one: one.replicas_min, default=None)


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * MINUTES_PER_HOUR + int(minutes)
