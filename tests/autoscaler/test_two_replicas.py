"""Two processes of the program on a real API server and a real Prometheus: one acts, the other takes over."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.autoscaler.conftest import Site
from tests.autoscaler.exporters import Exporter, Metrics, free_port, prometheus, router, worker
from tests.autoscaler.manifests import model_service, pool_spec, worker_pool
from tests.support.eventually import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

POOL = "llama-8b-mixed"
STATE = "forebay-autoscaler-state-0"


@dataclass
class Process:
    """One replica."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=5)

    def leads(self) -> bool:
        return bool(self.get("/healthz").json()["leading"])

    def end(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(timeout=10)


@dataclass
class World:
    """A service under a load that a test sets, and replicas that scale it."""

    site: Site
    metrics: Metrics
    router: Exporter
    engine: Exporter
    folder: Path
    replicas: list[Process] = field(default_factory=list)

    def load(self, rate_per_s: float) -> None:
        """Ask for this rate."""
        share = rate_per_s / self.router.counters[self.arrived].rate_per_s
        for counter in (*self.router.counters.values(), *self.engine.counters.values()):
            counter.rate_per_s *= share
        for series in self.engine.gauges:
            self.engine.gauges[series] = 1.5 * rate_per_s if "running" in series else 0.0
        for series in self.router.gauges:
            self.router.gauges[series] = 0.0 if "pending" in series else 1.5 * rate_per_s

    @property
    def arrived(self) -> str:
        return next(series for series in self.router.counters if "arrived" in series)

    def start(self, name: str, *options: str) -> Process:
        """One more replica, which answers."""
        port, log = free_port(), self.folder / f"{name}.log"
        arguments = [
            f"--prometheus-url={self.metrics.url}",
            f"--kubeconfig={self.site.kubeconfig}",
            f"--namespaces={self.site.namespace}",
            f"--lease-namespace={self.site.namespace}",
            f"--control=127.0.0.1:{port}",
            f"--identity={name}",
            *("--interval=1s", "--rate-window=4s", "--burst-window=2s", "--stale-after=5s"),
            *options,
        ]
        with log.open("wb") as output:
            command = [sys.executable, "-m", "forebay_autoscaler", *arguments]
            process = subprocess.Popen(
                command, stderr=output, stdout=output, env={**os.environ, "PYTHONUNBUFFERED": "1"}
            )
        replica = Process(name, port, process, log)
        self.replicas.append(replica)
        eventually(
            lambda: replica.get("/readyz").status_code, lambda code: code == 200, within_s=40, what=f"{name} is ready"
        )
        return replica

    def until_size(self, accept, *, within_s: float, what: str) -> int:
        """Wait for the pool's number of workers; they become ready at once."""

        def read() -> int:
            size = self.site.replicas(POOL)
            self.site.set_pool_status(POOL, replicas=size, ready=size)
            return size

        return eventually(read, accept, within_s=within_s, what=what)


@pytest.fixture
def world(site: Site, tmp_path: Path) -> Iterator[World]:
    service = (site.namespace, "llama-8b")
    exporters = router(service, rate_per_s=2), worker(running=3, waiting=0, finished_per_s=2, by_reason=False)
    site.apply(
        model_service(
            pools=[pool_spec(replicas={"min": 1, "max": 9})],
            objective={"ttft": "5s", "tpot": "50ms", "target": "0.95"},
            autoscaling={"mode": "Auto", "scaleDownStabilization": "6s"},
        )
    )
    site.apply(worker_pool(), "--field-manager=forebay-initial-replicas")
    site.set_pool_status(POOL, replicas=1, ready=1)
    with prometheus(tmp_path) as metrics:
        made = World(site, metrics, *exporters, tmp_path)
        made.load(2)
        metrics.start([exporters[0]], {(*service, "mixed", "p0"): exporters[1]})
        try:
            yield made
        finally:
            for replica in made.replicas:
                replica.end(signal.SIGKILL)
            for exporter in exporters:
                exporter.close()


def test_one_acts_and_the_other_takes_over_from_a_killed_one_without_a_jump(world: World):
    first = world.start("one")
    eventually(first.leads, bool, within_s=20, what="the first replica leads")
    second = world.start("two")
    world.load(20)
    size = world.until_size(lambda number: number >= 5, within_s=20, what="the pool follows the load")
    assert first.leads()
    assert not second.leads()
    assert "forebay_autoscaler_desired_replicas{" in first.get("/metrics").text
    assert "forebay_autoscaler_desired_replicas{" not in second.get("/metrics").text
    lease = json.loads(world.site.kubectl("get", "lease", "forebay-autoscaler", "-o", "json"))
    assert lease["spec"]["holderIdentity"] == "one"

    killed_s = time.monotonic()
    first.end(signal.SIGKILL)
    eventually(second.leads, bool, within_s=15, what="the second replica leads")
    took_s = time.monotonic() - killed_s
    assert took_s < 15
    assert world.site.replicas(POOL) >= size, "a new leader keeps what there is"
    print(f"fail-over after SIGKILL: {took_s:.1f} s")
    world.load(2)
    world.until_size(lambda number: number == 1, within_s=40, what="the new leader shrinks the pool")
    record = second.get("/decisions?model_service=llama-8b&limit=1").json()[0]
    assert record["decision"]["pools"][0]["desired"] == 1
    assert record["observation"]["signals"]["arrived_per_s"]["state"] == "value"


def test_a_replica_that_is_told_to_stop_hands_over_at_once(world: World):
    first = world.start("one")
    eventually(first.leads, bool, within_s=20, what="the first replica leads")
    second = world.start("two")
    started_s = time.monotonic()
    first.end(signal.SIGTERM)
    assert first.process.returncode == 0, first.log.read_text()
    eventually(second.leads, bool, within_s=6, what="the second replica leads")
    print(f"handover after SIGTERM: {time.monotonic() - started_s:.1f} s")
    lines = [json.loads(line) for line in first.log.read_text().splitlines()]
    assert {"started", "stopping"} <= {line["message"] for line in lines}


def test_the_api_server_may_go_away_and_come_back(world: World):
    """Nothing ends, nothing is decided meanwhile, and work goes on afterwards."""
    first = world.start("one")
    eventually(first.leads, bool, within_s=20, what="the replica leads")
    world.site.cluster.kill("kube-apiserver")
    try:
        eventually(
            lambda: first.get("/metrics").text,
            lambda text: 'cycles_total{outcome="failed"} 0.0' not in text,
            within_s=20,
            what="a cycle fails",
        )
        assert first.process.poll() is None
    finally:
        world.site.cluster.start_program("kube-apiserver")
    world.load(20)
    world.until_size(lambda number: number >= 5, within_s=40, what="the pool follows the load")


def test_what_was_learnt_outlives_both_replicas_and_a_corrupt_state_no_replica(world: World):
    first = world.start("one", "--state-interval=1s")
    eventually(first.leads, bool, within_s=20, what="the first replica leads")
    second = world.start("two", "--state-interval=1s")
    world.load(20)
    size = eventually(
        lambda: world.site.replicas(POOL), lambda number: number >= 3, within_s=20, what="the pool follows the load"
    )
    eventually(
        lambda: saved_state(world.site),
        lambda state: learnt(state)["orders"].get("waiting"),
        within_s=20,
        what="the order is saved",
    )
    world.site.set_pool_status(POOL, replicas=size, ready=size)
    eventually(
        lambda: saved_state(world.site),
        lambda state: learnt(state)["orders"]["startup_s"] > 0,
        within_s=20,
        what="a start-up time is saved",
    )
    for replica in (second, first):
        replica.end(signal.SIGKILL)
    known = saved_state(world.site)

    third = world.start("three")
    record = third.get("/decisions?model_service=llama-8b&limit=1000").json()[-1]
    began = record["state"]
    assert learnt(began)["orders"]["startup_s"] == learnt(known)["orders"]["startup_s"] > 0
    assert learnt(began)["speed"] == learnt(known)["speed"]
    assert began["forecast"]["past"]["levels"][0]["values"] == known["forecast"]["past"]["levels"][0]["values"]
    assert 'forebay_autoscaler_state_recalls_total{outcome="used"} 1.0' in third.get("/metrics").text
    eventually(third.leads, bool, within_s=20, what="the third replica leads")
    assert world.site.replicas(POOL) >= size
    third.end(signal.SIGTERM)
    assert third.process.returncode == 0, third.log.read_text()

    broken = json.dumps({"data": {f"{world.site.namespace}.llama-8b": "{"}})
    world.site.kubectl("patch", "configmap", STATE, "--type=merge", "-p", broken)
    fourth = world.start("four", "--state-interval=1s")
    assert 'forebay_autoscaler_state_recalls_total{outcome="corrupt"} 1.0' in fourth.get("/metrics").text
    assert "saved state of" in fourth.log.read_text()
    eventually(fourth.leads, bool, within_s=20, what="the fourth replica leads")
    eventually(lambda: saved_state(world.site), bool, within_s=20, what="a whole state is saved again")


def saved_state(site: Site) -> dict | None:
    """What the ConfigMap holds of the service; None while it holds nothing that can be read."""
    found = json.loads(site.kubectl("get", "configmaps", "-o", "json"))["items"]
    data = next((one.get("data") or {} for one in found if one["metadata"]["name"] == STATE), {})
    try:
        return json.loads(data[f"{site.namespace}.llama-8b"])["state"]
    except (KeyError, ValueError):
        return None


def learnt(state: dict | None) -> dict:
    """Of the pool."""
    return {"orders": {"startup_s": 0}} if state is None else state["pools"]["mixed"]["learnt"]
