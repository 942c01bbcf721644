"""What the autoscaler reads from API objects beside the spec. Pure.

Who owns a WorkerPool's number of workers is in its managedFields: the manager whose entry holds spec.replicas. An HPA shows
as kube-controller-manager, KEDA by its own name; kubectl and other programs are people's tools as far as this matters: what
they write is the new number, not a competitor.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from forebay_api.conditions import find_condition
from forebay_api.names import AUTOSCALER_MANAGER, INITIAL_REPLICAS_MANAGER, OPERATOR_MANAGER, READY, WORKER_POOL_KIND
from forebay_autoscaler.observation import PoolCounts, Writer

OWN_MANAGERS: Final = frozenset({AUTOSCALER_MANAGER, INITIAL_REPLICAS_MANAGER, OPERATOR_MANAGER})
CANNOT_START: Final = frozenset({"Unschedulable", "PodsNotCreated"})
"""Reasons of a WorkerPool's Ready condition while its workers find no node, or a quota refuses them."""
_AUTOSCALING_MANAGERS: Final = ("kube-controller-manager", "horizontal-pod-autoscaler", "keda")


def counts_of(pool: Mapping[str, Any]) -> PoolCounts:
    """Numbers of a WorkerPool object; an absent status counts as nothing ready."""
    status = pool.get("status") or {}
    ready = find_condition(status.get("conditions") or (), READY) or {}
    return PoolCounts(
        wanted=int(pool["spec"].get("replicas", 1)),
        ready=int(status.get("ready") or 0),
        draining=int(status.get("draining") or 0),
        unschedulable=ready.get("reason") in CANNOT_START,
        writer=foreign_writer(pool["metadata"].get("managedFields") or ()),
    )


def foreign_writer(managed_fields: Iterable[Mapping[str, Any]]) -> Writer | None:
    """The last writer of spec.replicas if it is not Forebay's own."""
    writers = [entry for entry in managed_fields if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})]
    if not writers:
        return None
    last = max(writers, key=lambda entry: str(entry.get("time", "")))
    manager = str(last.get("manager", ""))
    return None if manager in OWN_MANAGERS else Writer(manager, str(last.get("time", "")))


def may_be_autoscaler(writer: Writer | None) -> bool:
    """Whether the writer's name is one under which autoscalers write."""
    return writer is not None and writer.manager.startswith(_AUTOSCALING_MANAGERS)


def rival_of(pool: str, autoscalers: Iterable[Mapping[str, Any]]) -> str | None:
    """The HorizontalPodAutoscaler whose target is this WorkerPool."""
    for autoscaler in autoscalers:
        target = autoscaler.get("spec", {}).get("scaleTargetRef") or {}
        if target.get("kind") == WORKER_POOL_KIND and target.get("name") == pool:
            return f"HorizontalPodAutoscaler/{autoscaler['metadata']['name']}"
    return None
