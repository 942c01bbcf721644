"""Services as pods of a local cluster reach them: pure.

A Service's cluster address leads nowhere here. The service proxy listens on a loopback address for each Service and writes
it on the Service as annotations; from these every node makes the environment and the host names that its pods get.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ADDRESS_ANNOTATION = "simulator.forebay.dev/address"
"""`HOST:PORT` of the Service's first port."""
ADDRESSES_ANNOTATION = "simulator.forebay.dev/addresses"
"""`NAME=HOST:PORT` of every port, separated by commas; an unnamed port goes by its number."""


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port of a Service and where it is reached."""

    name: str
    number: int  # as the Service declares it
    actual: int  # as the proxy listens


@dataclass(frozen=True, slots=True)
class ReachableService:
    """A Service that the proxy serves."""

    namespace: str
    name: str
    host: str
    ports: tuple[ServicePort, ...]


def is_proxied(service: Mapping[str, Any]) -> bool:
    """Whether the service proxy serves it: it selects pods and is not headless."""
    spec = service["spec"]
    return bool(spec.get("selector")) and spec.get("clusterIP") != "None" and bool(_tcp_ports(service))


def _tcp_ports(service: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [port for port in service["spec"].get("ports") or [] if port.get("protocol", "TCP") == "TCP"]


def declared_ports(service: Mapping[str, Any]) -> list[tuple[str, int, int | str]]:
    """The TCP ports as (name or number, number, target)."""
    return [
        (port.get("name") or str(port["port"]), port["port"], port.get("targetPort") or port["port"])
        for port in _tcp_ports(service)
    ]


def address_annotations(host: str, actual_ports: Mapping[str, int]) -> dict[str, str]:
    """What to write on a Service; `actual_ports` in the Service's order."""
    listed = [f"{name}={host}:{port}" for name, port in actual_ports.items()]
    return {ADDRESS_ANNOTATION: listed[0].partition("=")[2], ADDRESSES_ANNOTATION: ",".join(listed)}


def read_service(service: Mapping[str, Any]) -> ReachableService | None:
    """Where a Service is reached; None when it is not (yet)."""
    metadata = service["metadata"]
    listed = (metadata.get("annotations") or {}).get(ADDRESSES_ANNOTATION, "")
    where = dict(item.split("=", 1) for item in listed.split(",") if "=" in item)
    ports = tuple(
        ServicePort(name, number, int(where[name].rpartition(":")[2]))
        for name, number, _ in declared_ports(service)
        if name in where
    )
    if not ports or not is_proxied(service):
        return None
    host = where[ports[0].name].rpartition(":")[0]
    return ReachableService(metadata["namespace"], metadata["name"], host, ports)


def service_environment(services: Iterable[ReachableService]) -> dict[str, str]:
    """The variables that a kubelet sets for the Services of a pod's namespace."""
    environment: dict[str, str] = {}
    for service in services:
        prefix = service.name.upper().replace("-", "_")
        first = service.ports[0]
        environment[f"{prefix}_SERVICE_HOST"] = service.host
        environment[f"{prefix}_SERVICE_PORT"] = str(first.actual)
        environment[f"{prefix}_PORT"] = f"tcp://{service.host}:{first.actual}"
        for port in service.ports:
            if not port.name.isdigit():
                environment[f"{prefix}_SERVICE_PORT_{port.name.upper().replace('-', '_')}"] = str(port.actual)
            link = f"{prefix}_PORT_{port.number}_TCP"
            environment[link] = f"tcp://{service.host}:{port.actual}"
            environment[f"{link}_PROTO"] = "tcp"
            environment[f"{link}_PORT"] = str(port.actual)
            environment[f"{link}_ADDR"] = service.host
    return environment


def api_server_environment(host: str, port: int) -> dict[str, str]:
    """The variables by which in-cluster clients find the API server: always set, whatever the pod asks for."""
    return {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": str(port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
        "KUBERNETES_PORT": f"tcp://{host}:{port}",
    }


def hosts_file(
    *,
    machine: str,
    pod_address: str,
    pod_name: str,
    namespace: str,
    aliases: Iterable[Mapping[str, Any]],
    services: Iterable[ReachableService],
) -> str:
    """The pod's /etc/hosts: the machine's, the pod's own name, its aliases, and every Service by its DNS names."""
    lines = [machine.rstrip("\n"), "# The pod.", f"{pod_address}\t{pod_name}"]
    lines += [f"{alias['ip']}\t{' '.join(alias.get('hostnames') or [])}" for alias in aliases]
    lines.append("# Services.")
    for service in sorted(services, key=lambda item: (item.namespace, item.name)):
        full = f"{service.name}.{service.namespace}"
        names = [f"{full}.svc.cluster.local", f"{full}.svc", full]
        if service.namespace == namespace:
            names.append(service.name)
        lines.append(f"{service.host}\t{' '.join(names)}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Backend:
    """A pod that may serve connections."""

    address: str
    port: int


def backends(service: Mapping[str, Any], target: int | str, pods: Iterable[Mapping[str, Any]]) -> tuple[Backend, ...]:
    """The ready pods that a Service's port leads to, in a steady order."""
    selector = service["spec"]["selector"]
    found = []
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        if not all(labels.get(key) == value for key, value in selector.items()) or not serves(pod):
            continue
        port = target if isinstance(target, int) else _named_port(pod, target)
        if port is not None:
            found.append((pod["metadata"]["name"], Backend(pod["status"]["podIP"], port)))
    return tuple(backend for _, backend in sorted(found, key=lambda item: item[0]))


def serves(pod: Mapping[str, Any]) -> bool:
    """Ready, with an address, and not on its way out."""
    status = pod.get("status") or {}
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions") or [])
    return ready and bool(status.get("podIP")) and not pod["metadata"].get("deletionTimestamp")


def _named_port(pod: Mapping[str, Any], name: str) -> int | None:
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or []:
            if port.get("name") == name:
                return int(port["containerPort"])
    return None
