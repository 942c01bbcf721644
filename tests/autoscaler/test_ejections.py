"""Workers that routers leave alone: from what routers say to a condition and Events."""

import asyncio
import json

import httpx
import pytest

from forebay_api.conditions import ConditionStatus
from forebay_autoscaler.act import Actor
from forebay_autoscaler.ejections import (
    KEPT_LOOKS_MAX,
    NAMED_MAX,
    SILENCE,
    Answers,
    Ejections,
    read_answer,
    workers_healthy,
)
from forebay_autoscaler.errors import ClusterError
from forebay_autoscaler.history import History
from forebay_autoscaler.loop import Alone, Loop
from forebay_autoscaler.metrics import Metrics
from forebay_autoscaler.observation import ServiceObservation, ServiceSignals
from forebay_autoscaler.observe import Look, Subject
from forebay_autoscaler.routers import ROUTERS_MAX, Routers, control_url
from forebay_autoscaler.status import RoutersWord
from tests.autoscaler.plant import service_policy
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
    condition = workers_healthy(told.of(KEY), {})
    assert (condition.type, condition.status, condition.reason) == (
        "WorkersHealthy",
        ConditionStatus.FALSE,
        "WorkersEjected",
    )
    assert "w-1 (failing: status: 500; by 2 of 2 routers)" in condition.message
    assert "w-2" not in condition.message
    assert "w-9" not in condition.message


def test_what_a_router_says_of_an_error_is_one_short_line():
    long = {**worker("w-1"), "detail": "status: 500\n" + "x" * 1000}
    message = workers_healthy(said([long]).of(KEY), {}).message
    assert "(failing: status: 500 xxx" in message
    assert len(message) < 400


def test_many_are_counted_and_the_first_are_named():
    condition = workers_healthy(said([worker(f"w-{number}") for number in range(8)]).of(KEY), {})
    assert "w-4" in condition.message
    assert "and 3 more" in condition.message
    assert "w-5" not in condition.message


@pytest.mark.parametrize(
    ("ejections", "status", "reason"),
    [
        (None, ConditionStatus.UNKNOWN, "NotAskedYet"),
        (said().of(KEY), ConditionStatus.UNKNOWN, "NoRouterAnswers"),
        (said(None, None).of(KEY), ConditionStatus.UNKNOWN, "NoRouterAnswers"),
        (said([], None).of(KEY), ConditionStatus.UNKNOWN, "SomeRoutersSilent"),
        (said([], []).of(KEY), ConditionStatus.TRUE, "NoneEjected"),
        (said([worker("w-1", "sound")]).of(KEY), ConditionStatus.TRUE, "NoneEjected"),
    ],
)
def test_no_answer_is_no_health(ejections, status, reason):
    condition = workers_healthy(ejections, {})
    assert (condition.status, condition.reason) == (status, reason)
    assert condition.message


class Cluster:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.status: dict = {}
        self.written: list[tuple[str, str]] = []

    async def scale(self, *_args, **_numbers):
        pass

    async def create_event(self, _namespace, event):
        self.events.append((event["reason"], event["message"]))

    async def apply_status(self, _key, status):
        self.status = status
        condition = self.healthy()
        self.written.append((condition["status"], condition["message"]))

    def healthy(self) -> dict:
        return dict(next(one for one in self.status["conditions"] if one["type"] == "WorkersHealthy"))

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


async def look_again(hands: Actor, cluster: Cluster, ejections: Ejections | None) -> dict:
    """A look at the service as it was written last; its condition then."""
    await hands.act(decision(), stored(**cluster.status), routers=RoutersWord(ejections=ejections))
    return cluster.healthy()


@pytest.mark.parametrize("silence", [said([], None), said(None, None), SILENCE], ids=["one", "all", "not found"])
async def test_a_router_that_misses_a_look_does_not_make_a_worker_healthy(silence):
    cluster = Cluster()
    hands = actor(cluster)
    before = await look_again(hands, cluster, said([], [worker("w-1")]).of(KEY))
    for _ in range(KEPT_LOOKS_MAX):
        assert await look_again(hands, cluster, silence.of(KEY)) == before
    assert await look_again(hands, cluster, said([], [worker("w-1")]).of(KEY)) == before
    for _ in range(KEPT_LOOKS_MAX):
        await look_again(hands, cluster, silence.of(KEY))
    assert (await look_again(hands, cluster, silence.of(KEY)))["status"] == "Unknown", "not for ever"
    assert cluster.told() == ["WorkerEjected"]


async def test_a_new_leader_names_whom_only_a_silent_router_names():
    cluster = Cluster()
    before = await look_again(actor(cluster), cluster, said([], [worker("w-1")]).of(KEY))
    assert await look_again(actor(cluster), cluster, said([], None).of(KEY)) == before


async def test_a_leader_that_has_asked_nobody_yet_leaves_what_is_said():
    cluster = Cluster()
    before = await look_again(actor(cluster), cluster, said([worker("w-1")]).of(KEY))
    new = actor(cluster)
    assert await look_again(new, cluster, None) == before
    assert await look_again(new, cluster, said([worker("w-1")]).of(KEY)) == before
    assert cluster.told() == ["WorkerEjected"]


def test_what_the_operator_said_in_its_stead_does_not_stay():
    gone = {"type": "WorkersHealthy", "status": "Unknown", "reason": "AutoscalerGone", "message": "m"}
    assert workers_healthy(None, {"status": {"conditions": [gone]}}).reason == "NotAskedYet"


async def test_a_new_leader_tells_none_of_many_again():
    cluster = Cluster()
    many = said([worker(f"w-{number}") for number in range(12)]).of(KEY)
    await look_again(actor(cluster), cluster, many)
    assert len(cluster.told()) == NAMED_MAX + 1, "the rest in one"
    new = actor(cluster)
    await look_again(new, cluster, many)
    assert cluster.told() == []
    await look_again(new, cluster, said([worker(f"w-{number}", "sound") for number in range(12)]).of(KEY))
    assert len(cluster.told()) == NAMED_MAX + 1


@pytest.mark.parametrize(("named", "other"), [("w-10", "w-1"), ("w-10", "10"), ("w-1", "w-10")])
async def test_a_name_within_another_was_not_told(named, other):
    cluster = Cluster()
    await look_again(actor(cluster), cluster, said([worker(named)]).of(KEY))
    cluster.told()
    await look_again(actor(cluster), cluster, said([worker(named), worker(other)]).of(KEY))
    assert cluster.told() == ["WorkerEjected"]


async def test_words_depend_neither_on_the_order_of_routers_nor_on_later_errors():
    one, two = worker("w-1"), {**worker("w-1"), "detail": "status: 502 from 10.1.2.3:44812"}
    cluster = Cluster()
    hands = actor(cluster)
    before = await look_again(hands, cluster, said([one], [two]).of(KEY))
    assert await look_again(hands, cluster, said([two], [one]).of(KEY)) == before
    three = {**one, "detail": "status: 500 (again; at 12:01:07)"}
    assert await look_again(hands, cluster, said([three], [three]).of(KEY)) == before
    assert await look_again(actor(cluster), cluster, said([three], [three]).of(KEY)) == before, "of the next leader"
    frozen = await look_again(hands, cluster, said([worker("w-1", cause="frozen")], [one]).of(KEY))
    assert frozen == before, "the least cause"
    frozen = await look_again(hands, cluster, said([worker("w-1", cause="frozen")], []).of(KEY))
    assert "w-1 (frozen: " in frozen["message"]


class Looking:
    """An observer; it fails if so made."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def look(self) -> Look:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return Look((), {}, {})


def loop_with(routers, observer: Looking) -> Loop:
    return Loop(observer, actor(Cluster()), Alone(), Metrics(), History(10), interval_s=1, routers=routers)


class Seeing(Looking):
    """One service, as its status was written last by whom."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster

    async def look(self) -> Look:
        subject = Subject(
            service_policy(key=KEY), ServiceObservation(KEY, ServiceSignals(), ()), stored(**self.cluster.status)
        )
        return Look((subject,), {}, {})


class Guards:
    """Routers that say what they are told to."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers

    async def ejected(self) -> Answers:
        return self.answers


async def test_who_leads_again_tells_nothing_that_another_one_told_meanwhile():
    cluster, guards = Cluster(), Guards(said([worker("w-1")]))

    def replica() -> Loop:
        return Loop(Seeing(cluster), actor(cluster), Alone(), Metrics(), History(10), interval_s=1, routers=guards)

    first, second = replica(), replica()
    await first.cycle()
    assert cluster.told() == ["WorkerEjected"]
    first.leadership = Alone(leading=False)
    guards.answers = said([worker("w-1", "sound"), worker("w-2")])
    await second.cycle()
    assert cluster.told() == ["WorkerEjected", "WorkerReturned"]
    await first.cycle()
    first.leadership = Alone()
    await first.cycle()
    assert cluster.told() == []


async def test_routers_that_answer_oddly_keep_no_pool_from_being_scaled():
    class Odd:
        async def ejected(self):
            raise KeyError("containers")

    loop = loop_with(Odd(), Looking())
    await loop.cycle()
    assert loop.cycled_s is not None
    name = "forebay_autoscaler_ejection_checks_total"
    assert loop.metrics.registry.get_sample_value(name, {"outcome": "failed"}) == 1


async def test_where_no_router_can_be_found_none_answers():
    class Lost:
        async def ejected(self):
            raise ClusterError("GET pods", status=403, why="403 Forbidden")

    cluster = Cluster()
    await Loop(Seeing(cluster), actor(cluster), Alone(), Metrics(), History(10), interval_s=1, routers=Lost()).cycle()
    assert cluster.healthy()["reason"] == "NoRouterAnswers"


async def test_who_does_not_lead_asks_no_router():
    class Unasked:
        async def ejected(self):
            raise AssertionError("a standby tells nothing")

    loop = loop_with(Unasked(), Looking())
    loop.leadership = Alone(leading=False)
    await loop.cycle()
    for outcome in ("ok", "failed"):
        name = "forebay_autoscaler_ejection_checks_total"
        assert loop.metrics.registry.get_sample_value(name, {"outcome": outcome}) == 0


async def test_a_look_that_fails_leaves_no_question_behind():
    ended = asyncio.Event()

    class Slow:
        async def ejected(self):
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    with pytest.raises(ValueError, match="no API server"):
        await loop_with(Slow(), Looking(ValueError("no API server"))).cycle()
    assert ended.is_set()


@pytest.mark.parametrize(
    "pod", [{}, {"spec": {}}, {"spec": {"containers": [{"ports": [{"name": "metrics"}]}]}, "status": {"podIP": "::1"}}]
)
def test_a_pod_of_an_odd_shape_has_no_control_port(pod):
    assert control_url(pod) is None


async def test_routers_that_are_too_many_to_be_asked_are_silent():
    class Pods:
        async def call(self, _method, _path, **_query):
            return {"items": [router_pod(f"r{n}", f"10.0.0.{n}") for n in range(ROUTERS_MAX + 1)]}

    transport = httpx.MockTransport(lambda _request: httpx.Response(200, json={"workers": []}))
    async with httpx.AsyncClient(transport=transport) as http:
        told = (await Routers(Pods(), http, namespace="release").ejected()).of(KEY)
    assert (told.asked, told.answered) == (ROUTERS_MAX + 1, ROUTERS_MAX)
    assert workers_healthy(told, {}).reason == "SomeRoutersSilent"


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
