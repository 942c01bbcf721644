"""What a pool's past tells about its workers: their speed, their limit, their start-up time. Pure.

*Speed* is the measured work of a request over what the capacity model expects of it beside as many others (`time_ratio`), so
that another mix of requests, or another load, does not look like another speed. Blended with what was known by the number of
samples, so that two odd requests at night do not replace a day's knowledge. Without a capacity model it is the work itself.

*Limit* starts at what the capacity model expects, at most the engine's own number of sequences. For prefill the laws of the need
say what workers carry (model.py), and what is learnt is the *share* of it that they carry in time, which holds whatever their
number. Finished requests correct it, once the pool has been of one size for a whole window:
- more requests than chance explains missed the objective though workers carried no more than the limit and nothing queued for
  a window: it was too much; the limit becomes 0.9 of what they carried, by a quarter at once at most where the capacity model
  knows better;
- requests queued for a whole window in engines that ran fewer than the limit (no KV cache left, prefill in the way, or a
  lower engine limit than we know): the limit becomes what they ran;
- the objective is met with room to spare: a lowered limit rises by 2 % a window towards where it began, so that yesterday's
  lesson is not for ever; it rises beyond that, to `RAISED_MAX` of it, only while workers really carry nearly as much.

*Overload teaches nothing.* A pool that is asked for more than its workers' good rate, that starts workers, or that carries more
than the limit, is slow because it is too small, and what it shows says nothing of workers that carry what they should. Nor
does a worker that misses the objective with (almost) nothing to do: more workers would not help, and that is said.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Final

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_autoscaler.demand import waiting_in_workers
from forebay_autoscaler.model import Capacity, initial_limit, prefill_load, work_per_request_s
from forebay_autoscaler.observation import PoolCounts, PoolSignals, ServiceSignals
from forebay_autoscaler.orders import Orders
from forebay_autoscaler.policy import PoolPolicy, Tuning
from forebay_autoscaler.seed import Seed

BACK_OFF: Final = 0.9
"""Share of a load that missed the objective which becomes the limit."""
FALL_MAX: Final = 0.75
"""Share of a limit that one window leaves of it, where it began with the capacity model."""
RECOVERY: Final = 1.02
"""Growth of a limit in each window that meets the objective with room to spare."""
RAISED_MAX: Final = 1.5
"""Most that a limit may rise over what the capacity model expects."""
ROOM: Final = 0.5
"""Share of the allowed misses that may be used for the objective to be met with room to spare."""
IDLE_LOAD: Final = 1.5
"""Requests at once in one worker at or below which a missed objective is not the load's fault."""
IDLE_UTILISATION: Final = 0.3
"""The same for the busy share of a prefill worker."""
NEARLY_FULL: Final = 0.8
"""Share of the limit that workers must carry for a met objective to prove that they could carry more."""
OVERLOAD: Final = 1.05
"""Share of the limit beyond which a load is more than workers should carry."""
OVERLOAD_DEVIATIONS: Final = 2.0
"""Standard deviations on top of it, of what runs at the moment."""
STEADY: Final = 0.1
"""Share by which what workers carry may differ from the window's mean to be steady."""
CHANCE_DEVIATIONS: Final = 2.0
"""Standard deviations by which a window may miss the target and prove nothing."""
MISSES_TOGETHER: Final = 3.0
"""Variance over mean of the requests that miss it: what makes one late makes its neighbours late."""
SPEED_WEIGHT_MAX: Final = 0.5
"""Most that one look changes of a speed."""
SPEED_BOUNDS: Final = (0.2, 5.0)
"""Measured over expected work that is believed."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """Knowledge about one pool's workers."""

    work_s: float | None = None
    """Work of one request in a full worker, as in model.Capacity, when it was last measured."""
    speed: float | None = None
    """Measured over expected work; None until measured, or without a capacity model."""
    limit: float | None = None
    """Learnt limit; None while the initial one holds."""
    limit_changed_s: float = float("-inf")
    """Or the share."""
    ready_changed_s: float = float("-inf")
    overloaded_s: float = float("-inf")
    """When workers last had more to do than they should."""
    orders: Orders = field(default_factory=Orders)
    """Workers on their way, and how long they take."""
    queued_since_s: float | None = None
    """Since when requests have waited in the engines at every look; None when the last look saw no queue."""
    share: float = 1.0
    """Of what the laws allow prefill workers, what they carry in time."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Whether recent requests met each bound; None where too few were measured."""

    ttft_met: bool | None
    tpot_met: bool | None
    room: bool = False
    """Whether both were met with room to spare."""
    ttft_by_chance: bool = False
    """Whether a bound that was missed was so by no more than chance explains."""
    tpot_by_chance: bool = False

    def missed_by(self, role: Role) -> bool:
        """Whether more requests than the target allows missed what workers of this role decide."""
        return any(met is False for met in self._decided_by(role))

    def met_by(self, role: Role) -> bool:
        """Whether requests are known to have met what workers of this role decide."""
        return all(met is True for met in self._decided_by(role))

    def missed_surely(self) -> "Latency":
        """With what chance explains not known."""
        return replace(
            self,
            ttft_met=None if self.ttft_met is False and self.ttft_by_chance else self.ttft_met,
            tpot_met=None if self.tpot_met is False and self.tpot_by_chance else self.tpot_met,
        )

    def _decided_by(self, role: Role) -> tuple[bool | None, ...]:
        return {
            Role.PREFILL: (self.ttft_met,),
            Role.DECODE: (self.tpot_met,),
            Role.MIXED: (self.ttft_met, self.tpot_met),
        }[role]


def latency_of(signals: ServiceSignals, objective: Objective, tuning: Tuning) -> Latency:
    """Compare the share of requests within each bound with the target.

    A bound that lies within a bucket of the histogram says little of what fell into that bucket, so the router's verdicts
    overrule it: where enough requests were good, both bounds were met.
    """
    good, bad = signals.good_lately_per_s.known, signals.bad_lately_per_s.known
    ended = None if good is None or bad is None else (good + bad) * tuning.rate_window_s

    def met(within_per_s: float | None, per_s: float | None, target: float) -> bool | None:
        if within_per_s is None or per_s is None or per_s * tuning.rate_window_s < tuning.samples_min:
            return None
        if good is not None and ended is not None and ended >= tuning.samples_min:
            within_per_s = max(within_per_s, good * tuning.rate_window_s / ended * per_s)
        return within_per_s >= target * per_s

    ttft = signals.ttft_within_per_s.known, signals.ttft_per_s.known
    tpot = signals.tpot_within_per_s.known, signals.tpot_per_s.known
    higher = 1.0 - ROOM * (1.0 - objective.target)
    return Latency(
        ttft_met=met(*ttft, objective.target),
        tpot_met=met(*tpot, objective.target),
        room=met(*ttft, higher) is True and met(*tpot, higher) is not False,
        ttft_by_chance=met(*ttft, _lowest(ttft[1], objective, tuning)) is not False,
        tpot_by_chance=met(*tpot, _lowest(tpot[1], objective, tuning)) is not False,
    )


def _lowest(per_s: float | None, objective: Objective, tuning: Tuning) -> float:
    """The share within a bound that workers which meet the target show by chance."""
    samples = max(1.0, (per_s or 0.0) * tuning.rate_window_s)
    return objective.target - CHANCE_DEVIATIONS * math.sqrt(MISSES_TOGETHER * (1.0 - objective.target) / samples)


def capacity_of(pool: PoolPolicy, learnt: Learnt, seed: Seed | None) -> Capacity:
    """One worker's capacity as known now; what was never measured is as the capacity model expects."""
    work_s = learnt.work_s if seed is None else seed.work_s * (learnt.speed or 1.0)
    amplification = 1.0 if seed is None else seed.amplification
    measured = learnt.work_s is not None if seed is None else learnt.speed is not None
    limit = initial_limit(pool, seed)
    if pool.role is Role.PREFILL:
        return Capacity(work_s, limit, measured=measured, amplification=amplification, share=learnt.share)
    limit = min(limit if learnt.limit is None else learnt.limit, pool.concurrency_max)
    return Capacity(work_s, limit, measured=measured, amplification=amplification)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the whole service shows, beside one pool's own signals."""

    latency: Latency
    queued_lately: bool
    """Whether requests waited anywhere within the last window: then late first tokens are the queue's doing."""
    rate_per_s: float | None
    """What is asked of the service now."""
    objective: Objective
    """With the target to plan for."""
    tuning: Tuning

    @property
    def decisive(self) -> Latency:
        """What says something of the workers: no miss by chance, and no late first token while requests queue."""
        latency = self.latency.missed_surely()
        return replace(latency, ttft_met=None) if self.queued_lately else latency


@dataclass(frozen=True, slots=True)
class Facts:
    """What one pool shows now."""

    counts: PoolCounts
    signals: PoolSignals
    seed: Seed | None
    """What the capacity model expects of a worker; None when it cannot say."""
    share: float
    """Of the service's requests that are this pool's."""
    now_s: float


def learn(pool: PoolPolicy, learnt: Learnt, facts: Facts, evidence: Evidence) -> Learnt:
    """Knowledge after one more observation."""
    counts, now_s = facts.counts, facts.now_s
    learnt = _learn_queue(_learn_sizes(learnt, counts, now_s), counts, facts.signals, now_s)
    overloaded = _is_overloaded(pool, learnt, facts, evidence)
    calm = not overloaded and not evidence.queued_lately and _is_steady(pool.role, facts)
    if calm or capacity_of(pool, learnt, facts.seed).work_s is None:
        learnt = _learn_work(pool.role, learnt, facts, evidence.tuning)
    if overloaded:
        learnt = replace(learnt, overloaded_s=now_s)
    changed_s = max(learnt.limit_changed_s, learnt.ready_changed_s, learnt.overloaded_s)
    # What ended within the window was worked on since one service time before it.
    settled = now_s - changed_s >= evidence.tuning.rate_window_s + (facts.signals.service_time_s.known or 0.0)
    if counts.ready == 0 or counts.ready < counts.wanted or not settled:
        return learnt
    if facts.signals.waiting.known is None:  # whether requests queue is not known, so neither is whose fault latency is
        return learnt
    capacity = capacity_of(pool, learnt, facts.seed)
    load = load_per_worker(pool.role, capacity.work_s, counts, facts.signals)
    if load is None or is_idle(pool.role, load):
        return learnt
    if pool.role is Role.PREFILL:
        after = replace(learnt, share=_learn_share(learnt, facts, evidence, load=load, overloaded=overloaded))
    else:
        after = replace(learnt, limit=_learn_limit(pool, learnt, facts, evidence, load=load, overloaded=overloaded))
    return learnt if after == learnt else replace(after, limit_changed_s=now_s)


def _learn_sizes(learnt: Learnt, counts: PoolCounts, now_s: float) -> Learnt:
    orders = learnt.orders.follow(wanted=counts.wanted, ready=counts.ready, now_s=now_s)
    changed_s = learnt.ready_changed_s if counts.ready == learnt.orders.ready else now_s
    return replace(learnt, orders=orders, ready_changed_s=changed_s)


def _learn_queue(learnt: Learnt, counts: PoolCounts, signals: PoolSignals, now_s: float) -> Learnt:
    queued = (waiting_in_workers(signals) or 0.0) >= max(1, counts.ready)
    if queued == (learnt.queued_since_s is not None):
        return learnt
    return replace(learnt, queued_since_s=now_s if queued else None)


def _is_overloaded(pool: PoolPolicy, learnt: Learnt, facts: Facts, evidence: Evidence) -> bool:
    """Whether workers had more to do than they should."""
    capacity = capacity_of(pool, learnt, facts.seed)
    ready = facts.counts.ready
    asked, most = (evidence.rate_per_s or 0.0) * facts.share * (capacity.work_s or 0.0), ready * capacity.limit
    if pool.role is Role.PREFILL:
        most = min(most, capacity.share * prefill_load(ready, capacity.work_s, evidence.objective))
    if asked > OVERLOAD * most:
        return True
    load = load_per_worker(pool.role, capacity.work_s, facts.counts, facts.signals)
    if load is not None and load * ready > OVERLOAD * most:
        return True
    # A step is seen in what runs now long before it is in the window's mean; more than chance, as it always varies.
    chance = OVERLOAD_DEVIATIONS * math.sqrt(capacity.amplification * most)
    running = facts.signals.running.known
    return pool.role is not Role.PREFILL and running is not None and running > OVERLOAD * most + chance


def _is_steady(role: Role, facts: Facts) -> bool:
    """Whether workers carry about what they carried over the window, in which finished requests were worked on."""
    now, mean = facts.signals.running.known, facts.signals.running_mean.known
    if role is Role.PREFILL or now is None or mean is None:
        return True
    return abs(now - mean) <= max(2.0 * math.sqrt(mean), STEADY * mean)


def _learn_work(role: Role, learnt: Learnt, facts: Facts, tuning: Tuning) -> Learnt:
    counts, signals, seed = facts.counts, facts.signals, facts.seed
    measured = work_per_request_s(role, signals, counts.ready)
    if measured is None:
        return learnt
    samples = (signals.finished_per_s.known or 0.0) * tuning.rate_window_s
    weight = samples / (samples + tuning.samples_min)
    if seed is None:
        before = learnt.work_s
        return replace(learnt, work_s=measured if before is None else before + weight * (measured - before))
    speed = _speed(role, measured, facts, seed)
    before_speed = learnt.speed or 1.0
    weight = weight if learnt.speed is None else min(weight, SPEED_WEIGHT_MAX)
    weight *= _likeness(role, facts, seed)
    blended = before_speed + weight * (speed - before_speed)
    return replace(learnt, speed=blended, work_s=seed.work_s * blended)


def _likeness(role: Role, facts: Facts, seed: Seed) -> float:
    """How much workers were like full ones: what requests take beside few others says little of what they take beside many."""
    load = facts.signals.running_mean.known
    if role is Role.PREFILL or load is None or seed.limit is None:
        return 1.0
    return min(1.0, load / max(1, facts.counts.ready) / seed.limit)


def _speed(role: Role, measured: float, facts: Facts, seed: Seed) -> float:
    """Measured over expected work."""
    low, high = SPEED_BOUNDS
    if role is Role.PREFILL:
        # Engines take prompts in turn or together: the work lies between what either would mean.
        longest = facts.signals.service_time_s.known or measured
        expected = min(max(seed.work_s, measured), longest)
        return min(high, max(low, expected / seed.work_s))
    load = facts.signals.running_mean.known
    ratio = 1.0 if load is None else seed.time_ratio(load / max(1, facts.counts.ready))
    return min(high, max(low, measured * ratio / seed.work_s))


def load_per_worker(role: Role, work_s: float | None, counts: PoolCounts, signals: PoolSignals) -> float | None:
    """What each ready worker carried over the window, in units of the limit; None when unknown."""
    if counts.ready == 0:
        return None
    if role is Role.PREFILL:
        finished = signals.finished_per_s.known
        return None if finished is None or work_s is None else finished * work_s / counts.ready
    running = signals.running_mean.known
    return None if running is None else running / counts.ready


def is_idle(role: Role, load: float | None) -> bool:
    """Whether a worker with this load has so little to do that its latency is not the load's fault."""
    return load is not None and load <= (IDLE_UTILISATION if role is Role.PREFILL else IDLE_LOAD)


def _learn_share(learnt: Learnt, facts: Facts, evidence: Evidence, *, load: float, overloaded: bool) -> float:
    """What prefill workers carry in time of what the laws allow so many of them."""
    if learnt.queued_since_s is not None:
        return learnt.share
    latency = evidence.decisive
    if latency.missed_by(Role.PREFILL):
        ready = facts.counts.ready
        allowed = prefill_load(ready, learnt.work_s, evidence.objective) / ready
        lowest = 0.0 if facts.seed is None else FALL_MAX * learnt.share
        return learnt.share if overloaded else min(learnt.share, max(lowest, BACK_OFF * load / allowed))
    if not latency.met_by(Role.PREFILL) or not latency.room:
        return learnt.share
    return min(1.0, learnt.share * RECOVERY)


def _learn_limit(
    pool: PoolPolicy, learnt: Learnt, facts: Facts, evidence: Evidence, *, load: float, overloaded: bool
) -> float | None:
    start = initial_limit(pool, facts.seed)
    limit = start if learnt.limit is None else learnt.limit
    if learnt.queued_since_s is not None:
        cramped = load < BACK_OFF * limit
        lasted = facts.now_s - learnt.queued_since_s >= evidence.tuning.rate_window_s
        return load if cramped and lasted else learnt.limit
    latency = evidence.decisive
    if latency.missed_by(pool.role):
        lowest = 0.0 if facts.seed is None else FALL_MAX * limit
        return learnt.limit if overloaded else min(limit, max(lowest, BACK_OFF * load))
    if not latency.met_by(pool.role) or not latency.room:
        return learnt.limit
    ceiling = min(pool.concurrency_max, RAISED_MAX * start) if load >= NEARLY_FULL * limit else start
    return min(ceiling, limit * RECOVERY) if limit < ceiling else learnt.limit
