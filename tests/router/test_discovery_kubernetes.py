"""Workers from Kubernetes, against an API that a test plays itself."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from kubernetes.aio.config import incluster_config

from forebay_api.modelservice import Role
from forebay_router.discovery import kubernetes, listwatch
from forebay_router.discovery.apiserver import ApiServer
from forebay_router.discovery.kubernetes import POD_SELECTOR, KubernetesDiscovery
from forebay_router.discovery.listwatch import ApiFailure, Backoff, Follower, lines
from forebay_router.discovery.objects import read_service, read_worker
from forebay_router.speed import Origin
from forebay_router.table import ServiceKey, WorkerState, WorkerTable
from forebay_router.upstream import Upstreams
from tests.router.authority import Authority, server_context
from tests.router.harness import until
from tests.router.scripted import hello, read_request, workers

SERVICES = "/apis/forebay.dev/v1alpha1/modelservices"
PODS = "/api/v1/pods"
CLASSES = "/apis/forebay.dev/v1alpha1/acceleratorclasses"


def model_service(
    name: str = "chat", model: str = "m", *, namespace: str = "n", created: str = "2026-01-01T00:00:00Z", **spec: Any
):
    return {
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": created, "resourceVersion": "1"},
        "spec": {
            "model": {"name": model, "source": "hf://a/b"},
            "pools": [{"name": "mixed", "accelerator": "h100"}],
            **spec,
        },
    }


def pod(
    uid: str = "u1", *, ready: bool = True, ip: str | None = "127.250.0.1", service: str = "chat", **labels: str
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"pod-{uid}",
            "namespace": "n",
            "uid": uid,
            "resourceVersion": "1",
            "labels": {
                "app.kubernetes.io/component": "worker",
                "forebay.dev/model-service": service,
                "forebay.dev/pool": "mixed",
                "forebay.dev/role": "Mixed",
                "forebay.dev/revision": "r1",
                **{f"forebay.dev/{key}": value for key, value in labels.items()},
            },
        },
        "spec": {"containers": [{"name": "engine", "ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


class PlayedApi:
    """Lists and watches as a test wants them."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {SERVICES: {}, PODS: {}, CLASSES: {}}
        self.streams: dict[str, asyncio.Queue[bytes | ApiFailure | None]] = {}
        self.down = False
        self.lists = 0
        self.watches = 0
        self.selectors: set[str] = set()

    def _key(self, item) -> str:
        return item["metadata"].get("uid") or item["metadata"]["name"]

    async def list(self, path: str, selector: str):
        self.lists += 1
        self.selectors.add(selector)
        if self.down:
            raise ApiFailure("connection refused")
        return list(self.objects[path].values()), "100"

    async def watch(self, path: str, selector: str, version: str) -> AsyncIterator[bytes]:
        self.watches += 1
        self.selectors.add(selector)
        assert version
        if self.down:
            raise ApiFailure("connection refused")
        queue = self.streams[path] = asyncio.Queue()
        while (piece := await queue.get()) is not None:
            if isinstance(piece, ApiFailure):
                raise piece
            yield piece

    def tell(self, path: str, kind: str, item: dict[str, Any]) -> None:
        """An event, and the object as later lists will have it."""
        if kind == "DELETED":
            self.objects[path].pop(self._key(item), None)
        else:
            self.objects[path][self._key(item)] = item
        self.send(path, {"type": kind, "object": item})

    def send(self, path: str, event: dict[str, Any]) -> None:
        if path in self.streams:
            data = json.dumps(event).encode() + b"\n"
            self.streams[path].put_nowait(data[: len(data) // 2])
            self.streams[path].put_nowait(data[len(data) // 2 :])

    def end(self, path: str, failure: ApiFailure | None = None) -> None:
        if path in self.streams:
            self.streams[path].put_nowait(failure)

    def go_down(self) -> None:
        self.down = True
        for path in self.streams:
            self.end(path, ApiFailure("connection reset"))


@asynccontextmanager
async def discovering(api: PlayedApi, *, namespaces: tuple[str, ...] = ()):
    table = WorkerTable()
    upstreams = Upstreams(connect_timeout_s=1, idle_s=1)
    discovery = KubernetesDiscovery(table, namespaces, upstreams, api=api)
    task = asyncio.create_task(discovery.run())
    try:
        yield table, discovery
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        upstreams.close()
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def quick_pauses(monkeypatch):
    monkeypatch.setattr(listwatch, "FIRST_PAUSE_S", 0.02)


CHAT = ServiceKey("n", "chat")


def ready(table: WorkerTable, key: ServiceKey = CHAT) -> set[str]:
    service = table.services.get(key)
    return {one.uid for one in service.snapshot.mixed} if service else set()


async def test_pods_and_services_become_workers_and_models():
    api = PlayedApi()
    api.objects[SERVICES]["chat"] = model_service()
    api.objects[PODS]["u1"] = pod()
    async with discovering(api) as (table, discovery):
        await until(lambda: table.complete, "the first lists")
        assert discovery.synced
        assert ready(table) == {"u1"}
        assert table.by_model["m"].spec.key == ServiceKey("n", "chat")
        assert api.selectors == {"", POD_SELECTOR}
        await until(lambda: PODS in api.streams, "watching")
        api.tell(PODS, "ADDED", pod("u2", ip="127.250.0.2"))
        await until(lambda: ready(table) == {"u1", "u2"}, "a pod that comes is used")
        api.tell(PODS, "DELETED", pod("u1"))
        await until(lambda: ready(table) == {"u2"}, "a pod that goes is not")


async def test_pod_states_are_followed_both_ways():
    """C055, C056, C058: not Ready, out of the selector, draining, marked for deletion: no new request; back: used again."""
    api = PlayedApi()
    api.objects[SERVICES]["chat"] = model_service()
    api.objects[PODS]["u1"] = pod()
    marked = pod()
    marked["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    async with discovering(api) as (table, _):
        await until(lambda: ready(table) == {"u1"} and PODS in api.streams, "used")
        for kind, seen in (
            ("MODIFIED", pod(ready=False)),
            ("DELETED", pod()),
            ("MODIFIED", pod(draining="true")),
            ("MODIFIED", pod(ip=None)),
            ("MODIFIED", marked),
        ):
            api.tell(PODS, kind, seen)
            await until(lambda: ready(table) == set(), f"not used: {kind} {seen['metadata']['labels']}")
            api.tell(PODS, "ADDED", pod())
            await until(lambda: ready(table) == {"u1"}, "used again")


async def test_address_taken_over_by_another_service_is_another_worker():
    """C059: X never goes to the stranger at its old address."""
    api = PlayedApi()
    api.objects[SERVICES]["chat"] = model_service()
    api.objects[SERVICES]["other"] = model_service("other", "y")
    api.objects[PODS]["a"] = pod("a")
    async with discovering(api) as (table, _):
        await until(lambda: ready(table) == {"a"} and PODS in api.streams, "used")
        api.tell(PODS, "DELETED", pod("a"))
        api.tell(PODS, "ADDED", pod("b", service="other"))
        await until(lambda: ready(table, ServiceKey("n", "other")) == {"b"}, "the newcomer serves y")
        assert ready(table) == set()


async def test_known_workers_stay_while_the_api_server_is_away():
    """An outage takes nothing out of routing; afterwards a fresh list makes good what was missed."""
    api = PlayedApi()
    api.objects[SERVICES]["chat"] = model_service()
    api.objects[PODS]["u1"] = pod("u1")
    api.objects[PODS]["u2"] = pod("u2", ip="127.250.0.2")
    async with discovering(api) as (table, discovery):
        await until(lambda: ready(table) == {"u1", "u2"} and len(api.streams) == 3, "used")
        api.go_down()
        await until(lambda: not discovery.synced, "the outage is noticed")
        assert ready(table) == {"u1", "u2"}
        assert table.complete, "the router stays ready"
        del api.objects[PODS]["u1"]
        api.objects[PODS]["u3"] = pod("u3", ip="127.250.0.3")
        api.down = False
        await until(lambda: ready(table) == {"u2", "u3"}, "the missed changes are seen")
        await until(lambda: discovery.synced, "fresh again")
        assert discovery.failures > 0


@pytest.mark.parametrize("way", ["status", "event", "instant close"])
async def test_expired_version_leads_to_a_new_list_with_a_pause(way):
    """C148: status 410, an ERROR event with 410, and 200 with an instant close; the missed delete is noticed; no hot loop."""
    api = PlayedApi()
    api.objects[SERVICES]["chat"] = model_service()
    api.objects[PODS]["u1"] = pod("u1")
    api.objects[PODS]["u2"] = pod("u2")
    async with discovering(api) as (table, _):
        await until(lambda: ready(table) == {"u1", "u2"} and PODS in api.streams, "used")
        del api.objects[PODS]["u1"]
        before = api.lists
        if way == "status":
            api.end(PODS, ApiFailure("Gone", 410))
        elif way == "event":
            api.send(PODS, {"type": "ERROR", "object": {"code": 410, "message": "too old"}})
        else:
            api.end(PODS)
        await until(lambda: ready(table) == {"u2"}, "the delete is noticed")
        assert api.lists == before + 1


async def test_watch_that_ends_in_time_goes_on_from_where_it_was():
    api = PlayedApi()
    api.objects[SERVICES]["chat"] = model_service()
    async with discovering(api) as (table, _):
        await until(lambda: len(api.streams) == 3, "watching")
        before = api.lists
        for number in range(3):
            watches = api.watches
            api.tell(PODS, "ADDED", pod(f"u{number}"))
            api.send(PODS, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": f"{200 + number}"}}})
            api.end(PODS)
            await until(lambda watches=watches: api.watches > watches, "a new watch")
        await until(lambda: len(ready(table)) == 3, "all are seen")
        assert api.lists == before, "no list was needed"


async def test_pauses_grow_are_bounded_and_never_short(monkeypatch):
    """C148: below two requests a second, however it fails."""
    monkeypatch.setattr(listwatch, "FIRST_PAUSE_S", 0.5)
    backoff = Backoff(Random(1))
    pauses = [backoff.pause_s() for _ in range(12)]
    assert min(pauses) >= 0.5
    assert max(pauses) <= listwatch.LONGEST_PAUSE_S
    assert pauses[-1] > 5
    backoff.reset()
    assert backoff.pause_s() == 0.5


async def test_lines_of_any_length_are_read():
    """C134: one object of more than a megabyte blinds nobody."""
    data = [b"a" * 3_000_000, b"b", b"", b"c" * 10]
    text = b"\n".join(data) + b"\n"

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(text), 65_536):
            yield text[start : start + 65_536]

    assert [line async for line in lines(chunks())] == [line for line in data if line]


async def test_fault_in_a_callback_does_not_end_the_watch():
    seen: list[Any] = []

    def on_list(items) -> None:
        seen.append(len(items))
        if len(seen) == 1:
            raise ValueError("a fault")

    api = PlayedApi()
    follower = Follower(api, PODS, "", on_list, lambda *_: None, Random(1))
    task = asyncio.create_task(follower.run())
    await until(lambda: len(seen) >= 2, "it goes on")
    assert follower.failures == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_oldest_service_wins_and_the_other_is_reachable_by_header():
    api = PlayedApi()
    api.objects[SERVICES]["young"] = model_service("young", created="2026-02-01T00:00:00Z")
    api.objects[SERVICES]["old"] = model_service("old", created="2026-01-01T00:00:00Z")
    async with discovering(api) as (table, _):
        await until(lambda: table.complete, "the first lists")
        assert table.by_model["m"].spec.key.name == "old"
        assert [str(key) for _, _, key in table.shadowed()] == ["n/young"]


async def test_service_that_cannot_be_understood_leaves_the_others_alone():
    api = PlayedApi()
    api.objects[SERVICES]["chat"] = model_service()
    api.objects[SERVICES]["odd"] = model_service("odd", objective={"ttft": "soon"})
    async with discovering(api) as (table, discovery):
        await until(lambda: table.complete, "the first lists")
        assert list(table.services) == [ServiceKey("n", "chat")]
        assert discovery.failures == 1


async def test_namespaces_are_watched_one_by_one():
    api = PlayedApi()
    for namespace in ("a", "b"):
        scope = f"/namespaces/{namespace}"
        path = f"/apis/forebay.dev/v1alpha1{scope}/modelservices"
        api.objects[path] = {"chat": model_service(f"chat-{namespace}", f"m-{namespace}", namespace=namespace)}
        api.objects[f"/api/v1{scope}/pods"] = {}
    async with discovering(api, namespaces=("a", "b")) as (table, _):
        await until(lambda: table.complete, "the first lists")
        assert set(table.by_model) == {"m-a", "m-b"}, "one namespace's list does not remove the other's services"


async def test_ready_workers_are_asked_what_they_serve():
    async with workers(hello) as [worker]:
        api = PlayedApi()
        api.objects[SERVICES]["chat"] = model_service()
        seen = pod(ip="127.0.0.1")
        seen["spec"]["containers"][0]["ports"][0]["containerPort"] = worker.port
        api.objects[PODS]["u1"] = seen
        async with discovering(api) as (table, _):
            await until(lambda: table.workers and table.workers["u1"].cards, "the cards are read")
            assert table.workers["u1"].cards[0]["max_model_len"] == 4096


async def test_workers_that_do_not_tell_their_models_keep_nobody_from_telling(monkeypatch):
    monkeypatch.setattr(kubernetes, "CARDS_INTERVAL_S", 0.02)
    async with workers(hello) as [worker]:
        api = PlayedApi()
        api.objects[SERVICES]["chat"] = model_service()
        ports = [1] * kubernetes.CARDS_AT_ONCE_MAX + [worker.port]
        for number, port in enumerate(ports):
            seen = pod(f"u{number}", ip="127.0.0.1")
            seen["spec"]["containers"][0]["ports"][0]["containerPort"] = port
            api.objects[PODS][f"u{number}"] = seen
        async with discovering(api) as (table, _):
            await until(lambda: len(table.workers) == len(ports), "the pods are known")
            told = table.workers[f"u{len(ports) - 1}"]
            await until(lambda: told.cards, "the last worker is asked")


def test_service_in_numbers():
    spec = read_service(
        model_service(
            objective={"ttft": "1s", "tpot": "30ms", "target": "0.9"},
            routing={"queueTimeout": "5s", "firstTokenTimeout": "10s", "idleTimeout": "20s", "requestTimeout": "1m"},
            engine={"loraAdapters": [{"name": "tuned", "source": "hf://a/c"}]},
        ),
        {},
    )
    assert spec.models == ("m", "tuned")
    assert (spec.objective.ttft_s, spec.objective.tpot_s, spec.objective.target) == (1.0, 0.03, 0.9)
    assert (spec.timeouts.hold_s, spec.timeouts.first_byte_s, spec.timeouts.idle_s, spec.timeouts.total_s) == (
        5,
        10,
        20,
        60,
    )
    assert spec.pools == (("mixed", Role.MIXED),)


async def test_work_is_timed_where_the_capacity_model_knows_model_and_accelerator():
    """Planned speeds come and go with the AcceleratorClass; the load of a worker stays."""
    api = PlayedApi()
    seconds = model_service(model="llama-3.1-8b")
    seconds["spec"]["model"]["source"] = "hf://meta-llama/Llama-3.1-8B-Instruct"
    seconds["spec"]["pools"][0]["accelerator"] = "h100-sxm"
    api.objects[SERVICES]["chat"] = seconds
    api.objects[PODS]["u1"] = pod()
    h100 = {"metadata": {"name": "h100-sxm", "resourceVersion": "1"}, "spec": {"hardware": "h100-sxm"}}
    async with discovering(api) as (table, _):
        await until(lambda: ready(table) == {"u1"} and CLASSES in api.streams, "used")
        service = table.services[ServiceKey("n", "chat")]
        assert service.speeds["mixed"].origin is Origin.ASSUMED
        lease = table.take(table.workers["u1"], prompt_tokens=1000, output_tokens=100)
        api.tell(CLASSES, "ADDED", h100)
        await until(lambda: service.speeds["mixed"].origin is Origin.PLANNED, "planned")
        (candidate,) = service.snapshot.mixed
        assert candidate.load.requests == 1
        assert 10_000 < 1 / candidate.token_s < 100_000
        assert 1e-3 < candidate.speed.pool.output_token.at(1) < 1e-1
        api.tell(CLASSES, "DELETED", h100)
        await until(lambda: service.speeds["mixed"].origin is Origin.ASSUMED, "assumed again")
        lease.release()
        assert table.workers["u1"].load.requests == 0


def test_worker_in_detail():
    worker = read_worker(pod(role="Prefill", pool="first"))
    assert (worker.uid, worker.host, worker.port, worker.pool, worker.role) == (
        "u1",
        "127.250.0.1",
        8000,
        "first",
        Role.PREFILL,
    )
    assert (worker.kv_events_port, worker.kv_replay_port) == (None, None)
    assert (worker.revision, worker.state, worker.name) == ("r1", WorkerState.READY, "n/pod-u1")
    publishing = pod()
    publishing["spec"]["containers"][0]["ports"] += [
        {"name": "kv-events", "containerPort": 5557},
        {"name": "kv-replay", "containerPort": 5558},
    ]
    worker = read_worker(publishing)
    assert (worker.port, worker.kv_events_port, worker.kv_replay_port) == (8000, 5557, 5558)
    assert read_worker(pod(role="Cook")) is None


async def test_a_rotated_token_is_read_again(tmp_path, monkeypatch):
    """C146: a mounted token is replaced while the router runs."""
    authority = Authority(tmp_path)
    token, seen = tmp_path / "token", []
    token.write_text("first")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await read_request(reader)
        seen.append(asked.headers["authorization"])
        body = b'{"items": [], "metadata": {"resourceVersion": "1"}}'
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_context(authority.issue(tmp_path)))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority.certificate))
    monkeypatch.setattr(incluster_config.datetime, "timedelta", lambda **_: timedelta(0))  # a minute has always passed
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.sockets[0].getsockname()[1]))
    api = await ApiServer.connect()
    try:
        await api.list(PODS, "")
        token.write_text("second")
        await api.list(PODS, "")
    finally:
        await api.close()
        server.close()
    assert seen == ["bearer first", "bearer second"]
