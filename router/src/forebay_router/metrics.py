"""What the router counts, and how Prometheus reads it.

The hot path adds to plain integers and lists; a scrape turns them into text. prometheus_client's own counters take a lock
and a walk over the buckets for each sample (about 1 to 3 us; a request has ten), which is a third of what a whole request may
cost here, so only its process and garbage-collector families are used.

Every family of every known service and pool is exported from the start, zeros included: a rate() over a series that appears
with its first failure misses that failure. No label takes a value from a request: unknown models count under empty labels.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from prometheus_client import REGISTRY, generate_latest

from forebay_api.objective import Verdict
from forebay_router.errors import FailureReason

TTFT_BUCKETS_S = (
    0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0,
    60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
TPOT_BUCKETS_S = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
    1.0, 2.5, 10.0,
)  # fmt: skip
REQUEST_BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
)  # fmt: skip
STATUS_CODES = (
    200, 400, 401, 403, 404, 405, 408, 413, 422, 429, 431, 499, 500, 502, 503, 504,
)  # fmt: skip
"""Codes exported from the start; 499 is a client that left. Others that workers send appear when they come (at most 500)."""


class Kind(StrEnum):
    """Prometheus types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric, as documented."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_SERVICE = ("namespace", "model_service")
_POOL = (*_SERVICE, "pool", "role")
_PREFIX = "forebay_router_"

REQUESTS = Family(_PREFIX + "requests_total", Kind.COUNTER, (*_SERVICE, "verdict"), "Requests judged, by verdict.")
ARRIVED = Family(
    _PREFIX + "requests_arrived_total",
    Kind.COUNTER,
    _SERVICE,
    "Requests for a known model that arrived, whatever became of them.",
)
RESPONSES = Family(
    _PREFIX + "responses_total", Kind.COUNTER, (*_SERVICE, "code"),
    "Answers by status code; 499 is a client that left. Empty labels: no known model.",
)  # fmt: skip
FAILURES = Family(_PREFIX + "failures_total", Kind.COUNTER, (*_SERVICE, "reason"), "Requests that failed, by reason.")
RETRIES = Family(
    _PREFIX + "retries_total", Kind.COUNTER, (*_SERVICE, "reason"),
    "Attempts that failed before the answer began and were made again, on another worker where there was one.",
)  # fmt: skip
TTFT = Family(
    _PREFIX + "time_to_first_token_seconds", Kind.HISTOGRAM, _SERVICE,
    "Arrival to first content (text, reasoning or tool call) of streamed answers.",
)  # fmt: skip
TPOT = Family(
    _PREFIX + "time_per_output_token_seconds",
    Kind.HISTOGRAM,
    _SERVICE,
    "Mean time per output token after the first, of streamed answers.",
)
DURATION = Family(_PREFIX + "request_seconds", Kind.HISTOGRAM, _SERVICE, "Arrival to the end of the answer.")
PROMPT_TOKENS = Family(
    _PREFIX + "prompt_tokens_total", Kind.COUNTER, _SERVICE, "Prompt tokens, as workers counted them."
)
CACHED_TOKENS = Family(
    _PREFIX + "cached_prompt_tokens_total",
    Kind.COUNTER,
    _SERVICE,
    "Prompt tokens that workers had in their prefix cache.",
)
OUTPUT_TOKENS = Family(
    _PREFIX + "output_tokens_total", Kind.COUNTER, _SERVICE, "Output tokens, as workers counted them."
)
IN_FLIGHT = Family(_PREFIX + "requests_in_flight", Kind.GAUGE, _SERVICE, "Requests that arrived and have not ended.")
PENDING = Family(
    _PREFIX + "requests_pending", Kind.GAUGE, _SERVICE, "Requests held because no worker can take them yet."
)
POOL_IN_FLIGHT = Family(
    _PREFIX + "pool_requests_in_flight", Kind.GAUGE, _POOL, "Requests that a pool's workers have now."
)
POOL_FINISHED = Family(
    _PREFIX + "pool_requests_finished_total", Kind.COUNTER, (*_POOL, "verdict"),
    "Requests a pool took part in, by verdict of the whole request.",
)  # fmt: skip
WORKERS = Family(_PREFIX + "workers", Kind.GAUGE, (*_POOL, "state"), "Known workers by state.")
SYNCED = Family(_PREFIX + "discovery_synced", Kind.GAUGE, (), "1 while the list of workers is complete and fresh.")
CONNECTIONS = Family(_PREFIX + "client_connections", Kind.GAUGE, (), "Open client connections.")
LEASES = Family(_PREFIX + "leases", Kind.GAUGE, (), "Claims of requests on workers, now.")
DISCOVERY_ERRORS = Family(
    _PREFIX + "discovery_errors_total", Kind.COUNTER, (), "Failed lists, watches and probes of the source of workers."
)
BACKGROUND_FAILURES = Family(
    _PREFIX + "background_failures_total", Kind.COUNTER, ("loop",),
    "Times that a loop beside the requests failed in a way it does not know and was begun again; the log has the traceback.",
)  # fmt: skip
PREDICTED_TOKENS = Family(
    _PREFIX + "prefix_predicted_tokens_total", Kind.COUNTER, _SERVICE,
    "Prompt tokens that workers were expected to have in their prefix cache, of answers that told what they had.",
)  # fmt: skip
DELIVERED_TOKENS = Family(
    _PREFIX + "prefix_delivered_tokens_total", Kind.COUNTER, _SERVICE,
    "Prompt tokens that the same answers said were in the prefix cache.",
)  # fmt: skip
MISSED_TOKENS = Family(
    _PREFIX + "prefix_missed_tokens_total", Kind.COUNTER, _SERVICE,
    "Prompt tokens that were expected in the prefix cache and were not there.",
)  # fmt: skip
INDEX_BLOCKS = Family(
    _PREFIX + "prefix_index_blocks", Kind.GAUGE, (), "Entries of the prefix index, bound by --index-blocks."
)
INDEX_RESETS = Family(
    _PREFIX + "prefix_index_resets_total", Kind.COUNTER, (), "Workers that were found to have lost their cache."
)
INDEX_FALLBACKS = Family(
    _PREFIX + "prefix_index_fallbacks_total", Kind.COUNTER, (),
    "Times that KV events were given up for what the router itself had sent, because they were wrong more often.",
)  # fmt: skip
KV_SUBSCRIPTIONS = Family(
    _PREFIX + "kv_event_subscriptions", Kind.GAUGE, (), "KV event streams that stand, one a rank."
)
KV_MESSAGES = Family(_PREFIX + "kv_event_messages_total", Kind.COUNTER, (), "KV event messages received.")
KV_TROUBLES = Family(
    _PREFIX + "kv_event_troubles_total", Kind.COUNTER, ("kind",),
    "KV event streams: malformed messages, gaps that were replayed, restarts of engines, holes that were not filled, "
    "blocks whose parent was unknown.",
)  # fmt: skip
INDEX_WORKERS = Family(
    _PREFIX + "cache_index_workers", Kind.GAUGE, (*_SERVICE, "state"),
    "Workers by how their caches are known: precise (KV events are followed), lost (they are published and cannot be "
    "followed), distrusted (they were wrong more often than what was sent), none (none are published, or not ready).",
)  # fmt: skip
TOKENISED = Family(
    _PREFIX + "prompts_tokenised_total", Kind.COUNTER, ("result",),
    "Prompts of models whose tokenizer is given: exact, late (given up waiting), other (only the engine can tokenise them).",
)  # fmt: skip
MESH_PEERS = Family(_PREFIX + "mesh_peers", Kind.GAUGE, (), "Other replicas and processes that are heard.")
MESH_MESSAGES = Family(
    _PREFIX + "mesh_messages_total", Kind.COUNTER, ("direction",), "Messages to and from other replicas and processes."
)
MESH_TROUBLES = Family(
    _PREFIX + "mesh_troubles_total", Kind.COUNTER, ("kind",),
    "What went wrong between replicas: events dropped before they were told, numbers missing in what was heard, malformed "
    "messages, peers too many (refused), peers that came back as others (restarts) or were silent for too long (expired).",
)  # fmt: skip
MESH_LEASES = Family(
    _PREFIX + "mesh_leases", Kind.GAUGE, (), "Claims of other replicas on workers, counted in choices."
)
MESH_EXPIRED = Family(
    _PREFIX + "mesh_expired_leases_total",
    Kind.COUNTER,
    (),
    "Claims that ended because their replica was silent for too long.",
)
MESH_SILENCE = Family(
    _PREFIX + "mesh_silence_seconds", Kind.GAUGE, (), "Time since the peer that has been silent longest was heard."
)
QUEUE_REQUESTS = Family(
    _PREFIX + "queue_requests", Kind.GAUGE, (*_SERVICE, "priority"), "Requests that wait for room on a worker."
)
QUEUE_BYTES = Family(_PREFIX + "queue_bytes", Kind.GAUGE, (*_SERVICE, "priority"), "Bytes of their bodies.")
QUEUE_SERVED = Family(
    _PREFIX + "queue_served_total", Kind.COUNTER, (*_SERVICE, "priority"), "Requests that waited and got their turn."
)
QUEUE_SECONDS = Family(
    _PREFIX + "queue_wait_seconds_total", Kind.COUNTER, (*_SERVICE, "priority"), "Time that those waited, added up."
)
QUEUE_REFUSED = Family(
    _PREFIX + "queue_refused_total", Kind.COUNTER, (*_SERVICE, "priority", "reason"),
    "Requests refused: the queue was full; it was full and most of it their tenant's; they could not be answered within their "
    "client's time; the workers had no room, or there was none, for as long as they may wait.",
)  # fmt: skip
OBJECTIVE_TARGET = Family(
    _PREFIX + "objective_target",
    Kind.GAUGE,
    _SERVICE,
    "Share of requests that must be good: objective.target of the model service.",
)
WORKERS_EJECTED = Family(
    _PREFIX + "workers_ejected", Kind.GAUGE, (*_POOL, "cause"), "Ready workers that are left alone, by cause."
)
EJECTIONS = Family(
    _PREFIX + "ejections_total", Kind.COUNTER, (*_POOL, "cause"), "Times that a worker was left alone, by cause."
)
EJECTIONS_SPARED = Family(
    _PREFIX + "ejections_spared_total", Kind.COUNTER, _POOL,
    "Times that a failing worker was left in because too few others were there.",
)  # fmt: skip
PROCESSES = Family(_PREFIX + "processes", Kind.GAUGE, (), "Processes of this router that answer.")
PROCESS_RESTARTS = Family(
    _PREFIX + "process_restarts_total", Kind.COUNTER, (), "Processes that ended by themselves and were begun again."
)

_TENANT = ("tenant",)
TENANT_REQUESTS = Family(
    _PREFIX + "tenant_requests_total", Kind.COUNTER, _TENANT, "Requests that a tenant's limits let in."
)
TENANT_IN_FLIGHT = Family(
    _PREFIX + "tenant_requests_in_flight", Kind.GAUGE, _TENANT, "Requests of a tenant that have not ended."
)
TENANT_TOKENS = Family(
    _PREFIX + "tenant_tokens_total", Kind.COUNTER, (*_TENANT, "kind"), "Tokens of a tenant's requests, as workers counted them."
)  # fmt: skip
TENANT_REFUSED = Family(
    _PREFIX + "tenant_refused_total", Kind.COUNTER, (*_TENANT, "limit"), "Requests that a limit of the key or tenant refused."
)  # fmt: skip
STRANGERS = Family(
    _PREFIX + "unauthenticated_total", Kind.COUNTER, ("reason",), "Requests without a key, or with one that is not known."
)  # fmt: skip
API_KEYS = Family(_PREFIX + "api_keys", Kind.GAUGE, (), "API keys in force; 0 where none are asked for.")
FILE_RELOADS = Family(
    _PREFIX + "file_reloads_total", Kind.COUNTER, ("file",), "Changes of a file that were taken over."
)
FILE_FAILURES = Family(
    _PREFIX + "file_failures_total", Kind.COUNTER, ("file",), "Changes of a file that could not be used: what it held stays."
)  # fmt: skip
FILE_VALID = Family(_PREFIX + "file_valid", Kind.GAUGE, ("file",), "1 while what a followed file holds is in force.")
BODY_BYTES = Family(_PREFIX + "body_bytes", Kind.GAUGE, (), "Request bodies held now.")
BODIES_REFUSED = Family(
    _PREFIX + "bodies_refused_total", Kind.COUNTER, (), "Requests refused because all bodies together would be above the limit."
)  # fmt: skip
KEEP_ALIVES = Family(
    _PREFIX + "keep_alive_comments_total", Kind.COUNTER, (), "Comments written into silent event streams."
)

FAMILIES = (
    REQUESTS, ARRIVED, RESPONSES, FAILURES, RETRIES, TTFT, TPOT, DURATION, PROMPT_TOKENS, CACHED_TOKENS, OUTPUT_TOKENS,
    IN_FLIGHT, PENDING, POOL_IN_FLIGHT, POOL_FINISHED, WORKERS, SYNCED, CONNECTIONS, LEASES, DISCOVERY_ERRORS,
    BACKGROUND_FAILURES,
    PREDICTED_TOKENS, DELIVERED_TOKENS, MISSED_TOKENS, INDEX_BLOCKS, INDEX_RESETS, INDEX_FALLBACKS, KV_SUBSCRIPTIONS, KV_MESSAGES,
    KV_TROUBLES, TENANT_REQUESTS, TENANT_IN_FLIGHT, TENANT_TOKENS, TENANT_REFUSED, STRANGERS, API_KEYS, FILE_RELOADS,
    FILE_FAILURES, FILE_VALID, BODY_BYTES, BODIES_REFUSED, KEEP_ALIVES,
    INDEX_WORKERS, TOKENISED,
    MESH_PEERS, MESH_MESSAGES, MESH_TROUBLES, MESH_LEASES, MESH_EXPIRED, MESH_SILENCE, PROCESSES, PROCESS_RESTARTS,
    QUEUE_REQUESTS, QUEUE_BYTES, QUEUE_SERVED, QUEUE_SECONDS, QUEUE_REFUSED, OBJECTIVE_TARGET,
    WORKERS_EJECTED, EJECTIONS, EJECTIONS_SPARED,
)  # fmt: skip


class Histogram:
    """Counts per bucket and a sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Add one sample."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class PoolStats:
    """Counts of one pool."""

    role: str
    in_flight: int = 0
    finished: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(Verdict, 0))


@dataclass(slots=True)
class ServiceStats:
    """Counts of one model service; those of requests without a known model have empty labels."""

    namespace: str = ""
    model_service: str = ""
    verdicts: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(Verdict, 0))
    arrived: int = 0
    responses: dict[int, int] = field(default_factory=lambda: dict.fromkeys(STATUS_CODES, 0))
    failures: dict[FailureReason, int] = field(default_factory=lambda: dict.fromkeys(FailureReason, 0))
    retries: dict[FailureReason, int] = field(default_factory=lambda: dict.fromkeys(FailureReason, 0))
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BUCKETS_S))
    tpot: Histogram = field(default_factory=lambda: Histogram(TPOT_BUCKETS_S))
    duration: Histogram = field(default_factory=lambda: Histogram(REQUEST_BUCKETS_S))
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    in_flight: int = 0
    pending: int = 0
    pools: dict[str, PoolStats] = field(default_factory=dict)

    def count_response(self, code: int) -> None:
        """One answer with this status."""
        self.responses[code] = self.responses.get(code, 0) + 1


Labels = tuple[tuple[str, str], ...]
Sample = tuple[Family, Labels, float]


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _label_text(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels) + "}" if labels else ""


def number(value: float) -> str:
    """A value as an exposition has it."""
    return str(int(value)) if value == int(value) else repr(value)


def _histogram_lines(family: Family, labels: Labels, histogram: Histogram) -> Iterator[str]:
    running = 0
    bounds = [number(bound) if bound != int(bound) else f"{bound:.1f}" for bound in histogram.bounds]
    for bound, count in zip([*bounds, "+Inf"], histogram.counts, strict=True):
        running += count
        yield f"{family.name}_bucket{_label_text((*labels, ('le', bound)))} {running}"
    yield f"{family.name}_sum{_label_text(labels)} {histogram.total!r}"
    yield f"{family.name}_count{_label_text(labels)} {running}"


def _service_lines(stats: ServiceStats) -> Iterator[tuple[Family, list[str]]]:
    labels: Labels = (("namespace", stats.namespace), ("model_service", stats.model_service))
    text = _label_text(labels)
    for family, by, counts in (
        (REQUESTS, "verdict", stats.verdicts),
        (RESPONSES, "code", stats.responses),
        (FAILURES, "reason", stats.failures),
        (RETRIES, "reason", stats.retries),
    ):
        if not stats.model_service and family is not RESPONSES:
            continue
        yield family, [f"{family.name}{_label_text((*labels, (by, str(key))))} {n}" for key, n in counts.items()]
    if not stats.model_service:
        return
    for family, value in (
        (ARRIVED, stats.arrived),
        (PROMPT_TOKENS, stats.prompt_tokens),
        (CACHED_TOKENS, stats.cached_tokens),
        (OUTPUT_TOKENS, stats.output_tokens),
        (IN_FLIGHT, stats.in_flight),
        (PENDING, stats.pending),
    ):
        yield family, [f"{family.name}{text} {value}"]
    for family, histogram in ((TTFT, stats.ttft), (TPOT, stats.tpot), (DURATION, stats.duration)):
        yield family, list(_histogram_lines(family, labels, histogram))
    for name, pool in stats.pools.items():
        of_pool: Labels = (*labels, ("pool", name), ("role", pool.role))
        yield POOL_IN_FLIGHT, [f"{POOL_IN_FLIGHT.name}{_label_text(of_pool)} {pool.in_flight}"]
        yield (
            POOL_FINISHED,
            [
                f"{POOL_FINISHED.name}{_label_text((*of_pool, ('verdict', verdict)))} {n}"
                for verdict, n in pool.finished.items()
            ],
        )


def render(services: Iterable[ServiceStats], gauges: Iterable[Sample]) -> bytes:
    """The exposition text: the services' families, the given samples, and the process's own."""
    lines: dict[Family, list[str]] = {family: [] for family in FAMILIES}
    for stats in services:
        for family, made in _service_lines(stats):
            lines[family] += made
    for family, labels, value in gauges:
        lines[family].append(f"{family.name}{_label_text(labels)} {number(value)}")
    text = []
    for family, made in lines.items():
        text.append(f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}")
        text += made
    return "\n".join(text).encode() + b"\n" + generate_latest(REGISTRY)
