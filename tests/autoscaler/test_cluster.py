"""The calls to the API server, with the rights that the chart grants, on a real one."""

import pytest

from forebay_autoscaler.cluster import Api, Cluster, Lease
from forebay_autoscaler.errors import ClusterError, ReplicasChangedError
from forebay_autoscaler.objects import counts_of, rival_of
from tests.autoscaler.conftest import Site
from tests.autoscaler.manifests import model_service, worker_pool

pytestmark = pytest.mark.cluster


@pytest.fixture
def cluster(api: Api, site: Site) -> Cluster:
    site.apply(model_service())
    site.apply(worker_pool(replicas=2), "--field-manager=forebay-initial-replicas")
    return Cluster(api, namespaces=[site.namespace])


async def pool_of(cluster: Cluster) -> dict:
    (pool,) = await cluster.list_worker_pools()
    return pool


async def test_scaling_writes_the_number_and_owns_it(cluster: Cluster, site: Site):
    assert counts_of(await pool_of(cluster)).writer is None
    await cluster.scale(site.namespace, "llama-8b-mixed", current=2, desired=5)
    assert site.replicas("llama-8b-mixed") == 5
    assert counts_of(await pool_of(cluster)).writer is None
    owners = [one["manager"] for one in site.get("workerpool", "llama-8b-mixed")["metadata"]["managedFields"]]
    assert "forebay-autoscaler" in owners


async def test_a_number_that_somebody_changed_in_between_is_not_overwritten(cluster: Cluster, site: Site):
    site.kubectl("scale", "wp/llama-8b-mixed", "--replicas=4")
    with pytest.raises(ReplicasChangedError, match="no longer 2"):
        await cluster.scale(site.namespace, "llama-8b-mixed", current=2, desired=1)
    assert site.replicas("llama-8b-mixed") == 4


async def test_a_pool_goes_to_sleep_and_wakes(cluster: Cluster, site: Site):
    await cluster.scale(site.namespace, "llama-8b-mixed", current=2, desired=0)
    assert site.replicas("llama-8b-mixed") == 0
    with pytest.raises(ReplicasChangedError):
        await cluster.scale(site.namespace, "llama-8b-mixed", current=1, desired=2)
    await cluster.scale(site.namespace, "llama-8b-mixed", current=0, desired=1)
    assert site.replicas("llama-8b-mixed") == 1
    with pytest.raises(ReplicasChangedError):
        await cluster.scale(site.namespace, "llama-8b-mixed", current=0, desired=2)


async def test_the_hand_of_a_person_and_of_an_autoscaler_is_seen_on_the_pool(cluster: Cluster, site: Site):
    await cluster.scale(site.namespace, "llama-8b-mixed", current=2, desired=3)
    site.kubectl("scale", "wp/llama-8b-mixed", "--replicas=4")
    writer = counts_of(await pool_of(cluster)).writer
    assert writer is not None
    assert writer.manager == "kubectl"
    await cluster.scale(site.namespace, "llama-8b-mixed", current=4, desired=3)
    assert counts_of(await pool_of(cluster)).writer is None


async def test_a_horizontal_pod_autoscaler_on_a_pool_is_found(cluster: Cluster, site: Site):
    site.apply(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "rival"},
            "spec": {
                "scaleTargetRef": {
                    "apiVersion": "forebay.dev/v1alpha1",
                    "kind": "WorkerPool",
                    "name": "llama-8b-mixed",
                },
                "maxReplicas": 9,
            },
        }
    )
    found = await cluster.list_horizontal_pod_autoscalers(site.namespace)
    assert rival_of("llama-8b-mixed", found) == "HorizontalPodAutoscaler/rival"
    assert rival_of("llama-8b-other", found) is None


async def test_status_is_ours_in_part_and_the_operators_part_stays(cluster: Cluster, site: Site):
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "AllWorkersReady",
        "message": "2/2",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    body = {
        **model_service(),
        "status": {"conditions": [ready], "pools": [{"name": "mixed", "replicas": 2, "ready": 2}]},
    }
    site.apply(body, "--subresource=status", "--field-manager=forebay-operator")
    key = (site.namespace, "llama-8b")
    active = {**ready, "type": "ScalingActive", "reason": "Auto"}
    pools = [{"name": "mixed", "desired": 3, "reason": "2 → 3"}]
    await cluster.apply_status(key, {"conditions": [active], "attainment": "99.3%", "pools": pools})
    status = site.get("modelservice", "llama-8b")["status"]
    assert {one["type"] for one in status["conditions"]} == {"Ready", "ScalingActive"}
    assert status["pools"] == [{"name": "mixed", "replicas": 2, "ready": 2, "desired": 3, "reason": "2 → 3"}]
    await cluster.apply_status(key, {"conditions": [active]})
    status = site.get("modelservice", "llama-8b")["status"]
    assert "attainment" not in status
    assert status["pools"] == [{"name": "mixed", "replicas": 2, "ready": 2}]


async def test_a_refusal_tells_status_and_reason(api: Api, site: Site):
    elsewhere = Lease(api, namespace=site.namespace, name="x")
    assert await elsewhere.read() is None
    with pytest.raises(ClusterError, match=r"404 Not Found.*no-such-pool") as refused:
        await Cluster(api, namespaces=[]).scale(site.namespace, "no-such-pool", current=1, desired=2)
    assert refused.value.status == 404
    with pytest.raises(ClusterError, match="403 Forbidden"):
        await api.call("GET", f"/api/v1/namespaces/{site.namespace}/secrets")


async def test_without_namespaces_every_namespace_is_watched(api: Api, cluster: Cluster, site: Site):
    everywhere = Cluster(api, namespaces=[])
    found = {one["metadata"]["namespace"] for one in await everywhere.list_model_services()}
    assert site.namespace in found
