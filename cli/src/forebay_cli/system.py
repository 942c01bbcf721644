"""Forebay on a local cluster: simulated nodes, the Helm chart that users install, a resource applied.

    with Cluster.temporary("demo", extras=simulated_nodes()) as cluster:
        system = System(cluster)
        system.install()
        system.apply(ROOT / "deploy/local/demo.yaml")
        system.wait_ready("llama-8b")

Used by the demo and by the end-to-end tests. Everything it does is a kubectl or helm call that a user could type.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forebay_cli.errors import NotReadyError
from forebay_localcluster.cluster import Cluster, Extras
from forebay_localcluster.errors import CommandError
from forebay_localcluster.plan import ExtraProgram, LogCheck

ROOT: Final = Path(__file__).resolve().parents[3]
CHART: Final = ROOT / "charts" / "forebay"
LOCAL_VALUES: Final = ROOT / "deploy" / "local" / "values.yaml"
RELEASE: Final = "forebay"
RELEASE_NAMESPACE: Final = "forebay-system"
SERVICE_ADDRESS: Final = "simulator.forebay.dev/address"
"""Annotation by which the simulated nodes publish where a Service is reached."""
POLL_S: Final = 0.25
READY_TIMEOUT_S: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What the simulated nodes look like."""

    count: int = 2
    gpus: int = 8
    accelerator: str = "h100-sxm"
    engine_speed: float = 1.0
    """How much faster than a real H100 the simulated engines run."""
    engine_startup_s: float = 2.0
    """Time from an engine's start to its first healthy answer."""
    images: Path | None = None
    """Table of images; the packaged one when None."""


def simulated_nodes(options: NodeOptions | None = None) -> Extras:
    """The node agents of a cluster, for `Cluster.up` and `Cluster.temporary`."""
    wanted = options or NodeOptions()

    def extras(cluster: Cluster) -> Sequence[ExtraProgram]:
        proxy = cluster.issue("forebay-service-proxy", ["system:masters"])
        return [_node(cluster, number, wanted, proxy) for number in range(wanted.count)]

    return extras


def _node(cluster: Cluster, number: int, options: NodeOptions, proxy: Path) -> ExtraProgram:
    name = f"node-{number}"
    kubeconfig = cluster.issue(f"system:node:{name}", ["system:nodes"], file=name)
    argv = [
        *(sys.executable, "-m", "forebay_simulator.node"),
        *("--name", name, "--kubeconfig", str(kubeconfig), "--data", str(cluster.layout.nodes / name)),
        *("--gpus", str(options.gpus), "--accelerator", options.accelerator),
        *("--address-range", f"127.{cluster.number + 20}.{number}.0/24"),
        *("--engine-speed", str(options.engine_speed), "--engine-startup", f"{options.engine_startup_s}s"),
    ]
    if options.images is not None:
        argv += ["--config", str(options.images)]
    if number == 0:
        argv += ["--service-proxy", "--proxy-kubeconfig", str(proxy)]
    return ExtraProgram(name=name, argv=tuple(argv), ready=LogCheck("node is ready"))


class System:
    """Forebay, installed on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def install(self, *values: str, namespace: str = RELEASE_NAMESPACE, wait: bool = True) -> None:
        """Install or upgrade the chart with the local values; `values` are further `--set` items."""
        items = [f"prometheus.url={self.cluster.prometheus_url}", *values]
        try:
            self.cluster.helm(
                *("upgrade", "--install", RELEASE, str(CHART), "--namespace", namespace, "--create-namespace"),
                *("--values", str(LOCAL_VALUES)),
                *(argument for item in items for argument in ("--set", item)),
                *(("--wait", "--timeout", "90s") if wait else ()),
            )
        except CommandError as error:
            pods = self.cluster.kubectl("get", "pods", "--namespace", namespace)
            raise NotReadyError(f"{error}\n{pods}") from error

    def uninstall(self, namespace: str = RELEASE_NAMESPACE) -> None:
        """Uninstall the chart."""
        self.cluster.helm("uninstall", RELEASE, "--namespace", namespace, "--wait", "--timeout", "90s")

    def apply(self, file: Path, *, namespace: str = "default") -> None:
        """Apply a file of resources."""
        self.cluster.kubectl("apply", "--namespace", namespace, "-f", str(file))

    def apply_object(self, body: Mapping[str, Any], *, namespace: str = "default") -> None:
        """Apply one object."""
        self.cluster.kubectl("apply", "--namespace", namespace, "-f", "-", stdin=json.dumps(body))

    def get(self, *arguments: str, namespace: str = "default") -> dict[str, Any]:
        """An object, or a list, as JSON."""
        found: dict[str, Any] = json.loads(
            self.cluster.kubectl("get", *arguments, "--namespace", namespace, "--output", "json")
        )
        return found

    def router_url(self, namespace: str = RELEASE_NAMESPACE, timeout_s: float = READY_TIMEOUT_S) -> str:
        """Where clients reach the router's Service."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            service = self.get("service", f"{RELEASE}-router", namespace=namespace)
            if address := service["metadata"].get("annotations", {}).get(SERVICE_ADDRESS):
                return f"http://{address}"
            time.sleep(POLL_S)
        raise NotReadyError(f"service {namespace}/{RELEASE}-router got no address within {timeout_s:.0f} s")

    def wait_ready(self, service: str, *, namespace: str = "default", timeout_s: float = READY_TIMEOUT_S) -> float:
        """Wait until a model service is ready; seconds it took. NotReadyError tells its conditions."""
        begun = time.monotonic()
        try:
            self.cluster.kubectl(
                *("wait", "--namespace", namespace, f"modelservice/{service}"),
                *("--for=condition=Ready", f"--timeout={timeout_s:.0f}s"),
            )
        except CommandError as error:
            conditions = self.get("modelservice", service, namespace=namespace).get("status", {}).get("conditions", [])
            told = "; ".join(f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in conditions)
            raise NotReadyError(f"{namespace}/{service} is not ready after {timeout_s:.0f} s: {told}") from error
        return time.monotonic() - begun
