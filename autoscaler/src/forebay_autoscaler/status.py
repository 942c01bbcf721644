"""What a ModelService's status says of its scaling. Pure: decision in, our part of the status out.

Four conditions (MetricsFresh, ScalingActive, CacheIndexHealthy, WorkersHealthy), attainment and goodput, and for each pool what
is desired and why. The part is computed whole from the decision and the stored status, and written only when it differs from
what is stored; numbers that move all the time are rounded, and alone are no reason to write more often than
`numbers_interval_s`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from forebay_api.conditions import Condition, ConditionStatus, merge_conditions
from forebay_api.modelservice import AutoscalingMode
from forebay_api.names import AUTOSCALER_CONDITIONS, METRICS_FRESH, SCALING_ACTIVE
from forebay_autoscaler.caches import cache_index_healthy
from forebay_autoscaler.constraints import Constraint
from forebay_autoscaler.decision import Decision
from forebay_autoscaler.ejections import Ejections, workers_healthy
from forebay_autoscaler.state import Action

_NUMBERS: Final = ("attainment", "goodputPerSecond")

NO_POOL: Final = "no WorkerPool of this service exists: nothing is measured and nothing is scaled"
SOURCES: Final = {
    "arrivals": "forebay_router_requests_arrived_total",
    "routers": "forebay_router_requests_arrived_total of a router that was there lately",
    "pending": "forebay_router_requests_pending",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "finished": "vllm:request_inference_time_seconds_count",
}
"""The series behind each input, so that a message names what to look for."""


@dataclass(frozen=True, slots=True)
class RoutersWord:
    """What routers say of one model service."""

    caches: Mapping[str, float] | None = None
    """Workers by how routers know their caches; None when no router tells."""
    ejections: Ejections | None = None
    """Workers that are left alone; None when nobody was asked."""


NOTHING_SAID: Final = RoutersWord()


def build_status(
    decision: Decision,
    stored: Mapping[str, Any],
    *,
    failures: Sequence[str],
    routers: RoutersWord,
    now: datetime,
) -> dict[str, Any]:
    """Our part of the status.

    `failures` are writes of the number of workers that did not succeed, as sentences.
    """
    previous = stored.get("status") or {}
    conditions = [
        metrics_fresh(decision),
        scaling_active(decision, failures),
        cache_index_healthy(routers.caches),
        workers_healthy(routers.ejections, stored),
    ]
    generation = int(stored["metadata"].get("generation") or 0)
    status: dict[str, Any] = {
        "conditions": merge_conditions(previous.get("conditions") or (), conditions, generation=generation, now=now)
    }
    if decision.attainment is not None:
        status["attainment"] = format_share(decision.attainment)
    if decision.goodput_per_s is not None:
        status["goodputPerSecond"] = format_rate(decision.goodput_per_s)
    if decision.mode is not AutoscalingMode.OFF:
        status["pools"] = [
            {"name": pool.name, "desired": pool.desired, "reason": pool.reason[:1024]} for pool in decision.pools
        ]
    return status


def own_part(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What the stored status has of our fields, in the form of `build_status`."""
    status = stored.get("status") or {}
    part: dict[str, Any] = {name: status[name] for name in _NUMBERS if name in status}
    by_type = {one.get("type"): one for one in status.get("conditions") or ()}
    part["conditions"] = [by_type[name] for name in AUTOSCALER_CONDITIONS if name in by_type]
    pools = [
        {"name": pool["name"], "desired": pool["desired"], "reason": pool.get("reason", "")}
        for pool in status.get("pools") or ()
        if "desired" in pool
    ]
    if pools:
        part["pools"] = pools
    return part


def differs(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Whether anything is to be written at all."""
    return _comparable(wanted) != _comparable(stored)


def differs_beside_numbers(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Whether anything but attainment and goodput is to be written."""

    def rest(part: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in _comparable(part).items() if name not in _NUMBERS}

    return rest(wanted) != rest(stored)


def _comparable(part: Mapping[str, Any]) -> dict[str, Any]:
    """The part with its lists as maps: the API server may keep them in another order."""
    return {
        **part,
        "conditions": {one["type"]: one for one in part.get("conditions") or ()},
        "pools": {one["name"]: one for one in part.get("pools") or ()},
    }


def metrics_fresh(decision: Decision) -> Condition:
    """Whether everything a decision needs is measured, and what is not."""
    if not decision.pools:
        return Condition(METRICS_FRESH, ConditionStatus.UNKNOWN, "NoWorkerPool", NO_POOL)
    if not decision.unknown:
        return Condition(METRICS_FRESH, ConditionStatus.TRUE, "Fresh", "everything needed is measured")
    if decision.trouble:
        return Condition(
            METRICS_FRESH, ConditionStatus.FALSE, "PrometheusFails", f"replicas are held: {decision.trouble}"
        )
    missing = "; ".join(f"{name} ({_source(name)})" for name in decision.unknown)
    if not decision.unknown_lasts:
        return Condition(METRICS_FRESH, ConditionStatus.UNKNOWN, "WaitingForData", f"no data yet on {missing}")
    message = f"no fresh data on {missing}: is it scraped? Replicas do not shrink meanwhile"
    return Condition(METRICS_FRESH, ConditionStatus.FALSE, "NoFreshData", message)


def _source(name: str) -> str:
    return SOURCES[name.split(" of ", maxsplit=1)[0]]


def scaling_active(decision: Decision, failures: Sequence[str]) -> Condition:
    """Whether the number of workers follows demand, and what keeps it from doing so."""
    if decision.mode is AutoscalingMode.OFF:
        message = "autoscaling.mode is Off: kubectl scale sets the number of workers"
        return Condition(SCALING_ACTIVE, ConditionStatus.FALSE, "Off", message)
    if not decision.pools:
        return Condition(SCALING_ACTIVE, ConditionStatus.FALSE, "NoWorkerPool", NO_POOL)
    rivals = [f"{pool.rival} owns the workers of pool {pool.name}" for pool in decision.pools if pool.rival]
    if rivals:
        message = "; ".join(rivals) + ": delete it, or set autoscaling.mode to Off"
        return Condition(SCALING_ACTIVE, ConditionStatus.FALSE, "ForeignAutoscaler", message)
    if failures:
        return Condition(SCALING_ACTIVE, ConditionStatus.FALSE, "WriteFailed", "; ".join(failures))
    if decision.pools and all(pool.action is Action.HOLD for pool in decision.pools):
        return Condition(SCALING_ACTIVE, ConditionStatus.FALSE, "MetricsUnknown", "replicas are held: see MetricsFresh")
    if decision.mode is AutoscalingMode.ADVISE:
        message = "autoscaling.mode is Advise: status.pools says what would be set"
        return Condition(SCALING_ACTIVE, ConditionStatus.FALSE, "AdviseOnly", message)
    return _active(decision)


def _active(decision: Decision) -> Condition:
    limits = {
        Constraint.MAXIMUM: "AtMaximum",
        Constraint.BUDGET: "AtBudget",
        Constraint.UNSCHEDULABLE: "Unschedulable",
    }
    for pool in decision.pools:
        for rejected in pool.rejected:
            if rejected.constraint in limits and rejected.replicas > pool.desired:
                message = f"pool {pool.name} needs more workers than it gets: {rejected.why}"
                return Condition(SCALING_ACTIVE, ConditionStatus.TRUE, limits[rejected.constraint], message)
    return Condition(SCALING_ACTIVE, ConditionStatus.TRUE, "Auto", "the number of workers follows demand")


def format_share(share: float) -> str:
    """A share such as 99.3%. Only what is whole is shown as 100.0%."""
    percent = share * 100
    return f"{min(percent, 99.9) if percent < 100 else percent:.1f}%"


def format_rate(per_s: float) -> str:
    """A rate such as 12.4."""
    return f"{per_s:.1f}" if per_s < 100 else f"{per_s:.0f}"
