"""A simulated node as a process of its own, on a real control plane."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from forebay_localcluster.cluster import Cluster
from tests.support.eventually import eventually

START_TIMEOUT_S = 60


class NodeProcess:
    """One `forebay-node`."""

    def __init__(self, cluster: Cluster, name: str, *, octet: int, service_proxy: bool = False) -> None:
        self.cluster = cluster
        self.name = name
        self.data = cluster.layout.nodes / name
        self._log = cluster.data / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        kubeconfig = cluster.issue(f"system:node:{name}", ["system:nodes"], file=name)
        self._argv = [
            *(sys.executable, "-m", "forebay_simulator.node"),
            *("--name", name, "--kubeconfig", str(kubeconfig), "--data", str(self.data)),
            *("--address-range", f"127.{cluster.number + 20}.{octet}.0/24"),
            *("--backoff-base", "1s", "--refresh", "2s", "--engine-startup", "200ms"),
        ]
        if service_proxy:
            self._argv += ["--service-proxy", "--proxy-kubeconfig", str(cluster.kubeconfig)]

    def start(self) -> None:
        """Start it and wait until the node is registered."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._argv, stdout=log, stderr=log)
        eventually(
            self._log.read_text,
            lambda text: "node is ready" in text,
            within_s=START_TIMEOUT_S,
            what=f"{self.name} starts",
        )

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def shut_down(self) -> int:
        """SIGTERM, as an operating system that shuts down; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=START_TIMEOUT_S)

    def log_of(self, namespace: str, pod: str, container: str = "main", *, previous: bool = False) -> str:
        """What a container printed."""
        name = f"{container}.previous.log" if previous else f"{container}.log"
        return (self.data / "pods" / f"{namespace}_{pod}" / name).read_text()

    def processes(self) -> list[psutil.Process]:
        """The agent's own process, its launcher and every pod's process."""
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            words = process.info["cmdline"] or []
            environment = process.info["environ"] or {}
            if str(self.data) in words or environment.get("FOREBAY_TEST_NODE") == str(self.data):
                found.append(process)
        return found


class Namespace:
    """kubectl in one namespace, objects as JSON."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl("--namespace", self.name, *arguments, stdin=stdin)

    def apply(self, *objects: dict[str, Any]) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(items))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found

    def events(self, pod: str) -> dict[str, str]:
        """The last message by reason."""
        listed = json.loads(self.kubectl("get", "events", "-o", "json", f"--field-selector=involvedObject.name={pod}"))
        return {item["reason"]: item["message"] for item in listed["items"]}

    def status(self, pod: str) -> dict[str, Any]:
        return self.get("pod", pod)["status"]

    def await_status(self, pod: str, accept: Any, what: str, *, within_s: float = 60) -> dict[str, Any]:
        """The first status of a pod that is accepted."""
        return eventually(lambda: self.status(pod), accept, within_s=within_s, what=f"{pod} {what}")

    def await_ready(self, pod: str) -> dict[str, Any]:
        return self.await_status(pod, is_ready, "is ready")

    def delete(self, pod: str, *arguments: str) -> None:
        self.kubectl("delete", "pod", pod, *arguments)


def is_ready(status: dict[str, Any]) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions", []))


def main_state(status: dict[str, Any]) -> dict[str, Any]:
    """The status of the first container."""
    found: dict[str, Any] = (status.get("containerStatuses") or [{"state": {}, "lastState": {}}])[0]
    return found


def process_id(status: dict[str, Any]) -> int:
    """The machine's number of the first container's process."""
    return int(main_state(status)["containerID"].removeprefix("process://"))


def find_nodes(cluster: Cluster) -> dict[str, dict[str, Any]]:
    listed = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))
    return {item["metadata"]["name"]: item for item in listed["items"]}


def logs_folder(node: NodeProcess) -> Path:
    return node.data / "pods"
