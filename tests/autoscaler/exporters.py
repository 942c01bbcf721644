"""A router and workers as Prometheus sees them, and a real Prometheus that scrapes them."""

import contextlib
import http.server
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import yaml

from forebay_localcluster.locate import locate_programs
from forebay_localcluster.pins import Program

SCRAPE_S = 0.5
STEP_S = 0.1


@dataclass
class Counter:
    """A count that grows by itself."""

    rate_per_s: float
    value: float = 0.0


@dataclass
class Exporter:
    """Serves counters and gauges as text; counters grow until it is closed."""

    counters: dict[str, Counter] = field(default_factory=dict)
    """By series, labels included."""
    gauges: dict[str, float] = field(default_factory=dict)
    broken: bool = False
    """Answer 503 from now on."""

    def __post_init__(self) -> None:
        exporter = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = exporter.text().encode()
                self.send_response(503 if exporter.broken else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._server.serve_forever), threading.Thread(target=self._count)]
        for thread in self._threads:
            thread.start()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._server.server_port}"

    def text(self) -> str:
        """The exposition."""
        numbers = {series: one.value for series, one in self.counters.items()} | self.gauges
        return "".join(f"{series} {value}\n" for series, value in numbers.items())

    def close(self) -> None:
        """Stop serving; the port refuses connections."""
        if not self._closed.is_set():
            self._closed.set()
            self._server.shutdown()
            self._server.server_close()
            for thread in self._threads:
                thread.join()

    def _count(self) -> None:
        last_s = time.monotonic()
        while not self._closed.wait(STEP_S):
            now_s = time.monotonic()
            for counter in list(self.counters.values()):
                counter.value += counter.rate_per_s * (now_s - last_s)
            last_s = now_s


def router(*services: tuple[str, str], rate_per_s: float = 10.0, pool: str = "mixed") -> Exporter:
    """A router that serves these (namespace, model service); of ten requests nine are good, eight fast."""
    exporter = Exporter()
    for namespace, name in services:
        labels = f'namespace="{namespace}",model_service="{name}"'
        rates = {
            f"forebay_router_requests_arrived_total{{{labels}}}": 1.0,
            f'forebay_router_requests_total{{{labels},verdict="good"}}': 0.9,
            f'forebay_router_requests_total{{{labels},verdict="bad"}}': 0.1,
            f'forebay_router_requests_total{{{labels},verdict="abandoned"}}': 0.0,
            f'forebay_router_responses_total{{{labels},code="200"}}': 0.8,
            f'forebay_router_responses_total{{{labels},code="400"}}': 0.2,
            f'forebay_router_responses_total{{{labels},code="429"}}': 0.0,
            f"forebay_router_prompt_tokens_total{{{labels}}}": 200.0,
            f"forebay_router_cached_prompt_tokens_total{{{labels}}}": 50.0,
            f"forebay_router_output_tokens_total{{{labels}}}": 100.0,
            f'forebay_router_pool_requests_finished_total{{{labels},pool="{pool}",role="Mixed",verdict="good"}}': 0.9,
        }
        for histogram, bounds in (("first", ("0.5", "2.0", "5.0")), ("output", ("0.01", "0.025", "0.05"))):
            family = {"first": "time_to_first_token", "output": "time_per_output_token"}[histogram]
            for le, share in zip((*bounds, "+Inf"), (0.5, 0.8, 1.0, 1.0), strict=True):
                rates[f'forebay_router_{family}_seconds_bucket{{{labels},le="{le}"}}'] = share
        exporter.counters |= {series: Counter(rate_per_s * share) for series, share in rates.items()}
        exporter.gauges |= {
            f"forebay_router_requests_in_flight{{{labels}}}": 17.0,
            f"forebay_router_requests_pending{{{labels}}}": 2.0,
            f'forebay_router_pool_requests_in_flight{{{labels},pool="{pool}",role="Mixed"}}': 15.0,
        }
    return exporter


def worker(
    *, running: float = 6.0, waiting: float = 3.0, finished_per_s: float = 4.0, by_reason: bool = True
) -> Exporter:
    """An engine whose requests take 1.5 s; an older one has no waiting by reason."""
    labels = 'engine="0",model_name="m"'
    exporter = Exporter(
        counters={
            f"vllm:request_inference_time_seconds_sum{{{labels}}}": Counter(finished_per_s * 1.5),
            f"vllm:request_inference_time_seconds_count{{{labels}}}": Counter(finished_per_s),
        },
        gauges={f"vllm:num_requests_running{{{labels}}}": running, f"vllm:num_requests_waiting{{{labels}}}": waiting},
    )
    if by_reason:  # of those that wait, one waits for a KV transfer
        exporter.gauges |= {
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}}': waiting - 1,
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}}': 1.0,
        }
    return exporter


@dataclass
class Metrics:
    """A real Prometheus over exporters; restarted with other targets on request."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, routers: list[Exporter], workers: dict[tuple[str, str, str, str], Exporter]) -> None:
        """Scrape these; workers by namespace, model service, pool and pod."""
        names = ("namespace", "model_service", "pool", "pod")
        config = {
            "global": {"scrape_interval": f"{SCRAPE_S * 1000:.0f}ms", "scrape_timeout": f"{SCRAPE_S * 1000:.0f}ms"},
            "scrape_configs": [
                {
                    "job_name": "routers",
                    "honor_labels": True,
                    "static_configs": [
                        {"targets": [one.address], "labels": {"namespace": "forebay-system", "pod": f"router-{n}"}}
                        for n, one in enumerate(routers)
                    ],
                },
                {
                    "job_name": "workers",
                    "static_configs": [
                        {"targets": [one.address], "labels": dict(zip(names, key, strict=True))}
                        for key, one in workers.items()
                    ],
                },
            ],
        }
        path = self.folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        program = locate_programs()[Program.PROMETHEUS].path
        self.process = subprocess.Popen(
            [
                *(str(program), f"--config.file={path}", f"--storage.tsdb.path={self.folder / 'data'}"),
                *(f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=error"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/-/ready", timeout=1).status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError("Prometheus is not ready after 20 s")

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def prometheus(folder: Path) -> Iterator[Metrics]:
    """A Prometheus that ends with the block."""
    metrics = Metrics(folder, free_port())
    try:
        yield metrics
    finally:
        metrics.kill()
