"""The operator's metrics. Every series whose labels are known beforehand exists from the start, at zero."""

from contextlib import suppress
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from forebay_operator.resources import CHILDREN, MODEL_SERVICE, WORKER_POOL

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
RECONCILED: Final = (MODEL_SERVICE.kind, WORKER_POOL.kind)
REPAIRED: Final = (WORKER_POOL.kind, *(child.kind for child in CHILDREN))
RESULTS: Final = ("changed", "unchanged", "gone", "error")
DRAIN_RESULTS: Final = ("idle", "timeout", "cancelled")


class Metrics:
    """All metrics of one operator process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leader = Gauge(
            "forebay_operator_leader", "1 while this process holds the lease and acts, else 0.", registry=self.registry
        )
        self.autoscaler_gone = Gauge(
            "forebay_operator_autoscaler_gone",
            "1 while the leader finds the autoscaler's Lease not renewed for longer than it may be.",
            registry=self.registry,
        )
        self.reconciliations = Counter(
            "forebay_operator_reconciliations",
            "Reconciliations by outcome: changed something, unchanged, object gone, or error.",
            ["kind", "result"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "forebay_operator_reconcile_seconds",
            "Duration of a reconciliation.",
            ["kind"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "forebay_operator_queue_depth", "Objects that are due and wait to be reconciled.", registry=self.registry
        )
        self.workers_missing = Gauge(
            "forebay_operator_workers_missing",
            "Workers that a WorkerPool wants and that are not ready.",
            ["namespace", "worker_pool"],
            registry=self.registry,
        )
        self.drift_repairs = Counter(
            "forebay_operator_drift_repairs",
            "Managed objects that somebody else had changed and that were put right.",
            ["namespace", "kind"],
            registry=self.registry,
        )
        self.api_errors = Counter(
            "forebay_operator_api_errors",
            "Failed calls to the API server, by status code; none when there was no answer.",
            ["code"],
            registry=self.registry,
        )
        self.watch_events = Counter(
            "forebay_operator_watch_events", "Watch events received, by kind.", ["kind"], registry=self.registry
        )
        self.drains = Counter(
            "forebay_operator_drains",
            "Workers drained on scale-down: idle in time, cut off by the timeout, or kept after all.",
            ["result"],
            registry=self.registry,
        )
        self._start_at_zero()

    def watch_namespaces(self, namespaces: tuple[str, ...]) -> None:
        """Zero series for the namespaces that are served."""
        for namespace in namespaces:
            for kind in REPAIRED:
                self.drift_repairs.labels(namespace, kind)

    def forget_pool(self, namespace: str, worker_pool: str) -> None:
        """Drop the series of a WorkerPool that is gone."""
        with suppress(KeyError):
            self.workers_missing.remove(namespace, worker_pool)

    def _start_at_zero(self) -> None:
        for kind in RECONCILED:
            self.reconcile_seconds.labels(kind)
            for result in RESULTS:
                self.reconciliations.labels(kind, result)
        for kind in ("AcceleratorClass", *RECONCILED, *(child.kind for child in CHILDREN), "Pod"):
            self.watch_events.labels(kind)
        for code in ("none", "403", "409", "422", "500", "503"):
            self.api_errors.labels(code)
        for result in DRAIN_RESULTS:
            self.drains.labels(result)
