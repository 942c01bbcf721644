"""A WorkerPool's status.

Readiness is judged by the pods' own template hash, not by the Deployment's counters: right after an edit the counters still
speak of the old template, and `kubectl wait --for=condition=Ready` would return at once.

A pod that has ended for good (evicted, or its node shut down) may lie about for days. It counts as no worker, and its last
words are the pool's trouble only until a worker that was made after it is ready.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from forebay_api.conditions import Condition, ConditionStatus, merge_conditions
from forebay_api.names import PROGRESSING, READY
from forebay_operator.pods import Worker
from forebay_operator.resources import Manifest, name_of, namespace_of
from forebay_operator.rootcause import Cause, Reason, worst

REASON_LENGTH_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class PoolState:
    """Everything that a pool's status depends on."""

    wanted: int
    """spec.replicas."""
    template: str
    """Hash of the pod template that workers should have."""
    revision: str
    selector: str
    workers: Sequence[Worker]
    deployment: Manifest | None
    """As stored after the apply; None while there is none."""
    blocked: Cause | None = None
    """Why the pool was not acted on, such as a missing AcceleratorClass."""


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Workers by what they do."""

    existing: int
    serving: int
    """Of any template."""
    current: int
    """Serving, made from the current template."""
    draining: int
    outdated: int
    """Of another template and not gone yet."""


def count_workers(state: PoolState) -> PoolCounts:
    """The counts of a pool."""
    workers = [worker for worker in state.workers if not worker.has_ended]
    return PoolCounts(
        existing=len(workers),
        serving=sum(worker.serves for worker in workers),
        current=sum(worker.serves and worker.template == state.template for worker in workers),
        draining=sum(worker.is_labelled_draining or worker.is_terminating for worker in workers),
        outdated=sum(worker.template != state.template for worker in workers),
    )


def pool_cause(state: PoolState) -> Cause | None:
    """The root cause of a pool's trouble: what keeps its workers, or else what ended the ones before them."""
    living = [worker for worker in state.workers if not worker.has_ended]
    cause = worst([*(worker.cause for worker in living), _creation_cause(state.deployment)])
    if cause:
        return cause
    replaced_at = max((worker.created_at for worker in living if worker.is_ready), default=None)
    ended = [worker for worker in state.workers if worker.has_ended]
    return worst(worker.cause for worker in ended if replaced_at is None or worker.created_at > replaced_at)


def build_pool_status(owner: Manifest, state: PoolState, *, now: datetime) -> Manifest:
    """The WorkerPool with its new status, ready to be applied to the status subresource."""
    counts, cause = count_workers(state), pool_cause(state)
    generation = owner["metadata"]["generation"]
    conditions = [_ready(state, counts, cause), _progressing(state, counts, cause)]
    previous = (owner.get("status") or {}).get("conditions") or []
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "replicas": counts.existing,
        "ready": counts.serving,
        "draining": counts.draining,
        "selector": state.selector,
        "revision": state.revision,
        "conditions": merge_conditions(previous, conditions, generation=generation, now=now),
    }
    ready = conditions[0]
    if ready.status is not ConditionStatus.TRUE or ready.reason != "AllWorkersReady":
        status["reason"] = f"{ready.reason}: {ready.message}"[:REASON_LENGTH_MAX]
    return {"metadata": {"name": name_of(owner), "namespace": namespace_of(owner)}, "status": status}


def build_refused_status(owner: Manifest, cause: Cause, *, now: datetime) -> Manifest:
    """The status of a WorkerPool whose spec cannot be read: what was counted before, and why nothing is done."""
    generation, before = owner["metadata"]["generation"], owner.get("status") or {}
    conditions = [
        _false(READY, cause.reason.value, cause.message),
        _false(PROGRESSING, cause.reason.value, cause.message),
    ]
    status = {
        **before,
        "observedGeneration": generation,
        "reason": f"{cause.reason.value}: {cause.message}"[:REASON_LENGTH_MAX],
        "conditions": merge_conditions(before.get("conditions") or [], conditions, generation=generation, now=now),
    }
    return {"metadata": {"name": name_of(owner), "namespace": namespace_of(owner)}, "status": status}


def _ready(state: PoolState, counts: PoolCounts, cause: Cause | None) -> Condition:
    shown = f"{counts.current}/{state.wanted} workers ready"
    trouble = cause or state.blocked
    if counts.outdated:
        more = f"; {trouble.message}" if trouble else ""
        reason = trouble.reason.value if trouble else "RolloutInProgress"
        return _false(READY, reason, f"{shown}, {counts.outdated} of the previous spec not gone yet{more}")
    if counts.current >= state.wanted:
        if state.wanted == 0:
            return Condition(READY, ConditionStatus.TRUE, "ScaledToZero", "no worker is wanted")
        return Condition(READY, ConditionStatus.TRUE, "AllWorkersReady", shown)
    if cause:
        return _false(READY, cause.reason.value, f"{shown}: {cause.message}")
    if state.blocked and not counts.current:
        return _false(READY, state.blocked.reason.value, f"{shown}: {state.blocked.message}")
    if counts.current:
        return Condition(READY, ConditionStatus.TRUE, "ScalingUp", f"{shown}, {_missing(state, counts)} starting")
    return _false(READY, "Starting", f"{shown}, {_missing(state, counts)} starting")


def _progressing(state: PoolState, counts: PoolCounts, cause: Cause | None) -> Condition:
    if state.blocked:
        return _false(PROGRESSING, state.blocked.reason.value, state.blocked.message)
    if cause and counts.current < state.wanted:
        return _false(PROGRESSING, cause.reason.value, cause.message)
    if counts.outdated:
        message = f"workers of the previous spec still to be replaced: {counts.outdated}"
        return Condition(PROGRESSING, ConditionStatus.TRUE, "RollingOut", message)
    if counts.current < state.wanted:
        message = f"starting {_missing(state, counts)} of {state.wanted}"
        return Condition(PROGRESSING, ConditionStatus.TRUE, "ScalingUp", message)
    if counts.draining:
        message = f"workers that finish their requests and leave: {counts.draining}"
        return Condition(PROGRESSING, ConditionStatus.TRUE, "Draining", message)
    return Condition(PROGRESSING, ConditionStatus.TRUE, "Settled", "what runs is what is wanted")


def _missing(state: PoolState, counts: PoolCounts) -> int:
    return state.wanted - counts.current


def _creation_cause(deployment: Manifest | None) -> Cause | None:
    """Why pods could not even be created (a quota, a webhook), from the Deployment's ReplicaFailure condition."""
    conditions = ((deployment or {}).get("status") or {}).get("conditions") or []
    failure = next((one for one in conditions if one["type"] == "ReplicaFailure" and one["status"] == "True"), None)
    return Cause(Reason.PODS_NOT_CREATED, str(failure.get("message", ""))) if failure else None


def _false(condition_type: str, reason: str, message: str) -> Condition:
    return Condition(condition_type, ConditionStatus.FALSE, reason, message)
