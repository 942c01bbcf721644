"""What a pool's past tells about its workers: work per request, limit, start-up time. Pure.

*Work per request* is the measured one, blended with what was known before by the number of samples behind it, so that two odd
requests at night do not replace a day's knowledge.

*Limit* starts at what the capacity model expects, at most the engine's own number of sequences (for prefill at the
utilisation that the objective allows). Finished requests correct it, once the pool has been of one size for a whole window:
- requests missed the objective though nothing queued for a window: what the workers carried was too much; the limit
  becomes 0.9 of it;
- requests queued for a whole window in engines that ran fewer than the limit (no KV cache left, prefill in the way, or a
  lower engine limit than we know): the limit becomes what they ran;
- the objective is met: a lowered limit rises by 2 % a window towards where it began, so that yesterday's lesson is not for
  ever; it rises beyond that, up to the engine's own, only while workers really carry nearly as much.
A worker that misses the objective with (almost) nothing to do teaches nothing: more workers would not help, and that is said.

*Start-up time* is measured from ordering workers to all of them being ready; an order that was taken back teaches none.
"""

from dataclasses import dataclass, replace
from typing import Final

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_autoscaler.model import Capacity, initial_limit, waiting_in_workers, work_per_request_s
from forebay_autoscaler.observation import PoolCounts, PoolSignals, ServiceSignals
from forebay_autoscaler.policy import PoolPolicy, Tuning
from forebay_autoscaler.seed import Seed

BACK_OFF: Final = 0.9
"""Share of a load that missed the objective which becomes the limit."""
RECOVERY: Final = 1.02
"""Growth of a lowered limit in each window that meets the objective."""
IDLE_LOAD: Final = 1.5
"""Requests at once in one worker at or below which a missed objective is not the load's fault."""
IDLE_UTILISATION: Final = 0.3
"""The same for the busy share of a prefill worker."""
NEARLY_FULL: Final = 0.8
"""Share of the limit that workers must carry for a met objective to prove that they could carry more."""
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
        return any(met is False for met in self._decided_by(role))

    def met_by(self, role: Role) -> bool:
        """Whether requests are known to have met what workers of this role decide."""
        return all(met is True for met in self._decided_by(role))

    def _decided_by(self, role: Role) -> tuple[bool | None, ...]:
        return {
            Role.PREFILL: (self.ttft_met,),
            Role.DECODE: (self.tpot_met,),
            Role.MIXED: (self.ttft_met, self.tpot_met),
        }[role]


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


def capacity_of(pool: PoolPolicy, learnt: Learnt, objective: Objective, seed: Seed | None) -> Capacity:
    """One worker's capacity as known now; what was never measured is as the capacity model expects."""
    work_s = learnt.work_s if learnt.work_s is not None or seed is None else seed.work_s
    limit = initial_limit(pool, work_s, objective, seed) if learnt.limit is None else learnt.limit
    if pool.role is not Role.PREFILL:
        limit = min(limit, pool.concurrency_max)
    return Capacity(work_s, limit, measured=learnt.work_s is not None)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the whole service shows, beside one pool's own signals."""

    latency: Latency
    queued_lately: bool
    """Whether requests waited anywhere within the last window: then late first tokens are the queue's doing."""
    objective: Objective
    tuning: Tuning


@dataclass(frozen=True, slots=True)
class Facts:
    """What one pool shows now."""

    counts: PoolCounts
    signals: PoolSignals
    seed: Seed | None
    """What the capacity model expects of a worker; None when it cannot say."""
    now_s: float


def learn(pool: PoolPolicy, learnt: Learnt, facts: Facts, evidence: Evidence) -> Learnt:
    """Knowledge after one more observation."""
    counts, now_s = facts.counts, facts.now_s
    learnt = _learn_queue(_learn_sizes(learnt, counts, now_s), counts, facts.signals, now_s)
    learnt = replace(learnt, work_s=_learn_work_s(pool.role, learnt, facts, evidence.tuning))
    settled = now_s - max(learnt.limit_changed_s, learnt.ready_changed_s) >= evidence.tuning.rate_window_s
    if counts.ready == 0 or counts.ready < counts.wanted or not settled:
        return learnt
    if facts.signals.waiting.known is None:  # whether requests queue is not known, so neither is whose fault latency is
        return learnt
    limit = _learn_limit(pool, learnt, facts, evidence)
    return learnt if limit == learnt.limit else replace(learnt, limit=limit, limit_changed_s=now_s)


def _learn_sizes(learnt: Learnt, counts: PoolCounts, now_s: float) -> Learnt:
    came = counts.ready > learnt.ready
    if counts.ready != learnt.ready:
        learnt = replace(learnt, ready=counts.ready, ready_changed_s=now_s)
    if counts.ready < counts.wanted:
        return learnt if learnt.ordered_s is not None else replace(learnt, ordered_s=now_s)
    if learnt.ordered_s is None:
        return learnt
    startup_s = min(STARTUP_MAX_S, now_s - learnt.ordered_s) if came else learnt.startup_s
    return replace(learnt, startup_s=startup_s, ordered_s=None)


def _learn_queue(learnt: Learnt, counts: PoolCounts, signals: PoolSignals, now_s: float) -> Learnt:
    queued = (waiting_in_workers(signals) or 0.0) >= max(1, counts.ready)
    if queued == (learnt.queued_since_s is not None):
        return learnt
    return replace(learnt, queued_since_s=now_s if queued else None)


def _learn_work_s(role: Role, learnt: Learnt, facts: Facts, tuning: Tuning) -> float | None:
    counts, signals, seed = facts.counts, facts.signals, facts.seed
    measured = work_per_request_s(role, signals, counts.ready)
    if measured is None:
        return learnt.work_s
    running = signals.running_mean.known
    if seed is not None and running is not None:
        measured *= seed.stretch(running / max(1, counts.ready))
    if learnt.work_s is None:
        return measured
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


def _learn_limit(pool: PoolPolicy, learnt: Learnt, facts: Facts, evidence: Evidence) -> float | None:
    load = load_per_worker(pool.role, learnt, facts.counts, facts.signals)
    if load is None or is_idle(pool.role, load):
        return learnt.limit
    start = initial_limit(pool, learnt.work_s, evidence.objective, facts.seed)
    limit = start if learnt.limit is None else learnt.limit
    if learnt.queued_since_s is not None:
        cramped = pool.role is not Role.PREFILL and load < BACK_OFF * limit
        lasted = facts.now_s - learnt.queued_since_s >= evidence.tuning.rate_window_s
        return load if cramped and lasted else learnt.limit
    latency = replace(evidence.latency, ttft_met=None) if evidence.queued_lately else evidence.latency
    if latency.missed_by(pool.role):
        return min(limit, BACK_OFF * load)
    if not latency.met_by(pool.role):
        return learnt.limit
    ceiling = pool.concurrency_max if pool.role is not Role.PREFILL and load >= NEARLY_FULL * limit else start
    return min(ceiling, limit * RECOVERY) if limit < ceiling else learnt.limit
