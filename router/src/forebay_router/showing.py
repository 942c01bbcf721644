"""What admission and the guard show of themselves: samples for Prometheus, and their part of `/state`."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from forebay_router import metrics
from forebay_router.admission.claim import Claim, Priority
from forebay_router.admission.fair_queue import Band
from forebay_router.health.breaker import Cause, Condition, Health
from forebay_router.pending import Counts
from forebay_router.placing import Placing
from forebay_router.table import Service, WorkerState, WorkerTable

TENANTS_SHOWN_MAX: Final = 20
WORKERS_SHOWN_MAX: Final = 500
_NOTHING: Final[Band[Any]] = Band(1)
_NO_COUNTS: Final = Counts()


def samples(placing: Placing, service: Service, labels: metrics.Labels) -> Iterator[metrics.Sample]:
    """Of one service: its queue and its pools, zeros included."""
    line = placing.pending.lines.get(service.spec.key)
    for priority in Priority:
        band = line.queue.bands[priority] if line else _NOTHING
        counts = line.counts[priority] if line else _NO_COUNTS
        of_priority = (*labels, ("priority", priority.label))
        yield metrics.QUEUE_REQUESTS, of_priority, band.requests
        yield metrics.QUEUE_BYTES, of_priority, band.size_bytes
        yield metrics.QUEUE_SERVED, of_priority, counts.served
        yield metrics.QUEUE_SECONDS, of_priority, counts.waited_s
        for reason, count in counts.refused.items():
            yield metrics.QUEUE_REFUSED, (*of_priority, ("reason", reason.value)), count
    for pool, stats in service.stats.pools.items():
        of_pool = (*labels, ("pool", pool), ("role", stats.role))
        made = placing.guard.counts_of(service, pool)
        ejected = _ejected(service, pool)
        for cause in Cause:
            yield metrics.WORKERS_EJECTED, (*of_pool, ("cause", cause.value)), ejected[cause]
            yield metrics.EJECTIONS, (*of_pool, ("cause", cause.value)), made.ejections[cause]
        yield metrics.EJECTIONS_SPARED, of_pool, made.spared


def _ejected(service: Service, pool: str) -> Counter[Cause | None]:
    """Ready workers of a pool that get no requests, or one to try, by cause."""
    return Counter(
        worker.health.cause
        for worker in service.workers.values()
        if worker.spec.pool == pool and worker.spec.state is WorkerState.READY and not worker.health.sound
    )


def left_alone(table: WorkerTable) -> list[dict[str, Any]]:
    """Ready workers that were left alone at least once: those that are now, and those that get requests again, bounded."""
    found = [
        (worker.health.sound, service.spec.key, worker)
        for service in table.services.values()
        for worker in service.workers.values()
        if worker.health.cause is not None and worker.spec.state is WorkerState.READY
    ]
    found.sort(key=lambda one: one[0])
    return [
        {
            "namespace": key.namespace,
            "model_service": key.name,
            "pool": worker.spec.pool,
            "worker": worker.spec.name.removeprefix(f"{key.namespace}/"),
            "condition": worker.health.condition.value,
            "cause": str(worker.health.cause),
            "detail": worker.health.detail,
        }
        for _, key, worker in found[:WORKERS_SHOWN_MAX]
    ]


def queue_state(placing: Placing, service: Service, now_s: float) -> dict[str, Any] | None:
    """Who waits; None when nobody does."""
    line = placing.pending.lines.get(service.spec.key)
    if line is None or not line.requests:
        return None
    since_s = [entry.item.since_s for entry in line.queue]
    return {
        "oldest_s": round(now_s - min(since_s), 2) if since_s else None,
        "after_a_failed_attempt": len(line.again),
        "priorities": {
            priority.label: {
                "requests": band.requests,
                "because": line.held[priority].cause.value if priority in line.held else None,
                "late": band.late.requests,
                "bytes": band.size_bytes,
                "worker_seconds": round(band.cost, 2),
                "retry_after_s": placing.pending.retry_after_s(service, Claim(priority)),
                "tenants": _tenants(band),
            }
            for priority, band in line.queue.bands.items()
            if band.requests
        },
    }


def _tenants(band: Band[Any]) -> dict[str, int]:
    """Those with most waiting."""
    most = sorted(band.tenants().items(), key=lambda one: one[1][0], reverse=True)
    return {tenant: requests for tenant, (requests, _, _) in most[:TENANTS_SHOWN_MAX]}


def health_state(health: Health, now_s: float) -> dict[str, Any]:
    """Of one worker: whether it is left alone, why, and until when."""
    told: dict[str, Any] = {
        "condition": health.condition.value,
        "failing_share": round(health.failing_share, 3),
        "failures_in_row": health.failures,
    }
    if not health.sound:
        told["cause"] = health.cause.value if health.cause else None
        told["detail"] = health.detail
        told["ejections_in_row"] = health.ejections
    if health.condition is Condition.EJECTED:
        told["rest_left_s"] = round(max(0.0, health.until_s - now_s), 1)
        told["until"] = (
            "it has written a token" if health.cause is Cause.FROZEN else "its rest is over, then one request tries it"
        )
    return told
