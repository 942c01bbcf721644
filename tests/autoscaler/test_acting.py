"""A whole replica, but for Prometheus' process, against the real API server: what it does there, and what it says."""

import asyncio
from dataclasses import dataclass

import pytest

from forebay_autoscaler.__main__ import build_loop
from forebay_autoscaler.cluster import Api, Cluster
from forebay_autoscaler.loop import Loop
from forebay_autoscaler.prometheus import Prometheus
from forebay_autoscaler.settings import parse_settings
from tests.autoscaler.conftest import Site
from tests.autoscaler.fake_prometheus import URL, FakePrometheus
from tests.autoscaler.manifests import model_service, worker_pool
from tests.autoscaler.plant import DEMO
from tests.support.eventually import eventually

pytestmark = pytest.mark.cluster

POOL = "llama-8b-mixed"
FORECASTS_TESTED = 40
"""Cycles within which enough forecasts of a fresh autoscaler have come to pass for it to shrink a pool."""


@dataclass
class Replica:
    """One autoscaler, its clock and its Prometheus."""

    site: Site
    loop: Loop
    prometheus: FakePrometheus
    watch: Cluster
    now_s: float = 1000.0
    reported: int = -1

    @property
    def key(self) -> tuple[str, str]:
        return self.site.namespace, "llama-8b"

    async def cycle(self, *, after_s: float = 2.0, times: int = 1) -> None:
        """Run cycles; every worker that is wanted is ready by the next one."""
        for _ in range(times):
            self.now_s += after_s
            await self.loop.cycle()
            await self.settle()

    async def settle(self) -> None:
        """What the operator would report."""
        (pool,) = await self.watch.list_worker_pools()
        if pool["spec"]["replicas"] != self.reported:
            self.reported = pool["spec"]["replicas"]
            self.site.set_pool_status(POOL, replicas=self.reported, ready=self.reported)

    @property
    def replicas(self) -> int:
        return self.site.replicas(POOL)

    def status(self) -> dict:
        return self.site.get("modelservice", "llama-8b").get("status", {})

    def condition(self, name: str) -> tuple[str, str, str]:
        """Status, reason and message."""
        (found,) = [one for one in self.status()["conditions"] if one["type"] == name]
        return found["status"], found["reason"], found["message"]

    def events(self, reason: str) -> set[str]:
        """Messages of the Events with this reason, each of which came once."""
        found = [one["message"] for one in self.site.events() if one["reason"] == reason]
        assert len(found) == len(set(found)), found
        return set(found)


async def replica_on(site: Site, api: Api, mode: str) -> Replica:
    site.apply(model_service(autoscaling={"mode": mode, "scaleDownStabilization": "15s"}))
    site.apply(worker_pool(), "--field-manager=forebay-initial-replicas")
    fake = FakePrometheus(DEMO, namespaces=[site.namespace])
    arguments = [f"--prometheus-url={URL}", "--interval=2s", "--rate-window=15s", "--burst-window=5s"]
    settings = parse_settings([*arguments, "--attainment-window=60s", f"--namespaces={site.namespace}"], {})
    loop = build_loop(settings, Cluster(api, namespaces=[site.namespace]), Prometheus(URL, fake.http()), None)
    replica = Replica(site, loop, fake, Cluster(api, namespaces=[site.namespace]))
    loop.clock = lambda: replica.now_s
    await replica.settle()
    return replica


@pytest.fixture
async def auto(site: Site, api: Api) -> Replica:
    return await replica_on(site, api, "Auto")


async def test_a_pool_goes_up_with_demand_and_down_again_and_says_why(auto: Replica):
    auto.prometheus.load(auto.key, rate_per_s=2)
    await auto.cycle(times=2)
    assert auto.replicas == 1
    assert auto.condition("MetricsFresh")[:2] == ("True", "Fresh")
    assert auto.condition("ScalingActive")[:2] == ("True", "Auto")
    auto.prometheus.load(auto.key, rate_per_s=20, waiting=12)
    await auto.cycle()
    assert auto.replicas == 6
    (told,) = auto.events("ScaledUp")
    assert told == "pool mixed: 1 → 6: 20.0 req/s asked, one worker does 5.3 good/s, 0.6 s of backlog"
    status = auto.status()
    assert status["pools"] == [{"name": "mixed", "desired": 6, "reason": told.removeprefix("pool mixed: ")}]
    assert status["goodputPerSecond"] == "20.0"
    assert status["attainment"] == "100.0%"
    auto.prometheus.load(auto.key, rate_per_s=2)
    await auto.cycle(times=7)
    assert auto.replicas == 6, "it was needed within the last 15 s"
    await auto.cycle(times=4)
    assert auto.replicas == 6, "no forecast came to pass yet"
    assert "how demand varies has not been seen for long enough" in auto.status()["pools"][0]["reason"]
    await auto.cycle(times=FORECASTS_TESTED)
    assert auto.replicas == 1
    asked = "2 req/s asked, one worker does 5.3 good/s"
    assert auto.events("ScaledDown") == {
        f"pool mixed: 6 → 3: {asked}; 1 needed, but one step goes from 6 to 3-14",
        f"pool mixed: 3 → 1: {asked}",
    }


async def test_unchanged_status_is_not_written_again(auto: Replica):
    auto.prometheus.load(auto.key, rate_per_s=2)
    await auto.cycle(times=3)
    before = auto.site.get("modelservice", "llama-8b")["metadata"]["resourceVersion"]
    await auto.cycle(times=5)
    assert auto.site.get("modelservice", "llama-8b")["metadata"]["resourceVersion"] == before
    auto.prometheus.load(auto.key, rate_per_s=2.2)
    await auto.cycle(times=1)
    await auto.cycle(times=5)
    assert auto.status()["goodputPerSecond"] == "2.2"


@pytest.mark.parametrize("trouble", ["down", "empty", "stale"])
async def test_an_outage_of_the_metrics_holds_says_so_and_heals(auto: Replica, trouble: str):
    """C097: an empty answer is not zero."""
    auto.prometheus.load(auto.key, rate_per_s=20)
    await auto.cycle(times=2)
    high = auto.replicas
    assert high > 3
    setattr(auto.prometheus, "age_s" if trouble == "stale" else trouble, 1e3 if trouble == "stale" else True)
    await auto.cycle(times=40)
    assert auto.replicas == high
    status, reason, message = auto.condition("MetricsFresh")
    assert status == "False"
    if trouble == "down":
        assert reason == "PrometheusFails"
        assert URL in message
    else:
        assert reason == "NoFreshData"
        assert "arrivals (forebay_router_requests_arrived_total)" in message
    assert auto.condition("ScalingActive")[1] == "MetricsUnknown"
    (held,) = auto.events("ScalingHeld")
    assert f"{high} held" in held
    assert "attainment" not in auto.status()
    auto.prometheus.down, auto.prometheus.empty, auto.prometheus.age_s = False, False, 1.0
    auto.prometheus.load(auto.key, rate_per_s=2)
    await auto.cycle(times=6)
    assert auto.replicas == high, "a full window of data comes first"
    assert auto.condition("MetricsFresh")[0] == "True"
    await auto.cycle(times=FORECASTS_TESTED)
    assert auto.replicas == 1


async def test_a_person_who_scales_is_reported_and_not_fought(auto: Replica):
    auto.prometheus.load(auto.key, rate_per_s=2)
    await auto.cycle(times=2)
    auto.site.kubectl("scale", f"wp/{POOL}", "--replicas=4")
    await auto.cycle(times=6)
    assert auto.replicas == 4
    assert auto.events("ReplicasSetByOther") == {"pool mixed: kubectl set 4 workers; scaling goes on from there"}
    await auto.cycle(times=FORECASTS_TESTED)
    assert auto.replicas == 1


async def test_a_horizontal_pod_autoscaler_makes_it_stand_back_until_it_is_gone(auto: Replica):
    """C103."""
    hpa = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "rival"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "forebay.dev/v1alpha1", "kind": "WorkerPool", "name": POOL},
            "minReplicas": 5,
            "maxReplicas": 9,
        },
    }
    auto.prometheus.load(auto.key, rate_per_s=2)
    await auto.cycle(times=2)
    auto.site.apply(hpa)
    # The controller manager raises the pool to its minimum.
    wait = {"within_s": 40, "what": "the controller manager raises the pool"}
    await asyncio.to_thread(eventually, lambda: auto.replicas, lambda number: number == 5, **wait)
    assert auto.replicas == 5
    await auto.cycle(times=20)
    assert auto.replicas == 5
    status, reason, message = auto.condition("ScalingActive")
    assert (status, reason) == ("False", "ForeignAutoscaler")
    assert message.startswith("HorizontalPodAutoscaler/rival owns the workers of pool mixed")
    assert len(auto.events("ForeignAutoscaler")) == 1
    auto.site.kubectl("delete", "hpa", "rival")
    await auto.cycle(times=20)
    assert auto.replicas == 1
    assert auto.condition("ScalingActive")[1] == "Auto"


async def test_advise_records_without_acting(site: Site, api: Api):
    replica = await replica_on(site, api, "Advise")
    replica.prometheus.load(replica.key, rate_per_s=20)
    await replica.cycle(times=5)
    assert replica.replicas == 1
    (pool,) = replica.status()["pools"]
    assert pool["desired"] == 5
    assert replica.condition("ScalingActive")[:2] == ("False", "AdviseOnly")
    assert replica.events("ScalingAdvised") == {"pool mixed: 1 → 5: 20.0 req/s asked, one worker does 5.3 good/s"}


async def test_off_only_measures(site: Site, api: Api):
    replica = await replica_on(site, api, "Off")
    replica.prometheus.load(replica.key, rate_per_s=20)
    await replica.cycle(times=2)
    assert replica.replicas == 1
    assert replica.condition("ScalingActive")[:2] == ("False", "Off")
    status = replica.status()
    assert not status.get("pools")
    assert status["goodputPerSecond"] == "20.0"
    site.kubectl("scale", f"wp/{POOL}", "--replicas=3")
    await replica.cycle(times=2)
    assert replica.replicas == 3
    assert site.events() == []


async def test_a_pool_asleep_wakes_for_a_held_request(site: Site, api: Api):
    pool = {"name": "mixed", "accelerator": "h100-sxm", "replicas": {"min": 0, "max": 3}}
    replica = await replica_on(site, api, "Auto")
    site.apply(model_service(pools=[pool]))
    replica.prometheus.load(replica.key, rate_per_s=0)
    await replica.cycle(times=10)
    assert replica.replicas == 0
    replica.prometheus.load(replica.key, rate_per_s=0, pending=1)
    replica.prometheus.pools.clear()
    await replica.cycle()
    assert replica.replicas == 1
