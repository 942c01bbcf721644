"""A Kubernetes API server as a test sees it: kubectl as a person runs it, and plain HTTP for tables of many cases.

HTTP goes through `kubectl proxy`, which brings the credentials of the kubeconfig; a refused object comes back as the causes
that the server found, each with the path of its field.
"""

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

API_PATHS = {
    "ModelService": "/apis/forebay.dev/v1alpha1/namespaces/{namespace}/modelservices",
    "WorkerPool": "/apis/forebay.dev/v1alpha1/namespaces/{namespace}/workerpools",
    "AcceleratorClass": "/apis/forebay.dev/v1alpha1/acceleratorclasses",
}
COMMAND_TIMEOUT_S = 60
PROXY_START_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Cause:
    """One fault that the server found in an object."""

    field: str
    message: str


class RefusedError(Exception):
    """The server refused a request."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        super().__init__(status.get("message"))
        causes = status.get("details", {}).get("causes", [])
        self.causes = [Cause(one.get("field", ""), one["message"]) for one in causes]


class ApiServer:
    """One server, as the user of a kubeconfig."""

    def __init__(self, *, kubectl: Path, kubeconfig: Path, proxy: httpx.Client) -> None:
        self._command = [str(kubectl), "--kubeconfig", str(kubeconfig)]
        self._proxy = proxy

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl prints; a failure shows what it complained about."""
        done = subprocess.run(
            [*self._command, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr.strip()}"
        return done.stdout

    def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """The object as the server stores it, or would; RefusedError when it does not."""
        return self.request("POST", self._collection(manifest), body=manifest, dry_run=dry_run)

    def replace(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """The object after the update; the manifest needs a resourceVersion."""
        path = f"{self._collection(manifest)}/{manifest['metadata']['name']}"
        return self.request("PUT", path, body=manifest, dry_run=dry_run)

    def replace_status(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """The object after its status is written; it must exist."""
        path = f"{self._collection(manifest)}/{manifest['metadata']['name']}"
        stored = self.request("GET", path, body={})
        body = {**manifest, "metadata": stored["metadata"]}
        return self.request("PUT", f"{path}/status", body=body, dry_run=dry_run)

    def apply_status(self, manifest: Mapping[str, Any], *, manager: str) -> dict[str, Any]:
        """The object after a forced server-side apply of its status."""
        path = f"{self._collection(manifest)}/{manifest['metadata']['name']}/status"
        return self.request(
            "PATCH",
            path,
            body=manifest,
            parameters={"fieldManager": manager, "force": "true"},
            content_type="application/apply-patch+yaml",
        )

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any],
        parameters: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """One call, with unknown fields refused."""
        asked = {"fieldValidation": "Strict", **(parameters or {}), **({"dryRun": "All"} if dry_run else {})}
        answer = self._proxy.request(
            method, path, params=asked, content=json.dumps(body), headers={"Content-Type": content_type}
        )
        if answer.is_error:
            raise RefusedError(answer.json())
        made: dict[str, Any] = answer.json()
        return made

    @staticmethod
    def _collection(manifest: Mapping[str, Any]) -> str:
        namespace = manifest["metadata"].get("namespace", "default")
        return API_PATHS[manifest["kind"]].format(namespace=namespace)


@contextmanager
def connect(*, kubectl: Path, kubeconfig: Path) -> Iterator[ApiServer]:
    """The server of a kubeconfig, reached through a kubectl proxy that lives as long as the context."""
    command = [str(kubectl), "--kubeconfig", str(kubeconfig), "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            first = proxy.stdout.readline()
            assert first.startswith("Starting to serve on "), first
            with httpx.Client(base_url=f"http://{first.rsplit(' ', 1)[1].strip()}", timeout=30) as client:
                yield ApiServer(kubectl=kubectl, kubeconfig=kubeconfig, proxy=client)
        finally:
            proxy.terminate()


def install_crds(server: ApiServer, folder: Path) -> None:
    """Apply the CRDs and wait until the server serves them."""
    server.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(folder))
    server.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(folder))
    deadline_s = time.monotonic() + PROXY_START_TIMEOUT_S
    while True:
        try:
            server.kubectl("get", "modelservices,workerpools,acceleratorclasses", "--all-namespaces")
        except AssertionError:
            assert time.monotonic() < deadline_s, "the server does not serve the CRDs"
            time.sleep(0.1)
        else:
            return
