"""The control port over real HTTP."""

from collections.abc import Iterator

import httpx
import pytest

from forebay_operator.control import STUCK_AFTER_S, ControlServer, Health
from forebay_operator.metrics import Metrics


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock) -> Health:
    return Health(now=clock, heartbeat=0.0)


@pytest.fixture
def client(health) -> Iterator[httpx.Client]:
    metrics = Metrics()
    metrics.watch_namespaces(("team",))
    with (
        ControlServer(("127.0.0.1", 0), health, metrics.registry) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as made,
    ):
        yield made


def test_readiness_gives_its_reason(client, health):
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {"ready": False, "leading": False, "reason": "starting"}
    health.not_ready_because = None
    assert client.get("/readyz").status_code == 200


def test_a_busy_loop_is_alive_and_a_stuck_one_is_not(client, clock, health):
    """C149: eight seconds of work are no reason for a restart, a loop that never turns again is."""
    clock.now_s = 8.0
    assert client.get("/healthz").status_code == 200
    clock.now_s = STUCK_AFTER_S
    assert client.get("/healthz").status_code == 503
    health.beat()
    assert client.get("/healthz").status_code == 200


def test_zero_series_exist_from_the_start(client):
    page = client.get("/metrics").text
    for line in (
        "forebay_operator_leader 0.0",
        'forebay_operator_drift_repairs_total{kind="Deployment",namespace="team"} 0.0',
        'forebay_operator_reconciliations_total{kind="ModelService",result="error"} 0.0',
        'forebay_operator_drains_total{result="timeout"} 0.0',
        'forebay_operator_watch_events_total{kind="Pod"} 0.0',
        'forebay_operator_api_errors_total{code="none"} 0.0',
    ):
        assert line in page


def test_other_paths_are_named(client):
    answer = client.get("/")
    assert answer.status_code == 404
    assert "/readyz" in answer.json()["error"]


def test_an_address_of_either_family_is_served(health):
    """FOREBAY_CONTROL=[::]:9090, as clusters of one family have it."""
    for host in ("127.0.0.1", "::1"):
        shown = f"[{host}]" if ":" in host else host
        with ControlServer((host, 0), health, Metrics().registry) as server:
            answer = httpx.get(f"http://{shown}:{server.port}/healthz", trust_env=False)
            assert answer.status_code == 200
