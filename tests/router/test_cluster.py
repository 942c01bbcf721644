"""Discovery against a real API server, with the rights that the chart grants and no others."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from forebay_localcluster.cluster import Cluster
from forebay_router.discovery.apiserver import ApiServer
from forebay_router.discovery.kubernetes import KubernetesDiscovery
from forebay_router.table import ServiceKey, WorkerState, WorkerTable
from forebay_router.upstream import Upstreams
from tests.router.harness import until
from tests.support import api_server
from tests.support.rights import grant

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kubeconfig(kubernetes_cluster: Cluster) -> Path:
    """The router's user."""
    with api_server.connect(kubernetes_cluster) as server:
        api_server.install_crds(server, ROOT / "charts/forebay/crds")
    return grant(kubernetes_cluster, "router", user="forebay-router")


class Site:
    """A namespace of one test."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    async def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        command = ("--namespace", self.namespace, *arguments)
        return await asyncio.to_thread(lambda: self.cluster.kubectl(*command, stdin=stdin))

    async def create(self, manifest: dict) -> None:
        await self.kubectl("create", "-f", "-", stdin=json.dumps(manifest))

    async def create_service(self, name: str = "chat") -> None:
        await self.create(
            {
                "apiVersion": "forebay.dev/v1alpha1",
                "kind": "ModelService",
                "metadata": {"name": name},
                "spec": {
                    "model": {"name": f"{self.namespace}-{name}", "source": "hf://meta-llama/Llama-3.1-8B-Instruct"},
                    "pools": [{"name": "mixed", "accelerator": "h100-sxm"}],
                },
            }
        )

    async def create_pod(self, name: str, *, ready: bool = True) -> None:
        labels = {
            "app.kubernetes.io/component": "worker",
            "forebay.dev/model-service": "chat",
            "forebay.dev/pool": "mixed",
            "forebay.dev/role": "Mixed",
        }
        await self.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": labels},
                "spec": {
                    "nodeName": "nowhere",
                    "terminationGracePeriodSeconds": 30,
                    "containers": [
                        {"name": "engine", "image": "x", "ports": [{"name": "http", "containerPort": 8000}]}
                    ],
                },
            }
        )
        await self.set_status(name, ready=ready)

    async def set_status(self, name: str, *, ready: bool) -> None:
        status = {
            "phase": "Running",
            "podIP": "127.250.0.1",
            "podIPs": [{"ip": "127.250.0.1"}],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        }
        patch = json.dumps({"status": status})
        await self.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", patch)


@asynccontextmanager
async def discovering(cluster: Cluster, kubeconfig: Path, *, scoped: bool):
    """A namespace, and a table that is kept by the real client."""
    namespace = f"router-{uuid4().hex[:8]}"
    await asyncio.to_thread(lambda: cluster.kubectl("create", "namespace", namespace))
    site = Site(cluster, namespace)
    table = WorkerTable()
    upstreams = Upstreams(connect_timeout_s=1, idle_s=1)
    api = await ApiServer.connect(str(kubeconfig))
    discovery = KubernetesDiscovery(table, (namespace,) if scoped else (), upstreams, api=api)
    task = asyncio.create_task(discovery.run())
    try:
        await until(lambda: table.complete, "the first lists")
        yield site, table, discovery
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()
        upstreams.close()
        await asyncio.sleep(0.1)
        await asyncio.to_thread(lambda: cluster.kubectl("delete", "namespace", namespace, "--wait=false"))


def states(table: WorkerTable, site: Site) -> dict[str, WorkerState]:
    service = table.services.get(ServiceKey(site.namespace, "chat"))
    return {one.spec.name.split("/")[1]: one.spec.state for one in service.workers.values()} if service else {}


@pytest.mark.parametrize("scoped", [True, False], ids=["one namespace", "cluster-wide"])
async def test_pods_are_followed_through_their_life(kubernetes_cluster, kubeconfig, scoped):
    """C055, C056, C058 on a real server: Ready, not Ready, draining, marked for deletion, gone."""
    async with discovering(kubernetes_cluster, kubeconfig, scoped=scoped) as (site, table, discovery):
        await site.create_service()
        await site.create_pod("a", ready=False)
        await until(lambda: states(table, site) == {"a": WorkerState.NOT_READY}, "a pod that is not ready")
        await site.set_status("a", ready=True)
        await until(lambda: states(table, site) == {"a": WorkerState.READY}, "a ready pod")
        await site.kubectl("label", "pod", "a", "forebay.dev/draining=true")
        await until(lambda: states(table, site) == {"a": WorkerState.DRAINING}, "a draining pod")
        await site.kubectl("label", "pod", "a", "forebay.dev/draining-")
        await until(lambda: states(table, site) == {"a": WorkerState.READY}, "used again")
        await site.kubectl("label", "pod", "a", "forebay.dev/model-service-")
        await until(lambda: states(table, site) == {}, "out of the selector")
        await site.kubectl("label", "pod", "a", "forebay.dev/model-service=chat")
        await until(lambda: states(table, site) == {"a": WorkerState.READY}, "in it again")
        await site.kubectl("delete", "pod", "a", "--wait=false")
        await until(lambda: states(table, site) == {"a": WorkerState.DRAINING}, "marked for deletion")
        await site.kubectl("delete", "pod", "a", "--grace-period=0", "--force")
        await until(lambda: states(table, site) == {}, "gone")
        await site.kubectl("delete", "modelservice", "chat")
        await until(lambda: f"{site.namespace}-chat" not in table.by_model, "the service is gone")
        assert discovery.synced


async def test_large_object_blinds_nobody(kubernetes_cluster, kubeconfig):
    """C134 on a real server: an object of hundreds of kilobytes, then an ordinary change."""
    async with discovering(kubernetes_cluster, kubeconfig, scoped=True) as (site, table, _):
        await site.create_service()
        await site.create_pod("a")
        await site.kubectl("annotate", "pod", "a", "large=" + "x" * 100_000, "larger=" + "y" * 100_000)
        await site.kubectl("label", "pod", "a", "forebay.dev/draining=true")
        await until(lambda: states(table, site) == {"a": WorkerState.DRAINING}, "the change is seen")


async def test_api_server_that_is_killed_takes_no_worker_out(kubernetes_cluster, kubeconfig):
    """SIGKILL of the API server: what is known stays in use; changes are seen once it is back, without help."""
    async with discovering(kubernetes_cluster, kubeconfig, scoped=True) as (site, table, discovery):
        await site.create_service()
        await site.create_pod("a")
        await until(lambda: states(table, site) == {"a": WorkerState.READY}, "used")
        await asyncio.to_thread(kubernetes_cluster.kill, "kube-apiserver")
        await until(lambda: not discovery.synced, "the outage is noticed")
        assert states(table, site) == {"a": WorkerState.READY}

        await asyncio.to_thread(kubernetes_cluster.start_program, "kube-apiserver")
        await site.set_status("a", ready=False)
        await until(lambda: states(table, site) == {"a": WorkerState.NOT_READY}, "the change is seen", bound_s=40)
        await until(lambda: discovery.synced, "fresh again", bound_s=40)
