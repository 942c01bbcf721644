"""Events are written once, raised when they repeat, and never fail anything."""

from datetime import datetime, timedelta

import pytest

from forebay_operator.errors import ApiForbiddenError
from forebay_operator.events import REMEMBERED_MAX, REPEAT_AFTER_S, Kind, Recorder
from forebay_operator.resources import EVENT, WORKER_POOL
from tests.operator.examples import NOW
from tests.operator.fake_cluster import FakeCluster

TARGET = {"metadata": {"name": "chat-mixed", "namespace": "team", "uid": "u1"}}


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def recorder(cluster, clock) -> Recorder:
    return Recorder(cluster, identity="operator-0", now=clock)


async def record(recorder: Recorder, message: str = "from 1 to 2 workers") -> None:
    await recorder.record(WORKER_POOL, TARGET, kind=Kind.NORMAL, reason="ScalingUp", message=message)


def stored(cluster: FakeCluster) -> list[dict]:
    return [cluster.see(EVENT, name) for name in cluster.names(EVENT)]


async def test_an_event_says_who_saw_what_on_which_object(recorder, cluster):
    await record(recorder)
    (event,) = stored(cluster)
    assert event["involvedObject"] == {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "WorkerPool",
        "name": "chat-mixed",
        "namespace": "team",
        "uid": "u1",
    }
    assert (event["type"], event["reason"], event["count"]) == ("Normal", "ScalingUp", 1)
    assert event["source"] == {"component": "forebay-operator"}
    assert event["reportingInstance"] == "operator-0"


async def test_the_same_event_is_told_once_in_a_while_and_then_counted(recorder, cluster, clock):
    for _ in range(5):
        await record(recorder)
    assert stored(cluster)[0]["count"] == 1
    clock.now += timedelta(seconds=REPEAT_AFTER_S)
    await record(recorder)
    (event,) = stored(cluster)
    assert event["count"] == 2
    assert event["lastTimestamp"] > event["firstTimestamp"]


async def test_another_operator_raises_the_event_that_exists(recorder, cluster, clock):
    await record(recorder)
    await record(Recorder(cluster, identity="operator-1", now=clock))
    (event,) = stored(cluster)
    assert event["count"] == 2


async def test_another_message_is_another_event(recorder, cluster):
    await record(recorder)
    await record(recorder, "from 2 to 3 workers")
    assert len(stored(cluster)) == 2


async def test_a_refused_event_is_only_logged(recorder, cluster, caplog):
    cluster.fail = lambda call: ApiForbiddenError(call, "no right to create events", 403)
    await record(recorder)
    assert "no right to create events" in caplog.text


async def test_what_is_remembered_is_bounded(recorder):
    for number in range(REMEMBERED_MAX + 10):
        recorder._is_due(str(number))
    assert len(recorder._told) == REMEMBERED_MAX
