"""The node as the cluster sees it: Node object, conditions and Lease, pure builders."""

import datetime as dt
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay_simulator.node.pods import GPU_RESOURCE
from forebay_simulator.node.status import timestamp

LEASE_NAMESPACE = "kube-node-lease"
LEASE_DURATION_S = 40
_PRESSURES = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "no memory pressure is simulated"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "no disk pressure is simulated"),
    "PIDPressure": ("KubeletHasSufficientPID", "no PID pressure is simulated"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """What a node says of its GPUs."""

    product: str
    memory_mib: int
    instance_type: str


ACCELERATORS: Mapping[str, Accelerator] = {
    "h100-sxm": Accelerator(product="NVIDIA-H100-80GB-HBM3", memory_mib=81559, instance_type="simulated-h100-sxm"),
    "h200-sxm": Accelerator(product="NVIDIA-H200", memory_mib=143771, instance_type="simulated-h200-sxm"),
    "a100-sxm": Accelerator(product="NVIDIA-A100-SXM4-80GB", memory_mib=81920, instance_type="simulated-a100-sxm"),
    "l40s": Accelerator(product="NVIDIA-L40S", memory_mib=46068, instance_type="simulated-l40s"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDescription:
    """What a node is."""

    name: str
    address: str
    gpus: int
    accelerator: str
    cpu: str
    memory: str
    pods: int
    zone: str
    version: str
    log_port: int  # where the API server gets logs; 0 for nowhere
    labels: Mapping[str, str]


def capacity(node: NodeDescription) -> dict[str, str]:
    """What the node has; all of it is allocatable."""
    amounts = {"cpu": node.cpu, "memory": node.memory, "pods": str(node.pods), "ephemeral-storage": "1Ti"}
    if node.gpus:
        amounts[GPU_RESOURCE] = str(node.gpus)
    return amounts


def node_labels(node: NodeDescription) -> dict[str, str]:
    """The labels that a cloud's node with such GPUs has."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": machine,
        "topology.kubernetes.io/region": "local",
        "topology.kubernetes.io/zone": node.zone,
        "simulator.forebay.dev/accelerator": node.accelerator,
    }
    accelerator = ACCELERATORS.get(node.accelerator)
    if accelerator is not None:
        labels["node.kubernetes.io/instance-type"] = f"{accelerator.instance_type}-{node.gpus}x"
    if accelerator is not None and node.gpus:
        labels |= {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": accelerator.product,
            "nvidia.com/gpu.count": str(node.gpus),
            "nvidia.com/gpu.memory": str(accelerator.memory_mib),
        }
    return labels | dict(node.labels)


def node_object(node: NodeDescription) -> dict[str, Any]:
    """The object to create."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name, "labels": node_labels(node)}}


def node_status(
    node: NodeDescription, previous: Mapping[str, Any], *, now_s: float, shutting_down: bool = False
) -> dict[str, Any]:
    """The status to patch; transition times are kept where nothing changed."""
    former = {item["type"]: item for item in previous.get("conditions") or []}
    wanted = {name: ("False", reason, message) for name, (reason, message) in _PRESSURES.items()}
    wanted["Ready"] = (
        ("False", "KubeletNotReady", "node is shutting down")
        if shutting_down
        else ("True", "KubeletReady", "the simulated node runs pods as local processes")
    )
    conditions = []
    for name, (status, reason, message) in wanted.items():
        same = former.get(name, {}).get("status") == status
        conditions.append(
            {
                "type": name,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": timestamp(now_s),
                "lastTransitionTime": (former[name].get("lastTransitionTime") if same else None) or timestamp(now_s),
            }
        )
    return {
        "capacity": capacity(node),
        "allocatable": capacity(node),
        "conditions": conditions,
        # No Hostname: the API server would prefer it to reach the node, and nobody resolves it.
        "addresses": [{"type": "InternalIP", "address": node.address}],
        "nodeInfo": _node_info(node),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": node.log_port}},
    }


def _node_info(node: NodeDescription) -> dict[str, str]:
    system = os.uname()
    labels = node_labels(node)
    return {
        "machineID": node.name,
        "systemUUID": node.name,
        "bootID": node.name,
        "kernelVersion": system.release,
        "osImage": "Forebay simulated node",
        "containerRuntimeVersion": "process://1.0",
        "kubeletVersion": node.version,
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": labels["kubernetes.io/arch"],
    }


def settled(status: Mapping[str, Any], previous: Mapping[str, Any]) -> bool:
    """Whether `previous` says all that `status` does, heartbeat times aside."""

    def essence(of: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
        return {item["type"]: (item.get("status"), item.get("reason")) for item in of.get("conditions") or []}

    same_conditions = essence(status).items() <= essence(previous).items()
    names = ("capacity", "allocatable", "addresses", "daemonEndpoints")
    return same_conditions and all(previous.get(name) == status[name] for name in names)


def lease_object(node: NodeDescription, node_uid: str, *, now_s: float) -> dict[str, Any]:
    """The heartbeat Lease, owned by the Node so that it goes with it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node_uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node.name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
        "spec": {
            "holderIdentity": node.name,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": micro_timestamp(now_s),
        },
    }


def micro_timestamp(seconds: float) -> str:
    """A MicroTime, as Leases have."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
