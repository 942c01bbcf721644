"""The past of one number in bins of equal length, at several resolutions, in bounded memory. Pure.

Scrapes come when they come; each says how much was counted since the one before. A bin closes when scrapes have filled it, or
when a scrape's interval has its middle beyond the bin's end, with the mean of what fell into it; a bin without any (an outage)
keeps the value before it.
Each `COARSER` bins of one level make one bin of the next, so that forty minutes are remembered by the quarter minute, and
weeks by the hour or so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

LENGTH_MAX: Final = 160
"""Bins kept of each level."""
COARSER: Final = (1, 16, 16, 8)
"""Bins of the level before that make one of this level: with 15 s, levels of 15 s, 4 min, 64 min and 8.5 h."""
FULL: Final = 0.95
"""Share of a bin that is counted when it closes: scrapes are not quite regular."""
GAP_MAX: Final = LENGTH_MAX
"""Bins that an outage may fill; a longer one begins anew."""


@dataclass(frozen=True, slots=True)
class Level:
    """Closed bins of one length, the last one numbered `end - 1`."""

    values: tuple[float, ...] = ()
    end: int = 0

    @property
    def first(self) -> int:
        """Number of the oldest bin kept."""
        return self.end - len(self.values)

    def add(self, value: float) -> "Level":
        """Close one more bin."""
        return Level((*self.values[-(LENGTH_MAX - 1) :], value), self.end + 1)


@dataclass(frozen=True, slots=True)
class Past:
    """Bins and the one that is open."""

    levels: tuple[Level, ...] = (Level(),) * len(COARSER)
    open_sum: float = 0.0
    """Of rate times seconds in the open bin."""
    open_s: float = 0.0
    """Seconds that have been counted in it."""
    sampled_s: float = -math.inf
    """Time of the last scrape taken in."""

    @property
    def fine(self) -> Level:
        """The bins as they were made."""
        return self.levels[0]

    def take(self, at_s: float, per_s: float, *, over_s: float, bin_s: float) -> "Past":
        """Take in the mean rate over the `over_s` before a scrape at `at_s`. A scrape that was taken in is no news."""
        if at_s <= self.sampled_s + 1e-3:
            return self
        number = math.floor((at_s - over_s / 2) / bin_s)
        past = self
        if not self.fine.values and not self.open_s:
            past = replace(self, levels=_begin(number))
        elif number - self.fine.end > GAP_MAX:
            past = Past(levels=(_begin(number)[0], *self.levels[1:]))
        while past.fine.end < number:
            past = past.closed()
        past = replace(past, open_sum=past.open_sum + per_s * over_s, open_s=past.open_s + over_s, sampled_s=at_s)
        if past.open_s >= FULL * bin_s and past.fine.end <= number:
            past = past.closed()
        return past

    def closed(self) -> "Past":
        """With the open bin closed."""
        before = self.fine.values[-1] if self.fine.values else 0.0
        value = self.open_sum / self.open_s if self.open_s else before
        return replace(self, levels=_add(self.levels, value), open_sum=0.0, open_s=0.0)


def _begin(number: int) -> tuple[Level, ...]:
    levels, size = [], 1
    for coarser in COARSER:
        size *= coarser
        levels.append(Level((), number // size))
    return tuple(levels)


def _add(levels: Sequence[Level], value: float) -> tuple[Level, ...]:
    """Close a bin of the first level, and of each next level that is full."""
    added: list[Level] = []
    for number, before in enumerate(levels):
        level = before
        if number:
            below, size = added[-1], COARSER[number]
            if below.end % size or len(below.values) < size:
                return (*added, *levels[number:])
            if level.end + 1 != below.end // size:  # begun within a bin of this level
                level = Level((), below.end // size - 1)
            value = math.fsum(below.values[-size:]) / size
        added.append(level.add(value))
    return tuple(added)
