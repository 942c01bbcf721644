"""Status conditions, computed as a whole.

A writer computes all the conditions it owns from what it sees now, then `merge_conditions` carries over
`lastTransitionTime` from the stored ones wherever the status did not flip. Equal input gives an equal list, so a caller
writes only when the result differs from what is stored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any


class ConditionStatus(StrEnum):
    """Kubernetes' three values; Unknown is for what could not be observed."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition as its writer sees it now, without times."""

    type: str
    status: ConditionStatus
    reason: str
    """A CamelCase word, stable across releases."""
    message: str
    """A sentence for a person: what is wrong with which object, and what to do."""


def rfc3339(moment: datetime) -> str:
    """UTC time with seconds, as Kubernetes writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def merge_conditions(
    previous: Iterable[Mapping[str, Any]],
    current: Iterable[Condition],
    *,
    generation: int,
    now: datetime,
) -> list[dict[str, Any]]:
    """The current conditions as API objects, in their order; times are kept where the status is unchanged."""
    stored = {str(one.get("type")): one for one in previous}
    merged = []
    for condition in current:
        old = stored.get(condition.type, {})
        same = old.get("status") == condition.status and old.get("lastTransitionTime")
        merged.append(
            {
                "type": condition.type,
                "status": condition.status.value,
                "reason": condition.reason,
                "message": condition.message,
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if same else rfc3339(now),
            }
        )
    return merged


def find_condition(conditions: Iterable[Mapping[str, Any]], condition_type: str) -> Mapping[str, Any] | None:
    """The stored condition of one type, or None."""
    return next((one for one in conditions if one.get("type") == condition_type), None)
