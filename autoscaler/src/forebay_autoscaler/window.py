"""The largest value recorded in the last w seconds.

A monotonic queue (Lemire, "Streaming maximum-minimum filter", 2006): a new value removes every older one that it is not
below, since those can never be the maximum again; what remains falls from front to back, and the front is the maximum once
values older than w are gone. Amortised constant time; a steady value is one point.

Frozen, so that it can be part of a decision's state. The smallest value is the largest of the negated ones.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """Values with their times, oldest first; times are seconds of any clock that does not go back."""

    points: tuple[tuple[float, int], ...] = ()

    def add(self, now_s: float, value: int, *, length_s: float) -> "Window":
        """Record a value for the maximum over `length_s`."""
        kept = [point for point in self.points if point[1] > value and point[0] >= now_s - length_s]
        return Window((*kept, (now_s, value)))

    def maximum(self, now_s: float, *, length_s: float) -> int | None:
        """The largest value recorded in the last `length_s`; None when there is none."""
        return max((value for at_s, value in self.points if at_s >= now_s - length_s), default=None)
