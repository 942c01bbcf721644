"""A Kubernetes API server as a test sees it: kubectl as a person runs it, and plain HTTP for tables of many cases.

HTTP goes through `kubectl proxy`, which brings the administrator's credentials; a refused object comes back as the causes
that the server found, each with the path of its field.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from forebay_localcluster.cluster import Cluster
from tests.support.eventually import eventually

API_PATHS = {
    "ModelService": "/apis/forebay.dev/v1alpha1/namespaces/{namespace}/modelservices",
    "WorkerPool": "/apis/forebay.dev/v1alpha1/namespaces/{namespace}/workerpools",
    "AcceleratorClass": "/apis/forebay.dev/v1alpha1/acceleratorclasses",
}
SERVED_WITHIN_S = 10


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
    """One server, as its administrator."""

    def __init__(self, cluster: Cluster, proxy: httpx.Client) -> None:
        self.cluster = cluster
        self._proxy = proxy

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl prints; CommandError has what it complained about."""
        return self.cluster.kubectl(*arguments, stdin=stdin)

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
        acting_as: str | None = None,
    ) -> dict[str, Any]:
        """One call, with unknown fields refused; `acting_as` is the user in whose name it is made.

        What changes nothing is asked once more when the way to the server breaks: hundreds of calls go one after the other,
        and a busy machine drops one now and then.
        """
        asked = {"fieldValidation": "Strict", **(parameters or {}), **({"dryRun": "All"} if dry_run else {})}
        headers = {"Content-Type": content_type, **({"Impersonate-User": acting_as} if acting_as else {})}
        call = partial(self._proxy.request, method, path, params=asked, content=json.dumps(body), headers=headers)
        try:
            answer = call()
        except httpx.TransportError:
            if not (dry_run or method == "GET"):
                raise
            answer = call()
        if answer.is_error:
            raise RefusedError(answer.json())
        made: dict[str, Any] = answer.json()
        return made

    @staticmethod
    def _collection(manifest: Mapping[str, Any]) -> str:
        namespace = manifest["metadata"].get("namespace", "default")
        return API_PATHS[manifest["kind"]].format(namespace=namespace)


@contextmanager
def connect(cluster: Cluster) -> Iterator[ApiServer]:
    """The server of a cluster, reached through a kubectl proxy that lives as long as the context."""
    with subprocess.Popen(
        [str(cluster.layout.bin / "kubectl"), "proxy", "--port=0"],
        env=cluster.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as proxy:
        try:
            assert proxy.stdout is not None
            first = proxy.stdout.readline()
            assert first.startswith("Starting to serve on "), first
            with httpx.Client(base_url=f"http://{first.rsplit(' ', 1)[1].strip()}", timeout=30) as client:
                yield ApiServer(cluster, client)
        finally:
            proxy.terminate()


def install_crds(server: ApiServer, folder: Path) -> None:
    """Apply the CRDs and wait until the server serves them."""
    server.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(folder))
    server.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(folder))
    eventually(
        lambda: server.kubectl("get", "modelservices,workerpools,acceleratorclasses", "--all-namespaces"),
        lambda _: True,
        within_s=SERVED_WITHIN_S,
        what="the server serves the CRDs",
    )
