"""What the autoscaler exports. Base units, bounded label sets; one registry a process, so that tests can have their own."""

from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from forebay_api.modelservice import AutoscalingMode
from forebay_autoscaler.decision import Decision
from forebay_autoscaler.queries import Signal
from forebay_autoscaler.state import Action

_SERVICE = ("namespace", "model_service")
_POOL = (*_SERVICE, "pool")
CYCLE_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Told:
    """A gauge that has the series of one cycle. Those that the next one has as well are kept: making them costs most."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._series: dict[tuple[str, ...], Gauge] = {}
        self._told: set[tuple[str, ...]] = set()

    def set(self, labels: tuple[str, ...], value: float) -> None:
        """Tell one series."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = self._gauge.labels(*labels)
        series.set(value)
        self._told.add(labels)

    def end(self) -> None:
        """Drop the series that this cycle has not told."""
        for gone in self._series.keys() - self._told:
            del self._series[gone]
            self._gauge.remove(*gone)
        self._told.clear()


class Metrics:
    """All families. Series of decisions exist on the leader only, so that two replicas never disagree in a query."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.leader = Gauge("forebay_autoscaler_leader", "1 on the replica that acts.", registry=self.registry)
        self.cycles = Counter(
            "forebay_autoscaler_cycles", "Decision cycles, by outcome.", ("outcome",), registry=self.registry
        )
        self.cycle_seconds = Histogram(
            "forebay_autoscaler_cycle_seconds",
            "Duration of a decision cycle: look, decide, act.",
            registry=self.registry,
            buckets=CYCLE_BUCKETS_S,
        )
        self.query_failures = Counter(
            "forebay_autoscaler_query_failures", "Queries without a usable answer.", ("signal",), registry=self.registry
        )
        self.service_failures = Counter(
            "forebay_autoscaler_service_failures",
            "Model services that a cycle could not decide or act on; the others were not touched by it.",
            registry=self.registry,
        )
        self.write_failures = Counter(
            "forebay_autoscaler_write_failures", "Writes that failed, by kind.", ("kind",), registry=self.registry
        )
        self.last_decision = Gauge(
            "forebay_autoscaler_last_decision_timestamp_seconds",
            "When every model service was last decided on, seconds since 1970.",
            registry=self.registry,
        )
        self.desired = Gauge(
            "forebay_autoscaler_desired_replicas",
            "Workers that the last decision wants.",
            _POOL,
            registry=self.registry,
        )
        self.needed = Gauge(
            "forebay_autoscaler_needed_replicas",
            "Workers that demand needs, before any constraint; absent while unknown.",
            _POOL,
            registry=self.registry,
        )
        self.good_rate = Gauge(
            "forebay_autoscaler_worker_good_requests_per_second",
            "Good requests a second that one worker is held to do; absent until measured.",
            _POOL,
            registry=self.registry,
        )
        self.decisions = Counter(
            "forebay_autoscaler_decisions", "Decisions, by action.", (*_POOL, "action"), registry=self.registry
        )
        unknown = "Inputs of the last decision that were unknown or stale; absent in mode Off, where nothing is held for them."
        self.inputs_unknown = Gauge("forebay_autoscaler_inputs_unknown", unknown, _SERVICE, registry=self.registry)
        self.foreign_writes = Counter(
            "forebay_autoscaler_foreign_writes",
            "Numbers of workers set by somebody else.",
            _POOL,
            registry=self.registry,
        )
        self._told = [Told(family) for family in (self.desired, self.needed, self.good_rate, self.inputs_unknown)]
        self._add_memory()
        self._add_asking()
        self._pools: dict[tuple[str, str, str], dict[Action, Counter]] = {}
        """Counters of decisions of those that have some."""
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        for signal in Signal:
            self.query_failures.labels(signal.value)
        for outcome in ("ok", "failed"):
            self.cycles.labels(outcome)
        for kind in ("scale", "status", "event", "state"):
            self.write_failures.labels(kind)
        for outcome in ("used", "absent", "version", "corrupt", "future", "unreadable"):
            self.recalls.labels(outcome)

    def _add_memory(self) -> None:
        recalls = "Saved states that were asked for when a replica began, by what became of them."
        self.recalls = Counter("forebay_autoscaler_state_recalls", recalls, ("outcome",), registry=self.registry)
        self.states_left_out = Gauge(
            "forebay_autoscaler_states_left_out",
            "Model services whose state is not saved for want of room: raise --state-maps.",
            registry=self.registry,
        )

    def _add_asking(self) -> None:
        self.wakes = Counter(
            "forebay_autoscaler_wakes",
            "Model services that got a worker because routers said that they hold requests.",
            registry=self.registry,
        )
        checks = "Times that routers were asked for held requests, which is while a pool sleeps, by outcome."
        self.wake_checks = Counter("forebay_autoscaler_wake_checks", checks, ("outcome",), registry=self.registry)
        checks = "Times that routers were asked for workers that they leave alone, by outcome."
        self.ejection_checks = Counter(
            "forebay_autoscaler_ejection_checks", checks, ("outcome",), registry=self.registry
        )
        for outcome in ("ok", "failed"):
            self.wake_checks.labels(outcome)
            self.ejection_checks.labels(outcome)

    def record(self, decisions: Iterable[Decision], *, leading: bool, now_s: float) -> None:
        """Make the series of decisions those of the given ones, and no others."""
        self.leader.set(1 if leading else 0)
        decisions = tuple(decisions) if leading else ()
        for decision in decisions:
            self._record_one(decision)
        for told in self._told:
            told.end()
        if not leading:
            return
        self.last_decision.set(now_s)
        self._forget_all_but({(*decision.key, pool.name) for decision in decisions for pool in decision.pools})

    def _forget_all_but(self, pools: set[tuple[str, str, str]]) -> None:
        """Drop the counters of pools that are gone, or they would add up for as long as the process lives."""
        for gone in self._pools.keys() - pools:
            del self._pools[gone]
            self.foreign_writes.remove(*gone)
            for action in Action:
                self.decisions.remove(*gone, action.value)

    def _record_one(self, decision: Decision) -> None:
        desired, needed, good_rate, inputs_unknown = self._told
        if decision.mode is not AutoscalingMode.OFF:
            inputs_unknown.set(decision.key, len(decision.unknown))
        for pool in decision.pools:
            labels = (*decision.key, pool.name)
            desired.set(labels, pool.desired)
            if pool.need is not None:
                needed.set(labels, pool.need.with_backlog)
            if pool.good_rate_per_s is not None:
                good_rate.set(labels, pool.good_rate_per_s)
            if labels not in self._pools:
                self._pools[labels] = {action: self.decisions.labels(*labels, action.value) for action in Action}
                self.foreign_writes.labels(*labels)
            self._pools[labels][pool.action].inc()
            if pool.foreign:
                self.foreign_writes.labels(*labels).inc()
