"""Kubernetes Events: what `kubectl describe` shows of what the operator did and found.

An Event's name is made from its object, reason and message, so the same thing told again finds the Event that exists: its
count and last time are raised instead of a second one being made. The same Event is told to the API server at most once in
`REPEAT_AFTER_S`, however often it is recorded. Events are best effort: a failure to write one is logged and never fails a
reconciliation.
"""

import hashlib
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from forebay_api.conditions import rfc3339
from forebay_api.names import OPERATOR_MANAGER
from forebay_operator.cluster import Cluster
from forebay_operator.errors import ApiConflictError, ApiError
from forebay_operator.logs import about
from forebay_operator.resources import EVENT, Manifest, Resource, name_of, namespace_of

_log = logging.getLogger(__name__)

REPEAT_AFTER_S: Final = 300.0
REMEMBERED_MAX: Final = 2000
"""Events remembered for de-duplication; the oldest are forgotten first."""
MESSAGE_LENGTH_MAX: Final = 1000


class Kind(StrEnum):
    """Whether an Event asks for attention."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Recorder:
    """Writes Events, each at most once in a while."""

    def __init__(self, cluster: Cluster, *, identity: str, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._identity = identity
        self._now = now
        self._told: dict[str, datetime] = {}

    async def record(self, resource: Resource, target: Manifest, *, kind: Kind, reason: str, message: str) -> None:
        """Record one Event on an object; also logged."""
        message = message[:MESSAGE_LENGTH_MAX]
        name = _event_name(target, reason, message)
        if not self._is_due(name):
            return
        place = about(resource.kind, namespace_of(target), name_of(target), reason=reason)
        _log.log(logging.INFO if kind is Kind.NORMAL else logging.WARNING, message, extra=place)
        event = self._build(resource, target, name=name, kind=kind, reason=reason, message=message)
        try:
            await self._write(event)
        except ApiError as e:
            _log.warning("event %s was not written: %s", reason, e, extra=place)

    def _is_due(self, name: str) -> bool:
        """Whether this Event was not told lately; notes that it is told now."""
        now = self._now()
        told = self._told.pop(name, None)
        due = told is None or now - told >= timedelta(seconds=REPEAT_AFTER_S)
        self._told[name] = now if due or told is None else told
        while len(self._told) > REMEMBERED_MAX:
            self._told.pop(next(iter(self._told)))
        return due

    async def _write(self, event: Manifest) -> None:
        try:
            await self._cluster.create(EVENT, event)
        except ApiConflictError:
            namespace, name = event["metadata"]["namespace"], event["metadata"]["name"]
            stored = await self._cluster.get(EVENT, namespace, name)
            count = int((stored or {}).get("count") or 1) + 1
            patch = {"count": count, "lastTimestamp": event["lastTimestamp"]}
            await self._cluster.patch(EVENT, namespace, name, patch)

    def _build(
        self, resource: Resource, target: Manifest, *, name: str, kind: Kind, reason: str, message: str
    ) -> dict[str, Any]:
        moment = rfc3339(self._now())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace_of(target)},
            "involvedObject": {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "name": name_of(target),
                "namespace": namespace_of(target),
                "uid": target["metadata"]["uid"],
            },
            "type": kind.value,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "source": {"component": OPERATOR_MANAGER},
            "reportingComponent": OPERATOR_MANAGER,
            "reportingInstance": self._identity,
        }


def _event_name(target: Manifest, reason: str, message: str) -> str:
    digest = hashlib.sha256(f"{target['metadata']['uid']} {reason} {message}".encode()).hexdigest()[:16]
    return f"{name_of(target)}.{digest}"
