"""A ModelService's status, from its spec and its WorkerPools' statuses.

A WorkerPool's status may be older than its spec (`observedGeneration` below `generation`) for some milliseconds after each
write. It then says nothing about the new spec, so Ready and Progressing keep what they said before as long as the
ModelService's own spec has not changed, and are not True when it has: an early True would end a `kubectl wait` before
anything had been rolled out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from forebay_api.conditions import Condition, ConditionStatus, find_condition, merge_conditions
from forebay_api.modelservice import AutoscalingMode, ModelServiceSpec, Pool, Role
from forebay_api.names import ACCEPTED, PROGRESSING, READY, ROUTABLE
from forebay_operator.resources import Manifest, name_of, namespace_of
from forebay_operator.rootcause import SEVERITY, Cause, Reason


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool of a service: what its WorkerPool says."""

    name: str
    role: Role
    wanted: int
    """spec.replicas of the WorkerPool."""
    replicas: int
    ready: int
    draining: int
    is_stale: bool
    """Whether the WorkerPool's status is older than its spec."""
    is_leaving: bool
    """Whether the service's spec does not name the pool any more."""
    conditions: Sequence[Mapping[str, Any]]

    def condition(self, condition_type: str) -> Mapping[str, Any]:
        """One stored condition, empty when absent."""
        return find_condition(self.conditions, condition_type) or {}


@dataclass(frozen=True, slots=True)
class ServiceState:
    """Everything that a service's status depends on."""

    spec: ModelServiceSpec | None
    """None when it could not be read."""
    refused: Cause | None
    """Why the spec is not acted on; None when it is accepted."""
    fits: Condition
    pools: Sequence[PoolView]


def view_pool(pool: Manifest, *, leaving: bool) -> PoolView:
    """The view of one WorkerPool as it is stored."""
    status, spec = pool.get("status") or {}, pool["spec"]
    return PoolView(
        name=spec["pool"]["name"],
        role=Role(spec["pool"].get("role", Role.MIXED)),
        wanted=spec.get("replicas", 0),
        replicas=status.get("replicas", 0),
        ready=status.get("ready", 0),
        draining=status.get("draining", 0),
        is_stale=status.get("observedGeneration") != pool["metadata"]["generation"],
        is_leaving=leaving,
        conditions=status.get("conditions") or [],
    )


def build_service_status(owner: Manifest, state: ServiceState, *, now: datetime) -> Manifest:
    """The ModelService with its new status, ready to be applied to the status subresource."""
    previous_status = owner.get("status") or {}
    previous = previous_status.get("conditions") or []
    generation = owner["metadata"]["generation"]
    kept = previous if previous_status.get("observedGeneration") == generation else []
    conditions = [
        _accepted(state),
        state.fits,
        _ready(state, kept),
        _routable(state),
        _progressing(state, kept),
    ]
    wanted = sum(pool.wanted for pool in state.pools if not pool.is_leaving)
    status = {
        "observedGeneration": generation,
        "conditions": merge_conditions(previous, conditions, generation=generation, now=now),
        "pools": [_pool_status(pool) for pool in sorted(state.pools, key=lambda pool: pool.name)],
        "workers": f"{sum(pool.ready for pool in state.pools)}/{wanted}",
    }
    return {"metadata": {"name": name_of(owner), "namespace": namespace_of(owner)}, "status": status}


def _pool_status(pool: PoolView) -> dict[str, Any]:
    return {
        "name": pool.name,
        "role": pool.role.value,
        "replicas": pool.replicas,
        "ready": pool.ready,
        "draining": pool.draining,
    }


def _accepted(state: ServiceState) -> Condition:
    if state.refused and state.refused.reason is not Reason.DOES_NOT_FIT:
        return Condition(ACCEPTED, ConditionStatus.FALSE, state.refused.reason.value, state.refused.message)
    acted = "is not acted on, since the model does not fit" if state.refused else "acted on"
    return Condition(ACCEPTED, ConditionStatus.TRUE, "Valid", f"the spec is valid and {acted}")


def _ready(state: ServiceState, kept: Sequence[Mapping[str, Any]]) -> Condition:
    if state.refused:
        return Condition(READY, ConditionStatus.FALSE, state.refused.reason.value, state.refused.message)
    present = [pool for pool in state.pools if not pool.is_leaving]
    if not present or any(pool.is_stale for pool in present):
        return _keep(READY, kept)
    failing = _worst(present, READY)
    if failing:
        return failing
    leaving = [pool.name for pool in state.pools if pool.is_leaving]
    if leaving:
        message = f"pools that the spec no longer names are being drained: {', '.join(leaving)}"
        return Condition(READY, ConditionStatus.FALSE, "RolloutInProgress", message)
    if all(pool.wanted == 0 for pool in present):
        return _asleep(READY, state, awake=ConditionStatus.TRUE)
    ready, wanted = sum(pool.ready for pool in present), sum(pool.wanted for pool in present)
    growing = any(pool.condition(READY).get("reason") == "ScalingUp" for pool in present)
    reason = "ScalingUp" if growing else "AllWorkersReady"
    return Condition(READY, ConditionStatus.TRUE, reason, f"{ready}/{wanted} workers ready")


def _routable(state: ServiceState) -> Condition:
    ready = {role: sum(pool.ready for pool in state.pools if pool.role is role) for role in Role}
    if ready[Role.MIXED] or (ready[Role.PREFILL] and ready[Role.DECODE]):
        counts = ", ".join(f"{count} {role.value}" for role, count in ready.items() if count)
        return Condition(ROUTABLE, ConditionStatus.TRUE, "Serving", f"requests can be served; ready workers: {counts}")
    if state.pools and all(pool.wanted == 0 for pool in state.pools):
        return _asleep(ROUTABLE, state, awake=ConditionStatus.FALSE)
    roles = sorted({pool.role for pool in state.pools}) or [pool.role for pool in _spec_pools(state)]
    missing = " and ".join(dict.fromkeys(role.value for role in roles if not ready[role])) or Role.MIXED.value
    return Condition(ROUTABLE, ConditionStatus.FALSE, "NoReadyWorkers", f"no {missing} worker is ready")


def _progressing(state: ServiceState, kept: Sequence[Mapping[str, Any]]) -> Condition:
    if state.refused:
        return Condition(PROGRESSING, ConditionStatus.FALSE, state.refused.reason.value, state.refused.message)
    if any(pool.is_stale for pool in state.pools) or not state.pools:
        return _keep(PROGRESSING, kept)
    failing = _worst(state.pools, PROGRESSING)
    if failing:
        return failing
    for reason in ("RollingOut", "ScalingUp", "Draining"):
        moving = [pool for pool in state.pools if pool.condition(PROGRESSING).get("reason") == reason]
        if moving:
            message = "; ".join(
                f"pool {pool.name}: {pool.condition(PROGRESSING).get('message', '')}" for pool in moving
            )
            return Condition(PROGRESSING, ConditionStatus.TRUE, reason, message)
    return Condition(PROGRESSING, ConditionStatus.TRUE, "Settled", "what runs is what is wanted")


def _worst(pools: Sequence[PoolView], condition_type: str) -> Condition | None:
    """The most severe False condition of the pools, with the pools' names; None when there is none."""
    found = [pool for pool in pools if pool.condition(condition_type).get("status") == "False"]
    if not found:
        return None
    found.sort(key=lambda pool: SEVERITY.get(pool.condition(condition_type)["reason"], len(SEVERITY)))
    message = "; ".join(f"pool {pool.name}: {pool.condition(condition_type).get('message', '')}" for pool in found)
    return Condition(condition_type, ConditionStatus.FALSE, found[0].condition(condition_type)["reason"], message)


def _keep(condition_type: str, kept: Sequence[Mapping[str, Any]]) -> Condition:
    """What was said before about this very spec, else that it is being rolled out."""
    before = find_condition(kept, condition_type)
    if before:
        return Condition(condition_type, ConditionStatus(before["status"]), before["reason"], before["message"])
    moving = ConditionStatus.TRUE if condition_type == PROGRESSING else ConditionStatus.FALSE
    return Condition(condition_type, moving, "RolloutInProgress", "the spec is being rolled out")


def _asleep(condition_type: str, state: ServiceState, *, awake: ConditionStatus) -> Condition:
    """A service without wanted workers: asleep when the autoscaler may wake it, else scaled to zero by somebody."""
    can_wake = state.spec is not None and state.spec.autoscaling.mode is AutoscalingMode.AUTO
    if can_wake:
        return Condition(condition_type, awake, "Asleep", "no worker is wanted now; a request wakes the service")
    message = "every pool has 0 replicas: scale a pool up with kubectl scale wp/NAME --replicas=N"
    return Condition(condition_type, ConditionStatus.FALSE, "ScaledToZero", message)


def _spec_pools(state: ServiceState) -> Sequence[Pool]:
    return state.spec.pools if state.spec else []
