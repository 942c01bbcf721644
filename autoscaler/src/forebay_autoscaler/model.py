"""Capacity of one worker, and how many workers a demand needs. Pure arithmetic.

Little's law ties the three numbers that matter: a pool that is asked for `rate` requests a second, each of which a worker
works on for `work_s` seconds, has on average R = rate * work_s of them in work (the *offered load*, in Erlangs). A worker
carries at most `limit` at once within the objective. So a pool needs (R + margin) / limit workers, and one worker's good rate
is limit / work_s. Work is that of a full worker: beside fewer others a request takes less (seed.py).

Mixed and decode workers are parallel servers. The load varies around R with variance A * D * R: D is the dispersion of
arrivals (1 for Poisson), A the amplification by requests that slow each other down (seed.py). The margin is the quantile of
the objective's target of it, at least a tenth of R, half of that once the speed was measured:
margin = max(z * sqrt(A * D * R), headroom * R). A large fleet runs hotter than a small one for the same promise.

Prefill workers are one server each that is shared by what is in it: more at once is not more per second. By the law of
processor sharing a request takes service_s = s0 / (1 - u) at utilisation u = x * s0, with x requests a second per worker;
solved for the work itself: s0 = service_s / (1 + x * service_s). The offered load is R = rate * s0 busy workers. Two laws say
how many that takes, and the smaller number does:

    one alone    the tail of its sojourn time falls as exp(-t (1 - u) / s0), so 1 - u = s0 * -ln(1 - target) / ttft, within bounds
    as a pool    the router sends a prompt where it is computed soonest, so n workers are one queue before n servers, and what
                 waits longer than d is about exp(-d (n - R) / s0) of the requests. With d = ttft - s0 that is 1 - target where
                 s0 * -ln(1 - target) / d workers are free, however many there are; at most `POOLED` of them are busy

Where prompts are long beside the TTFT, one alone must be idle half of the time, and the second law needs far fewer workers.
Turned round, the larger of what they allow is what n workers carry. What is learnt against it is a `share` of it: a busy share
that was too much for one worker at night says nothing of ten by day, whom the laws allow another one.

Queues, not utilisation, tell overload: what waits is counted as demand, to be worked off within a horizon (demand.py).
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_autoscaler.chance import quantile
from forebay_autoscaler.demand import Demand
from forebay_autoscaler.observation import PoolSignals
from forebay_autoscaler.policy import PoolPolicy, Tuning
from forebay_autoscaler.seed import Seed

MEASURED: Final = 0.5
"""Share of the headroom that is left once finished requests have shown a worker's speed: it is for what is not known of it."""
UTILISATION_BOUNDS: Final = (0.4, 0.9)
"""Utilisation to which a prefill worker may be loaded, whatever the formula says."""
POOLED: Final = 0.75
"""Utilisation to which a pool of them may be loaded by the law of pools: it knows of no bursts and no uneven queues."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one worker of a pool can do."""

    work_s: float | None
    """Worker time (prefill) or slot time (else) of one request; None when it was never measured."""
    limit: float
    """Busy share (prefill) or requests at once (else) of one worker within the objective."""
    measured: bool
    """Whether work_s was ever measured; else the capacity model expects it."""
    amplification: float = 1.0
    """Variance over mean of the requests in work beyond that of arrivals."""
    share: float = 1.0
    """What prefill workers carry in time of what the laws allow, whatever their number."""

    @property
    def good_rate_per_s(self) -> float | None:
        """Requests a second that one worker serves at its limit; a prefill worker in time only as far as `within_law` says."""
        return self.limit / self.work_s if self.work_s else None


@dataclass(frozen=True, slots=True)
class Need:
    """How many workers a demand needs, and how that comes about."""

    workers: int
    """Workers for the planned load, its margin and the running requests."""
    with_backlog: int
    """The same, plus what works off the backlog."""
    to_keep: int
    """The same, should the rate be higher than measured by chance (demand.py): below this the pool must not shrink. The
    gap between the two keeps a load near a boundary from moving a worker to and fro."""
    offered: float
    """Mean load to plan for, in units of the limit (R)."""
    margin: float
    """Free capacity kept beside it."""
    target: float | None = None
    """Share of requests that it is to answer in time (credit.py)."""


def work_per_request_s(role: Role, signals: PoolSignals, ready: int) -> float | None:
    """Worker or slot time of one request, from those that finished in the window; None without any."""
    service_s, finished = signals.service_time_s.known, signals.finished_per_s.known
    if not service_s or not finished:
        return None
    if role is not Role.PREFILL:
        return service_s
    per_worker = finished / max(1, ready)
    return service_s / (1.0 + per_worker * service_s)


def utilisation_in_time(work_s: float | None, objective: Objective) -> float:
    """Utilisation at which one prefill worker alone still answers in time (see the module's formula)."""
    low, high = UTILISATION_BOUNDS
    if work_s is None:
        return high
    return min(high, max(low, 1.0 - work_s * _tail(objective) / objective.ttft_s))


def prefill_workers(offered: float, work_s: float | None, objective: Objective) -> float:
    """Prefill workers that answer in time: by the law of one alone or that of a pool (see the module's formula)."""
    alone = offered / utilisation_in_time(work_s, objective)
    left_s = objective.ttft_s - (work_s or 0.0)
    if left_s <= 0.0:
        return alone
    return min(alone, max(offered + (work_s or 0.0) * _tail(objective) / left_s, offered / POOLED))


def prefill_load(workers: float, work_s: float | None, objective: Objective) -> float:
    """Busy prefill workers of so many that answer in time: `prefill_workers` turned round."""
    alone = workers * utilisation_in_time(work_s, objective)
    left_s = objective.ttft_s - (work_s or 0.0)
    if left_s <= 0.0:
        return alone
    return max(alone, min(workers - (work_s or 0.0) * _tail(objective) / left_s, POOLED * workers))


def carried_per_s(role: Role, workers: int, capacity: Capacity, objective: Objective) -> float | None:
    """Requests a second that so many workers carry within the objective, with no margin; None when never measured."""
    if not capacity.work_s:
        return None
    load = workers * capacity.limit
    if role is Role.PREFILL:
        load = min(load, capacity.share * prefill_load(workers, capacity.work_s, objective))
    return load / capacity.work_s


def carried_with_margin_per_s(
    role: Role, workers: int, capacity: Capacity, objective: Objective, *, dispersion: float, tuning: Tuning
) -> float | None:
    """Requests a second for which so many workers are needed and no more: `need_of` turned round; None when never measured."""
    carried = carried_per_s(role, workers, capacity, objective)
    if not carried or not capacity.work_s or role is Role.PREFILL:  # whose laws have the margin in them
        return carried
    load, headroom = workers * capacity.limit, tuning.headroom * (MEASURED if capacity.measured else 1.0)
    chance = quantile(objective) * math.sqrt(capacity.amplification * dispersion)
    root = (math.sqrt(chance**2 + 4.0 * load) - chance) / 2.0  # load = root^2 + chance * root
    return min(root**2, load / (1.0 + headroom)) / capacity.work_s


def within_law(role: Role, demand: Demand | None, capacity: Capacity, objective: Objective) -> Capacity:
    """The capacity with as much as one worker carries of this demand: a prefill worker's share of what the laws allow."""
    if role is not Role.PREFILL:
        return capacity
    planned = 0.0 if demand is None else max(demand.rate_per_s or 0.0, demand.planned_per_s)
    offered = planned * (capacity.work_s or 0.0)
    workers = prefill_workers(offered / capacity.share, capacity.work_s, objective)
    alone = capacity.share * utilisation_in_time(capacity.work_s, objective)
    return replace(capacity, limit=min(capacity.limit, offered / workers if workers > 0 else alone))


def _tail(objective: Objective) -> float:
    """How far out in an exponential tail the target lies."""
    return -math.log(max(1e-4, 1.0 - objective.target))


def initial_limit(pool: PoolPolicy, seed: Seed | None) -> float:
    """What one worker should carry at most before anything is learnt about it."""
    if pool.role is Role.PREFILL:
        return UTILISATION_BOUNDS[1]
    return pool.concurrency_max if seed is None or seed.limit is None else min(pool.concurrency_max, seed.limit)


def need_of(
    role: Role,
    demand: Demand,
    capacity: Capacity,
    *,
    to_work_off: float,
    objective: Objective,
    tuning: Tuning,
) -> Need:
    """Workers that a demand needs. Grows with every part of the demand; 0 only when there is none at all.

    `to_work_off` is what of the backlog is left when a new worker could help.
    """
    work_s = capacity.work_s or 0.0
    rate_per_s = demand.rate_per_s or 0.0  # unknown: what is known may still ask for workers
    planned = max(rate_per_s, demand.planned_per_s)
    offered = planned * work_s
    offered_at_most = max(planned, demand.keep_per_s) * work_s
    margin = _margin(role, offered, demand, capacity, objective=objective, tuning=tuning)
    margin_at_most = _margin(role, offered_at_most, demand, capacity, objective=objective, tuning=tuning)
    # Running requests hold their slots whatever the rate says: it may be unmeasured, or just have fallen.
    in_work = 0.0 if role is Role.PREFILL else demand.running
    each_s = capacity.work_s or _unmeasured_work_s(role, objective, tuning)
    backlog = to_work_off * each_s / max(tuning.drain_horizon_s, demand.lead_s / 2 if capacity.work_s else 0.0)
    some = 1 if planned > 0 or demand.backlog > 0 or demand.running > 0 else 0

    def workers(load: float) -> int:
        # A hair above a whole number is rounding of floats, not demand for one more worker.
        return max(some, math.ceil(load / capacity.limit - 1e-9))

    return Need(
        workers=workers(max(offered + margin, in_work)),
        with_backlog=workers(max(offered + margin, in_work) + backlog),
        to_keep=workers(max(offered_at_most + margin_at_most, in_work) + backlog),
        offered=offered,
        margin=margin,
        target=objective.target,
    )


def _unmeasured_work_s(role: Role, objective: Objective, tuning: Tuning) -> float:
    """Stands in while nothing has finished: a waiting request will hold a slot, or a prefill worker for the whole TTFT."""
    return objective.ttft_s if role is Role.PREFILL else tuning.drain_horizon_s


def _margin(
    role: Role, offered: float, demand: Demand, capacity: Capacity, *, objective: Objective, tuning: Tuning
) -> float:
    if role is Role.PREFILL:
        workers = prefill_workers(offered / capacity.share, capacity.work_s, objective)
        return max(0.0, capacity.limit * workers - offered)
    deviation = math.sqrt(capacity.amplification * demand.dispersion * offered)
    headroom = tuning.headroom * (MEASURED if capacity.measured else 1.0)
    return max(quantile(objective) * deviation, headroom * offered)
