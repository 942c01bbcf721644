"""Settings of a router that is one of several."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay_api.names import MESH_PORT
from forebay_router.options import HostPort
from forebay_router.processes.part import Part


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """How a router takes part."""

    mesh: HostPort | None = None
    """Where it tells; None when it is alone."""
    peers: tuple[str, ...] = ()
    peer_pods: str | None = None
    peer_namespace: str | None = None
    name: str | None = None
    processes: int = 1
    part: Part | None = None
    """Which process this one is, where a parent began it."""


def read_replica_settings(values: Mapping[str, Any]) -> ReplicaSettings:
    """From parsed values; ValueError names a flag and the fix."""
    mesh, peers, pods = values["mesh"], values["peers"], values["peer_pods"]
    if (peers or pods) and mesh is None:
        raise ValueError(f"--peers and --peer-pods need --mesh: add for example --mesh 0.0.0.0:{MESH_PORT}")
    if peers and pods:
        raise ValueError("give one of --peers and --peer-pods: the pods are watched, or the addresses are listed")
    if pods and not values["kubernetes"]:
        raise ValueError("--peer-pods works with --kubernetes only: list addresses with --peers instead")
    if bool(pods) != bool(values["peer_namespace"]):
        raise ValueError("--peer-pods and --peer-namespace go together: say which labels, and in which namespace")
    return ReplicaSettings(
        mesh=mesh,
        peers=peers,
        peer_pods=pods,
        peer_namespace=values["peer_namespace"],
        name=values["replica_name"],
        processes=values["processes"],
        part=Part.read(values["part"]) if values["part"] else None,
    )
