"""One measured number, which may be missing. Unknown is not zero.

A reading is a value, a true zero, unknown (nobody reported it, or what was reported is no number) or stale (reported, but
too long ago to act on). Whoever decides asks `known` first; the number of an unknown reading cannot be had by accident.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


class DataState(StrEnum):
    """What is known of a number."""

    VALUE = "value"
    ZERO = "zero"
    UNKNOWN = "unknown"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Reading:
    """One number as observed."""

    state: DataState
    number: float | None = None
    """What was last reported; None when unknown. Of a stale reading it is for people only."""
    age_s: float | None = None
    """Seconds since it was measured; None when unknown."""

    @property
    def known(self) -> float | None:
        """The number if it may be acted on, else None."""
        return self.number if self.state in (DataState.VALUE, DataState.ZERO) else None

    def __or__(self, other: "Reading") -> "Reading":
        """This reading if it is known, else the other."""
        return self if self.known is not None else other


UNKNOWN = Reading(DataState.UNKNOWN)
TRUE_ZERO = Reading(DataState.ZERO, 0.0, 0.0)


def read(number: float | None, *, age_s: float | None, stale_after_s: float) -> Reading:
    """The reading of a reported number.

    A missing, infinite or negative number, or one without an age, is unknown: nothing the autoscaler reads can be negative,
    and a division by zero in a query must not become a number of workers.
    """
    if number is None or age_s is None or not math.isfinite(number) or number < 0:
        return UNKNOWN
    age_s = max(0.0, age_s)
    if age_s > stale_after_s:
        return Reading(DataState.STALE, number, age_s)
    return Reading(DataState.ZERO if number == 0 else DataState.VALUE, number, age_s)
