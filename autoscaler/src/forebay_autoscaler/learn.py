"""What a pool's past tells about its workers: work per request, limit, start-up time. Pure.

*Work per request* is the measured one, blended with what was known before by the number of samples behind it, so that two odd
requests at night do not replace a day's knowledge.

*Limit* starts at the engine's own (number of sequences; for prefill the utilisation that the objective allows) and is
corrected by what finished requests show, once the pool has been of one size for a whole window:
- requests missed the objective though nothing queued for a window: what the workers carried was too much; the limit
  becomes 0.9 of it;
- requests queued for a whole window in engines that ran fewer than the limit (no KV cache left, prefill in the way, or a
  lower engine limit than we know): the limit becomes what they ran;
- the objective is met: the limit rises by 2 % a window towards where it began, so that yesterday's lesson is not for ever.
A worker that misses the objective with (almost) nothing to do teaches nothing: more workers would not help, and that is said.

*Start-up time* is measured from ordering workers to all of them being ready.
"""

from dataclasses import dataclass, replace
from typing import Final

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_autoscaler.model import Capacity, initial_limit, waiting_in_workers, work_per_request_s
from forebay_autoscaler.observation import PoolCounts, PoolSignals, ServiceSignals
from forebay_autoscaler.policy import PoolPolicy, Tuning

BACK_OFF: Final = 0.9
"""Share of a load that missed the objective which becomes the limit."""
RECOVERY: Final = 1.02
"""Growth of a lowered limit in each window that meets the objective."""
IDLE_LOAD: Final = 1.5
"""Requests at once in one worker at or below which a missed objective is not the load's fault."""
IDLE_UTILISATION: Final = 0.3
"""The same for the busy share of a prefill worker."""
STARTUP_MAX_S: Final = 600.0
"""Longest start-up that is believed; what takes longer was stuck, not starting."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """Knowledge about one pool's workers."""

    work_s: float | None = None
    """Work of one request, as in model.Capacity."""
    limit: float | None = None
    """Learnt limit; None while the initial one holds."""
    limit_changed_s: float = float("-inf")
    ready: int = 0
    """Ready workers when last seen."""
    ready_changed_s: float = float("-inf")
    startup_s: float = 0.0
    """Time from ordering workers to their being ready; 0 until measured."""
    ordered_s: float | None = None
    """When workers that are not ready yet were ordered."""
    queued_since_s: float | None = None
    """Since when requests have waited in the engines at every look; None when the last look saw no queue."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Whether recent requests met each bound; None where too few were measured."""

    ttft_met: bool | None
    tpot_met: bool | None

    def missed_by(self, role: Role) -> bool:
        """Whether more requests than the target allows missed what workers of this role decide."""
        late_first, late_next = self.ttft_met is False, self.tpot_met is False
        return {Role.PREFILL: late_first, Role.DECODE: late_next, Role.MIXED: late_first or late_next}[role]


def latency_of(signals: ServiceSignals, objective: Objective, tuning: Tuning) -> Latency:
    """Compare the share of requests within each bound with the target."""

    def met(within_per_s: float | None, per_s: float | None) -> bool | None:
        if within_per_s is None or per_s is None or per_s * tuning.rate_window_s < tuning.samples_min:
            return None
        return within_per_s >= objective.target * per_s

    return Latency(
        ttft_met=met(signals.ttft_within_per_s.known, signals.ttft_per_s.known),
        tpot_met=met(signals.tpot_within_per_s.known, signals.tpot_per_s.known),
    )


def capacity_of(pool: PoolPolicy, learnt: Learnt, signals: PoolSignals, objective: Objective) -> Capacity:
    """One worker's capacity as known now."""
    limit = initial_limit(pool, learnt.work_s, objective)
    if learnt.limit is not None:
        limit = min(limit, learnt.limit)
    return Capacity(learnt.work_s, limit, measured=bool(signals.finished_per_s.known))


def learn(
    pool: PoolPolicy,
    learnt: Learnt,
    counts: PoolCounts,
    signals: PoolSignals,
    *,
    evidence: "Evidence",
    now_s: float,
) -> Learnt:
    """Knowledge after one more observation."""
    learnt = _learn_queue(_learn_sizes(learnt, counts, now_s), counts, signals, now_s)
    learnt = replace(learnt, work_s=_learn_work_s(pool.role, learnt, counts, signals, evidence.tuning))
    settled = now_s - max(learnt.limit_changed_s, learnt.ready_changed_s) >= evidence.tuning.rate_window_s
    if counts.ready == 0 or counts.ready < counts.wanted or not settled:
        return learnt
    limit = _learn_limit(pool, learnt, counts, signals, evidence=evidence, now_s=now_s)
    return learnt if limit == learnt.limit else replace(learnt, limit=limit, limit_changed_s=now_s)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the whole service shows, beside one pool's own signals."""

    latency: Latency
    queued_lately: bool
    """Whether requests waited anywhere within the last window: then late first tokens are the queue's doing."""
    objective: Objective
    tuning: Tuning


def _learn_sizes(learnt: Learnt, counts: PoolCounts, now_s: float) -> Learnt:
    if counts.ready != learnt.ready:
        learnt = replace(learnt, ready=counts.ready, ready_changed_s=now_s)
    if counts.ready < counts.wanted:
        return learnt if learnt.ordered_s is not None else replace(learnt, ordered_s=now_s)
    if learnt.ordered_s is None:
        return learnt
    return replace(learnt, startup_s=min(STARTUP_MAX_S, now_s - learnt.ordered_s), ordered_s=None)


def _learn_queue(learnt: Learnt, counts: PoolCounts, signals: PoolSignals, now_s: float) -> Learnt:
    queued = (waiting_in_workers(signals) or 0.0) >= max(1, counts.ready)
    if queued == (learnt.queued_since_s is not None):
        return learnt
    return replace(learnt, queued_since_s=now_s if queued else None)


def _learn_work_s(role: Role, learnt: Learnt, counts: PoolCounts, signals: PoolSignals, tuning: Tuning) -> float | None:
    measured = work_per_request_s(role, signals, counts.ready)
    if measured is None or learnt.work_s is None:
        return learnt.work_s if measured is None else measured
    samples = (signals.finished_per_s.known or 0.0) * tuning.rate_window_s
    return (measured * samples + learnt.work_s * tuning.samples_min) / (samples + tuning.samples_min)


def load_per_worker(role: Role, learnt: Learnt, counts: PoolCounts, signals: PoolSignals) -> float | None:
    """What each ready worker carried over the window, in units of the limit; None when unknown."""
    if counts.ready == 0:
        return None
    if role is Role.PREFILL:
        finished = signals.finished_per_s.known
        return None if finished is None or learnt.work_s is None else finished * learnt.work_s / counts.ready
    running = signals.running_mean.known
    return None if running is None else running / counts.ready


def is_idle(role: Role, load: float | None) -> bool:
    """Whether a worker with this load has so little to do that its latency is not the load's fault."""
    return load is not None and load <= (IDLE_UTILISATION if role is Role.PREFILL else IDLE_LOAD)


def _learn_limit(
    pool: PoolPolicy,
    learnt: Learnt,
    counts: PoolCounts,
    signals: PoolSignals,
    *,
    evidence: Evidence,
    now_s: float,
) -> float | None:
    load = load_per_worker(pool.role, learnt, counts, signals)
    if load is None or is_idle(pool.role, load):
        return learnt.limit
    start = initial_limit(pool, learnt.work_s, evidence.objective)
    limit = start if learnt.limit is None else min(start, learnt.limit)
    if learnt.queued_since_s is not None:
        cramped = pool.role is not Role.PREFILL and load < BACK_OFF * limit
        lasted = now_s - learnt.queued_since_s >= evidence.tuning.rate_window_s
        return load if cramped and lasted else learnt.limit
    latency = replace(evidence.latency, ttft_met=None) if evidence.queued_lately else evidence.latency
    if latency.missed_by(pool.role):
        return min(limit, BACK_OFF * load)
    raised = limit * RECOVERY
    return None if learnt.limit is None or raised >= start else raised
