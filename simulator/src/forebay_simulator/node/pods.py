"""A pod as the node needs it: parsed once from the API object, then never looked up in dictionaries again.

Parts that are turned into files or environment only when a container starts (volumes, env) stay as they are in `raw`.
The API server has filled in every default, so a missing field means "not asked for".
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay_simulator.node.errors import PodConfigError
from forebay_simulator.node.quantities import parse_quantity

GPU_RESOURCE = "nvidia.com/gpu"
_DEFAULT_GRACE_S = 30


class RestartPolicy(enum.Enum):
    """When an ended container is started again."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"

    def wants_restart(self, exit_code: int) -> bool:
        """Whether a container that ended with `exit_code` is to run again."""
        return self is RestartPolicy.ALWAYS or (self is RestartPolicy.ON_FAILURE and exit_code != 0)


class ContainerKind(enum.Enum):
    """The place of a container in the pod's life."""

    INIT = "init"  # runs to its end before the next
    SIDECAR = "sidecar"  # an init container that stays
    MAIN = "main"


class ProbeKind(enum.Enum):
    """What a probe's verdict decides."""

    STARTUP = "startup"
    LIVENESS = "liveness"
    READINESS = "readiness"

    @property
    def title(self) -> str:
        """As it appears in events."""
        return self.value.capitalize()


@dataclass(frozen=True, slots=True)
class HttpGet:
    """An HTTP request; `host` empty means the pod's address."""

    port: int
    path: str = "/"
    host: str = ""
    tls: bool = False
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TcpConnect:
    """A connection attempt; `host` empty means the pod's address."""

    port: int
    host: str = ""


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A command run inside the container."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """A sleep (hooks only)."""

    duration_s: float


Handler = HttpGet | TcpConnect | RunCommand | Pause


@dataclass(frozen=True, slots=True)
class Probe:
    """A check that is repeated."""

    handler: Handler
    initial_delay_s: float = 0
    period_s: float = 10
    timeout_s: float = 1
    success_threshold: int = 1
    failure_threshold: int = 3
    grace_s: float | None = None  # of the termination that a failure causes


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod."""

    name: str
    kind: ContainerKind = ContainerKind.MAIN
    image: str = ""
    restart: RestartPolicy = RestartPolicy.ALWAYS
    probes: Mapping[ProbeKind, Probe] = field(default_factory=dict)
    pre_stop: Handler | None = None
    post_start: Handler | None = None
    gpus: int = 0
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod bound to this node; `containers` are in starting order, init containers first."""

    uid: str
    namespace: str
    name: str
    containers: tuple[Container, ...]
    grace_s: float
    raw: Mapping[str, Any]

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def gpus(self) -> int:
        """GPUs that the pod holds: those of its long-running containers, or of its hungriest init container."""
        standing = sum(c.gpus for c in self.containers if c.kind is not ContainerKind.INIT)
        passing = max((c.gpus for c in self.containers if c.kind is ContainerKind.INIT), default=0)
        return max(standing, passing)

    def container(self, name: str) -> Container:
        """Find a container by name."""
        return next(item for item in self.containers if item.name == name)


def parse_pod(raw: Mapping[str, Any]) -> Pod:
    """Read a pod as the API server gives it. Raises PodConfigError for what can't be made sense of."""
    metadata, spec = raw["metadata"], raw["spec"]
    restart = RestartPolicy(spec.get("restartPolicy", "Always"))
    containers = [_parse_init(item, restart) for item in spec.get("initContainers") or []]
    containers += [_parse_container(item, ContainerKind.MAIN, restart) for item in spec["containers"]]
    return Pod(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        containers=tuple(containers),
        grace_s=spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S),
        raw=raw,
    )


def find_obstacles(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """What keeps the pod from ever starting on a simulated node, each as a sentence with the fix."""
    found = []
    for volume in raw["spec"].get("volumes") or []:
        kinds = set(volume) - {"name", "configMap", "secret", "emptyDir", "projected", "downwardAPI"}
        found += [
            f'volume "{volume["name"]}" is a {kind}, which a simulated node has not got: use emptyDir, configMap, secret, '
            "projected or downwardAPI"
            for kind in sorted(kinds)
        ]
    for container in [*(raw["spec"].get("initContainers") or []), *raw["spec"]["containers"]]:
        found += [
            f'container "{container["name"]}" has a grpc {kind}, which a simulated node has not got: '
            "use httpGet, tcpSocket or exec"
            for kind in ("startupProbe", "livenessProbe", "readinessProbe")
            if "grpc" in (container.get(kind) or {})
        ]
        found += [
            f'container "{container["name"]}" has no port named "{port}", which a probe or hook refers to: add it to ports'
            for port in _named_ports(container)
            if _port_number(port, container) == 0
        ]
    return tuple(found)


def _parse_init(raw: Mapping[str, Any], restart: RestartPolicy) -> Container:
    if raw.get("restartPolicy") == "Always":
        return _parse_container(raw, ContainerKind.SIDECAR, RestartPolicy.ALWAYS)
    # An init container that succeeded has done its work, whatever the pod's policy.
    policy = RestartPolicy.NEVER if restart is RestartPolicy.NEVER else RestartPolicy.ON_FAILURE
    return _parse_container(raw, ContainerKind.INIT, policy)


def _parse_container(raw: Mapping[str, Any], kind: ContainerKind, restart: RestartPolicy) -> Container:
    if kind is ContainerKind.MAIN and raw.get("restartPolicy"):
        restart = RestartPolicy(raw["restartPolicy"])
    hooks = raw.get("lifecycle") or {}
    probes = {}
    for probe_kind in ProbeKind:
        described = raw.get(f"{probe_kind.value}Probe")
        if described and "grpc" not in described:
            probes[probe_kind] = _parse_probe(described, raw)
    resources = raw.get("resources") or {}
    wanted = (
        (resources.get("limits") or {}).get(GPU_RESOURCE) or (resources.get("requests") or {}).get(GPU_RESOURCE) or 0
    )
    return Container(
        name=raw["name"],
        kind=kind,
        image=raw.get("image", ""),
        restart=restart,
        probes=probes,
        pre_stop=_parse_handler(hooks["preStop"], raw) if hooks.get("preStop") else None,
        post_start=_parse_handler(hooks["postStart"], raw) if hooks.get("postStart") else None,
        gpus=int(parse_quantity(wanted)),
        raw=raw,
    )


def _parse_probe(raw: Mapping[str, Any], container: Mapping[str, Any]) -> Probe:
    return Probe(
        handler=_parse_handler(raw, container),
        initial_delay_s=raw.get("initialDelaySeconds", 0),
        period_s=raw.get("periodSeconds", 10),
        timeout_s=raw.get("timeoutSeconds", 1),
        success_threshold=raw.get("successThreshold", 1),
        failure_threshold=raw.get("failureThreshold", 3),
        grace_s=raw.get("terminationGracePeriodSeconds"),
    )


def _parse_handler(raw: Mapping[str, Any], container: Mapping[str, Any]) -> Handler:
    if http := raw.get("httpGet"):
        return HttpGet(
            port=_port_number(http["port"], container),
            path=http.get("path") or "/",
            host=http.get("host", ""),
            tls=http.get("scheme", "HTTP") == "HTTPS",
            headers=tuple((item["name"], item["value"]) for item in http.get("httpHeaders") or []),
        )
    if tcp := raw.get("tcpSocket"):
        return TcpConnect(port=_port_number(tcp["port"], container), host=tcp.get("host", ""))
    if command := raw.get("exec"):
        return RunCommand(argv=tuple(command.get("command") or ()))
    if "sleep" in raw:
        return Pause(duration_s=raw["sleep"]["seconds"])
    raise PodConfigError(
        f'container "{container["name"]}": a probe or hook has none of httpGet, tcpSocket, exec, sleep'
    )


def _named_ports(container: Mapping[str, Any]) -> list[str]:
    hooks = container.get("lifecycle") or {}
    handlers = [container.get(f"{kind.value}Probe") for kind in ProbeKind] + [
        hooks.get("preStop"),
        hooks.get("postStart"),
    ]
    sockets = [(handler or {}).get(way) for handler in handlers for way in ("httpGet", "tcpSocket")]
    return [socket["port"] for socket in sockets if socket and isinstance(socket["port"], str)]


def _port_number(port: int | str, container: Mapping[str, Any]) -> int:
    """The port's number; 0 for a name that the container does not declare (an obstacle)."""
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for item in container.get("ports") or []:
        if item.get("name") == port:
            return int(item["containerPort"])
    return 0
