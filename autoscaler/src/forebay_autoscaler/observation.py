"""What the autoscaler sees of one model service at one moment: frozen, complete, without I/O.

An observation, a policy, a state and a time are all that a decision depends on, so a stored observation replays it.
"""

from dataclasses import dataclass

from forebay_autoscaler.reading import UNKNOWN, Reading

ServiceKey = tuple[str, str]
"""Namespace and name of a model service."""


@dataclass(frozen=True, slots=True)
class ServiceSignals:
    """What the router counts for a model service."""

    arrived_per_s: Reading = UNKNOWN
    """Requests that arrived, over the rate window."""
    routers_gone: Reading = UNKNOWN
    """Routers that counted requests lately and are not heard now: arrivals are at least what the others count."""
    burst_per_s: Reading = UNKNOWN
    """The same over the short burst window."""
    latest_per_s: Reading = UNKNOWN
    """The same between the last two scrapes."""
    scrapes: Reading = UNKNOWN
    """Scrapes of a router within the burst window."""
    refused_per_s: Reading = UNKNOWN
    """Requests answered with a client error: they asked for no work."""
    pending: Reading = UNKNOWN
    """Requests that no worker has yet, now."""
    held: Reading = UNKNOWN
    """The same as the routers say themselves; asked for only to wake a pool."""
    ttft_per_s: Reading = UNKNOWN
    """First tokens measured, over the rate window."""
    ttft_within_per_s: Reading = UNKNOWN
    """Of these, within the objective."""
    tpot_per_s: Reading = UNKNOWN
    """Requests with a time per output token, over the rate window."""
    tpot_within_per_s: Reading = UNKNOWN
    """Of these, within the objective."""
    prompt_tokens_per_s: Reading = UNKNOWN
    """Prompt tokens of finished requests."""
    cached_tokens_per_s: Reading = UNKNOWN
    """Of these, tokens found in a prefix cache."""
    output_tokens_per_s: Reading = UNKNOWN
    """Output tokens of finished requests."""
    good_per_s: Reading = UNKNOWN
    """Good requests, over the attainment window."""
    bad_per_s: Reading = UNKNOWN
    """Bad requests, over the attainment window."""
    good_lately_per_s: Reading = UNKNOWN
    """Good requests, over the rate window."""
    bad_lately_per_s: Reading = UNKNOWN
    """Bad requests, over the rate window."""


@dataclass(frozen=True, slots=True)
class PoolSignals:
    """What a pool's workers, and the router about them, report."""

    running: Reading = UNKNOWN
    """Requests that the engines run, now."""
    running_mean: Reading = UNKNOWN
    """The same, mean over the rate window."""
    waiting: Reading = UNKNOWN
    """Requests that wait in the engines for capacity, now."""
    service_time_s: Reading = UNKNOWN
    """Mean time from the start of its work to its end of a request that finished in the rate window."""
    finished_per_s: Reading = UNKNOWN
    """Requests that the engines finished, over the rate window."""
    in_flight: Reading = UNKNOWN
    """Requests that the router has at the pool's workers, now."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who last wrote a pool's number of workers."""

    manager: str
    """Field manager."""
    at: str
    """RFC 3339 time of the write."""


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """What the WorkerPool says."""

    wanted: int
    """spec.replicas."""
    ready: int
    """Workers that answer and are not draining."""
    draining: int = 0
    """Workers that finish and leave."""
    unschedulable: bool = False
    """Whether workers wait for a node that does not exist."""
    writer: Writer | None = None
    """Foreign last writer of spec.replicas; None when it is Forebay."""
    rival: str | None = None
    """Another autoscaler that owns spec.replicas, such as HorizontalPodAutoscaler/x; None when there is none."""


@dataclass(frozen=True, slots=True)
class PoolObservation:
    """One pool."""

    name: str
    counts: PoolCounts | None
    """None when the WorkerPool does not exist (yet)."""
    signals: PoolSignals = PoolSignals()


@dataclass(frozen=True, slots=True)
class ServiceObservation:
    """One model service at one moment."""

    key: ServiceKey
    signals: ServiceSignals
    pools: tuple[PoolObservation, ...]
    trouble: str = ""
    """Why signals are missing, as far as the observer knows: Prometheus unreachable, or nothing."""
