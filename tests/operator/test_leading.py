"""What the leader does before its watches run."""

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
from kubernetes.aio import client as kubernetes_client

from forebay_operator import leading
from forebay_operator.control import Health
from forebay_operator.errors import ApiForbiddenError, ApiNotFoundError
from forebay_operator.metrics import Metrics
from forebay_operator.resources import LEASE
from forebay_operator.settings import load_settings
from tests.operator.fake_cluster import FakeCluster
from tests.support.bounds import NEVER_S


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def leader(cluster) -> leading.Leader:
    return leading.Leader(
        settings=load_settings([], {}),
        configuration=kubernetes_client.Configuration(),
        cluster=cluster,
        metrics=Metrics(),
        health=Health(),
        on_watching=lambda: None,
    )


async def test_it_starts_once_the_kinds_are_served(leader):
    assert await leader._wait_for_kinds(asyncio.Event())


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ApiNotFoundError, "the WorkerPool CRD is not installed"), (ApiForbiddenError, "cannot find WorkerPool: no")],
)
async def test_a_missing_crd_or_right_shows_in_readiness(leader, cluster, monkeypatch, error, reason):
    """Helm installs CRDs and operator side by side, so the operator may well be first."""
    monkeypatch.setattr(leading, "RETRY_S", 0.01)
    answers = iter([None, error, error])

    def fail(call):
        wrong = next(answers, None)
        return wrong(call, "no") if wrong else None

    cluster.fail = fail
    async with asyncio.timeout(NEVER_S):
        assert await leader._wait_for_kinds(asyncio.Event())
    assert leader.health.not_ready_because == reason


async def test_an_autoscaler_that_goes_or_comes_back_wakes_each_service_and_shows_in_a_metric(leader, cluster, caplog):
    settings = {"FOREBAY_LEASE_NAMESPACE": "forebay", "FOREBAY_AUTOSCALER_LEASE": "scaler"}
    caplog.set_level(logging.INFO)
    leader = replace(leader, settings=load_settings([], settings))
    woken: list[bool] = []
    waker = SimpleNamespace(wake_services=lambda: woken.append(True))
    follower = leader._follower(waker)
    spec = {"holderIdentity": "pod-1", "renewTime": "2026-01-01T11:58:00.000000Z"}
    cluster.add(LEASE, {"metadata": {"name": "scaler", "namespace": "forebay"}, "spec": spec})

    async def look_at(now_s: float) -> tuple[int, float]:
        follower.clock = lambda: now_s
        await follower.look()
        return len(woken), leader.metrics.registry.get_sample_value("forebay_operator_autoscaler_gone")

    assert await look_at(0.0) == (0, 0)
    assert await look_at(59.0) == (0, 0)
    assert await look_at(60.0) == (1, 1)
    assert "the autoscaler has not renewed its Lease forebay/scaler since 2026-01-01T11:58:00" in caplog.text
    cluster.edit(LEASE, "forebay", "scaler", {"spec": {"renewTime": "later"}})
    assert await look_at(65.0) == (2, 0)
    assert "its Lease forebay/scaler has changed" in caplog.text


def test_without_the_name_of_its_lease_no_autoscaler_is_followed(leader):
    assert leader._follower(SimpleNamespace()) is None


async def test_it_can_be_stopped_while_it_waits(leader, cluster):
    cluster.fail = lambda call: ApiNotFoundError(call, "no")
    stop = asyncio.Event()
    running = asyncio.create_task(leader.run(stop))
    await asyncio.sleep(0)
    stop.set()
    async with asyncio.timeout(NEVER_S):
        await running
