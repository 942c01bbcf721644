"""Every query against the real Prometheus, over exporters that count as router and engines do."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from forebay_api.objective import Objective
from forebay_autoscaler.errors import PrometheusError
from forebay_autoscaler.observation import PoolSignals, ServiceSignals
from forebay_autoscaler.policy import Tuning
from forebay_autoscaler.prometheus import Prometheus
from forebay_autoscaler.queries import build_queries
from forebay_autoscaler.reading import DataState
from forebay_autoscaler.signals import Signals
from tests.autoscaler.exporters import Counter, Exporter, Metrics, prometheus, router, worker

pytestmark = pytest.mark.cluster

OBJECTIVE = Objective(ttft_s=2.0, tpot_s=0.025, target=0.95)
TUNING = Tuning(rate_window_s=4, burst_window_s=2, drain_horizon_s=5)
A, B = ("a", "llama"), ("b", "llama")
TIMEOUT_S = 15.0


@pytest.fixture
def exporters() -> Iterator[Callable[[Exporter], Exporter]]:
    """Registers exporters that close with the test."""
    made: list[Exporter] = []

    def add(exporter: Exporter) -> Exporter:
        made.append(exporter)
        return exporter

    yield add
    for exporter in made:
        exporter.close()


@pytest.fixture
def metrics(tmp_path: Path) -> Iterator[Metrics]:
    with prometheus(tmp_path) as running:
        yield running


@pytest.fixture
async def client(metrics: Metrics) -> AsyncIterator[Prometheus]:
    async with httpx.AsyncClient(timeout=5) as http:
        yield Prometheus(metrics.url, http)


async def look(client: Prometheus, namespaces: tuple[str, ...] = ()) -> Signals:
    queries = build_queries(TUNING, attainment_window_s=4, namespaces=namespaces)
    return Signals({signal: await client.query(text) for signal, text in queries.items()}, stale_after_s=5)


async def until(client: Prometheus, holds: Callable[[ServiceSignals, PoolSignals], bool], key: tuple[str, str] = A):
    """The readings once they satisfy a condition."""
    deadline_s = asyncio.get_running_loop().time() + TIMEOUT_S
    while True:
        signals = await look(client)
        service, pool = signals.of_service(key, OBJECTIVE), signals.of_pool(key, "mixed")
        if holds(service, pool):
            return service, pool
        assert asyncio.get_running_loop().time() < deadline_s, (service, pool)
        await asyncio.sleep(0.25)


def near(reading, number: float, share: float = 0.25) -> bool:
    return reading.known is not None and abs(reading.known - number) <= share * number


async def test_readings_of_two_services_of_equal_name_never_mix(metrics, client, exporters):
    """C112: every signal, with its number, in the namespace that it belongs to."""
    one, two = exporters(router(A)), exporters(router(A, B))
    workers = {
        ("a", "llama", "mixed", "p0"): exporters(worker()),
        ("a", "llama", "mixed", "p1"): exporters(worker(by_reason=False)),
        ("b", "llama", "mixed", "p0"): exporters(worker(running=1, waiting=1, finished_per_s=1)),
    }
    metrics.start([one, two], workers)
    service, pool = await until(
        client, lambda service, pool: near(service.arrived_per_s, 20) and near(pool.finished_per_s, 8)
    )
    assert near(service.burst_per_s, 20, 0.4)
    assert near(service.latest_per_s, 20, 0.5)
    assert service.scrapes.known in (3, 4)
    assert near(service.refused_per_s, 4, 0.4)
    assert service.pending.known == 4
    assert near(service.good_per_s, 18)
    assert near(service.bad_per_s, 2, 0.4)
    assert service.ttft_within_per_s.known == pytest.approx(0.8 * service.ttft_per_s.known, rel=0.01)
    assert service.tpot_within_per_s.known == pytest.approx(0.8 * service.tpot_per_s.known, rel=0.01)
    assert near(service.prompt_tokens_per_s, 4000)
    assert service.arrived_per_s.age_s < 2
    assert pool.running.known == 12
    assert pool.running_mean.known == pytest.approx(12)
    assert pool.waiting.known == 2 + 3, "an engine without waiting by reason counts with all that wait (C116)"
    assert pool.service_time_s.known == pytest.approx(1.5, rel=0.1)
    assert pool.in_flight.known == 30
    other_service, other_pool = await until(client, lambda service, _: near(service.arrived_per_s, 10), B)
    assert other_service.pending.known == 2
    assert other_pool.running.known == 1
    only_b = await look(client, namespaces=("b",))
    assert only_b.of_service(A, OBJECTIVE).arrived_per_s.state is DataState.UNKNOWN
    assert only_b.of_pool(B, "mixed").running.known == 1


async def test_a_constant_counter_is_no_rate_and_a_reset_no_leap(metrics, client, exporters):
    """C109."""
    exporter = exporters(router(A, rate_per_s=10))
    series = 'forebay_router_requests_arrived_total{namespace="a",model_service="llama"}'
    exporter.counters[series] = Counter(0.0, 5000.0)
    metrics.start([exporter], {})
    service, _ = await until(client, lambda service, _: service.arrived_per_s.known is not None)
    assert service.arrived_per_s.state is DataState.ZERO
    exporter.counters[series].value = 3.0
    await asyncio.sleep(1)
    service, _ = await until(client, lambda service, _: service.arrived_per_s.known is not None)
    assert service.arrived_per_s.known <= 3.0 / TUNING.rate_window_s * 1.5
    exporter.counters[series].rate_per_s = 10
    await until(client, lambda service, _: near(service.arrived_per_s, 10))


async def test_what_is_not_scraped_any_more_is_unknown_and_known_again_afterwards(metrics, client, exporters):
    """A router or worker that fails to answer leaves no number behind, and a dead one of two no half a rate."""
    one, two, engine = exporters(router(A)), exporters(router(A)), exporters(worker())
    metrics.start([one, two], {("a", "llama", "mixed", "p0"): engine})
    await until(client, lambda service, pool: near(service.arrived_per_s, 20) and pool.running.known == 6)
    one.close()
    engine.broken = True
    service, pool = await until(
        client, lambda service, pool: near(service.arrived_per_s, 10) and pool.running.known is None
    )
    assert service.pending.known == 2
    assert pool.waiting.state is DataState.UNKNOWN
    assert pool.finished_per_s.state is DataState.UNKNOWN
    two.broken = True
    service, _ = await until(client, lambda service, _: service.arrived_per_s.known is None)
    assert service.pending.state is DataState.UNKNOWN
    two.broken, engine.broken = False, False
    await until(client, lambda service, pool: near(service.arrived_per_s, 10) and pool.running.known == 6)


async def test_a_killed_prometheus_is_an_error_and_comes_back_with_data(metrics, client, exporters):
    exporter = exporters(router(A))
    metrics.start([exporter], {})
    await until(client, lambda service, _: near(service.arrived_per_s, 10))
    metrics.kill()
    with pytest.raises(PrometheusError, match="ConnectError"):
        await client.query("up")
    metrics.start([exporter], {})
    await until(client, lambda service, _: near(service.arrived_per_s, 10))


async def test_a_refused_query_tells_why(metrics, client):
    metrics.start([], {})
    with pytest.raises(PrometheusError, match="parse error"):
        await client.query("sum by (")
    assert await client.query("no_such_series") == []
