"""Write a status when it changed, and record the Events that follow from its conditions."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from forebay_api.conditions import find_condition
from forebay_api.names import PROGRESSING, READY
from forebay_operator.cluster import Cluster
from forebay_operator.events import Kind, Recorder
from forebay_operator.logs import about
from forebay_operator.resources import Manifest, Resource, name_of, namespace_of
from forebay_operator.rootcause import Reason

_log = logging.getLogger(__name__)

TROUBLE: Final = frozenset(reason.value for reason in Reason) - {Reason.NOT_ANSWERING.value}
"""Reasons that are worth a Warning. A worker that does not answer for a moment shows in the condition only."""
STARTED: Final = {"RollingOut": "RolloutStarted"}
"""Reasons of Progressing that are told when they begin, and the Event's reason."""


@dataclass(frozen=True, slots=True)
class Reporter:
    """Writes statuses."""

    cluster: Cluster
    recorder: Recorder

    async def report(self, resource: Resource, owner: Manifest, wanted: Manifest) -> bool:
        """Apply a status if it says anything new; whether it did."""
        before, after = owner.get("status") or {}, wanted["status"]
        if all(_covers(before.get(key), value) for key, value in after.items()) and not _drops(before, after):
            return False
        stored = await self.cluster.apply_status(resource, wanted)
        self._check_stored(resource, owner, after, stored.get("status") or {})
        for kind, reason, message in _events(before.get("conditions") or [], after["conditions"]):
            await self.recorder.record(resource, owner, kind=kind, reason=reason, message=message)
        return True

    def _check_stored(self, resource: Resource, owner: Manifest, after: Manifest, stored: Manifest) -> None:
        """The API server drops fields that an older CRD does not know, silently; say so instead."""
        lost = [key for key, value in after.items() if not _covers(stored.get(key), value)]
        if lost:
            _log.error(
                "the API server did not store %s: the %s CRD is older than this operator; apply the chart's CRDs",
                ", ".join(f"status.{key}" for key in lost),
                resource.kind,
                extra=about(resource.kind, namespace_of(owner), name_of(owner)),
            )


def _drops(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether something that the operator wrote before is not said any more: the root cause, or a pool that has gone."""
    names = {pool["name"] for pool in after.get("pools") or []}
    gone = any("replicas" in pool and pool["name"] not in names for pool in before.get("pools") or [])
    return gone or ("reason" in before and "reason" not in after)


def _covers(stored: Any, wanted: Any) -> bool:
    """Whether a stored value has all that is wanted; list items are told apart by type or name, other writers' may be there."""
    if isinstance(wanted, dict):
        return isinstance(stored, dict) and all(_covers(stored.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        by_key = {_item_key(item): item for item in stored or []}
        return all(_covers(by_key.get(_item_key(item)), item) for item in wanted)
    return bool(stored == wanted)


def _item_key(item: Mapping[str, Any]) -> str:
    return str(item.get("type") or item.get("name"))


def _events(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Kind, str, str]]:
    """Events for what is new in the conditions: became ready, began to roll out, ran into trouble."""
    was, now = find_condition(before, READY) or {}, find_condition(after, READY) or {}
    if now.get("status") == "True" and was.get("status") != "True":
        yield Kind.NORMAL, "Ready", str(now["message"])
    moved, moves = find_condition(before, PROGRESSING) or {}, find_condition(after, PROGRESSING) or {}
    if moves.get("reason") in STARTED and moved.get("reason") != moves["reason"]:
        yield Kind.NORMAL, STARTED[moves["reason"]], str(moves["message"])
    told = set()
    for condition in after:
        old = find_condition(before, str(condition["type"])) or {}
        reason = str(condition["reason"])
        if condition["status"] == "False" and reason in TROUBLE and reason not in told and old.get("reason") != reason:
            told.add(reason)
            yield Kind.WARNING, reason, str(condition["message"])
