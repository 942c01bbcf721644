"""How busy workers are, read from their own /metrics. A worker that does not answer in time is unknown, never idle.

    in flight = vllm:num_requests_running + vllm:num_requests_waiting (over all data ranks)

A prefill worker also holds the KV blocks of answers that a decode worker has not fetched yet. They show as cache usage with
no request running (cached blocks of finished requests do not count there), so usage above zero counts as one request.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from forebay_api.names import ENGINE_PORT
from forebay_operator.pods import Worker

_log = logging.getLogger(__name__)

REQUEST_GAUGES: Final = frozenset({"vllm:num_requests_running", "vllm:num_requests_waiting"})
CACHE_GAUGE: Final = "vllm:kv_cache_usage_perc"
CONCURRENCY_MAX: Final = 16
"""Workers that are asked at the same time."""


async def read_loads(client: httpx.AsyncClient, workers: Sequence[Worker]) -> dict[str, float | None]:
    """Requests in flight by worker name; None where unknown. Bounded by the client's own timeout."""
    limit = asyncio.Semaphore(CONCURRENCY_MAX)

    async def read(worker: Worker) -> tuple[str, float | None]:
        async with limit:
            return worker.name, await _read_load(client, worker)

    return dict(await asyncio.gather(*(read(worker) for worker in workers if worker.pod_ip)))


async def _read_load(client: httpx.AsyncClient, worker: Worker) -> float | None:
    host = f"[{worker.pod_ip}]" if worker.pod_ip and ":" in worker.pod_ip else worker.pod_ip
    try:
        answer = await client.get(f"http://{host}:{ENGINE_PORT}/metrics")
        answer.raise_for_status()
        return requests_in_flight(answer.text)
    except (httpx.HTTPError, ValueError) as e:
        _log.debug("load of worker %s is unknown: %s: %s", worker.name, type(e).__name__, e)
        return None


def requests_in_flight(text: str) -> float | None:
    """Requests that an engine has, from its metrics page; None when the page does not tell."""
    found, requests, held = set(), 0.0, 0.0
    for family in text_string_to_metric_families(text):
        if family.name in REQUEST_GAUGES:
            found.add(family.name)
            requests += sum(sample.value for sample in family.samples)
        elif family.name == CACHE_GAUGE:
            held = max((sample.value for sample in family.samples), default=0.0)
    if found != REQUEST_GAUGES:
        return None
    return requests if requests > 0 or held <= 0 else 1.0
