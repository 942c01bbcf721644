"""Flags of a router that is one of several: replicas that hear of each other, and processes on one port."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from forebay_api.names import MESH_PORT
from forebay_router.options import HostPort, Option, count, host_port


def peer_address(text: str) -> str:
    """tcp://HOST:PORT of another replica's mesh port."""
    parts = urlsplit(text if "//" in text else f"tcp://{text}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "tcp" or not parts.hostname or not port or parts.path:
        raise ValueError(f"{text!r} is not a peer's address; write tcp://HOST:{MESH_PORT}")
    return f"tcp://{parts.netloc}"


REPLICA_OPTIONS: tuple[Option, ...] = (
    Option("--mesh", host_port, None, "HOST:PORT", f"tell other replicas here what is sent where, such as 0.0.0.0:{MESH_PORT}"),
    Option("--peers", peer_address, None, "ADDRESS", "other replicas' mesh ports; this one's own may be among them", many=True),
    Option("--peer-pods", str, None, "SELECTOR", "with --kubernetes: other replicas are the pods with these labels"),
    Option("--peer-namespace", str, None, "NAME", "namespace of these pods"),
    Option("--replica-name", str, None, "NAME", "tells replicas apart, a pod's name for instance (default: host and mesh port)"),
    Option("--processes", count, "1", "N", "processes that share the port; one uses one core"),
)  # fmt: skip


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
    )
