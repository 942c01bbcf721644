"""A status is written when it says something new, and only then."""

import pytest

from forebay_operator.events import Recorder
from forebay_operator.reconcile.reporting import Reporter
from forebay_operator.resources import EVENT, MODEL_SERVICE, WORKER_POOL, Manifest
from tests.operator.examples import NOW
from tests.operator.fake_cluster import FakeCluster

READY = {"type": "Ready", "status": "True", "reason": "AllWorkersReady", "message": "1/1", "observedGeneration": 1}


class ForgetfulCluster(FakeCluster):
    """Drops a field on storing, as a server with an older CRD does."""

    async def apply_status(self, resource, manifest) -> Manifest:
        stored = await super().apply_status(resource, manifest)
        stored["status"].pop("workers", None)
        return stored


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def reporter(cluster: FakeCluster) -> Reporter:
    return Reporter(cluster, Recorder(cluster, identity="op", now=lambda: NOW))


def owner(cluster: FakeCluster, **status) -> Manifest:
    made = {"metadata": {"name": "chat", "namespace": "team"}, "spec": {}}
    return cluster.add(WORKER_POOL, {**made, "status": status} if status else made)


def wanted(**status) -> Manifest:
    return {"metadata": {"name": "chat", "namespace": "team"}, "status": {"conditions": [READY], **status}}


async def test_a_first_status_is_written_and_tells_that_it_is_ready(cluster):
    assert await reporter(cluster).report(WORKER_POOL, owner(cluster), wanted(ready=1))
    assert [cluster.see(EVENT, name)["reason"] for name in cluster.names(EVENT)] == ["Ready"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"ready": 1}, {"ready": 1}, False),
        ({"ready": 1}, {"ready": 2}, True),
        ({"ready": 1, "attainment": "99%"}, {"ready": 1}, False),  # somebody else's field
        ({"reason": "Unschedulable: x"}, {}, True),  # ours, and not true any more
        ({"pools": [{"name": "a", "replicas": 1}]}, {"pools": []}, True),
        ({"pools": [{"name": "a", "desired": 1}]}, {"pools": []}, False),  # somebody else's item
        ({"pools": [{"name": "a", "replicas": 1, "desired": 3}]}, {"pools": [{"name": "a", "replicas": 1}]}, False),
    ],
)
async def test_a_status_is_written_when_it_says_something_new(cluster, before, after, expected):
    stored = owner(cluster, conditions=[READY], **before)
    assert await reporter(cluster).report(WORKER_POOL, stored, wanted(**after)) == expected


@pytest.mark.parametrize(
    ("reason", "events"),
    [("Unschedulable", ["Unschedulable"]), ("NotAnswering", []), ("Starting", [])],
)
async def test_a_root_cause_is_a_warning_and_a_passing_state_is_not(cluster, reason, events):
    stored = owner(cluster, conditions=[READY])
    trouble = {**READY, "status": "False", "reason": reason, "message": "w: no room"}
    made = {"metadata": stored["metadata"], "status": {"conditions": [trouble, {**trouble, "type": "Progressing"}]}}
    await reporter(cluster).report(WORKER_POOL, stored, made)
    assert [cluster.see(EVENT, name)["reason"] for name in cluster.names(EVENT)] == events


async def test_a_field_that_the_server_drops_is_an_error_in_the_log(caplog):
    """C128, C151: an older CRD loses fields without a word."""
    cluster = ForgetfulCluster()
    stored = cluster.add(MODEL_SERVICE, {"metadata": {"name": "chat", "namespace": "team"}, "spec": {}})
    await reporter(cluster).report(MODEL_SERVICE, stored, wanted(workers="1/1"))
    assert "did not store status.workers" in caplog.text
    assert "apply the chart's CRDs" in caplog.text
