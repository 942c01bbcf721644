"""What the API shows of a pod, computed as a whole from its state: pure.

The status is sent as a strategic merge patch: conditions that others own (PodScheduled, DisruptionTarget, readiness gates)
are left alone, lists with one owner are replaced.
"""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay_simulator.node.lifecycle import ALIVE_PHASES, ContainerState, Ended, Phase, PodState
from forebay_simulator.node.pods import Container, ContainerKind, Pod

_OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the pod and its node are; `pod` is empty until it is prepared."""

    pod: str
    node: str


def timestamp(seconds: float) -> str:
    """As Kubernetes writes it, to the second."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod_status(
    pod: Pod, state: PodState, *, addresses: Addresses, previous: Mapping[str, Any], now_s: float
) -> dict[str, Any]:
    """The fields of `status` that the node owns. `previous` is the status last written or read."""
    phase = pod_phase(pod, state)
    status: dict[str, Any] = {
        "phase": phase,
        "conditions": _conditions(pod, state, phase, previous=previous, now_s=now_s),
        "hostIP": addresses.node,
        "hostIPs": [{"ip": addresses.node}],
        "startTime": previous.get("startTime") or timestamp(now_s),
        "containerStatuses": _container_statuses(pod, state, ContainerKind.MAIN),
    }
    if generation := pod.raw["metadata"].get("generation"):
        status["observedGeneration"] = generation
    if addresses.pod:
        status |= {"podIP": addresses.pod, "podIPs": [{"ip": addresses.pod}]}
    if init := _container_statuses(pod, state, ContainerKind.INIT, ContainerKind.SIDECAR):
        status["initContainerStatuses"] = init
    if state.failure is not None:
        status |= {"reason": state.failure.reason, "message": state.failure.message}
    return status


def status_patch(pod: Pod, status: Mapping[str, Any]) -> dict[str, Any]:
    """The body that writes `status`, for this pod only and not for a successor of the same name."""
    replacing = dict(status)
    for name in ("podIPs", "hostIPs"):
        if name in replacing:
            replacing[name] = [{"$patch": "replace"}, *replacing[name]]
    return {"metadata": {"uid": pod.uid}, "status": replacing}


def pod_phase(pod: Pod, state: PodState) -> str:
    """Pending, Running, Succeeded or Failed."""
    if state.failure is not None and (state.finished or not state.prepared):
        return "Failed"
    mains = [(item, state.containers[item.name]) for item in pod.containers if item.kind is ContainerKind.MAIN]
    if state.finished:
        return "Succeeded" if all(_succeeded(container) for _, container in mains) else "Failed"
    if not state.initialized:
        return "Pending"
    if any(container.phase in {Phase.WAITING, Phase.STARTING} and container.last is None for _, container in mains):
        return "Pending"
    return "Running"


def _succeeded(container: ContainerState) -> bool:
    return container.ended is not None and container.ended.exit_code == 0


# -- conditions


def _conditions(
    pod: Pod, state: PodState, phase: str, *, previous: Mapping[str, Any], now_s: float
) -> list[dict[str, Any]]:
    former = {item["type"]: item for item in previous.get("conditions") or []}
    settled = _settled_conditions(pod, state, phase)
    ready = settled["ContainersReady"]
    missing_gates = [
        gate["conditionType"]
        for gate in pod.raw["spec"].get("readinessGates") or []
        if former.get(gate["conditionType"], {}).get("status") != "True"
    ]
    if ready["status"] == "True" and missing_gates:
        listed = " ".join(missing_gates)
        ready = _condition(False, "ReadinessGatesNotReady", f"readiness gates are not true: [{listed}]")
    settled["Ready"] = ready
    conditions = []
    for name in _OWN_CONDITIONS:
        condition = {"type": name, **settled[name]}
        same = former.get(name, {}).get("status") == condition["status"]
        condition["lastTransitionTime"] = (former[name].get("lastTransitionTime") if same else None) or timestamp(now_s)
        conditions.append(condition)
    return conditions


def _settled_conditions(pod: Pod, state: PodState, phase: str) -> dict[str, dict[str, Any]]:
    incomplete = [
        item.name
        for item in pod.containers
        if item.kind is not ContainerKind.MAIN and not _initialized(item, state.containers[item.name])
    ]
    unready = [
        item.name
        for item in pod.containers
        if item.kind is not ContainerKind.INIT and not state.containers[item.name].ready
    ]
    initialized = _condition(True)
    if incomplete and not state.initialized:
        listed = " ".join(incomplete)
        initialized = _condition(False, "ContainersNotInitialized", f"containers with incomplete status: [{listed}]")
    containers_ready = _condition(True)
    if phase == "Succeeded":
        initialized = _condition(True, "PodCompleted")
        containers_ready = _condition(False, "PodCompleted")
    elif phase == "Failed":
        containers_ready = _condition(False, "PodFailed")
    elif unready:
        listed = " ".join(unready)
        containers_ready = _condition(False, "ContainersNotReady", f"containers with unready status: [{listed}]")
    return {
        "PodReadyToStartContainers": _condition(state.prepared and not state.finished),
        "Initialized": initialized,
        "ContainersReady": containers_ready,
    }


def _condition(holds: bool, reason: str | None = None, message: str | None = None) -> dict[str, Any]:  # noqa: FBT001 - the condition itself
    # A merge patch keeps what it does not name: an absent reason must be cleared.
    return {"status": "True" if holds else "False", "reason": reason, "message": message}


def _initialized(item: Container, container: ContainerState) -> bool:
    return container.started if item.kind is ContainerKind.SIDECAR else _succeeded(container)


# -- containers


def _container_statuses(pod: Pod, state: PodState, *kinds: ContainerKind) -> list[dict[str, Any]]:
    return [_container_status(item, state.containers[item.name]) for item in pod.containers if item.kind in kinds]


def _container_status(item: Container, container: ContainerState) -> dict[str, Any]:
    done = item.kind is ContainerKind.INIT and _succeeded(container)
    return {
        "name": item.name,
        "image": item.image,
        "imageID": f"simulated://{item.image}" if container.attempt else "",
        "containerID": container_id(container.process_id or _former_process_id(container)),
        "ready": done or (item.kind is not ContainerKind.INIT and container.ready),
        "started": container.started,
        "restartCount": container.restarts,
        "state": _current_state(container),
        "lastState": {"terminated": _terminated(container.last)} if container.last else {},
    }


def container_id(process_id: int) -> str:
    """The machine's process number in the form of a container id; empty for none."""
    return f"process://{process_id}" if process_id else ""


def _former_process_id(container: ContainerState) -> int:
    ended = container.ended or container.last
    return ended.process_id if ended else 0


def _current_state(container: ContainerState) -> dict[str, Any]:
    if container.phase in ALIVE_PHASES:
        return {"running": {"startedAt": timestamp(container.started_at_s)}}
    if container.phase is Phase.ENDED and container.ended is not None:
        return {"terminated": _terminated(container.ended)}
    waiting = {"reason": container.reason if container.phase is Phase.WAITING else "ContainerCreating"}
    if container.phase is Phase.WAITING and container.message:
        waiting["message"] = container.message
    return {"waiting": waiting}


def _terminated(ended: Ended) -> dict[str, Any]:
    terminated: dict[str, Any] = {
        "exitCode": ended.exit_code,
        "reason": ended.reason,
        "startedAt": timestamp(ended.started_at_s),
        "finishedAt": timestamp(ended.finished_at_s),
        "containerID": container_id(ended.process_id),
    }
    if ended.signal is not None:
        terminated["signal"] = ended.signal
    if ended.message:
        terminated["message"] = ended.message
    return terminated
