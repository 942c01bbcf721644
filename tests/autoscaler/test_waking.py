"""C121: a pool that sleeps wakes for a request that a router holds, whatever Prometheus does."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import httpx
import pytest

from forebay_api.modelservice import AutoscalingMode, Role
from forebay_autoscaler.__main__ import wire
from forebay_autoscaler.act import Actor
from forebay_autoscaler.decide import decide
from forebay_autoscaler.errors import ClusterError, ReplicasChangedError
from forebay_autoscaler.history import History
from forebay_autoscaler.loop import Alone, Loop
from forebay_autoscaler.metrics import Metrics
from forebay_autoscaler.observation import PoolCounts, PoolObservation, ServiceObservation, ServiceSignals
from forebay_autoscaler.observe import Look, Subject
from forebay_autoscaler.policy import ServicePolicy
from forebay_autoscaler.routers import Routers, control_url, pending_in
from forebay_autoscaler.settings import parse_settings
from forebay_autoscaler.state import Action, ServiceState
from forebay_autoscaler.waker import Waker
from forebay_autoscaler.waking import observation_to_wake, to_wake
from tests.autoscaler.conftest import Site
from tests.autoscaler.exporters import Exporter, free_port
from tests.autoscaler.manifests import model_service, pool_spec, worker_pool
from tests.autoscaler.plant import KEY, known, pool_policy, readings, service_policy
from tests.autoscaler.test_timelines import Script
from tests.autoscaler.test_words import stored
from tests.support.eventually import eventually

PENDING = 'forebay_router_requests_pending{namespace="%s",model_service="%s"}'
POOL = "llama-8b-mixed"
SLEEPY = service_policy(pool_policy(replicas_min=0))


def asleep(**counts: PoolCounts) -> ServiceObservation:
    pools = tuple(PoolObservation(name, one) for name, one in (counts or {"mixed": PoolCounts(0, 0)}).items())
    return ServiceObservation(KEY, ServiceSignals(), pools, "Prometheus is down")


def held(seen: ServiceObservation, number: float = 3) -> ServiceObservation:
    return observation_to_wake(seen, known(number))


def test_a_held_request_wakes_a_pool_though_nothing_else_is_known():
    decision = decide(SLEEPY, ServiceState(), held(asleep()), 0.0)
    (pool,) = decision.pools
    assert (pool.desired, pool.action) == (1, Action.GROW)
    assert pool.reason == "0 → 1: arrivals unknown, one worker's rate not measured yet, 3 requests wait"
    assert decide(SLEEPY, ServiceState(), held(asleep(), 0), 0.0).pools[0].desired == 0
    assert decide(SLEEPY, ServiceState(), asleep(), 0.0).pools[0].desired == 0


def test_a_thousand_held_requests_wake_one_worker():
    assert decide(SLEEPY, ServiceState(), held(asleep(), 1000), 0.0).pools[0].desired == 1


@pytest.mark.parametrize("wanted", [1, 3, 6])
def test_held_requests_neither_grow_nor_shrink_a_pool_that_is_awake(wanted):
    seen = asleep(mixed=PoolCounts(wanted, wanted))
    assert decide(SLEEPY, ServiceState(), held(seen, 500), 0.0).pools[0].desired == wanted
    assert decide(SLEEPY, ServiceState(), held(seen, 0), 0.0).pools[0].desired == wanted


def test_a_pool_that_woke_stays_for_its_shrink_window_though_metrics_do_not_know_of_the_request_yet():
    script = Script(replace(SLEEPY, scale_down_window_s=60))
    script.go(120, 0)
    assert script.wanted == 0
    script.see(held(asleep()))
    assert script.wanted == 1
    script.go(50, 0, ready=0)
    assert script.wanted == 1
    script.go(30, 0)
    assert script.wanted == 0


def two(first: PoolCounts, second: PoolCounts, roles=(Role.MIXED, Role.MIXED)) -> tuple[ServicePolicy, dict]:
    pools = [pool_policy(name, role, replicas_min=0) for name, role in zip("ab", roles, strict=True)]
    return service_policy(*pools), {"a": first, "b": second}


NONE, SOME = PoolCounts(0, 0), PoolCounts(2, 2)
DISAGGREGATED = (Role.PREFILL, Role.DECODE)


@pytest.mark.parametrize(
    ("service", "woken"),
    [
        (two(NONE, NONE), {"a"}),
        (two(PoolCounts(0, 0, unschedulable=True), NONE), {"b"}),
        (two(PoolCounts(0, 0, rival="HorizontalPodAutoscaler/x"), NONE), {"b"}),
        (two(NONE, SOME), set()),
        (two(NONE, NONE, DISAGGREGATED), {"a", "b"}),
        (two(NONE, SOME, DISAGGREGATED), {"a"}),
        (two(SOME, SOME, DISAGGREGATED), set()),
    ],
)
def test_one_pool_of_each_role_without_a_worker_wakes(service, woken):
    assert to_wake(*service) == woken


TEXT = f"""
# TYPE forebay_router_requests_pending gauge
{PENDING % ("a", "x")} 2
{PENDING % ("a", "y")} 0
{PENDING % ("b", "x")} NaN
forebay_router_requests_pending_other{{namespace="a",model_service="x"}} 9
forebay_router_requests_pending{{model_service="x"}} 9
"""


def test_only_whole_series_of_held_requests_are_read():
    assert dict(pending_in(TEXT)) == {("a", "x"): 2.0, ("a", "y"): 0.0}
    assert list(pending_in(PENDING % ("a", "x") + " many\n")) == []
    assert list(pending_in("<html>")) == []


def router_pod(name: str, address: str | None, port: int = 9090) -> dict:
    ports = [{"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": port}]
    containers = [{"name": "router", "image": "forebay/router", "ports": ports}]
    labels = {"app.kubernetes.io/name": "forebay", "app.kubernetes.io/component": "router"}
    status = {"podIP": address} if address else {}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": containers}, "status": status}


def test_a_router_is_asked_at_its_pods_address_and_the_port_named_metrics():
    assert control_url(router_pod("r", "10.0.0.1", 9191)) == "http://10.0.0.1:9191"
    assert control_url(router_pod("r", "fd00::1")) == "http://[fd00::1]:9090"
    assert control_url(router_pod("r", None)) is None
    ended = router_pod("r", "10.0.0.1")
    assert control_url({**ended, "status": {**ended["status"], "phase": "Failed"}}) is None
    assert control_url({"spec": {"containers": [{"name": "x"}]}, "status": {"podIP": "10.0.0.1"}}) is None


async def test_what_all_routers_hold_is_added_and_a_silent_one_hides_no_other():
    class Pods:
        async def call(self, method, path, *, query):
            assert (method, path) == ("GET", "/api/v1/namespaces/release/pods")
            assert "component=router" in query["labelSelector"]
            return {"items": [router_pod(f"r{n}", f"10.0.0.{n}") for n in range(4)]}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "10.0.0.1":
            raise httpx.ConnectError("refused")
        return httpx.Response(503 if request.url.host == "10.0.0.2" else 200, text=TEXT)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        assert await Routers(Pods(), http, namespace="release").held() == {("a", "x"): 4.0, ("a", "y"): 0.0}


class World:
    """A loop over one service, and routers that a test fills."""

    def __init__(self, policy: ServicePolicy = SLEEPY, wanted: int = 0) -> None:
        self.policy, self.wanted, self.asked, self.grown = policy, wanted, 0, []
        self.keys, self.takes_writes = [KEY], True
        self.pending: dict | Exception = {}
        self.loop = Loop(self, self, Alone(), Metrics(), History(10), interval_s=10, clock=count().__next__)
        self.waker = Waker(self.loop, self, 0.01)

    async def look(self) -> Look:
        signals = readings(self.policy)
        pools = (PoolObservation("mixed", PoolCounts(self.wanted, self.wanted)),)
        subjects = [
            Subject(replace(self.policy, key=key), ServiceObservation(key, signals, pools), {}) for key in self.keys
        ]
        return Look(tuple(subjects), {}, {})

    async def act(self, decision, stored, *, routers) -> None:
        pass

    async def grow(self, decision, pool, _stored) -> bool:
        self.grown.append((decision.key, pool.name, pool.current, pool.desired))
        return self.takes_writes

    def count(self, name: str) -> float:
        return self.loop.metrics.registry.get_sample_value(f"forebay_autoscaler_{name}_total")

    def forget(self, keys) -> None:
        pass

    async def held(self) -> dict:
        self.asked += 1
        if isinstance(self.pending, Exception):
            raise self.pending
        return self.pending


async def test_between_two_cycles_a_pool_wakes_and_the_decision_is_kept():
    world = World()
    assert not await world.waker.check(), "before the first look nothing is known to sleep"
    await world.loop.cycle()
    assert await world.waker.check()
    assert world.grown == []
    world.pending = {KEY: 2.0, ("other", "x"): 5.0}
    await world.waker.check()
    assert world.grown == [(KEY, "mixed", 0, 1)]
    (record, *_) = world.loop.history.select(namespace=None, model_service=None, limit=5)
    assert record.observation.signals.held.known == 2
    assert record.decision.pools[0].desired == 1
    assert world.loop.metrics.registry.get_sample_value("forebay_autoscaler_wakes_total") == 1


async def test_a_pool_wakes_once_until_the_next_look():
    world = World()
    await world.loop.cycle()
    world.pending = {KEY: 2.0}
    asked = [await world.waker.check() for _ in range(5)]
    assert world.grown == [(KEY, "mixed", 0, 1)]
    assert asked == [True, False, False, False, False], "nothing sleeps any more"
    assert len(list(world.loop.history.select(namespace=None, model_service=None, limit=50))) == 2
    assert world.count("wakes") == 1
    assert world.count("service_failures") == 0
    await world.loop.cycle()
    await world.waker.check()
    assert len(world.grown) == 2, "the worker is gone again"


@pytest.mark.parametrize(
    ("error", "done"),
    [
        (None, True),
        (ReplicasChangedError("PATCH scale", status=409, why="somebody else set it"), True),
        (ClusterError("PATCH scale", status=503, why="etcd: leader changed"), False),
    ],
)
async def test_a_pool_has_grown_unless_the_write_failed(error, done):
    class Cluster:
        async def scale(self, _namespace, _pool, **_numbers):
            if error is not None:
                raise error

        async def create_event(self, _namespace, _event):
            pass

    decision = decide(SLEEPY, ServiceState(), held(asleep()), 0.0)
    hands = Actor(Cluster(), Metrics(), identity="test", numbers_interval_s=0)
    assert await hands.grow(decision, decision.pools[0], stored()) is done


async def test_a_wake_that_could_not_be_written_is_tried_again_at_the_next_check():
    world = World()
    await world.loop.cycle()
    world.pending, world.takes_writes = {KEY: 2.0}, False
    await world.waker.check()
    world.takes_writes = True
    await world.waker.check()
    await world.waker.check()
    assert len(world.grown) == 2


async def test_a_wake_during_a_look_is_not_repeated_by_what_that_look_saw():
    world = World()
    await world.loop.cycle()
    world.pending = {KEY: 2.0}
    look = world.look

    async def look_that_takes_long() -> Look:
        seen = await look()
        await world.waker.check()
        return seen

    world.look = look_that_takes_long
    await world.loop.cycle()
    await world.waker.check()
    assert len(world.grown) == 1


async def test_a_service_whose_wake_fails_keeps_no_other_asleep(caplog, monkeypatch):
    world = World()
    broken, whole = ("default", "a-broken"), ("default", "whole")
    world.keys = [broken, whole]
    await world.loop.cycle()

    def picky(policy, state, observation, now_s):
        if policy.key == broken:
            raise ZeroDivisionError
        return decide(policy, state, observation, now_s)

    monkeypatch.setattr("forebay_autoscaler.loop.decide", picky)
    world.pending = {broken: 1.0, whole: 1.0}
    for _ in range(3):
        await world.waker.check()
    assert world.grown == [(whole, "mixed", 0, 1)]
    assert caplog.text.count("waking default/a-broken failed") == 1, "until the next look"
    assert "routers cannot be asked" not in caplog.text
    assert world.count("service_failures") == 1


@pytest.mark.parametrize(
    "world",
    [lambda: World(wanted=1), lambda: World(replace(SLEEPY, mode=AutoscalingMode.ADVISE))],
    ids=["awake", "advise"],
)
async def test_routers_are_not_asked_for_what_does_not_sleep_or_is_not_ours(world):
    made = world()
    await made.loop.cycle()
    assert not await made.waker.check()
    assert made.asked == 0


async def test_a_replica_that_does_not_lead_wakes_nobody():
    world = World()
    world.loop.leadership = Alone(leading=False)
    world.pending = {KEY: 2.0}
    await world.loop.cycle()
    assert not await world.waker.check()


async def test_routers_that_cannot_be_found_are_told_once_and_asked_again(caplog):
    world = World()
    await world.loop.cycle()
    world.pending = ClusterError("GET pods", status=403, why="403 Forbidden")
    running = asyncio.create_task(world.waker.run())
    assert await until(lambda: world.asked >= 3, within_s=5)
    world.pending = {KEY: 1.0}
    assert await until(lambda: world.grown, within_s=5)
    running.cancel()
    assert caplog.text.count("routers cannot be asked") == 1
    assert (
        world.loop.metrics.registry.get_sample_value("forebay_autoscaler_wake_checks_total", {"outcome": "failed"}) >= 2
    )


@contextlib.contextmanager
def prometheus_that(does: str) -> Iterator[str]:
    """The address of a Prometheus that refuses connections, or takes them and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if does == "hangs":
            listening.listen(100)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        else:
            yield f"http://127.0.0.1:{free_port()}"


@pytest.mark.cluster
@pytest.mark.parametrize("does", ["refuses", "hangs"])
async def test_a_pool_at_zero_wakes_within_five_seconds_while_prometheus_is_away(site: Site, does: str):
    """C121, by the program's own parts on a real API server, with its rights."""
    spec = pool_spec(replicas={"min": 0, "max": 3})
    site.apply(model_service(pools=[spec]))
    site.apply(worker_pool(pool=spec, replicas=0), "--field-manager=forebay-initial-replicas")
    site.set_pool_status(POOL, replicas=0, ready=0)
    routers = [Exporter(gauges={PENDING % (site.namespace, "llama-8b"): 0.0}) for _ in range(2)]
    for number, router in enumerate(routers):
        host, _, port = router.address.rpartition(":")
        pod = router_pod(f"router-{number}", None, int(port))
        pod["spec"] |= {"automountServiceAccountToken": False, "nodeName": "nowhere"}
        body = {"apiVersion": "v1", "kind": "Pod", **pod}
        eventually(lambda body=body: site.apply(body) or True, bool, within_s=10, what="the pod is taken")
        patch = f'{{"status": {{"phase": "Running", "podIP": "{host}", "podIPs": [{{"ip": "{host}"}}]}}}}'
        site.kubectl("patch", "pod", f"router-{number}", "--subresource=status", "--type=merge", "-p", patch)
    with prometheus_that(does) as url:
        settings = parse_settings(
            [
                *(f"--prometheus-url={url}", f"--kubeconfig={site.kubeconfig}", f"--namespaces={site.namespace}"),
                *(f"--lease-namespace={site.namespace}", "--leader-election=false", "--timeout=2s", "--state-maps=0"),
            ],
            {},
        )
        async with wire(settings) as (loop, waker, _):
            tasks = [asyncio.create_task(loop.run()), asyncio.create_task(waker.run())]
            try:
                assert await until(loop.asleep, within_s=30)
                await asyncio.sleep(2.5)
                assert site.replicas(POOL) == 0, "nothing is held"
                began_s = time.monotonic()
                routers[1].gauges[PENDING % (site.namespace, "llama-8b")] = 1.0
                assert await until(lambda: site.replicas(POOL), within_s=20)
                took_s = time.monotonic() - began_s
                print(f"woken after {took_s:.1f} s while Prometheus {does}")
                assert took_s < 5
                assert site.replicas(POOL) == 1
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    for router in routers:
        router.close()
    told = [one["message"] for one in site.events() if one["reason"] == "ScaledUp"]
    assert len(told) == 1
    assert told[0].startswith("pool mixed: 0 → 1: arrivals unknown, ")


async def until(holds: Callable[[], object], *, within_s: float) -> object:
    """What is true at last; asked on a thread, since it may wait for a process."""
    for _ in range(round(within_s / 0.05)):
        if found := await asyncio.to_thread(holds):
            return found
        await asyncio.sleep(0.05)
    return None
