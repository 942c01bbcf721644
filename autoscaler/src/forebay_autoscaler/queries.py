"""What is asked of Prometheus: one instant query a signal, each for all model services at once. Pure text.

Every expression is grouped by namespace and model service (and pool), so that equal names in two namespaces never mix, and
restricted to the watched namespaces. The number of queries does not grow with the number of pools.

`rate(X[w]) and X` counts only series that exist now: a worker or router that died keeps a rate for as long as the window
reaches back, and its successor has one already.
A router that is not scraped any more takes its share of the arrivals out of every sum while the others' data stay fresh. So those
that were there lately and are not now are counted (`ROUTERS_GONE`): while there are any, arrivals are at least what is counted.

Router series carry the namespace of the model service as their own label; Prometheus must keep it (honor_labels: true on the
router's scrape job).
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from forebay_autoscaler.policy import Tuning


class Signal(StrEnum):
    """One question to Prometheus."""

    ROUTER_SEEN = "router_seen"
    ROUTERS_GONE = "routers_gone"
    ARRIVED = "arrived"
    BURST = "burst"
    LATEST = "latest"
    SCRAPES = "scrapes"
    REFUSED = "refused"
    PENDING = "pending"
    TTFT = "ttft"
    TPOT = "tpot"
    PROMPT_TOKENS = "prompt_tokens"
    CACHED_TOKENS = "cached_tokens"
    OUTPUT_TOKENS = "output_tokens"
    VERDICTS = "verdicts"
    VERDICTS_LATELY = "verdicts_lately"
    WORKERS_SEEN = "workers_seen"
    RUNNING = "running"
    RUNNING_MEAN = "running_mean"
    WAITING = "waiting"
    SERVICE_SUM = "service_sum"
    SERVICE_COUNT = "service_count"
    POOL_IN_FLIGHT = "pool_in_flight"
    CACHE_INDEX = "cache_index"


SERVICE_LABELS: Final = ("namespace", "model_service")
POOL_LABELS: Final = (*SERVICE_LABELS, "pool")
GONE_WINDOW: Final = "5m"
"""How long a router is missed whose series have ended: as long as Prometheus itself remembers a series."""
_SERVICE: Final = ", ".join(SERVICE_LABELS)
_POOL: Final = ", ".join(POOL_LABELS)
_ROUTER: Final = "forebay_router_"


def build_queries(tuning: Tuning, *, attainment_window_s: float, namespaces: Sequence[str]) -> Mapping[Signal, str]:
    """Every query, for these namespaces (all when empty)."""
    window, burst, long = (
        f"{round(length_s * 1000)}ms" for length_s in (tuning.rate_window_s, tuning.burst_window_s, attainment_window_s)
    )
    only = f'namespace=~"{"|".join(namespaces)}"' if namespaces else 'namespace!=""'

    def series(name: str, extra: str = "") -> str:
        return f"{name}{{{only}{', ' + extra if extra else ''}}}"

    def rate(name: str, over: str, *, by: str = _SERVICE, extra: str = "") -> str:
        selected = series(name, extra)
        return f"sum by ({by}) (rate({selected}[{over}]) and {selected})"

    arrived = series(_ROUTER + "requests_arrived_total")
    running = series("vllm:num_requests_running")
    waiting = series("vllm:num_requests_waiting_by_reason", 'reason="capacity"')
    # Older engines have only the total, which also counts requests that wait for a KV transfer or an adapter.
    waiting_or_total = f"{waiting} or on (namespace, pod, engine) {series('vllm:num_requests_waiting')}"
    cache_index = series(_ROUTER + "cache_index_workers")
    client_errors = 'code=~"4..", code!~"408|429|499"'
    return {
        Signal.ROUTER_SEEN: f"max by ({_SERVICE}) (timestamp({arrived}))",
        Signal.ROUTERS_GONE: (
            f"count by ({_SERVICE}) (present_over_time({arrived}[{GONE_WINDOW}])) - count by ({_SERVICE}) ({arrived})"
        ),
        Signal.ARRIVED: rate(_ROUTER + "requests_arrived_total", window),
        Signal.BURST: rate(_ROUTER + "requests_arrived_total", burst),
        Signal.LATEST: f"sum by ({_SERVICE}) (irate({arrived}[{burst}]) and {arrived})",
        Signal.SCRAPES: f"max by ({_SERVICE}) (count_over_time({arrived}[{burst}]))",
        Signal.REFUSED: rate(_ROUTER + "responses_total", window, extra=client_errors),
        Signal.PENDING: f"sum by ({_SERVICE}) ({series(_ROUTER + 'requests_pending')})",
        Signal.TTFT: rate(_ROUTER + "time_to_first_token_seconds_bucket", window, by=f"{_SERVICE}, le"),
        Signal.TPOT: rate(_ROUTER + "time_per_output_token_seconds_bucket", window, by=f"{_SERVICE}, le"),
        Signal.PROMPT_TOKENS: rate(_ROUTER + "prompt_tokens_total", window),
        Signal.CACHED_TOKENS: rate(_ROUTER + "cached_prompt_tokens_total", window),
        Signal.OUTPUT_TOKENS: rate(_ROUTER + "output_tokens_total", window),
        Signal.VERDICTS: rate(_ROUTER + "requests_total", long, by=f"{_SERVICE}, verdict"),
        Signal.VERDICTS_LATELY: rate(_ROUTER + "requests_total", window, by=f"{_SERVICE}, verdict"),
        Signal.WORKERS_SEEN: f"max by ({_POOL}) (timestamp({running}))",
        Signal.RUNNING: f"sum by ({_POOL}) ({running})",
        Signal.RUNNING_MEAN: f"sum by ({_POOL}) (avg_over_time({running}[{window}]) and {running})",
        Signal.WAITING: f"sum by ({_POOL}) ({waiting_or_total})",
        Signal.SERVICE_SUM: rate("vllm:request_inference_time_seconds_sum", window, by=_POOL),
        Signal.SERVICE_COUNT: rate("vllm:request_inference_time_seconds_count", window, by=_POOL),
        Signal.POOL_IN_FLIGHT: f"sum by ({_POOL}) ({series(_ROUTER + 'pool_requests_in_flight')})",
        # What has lasted for the whole window: a feed is lost for a moment whenever a worker starts.
        Signal.CACHE_INDEX: f"max by ({_SERVICE}, state) (min_over_time({cache_index}[{window}]) and {cache_index})",
    }
