"""Workers that routers leave alone: from what routers say to a condition and Events."""

import json

import httpx
import pytest

from forebay_api.conditions import ConditionStatus
from forebay_autoscaler.act import Actor
from forebay_autoscaler.ejections import Answers, Ejections, read_answer, workers_healthy
from forebay_autoscaler.metrics import Metrics
from forebay_autoscaler.routers import Routers
from forebay_autoscaler.status import RoutersWord
from tests.autoscaler.test_waking import router_pod
from tests.autoscaler.test_words import decision, stored

KEY = ("default", "llama")


def worker(name: str, condition: str = "ejected", *, service: str = "llama", cause: str = "failing") -> dict:
    return {
        "namespace": "default",
        "model_service": service,
        "pool": "mixed",
        "worker": name,
        "condition": condition,
        "cause": cause,
        "detail": "status: 500",
    }


def said(*routers: list[dict] | None) -> Answers:
    """What each router says; None is silence."""
    answers = [read_answer(json.dumps({"workers": one}).encode()) for one in routers if one is not None]
    return Answers(len(routers), answers)


def test_a_worker_that_one_router_leaves_alone_is_named_with_its_cause_and_how_many_do():
    told = said([worker("w-1"), worker("w-2", "sound")], [worker("w-1", "trial"), worker("w-9", service="other")], None)
    condition = workers_healthy(told.of(KEY))
    assert (condition.type, condition.status, condition.reason) == (
        "WorkersHealthy",
        ConditionStatus.FALSE,
        "WorkersEjected",
    )
    assert "w-1 (failing: status: 500; by 2 of 2 routers)" in condition.message
    assert "w-2" not in condition.message
    assert "w-9" not in condition.message


def test_many_are_counted_and_the_first_are_named():
    condition = workers_healthy(said([worker(f"w-{number}") for number in range(8)]).of(KEY))
    assert "w-4" in condition.message
    assert "and 3 more" in condition.message
    assert "w-5" not in condition.message


@pytest.mark.parametrize(
    ("ejections", "status", "reason"),
    [
        (None, ConditionStatus.UNKNOWN, "NoRouterAnswers"),
        (said().of(KEY), ConditionStatus.UNKNOWN, "NoRouterAnswers"),
        (said(None, None).of(KEY), ConditionStatus.UNKNOWN, "NoRouterAnswers"),
        (said([], None).of(KEY), ConditionStatus.TRUE, "NoneEjected"),
        (said([worker("w-1", "sound")]).of(KEY), ConditionStatus.TRUE, "NoneEjected"),
    ],
)
def test_no_answer_is_no_health(ejections, status, reason):
    condition = workers_healthy(ejections)
    assert (condition.status, condition.reason) == (status, reason)
    assert condition.message


class Cluster:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.status: dict = {}

    async def scale(self, *_args, **_numbers):
        pass

    async def create_event(self, _namespace, event):
        self.events.append((event["reason"], event["message"]))

    async def apply_status(self, _key, status):
        self.status = status

    def told(self) -> list[str]:
        reasons, self.events = [reason for reason, _ in self.events], []
        return [reason for reason in reasons if reason.startswith("Worker")]


def actor(cluster: Cluster) -> Actor:
    return Actor(cluster, Metrics(), identity="test", numbers_interval_s=0)


async def look(hands: Actor, ejections: Ejections, **status) -> None:
    await hands.act(decision(), stored(**status), routers=RoutersWord(ejections=ejections))


async def test_each_ejection_and_each_return_is_one_event():
    cluster = Cluster()
    hands = actor(cluster)
    await look(hands, said([], []).of(KEY))
    assert cluster.told() == []
    await look(hands, said([worker("w-1")], []).of(KEY))
    assert cluster.told() == ["WorkerEjected"]
    await look(hands, said([worker("w-1")], [worker("w-1")]).of(KEY))
    assert cluster.told() == []
    await look(hands, said([worker("w-1", "sound")], [worker("w-1")]).of(KEY))
    assert cluster.told() == [], "one router still leaves it alone"
    await look(hands, said([worker("w-1", "sound")], None).of(KEY))
    assert cluster.told() == ["WorkerReturned"]
    await look(hands, said([worker("w-1", "sound")], [worker("w-1")]).of(KEY))
    assert cluster.told() == ["WorkerEjected"], "again"
    await look(hands, said([], []).of(KEY))
    assert cluster.told() == [], "its pod has gone, it is not back"


async def test_silence_of_a_router_ends_no_ejection():
    cluster = Cluster()
    hands = actor(cluster)
    await look(hands, said([], [worker("w-1")]).of(KEY))
    await look(hands, said([], None).of(KEY))
    await look(hands, said([], [worker("w-1")]).of(KEY))
    assert cluster.told() == ["WorkerEjected"]


async def test_a_new_leader_does_not_tell_again_what_the_status_says():
    cluster = Cluster()
    await look(actor(cluster), said([worker("w-1")]).of(KEY))
    assert cluster.told() == ["WorkerEjected"]
    conditions = cluster.status["conditions"]
    await look(actor(cluster), said([worker("w-1"), worker("w-2")]).of(KEY), conditions=conditions)
    assert cluster.told() == ["WorkerEjected"], "of the other one"


async def test_routers_are_asked_one_by_one_and_what_is_no_answer_is_silence():
    class Pods:
        async def call(self, _method, _path, *, query):
            assert "component=router" in query["labelSelector"]
            return {"items": [router_pod(f"r{n}", f"10.0.0.{n}") for n in range(4)]}

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/ejected"
        bodies = {
            "10.0.0.0": {"workers": [worker("w-1")]},
            "10.0.0.1": {"detail": "Not Found"},
            "10.0.0.2": {"workers": []},
        }
        if request.url.host == "10.0.0.3":
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json=bodies[request.url.host])

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        told = await Routers(Pods(), http, namespace="release").ejected()
    assert (told.asked, len(told.answers)) == (4, 2)
    assert set(told.of(KEY).ejected) == {"w-1"}
