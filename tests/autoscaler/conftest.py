"""A real API server with the CRDs, and the autoscaler's own, limited, user on it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from forebay_autoscaler.cluster import Api, connect
from forebay_localcluster.cluster import Cluster
from tests.support import api_server
from tests.support.rights import grant

ROOT = Path(__file__).resolve().parents[2]
USER = "forebay-autoscaler"


@dataclass(frozen=True)
class Site:
    """A namespace of one test on the real API server."""

    cluster: Cluster
    namespace: str
    kubeconfig: Path
    """The autoscaler's."""

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """As administrator, in the namespace."""
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, stdin=stdin)

    def apply(self, manifest: dict[str, Any], *arguments: str) -> None:
        """Server-side apply."""
        self.kubectl("apply", "--server-side", "--force-conflicts", *arguments, "-f", "-", stdin=json.dumps(manifest))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object, managed fields included."""
        return json.loads(self.kubectl("get", kind, name, "-o", "json", "--show-managed-fields"))

    def replicas(self, pool: str) -> int:
        """Number of workers wanted of a WorkerPool."""
        return int(self.get("workerpool", pool)["spec"]["replicas"])

    def events(self) -> list[dict[str, Any]]:
        """Events of the namespace, in no order that means anything."""
        return json.loads(self.kubectl("get", "events", "-o", "json"))["items"]

    def set_pool_status(self, pool: str, **status: Any) -> None:
        """As the operator would."""
        patch = json.dumps({"status": status})
        self.kubectl("patch", "workerpool", pool, "--subresource=status", "--type=merge", "-p", patch)


@pytest.fixture(scope="session")
def autoscaler_kubeconfig(kubernetes_cluster: Cluster) -> Path:
    """A user with the rights that the chart grants, and no others."""
    with api_server.connect(kubernetes_cluster) as server:
        api_server.install_crds(server, ROOT / "charts/forebay/crds")
    return grant(kubernetes_cluster, "autoscaler", user=USER)


@pytest.fixture
def site(kubernetes_cluster: Cluster, autoscaler_kubeconfig: Path) -> Iterator[Site]:
    """A namespace of its own."""
    namespace = f"autoscaler-{uuid4().hex[:8]}"
    kubernetes_cluster.kubectl("create", "namespace", namespace)
    yield Site(kubernetes_cluster, namespace, autoscaler_kubeconfig)
    kubernetes_cluster.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
async def api(site: Site) -> AsyncIterator[Api]:
    """The autoscaler's connection."""
    made = await connect(str(site.kubeconfig), timeout_s=5)
    yield made
    await made.close()
    await asyncio.sleep(0)  # let the connector's transports close before the loop does
