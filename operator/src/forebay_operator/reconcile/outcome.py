"""How a reconciliation ended, when it did not fail."""

from dataclasses import dataclass
from enum import StrEnum


class Result(StrEnum):
    """What a reconciliation did."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    GONE = "gone"
    """The object does not exist or is being deleted; garbage collection does the rest."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a successful reconciliation."""

    result: Result
    retry_after_s: float | None = None
    """When to look again although nothing happens; None for the resync."""
