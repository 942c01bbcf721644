"""A Prometheus whose answers a test sets, behind the real client: by signal, for any number of services and pools."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs

import httpx

from forebay_autoscaler.policy import Tuning
from forebay_autoscaler.queries import Signal, build_queries

URL = "http://prometheus.test:9090"


@dataclass
class FakePrometheus:
    """Answers every query; `down` refuses connections, `empty` knows no series."""

    tuning: Tuning
    namespaces: Sequence[str] = ()
    services: dict[tuple[str, str], dict[Signal, object]] = field(default_factory=dict)
    pools: dict[tuple[str, str, str], dict[Signal, object]] = field(default_factory=dict)
    down: bool = False
    empty: bool = False
    age_s: float = 1.0
    failing: set[Signal] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.queries = build_queries(self.tuning, attainment_window_s=60, namespaces=self.namespaces)
        self._signals = {text: signal for signal, text in self.queries.items()}

    def http(self) -> httpx.AsyncClient:
        """A client that reaches it."""
        return httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    def record(self) -> "RecordedPrometheus":
        """Its present answers as texts, so that making them does not count in a measurement."""
        now_s = time.time()
        answers = {}
        for text, signal in self._signals.items():
            body = {"status": "success", "data": {"resultType": "vector", "result": list(self._series(signal))}}
            answers[text] = json.dumps(body).encode()
        return RecordedPrometheus(answers, now_s)

    def load(
        self,
        key: tuple[str, str],
        pool: str = "mixed",
        *,
        rate_per_s: float,
        service_s: float = 1.5,
        pending: float = 0,
        waiting: float = 0,
    ) -> None:
        """Make a service of one pool ask for this rate; all of it is good."""
        running = rate_per_s * service_s
        self.services[key] = {
            Signal.ARRIVED: rate_per_s,
            Signal.BURST: rate_per_s,
            Signal.LATEST: rate_per_s,
            Signal.PENDING: pending,
            Signal.TTFT: [({"le": "2.0"}, rate_per_s), ({"le": "+Inf"}, rate_per_s)],
            Signal.TPOT: [({"le": "0.025"}, rate_per_s), ({"le": "+Inf"}, rate_per_s)],
            Signal.PROMPT_TOKENS: 200 * rate_per_s,
            Signal.CACHED_TOKENS: 0,
            Signal.OUTPUT_TOKENS: 100 * rate_per_s,
            Signal.VERDICTS: [({"verdict": "good"}, rate_per_s), ({"verdict": "bad"}, 0)],
            Signal.VERDICTS_LATELY: [({"verdict": "good"}, rate_per_s), ({"verdict": "bad"}, 0)],
        }
        self.pools[(*key, pool)] = {
            Signal.RUNNING: running,
            Signal.RUNNING_MEAN: running,
            Signal.WAITING: waiting,
            Signal.SERVICE_SUM: rate_per_s * service_s,
            Signal.SERVICE_COUNT: rate_per_s,
            Signal.POOL_IN_FLIGHT: running + waiting,
        }

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if self.down:
            raise httpx.ConnectError("All connection attempts failed", request=request)
        signal = self._signals[parse_qs(request.content.decode())["query"][0]]
        if signal in self.failing:
            return httpx.Response(422, json={"status": "error", "error": "query timed out"})
        result = [] if self.empty else list(self._series(signal))
        return httpx.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": result}})

    def _series(self, signal: Signal):
        now_s = time.time()
        seen = {Signal.ROUTER_SEEN, Signal.WORKERS_SEEN}
        for labels, numbers in self._all():
            has_pool = "pool" in labels
            if signal in seen and has_pool == (signal is Signal.WORKERS_SEEN):
                yield _series(labels, now_s - self.age_s, now_s)
            value = numbers.get(signal)
            for extra, number in value if isinstance(value, list) else [({}, value)]:
                if number is not None:
                    yield _series(labels | extra, number, now_s)

    def _all(self):
        for (namespace, name), numbers in self.services.items():
            yield {"namespace": namespace, "model_service": name}, numbers
        for (namespace, name, pool), numbers in self.pools.items():
            yield {"namespace": namespace, "model_service": name, "pool": pool}, numbers


@dataclass
class RecordedPrometheus:
    """Answers that were made before."""

    answers: dict[str, bytes]
    at_s: float

    def http(self) -> httpx.AsyncClient:
        """A client that reaches it."""
        return httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=self.answers[parse_qs(request.content.decode())["query"][0]])


def _series(labels: Mapping[str, str], value: object, now_s: float) -> dict[str, object]:
    return {"metric": dict(labels), "value": [now_s, str(value)]}
