"""Events on a ModelService: what `kubectl describe` shows of its scaling. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from forebay_api.conditions import rfc3339
from forebay_api.modelservice import AutoscalingMode
from forebay_api.names import API_VERSION, AUTOSCALER_MANAGER, MODEL_SERVICE_KIND
from forebay_autoscaler.decision import Decision, PoolDecision
from forebay_autoscaler.state import Action

MESSAGE_LENGTH_MAX: Final = 1024
"""The API server refuses longer ones."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing worth telling."""

    reason: str
    """A CamelCase word."""
    message: str
    warning: bool = False


def notices_of(decision: Decision, pool: PoolDecision) -> Iterator[Notice]:
    """What a decision on one pool tells, beside a change that was written."""
    if decision.mode is AutoscalingMode.OFF:
        return
    if pool.foreign is not None and not pool.rival and decision.mode is AutoscalingMode.AUTO:
        message = f"pool {pool.name}: {pool.foreign.manager} set {pool.current} workers; scaling goes on from there"
        yield Notice("ReplicasSetByOther", message, warning=True)
    if not pool.news:
        return
    if pool.action is Action.STAND_BACK:
        yield Notice("ForeignAutoscaler", f"pool {pool.name}: {pool.reason}", warning=True)
    elif pool.action is Action.HOLD:
        yield Notice("ScalingHeld", f"pool {pool.name}: {pool.reason}", warning=True)
    elif pool.action in (Action.GROW, Action.SHRINK) and decision.mode is AutoscalingMode.ADVISE:
        yield Notice("ScalingAdvised", f"pool {pool.name}: {pool.reason}")


def scaled(pool: PoolDecision) -> Notice:
    """A change that was written."""
    return Notice("ScaledUp" if pool.action is Action.GROW else "ScaledDown", f"pool {pool.name}: {pool.reason}")


def build_event(notice: Notice, stored: Mapping[str, Any], *, identity: str, now: datetime) -> dict[str, Any]:
    """The Event object about a stored ModelService."""
    metadata = stored["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": MODEL_SERVICE_KIND,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata.get("uid", ""),
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "reason": notice.reason,
        "message": notice.message[:MESSAGE_LENGTH_MAX],
        "type": "Warning" if notice.warning else "Normal",
        "source": {"component": AUTOSCALER_MANAGER, "host": identity},
        "reportingComponent": AUTOSCALER_MANAGER,
        "reportingInstance": identity,
        "firstTimestamp": rfc3339(now),
        "lastTimestamp": rfc3339(now),
        "count": 1,
    }
