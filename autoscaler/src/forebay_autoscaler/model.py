"""Demand and capacity of one pool, in requests that are served at once. Pure arithmetic.

Little's law ties the three numbers that matter: a pool that is asked for `rate` requests a second, each of which a worker
works on for `service_s` seconds, has on average R = rate * service_s of them in work (the *offered load*, in Erlangs). A
worker carries at most `limit` at once within the objective. So a pool needs (R + margin) / limit workers, and one worker's
good rate is limit / service_s.

Mixed and decode workers are parallel servers: `service_s` is the time between the first step and the last token, `limit` the
engine's number of sequences, or less where the objective is missed earlier (learnt, see learn.py). Arrivals are random, so
the load varies by about sqrt(R) around R (Poisson); the margin is the quantile of the objective's target of it, at least a
tenth of R: margin = max(z * sqrt(R), headroom * R). A large fleet runs hotter than a small one for the same promise.

Prefill workers are one server each that is shared by what is in it: more at once is not more per second. By the law of
processor sharing a request takes service_s = s0 / (1 - u) at utilisation u = x * s0, with x requests a second per worker;
solved for the work itself: s0 = service_s / (1 + x * service_s). The offered load is rate * s0 busy workers and `limit` the
utilisation at which a request still gets its first token in time: the tail of the sojourn time falls as
exp(-t (1 - u) / s0), so 1 - u = s0 * -ln(1 - target) / ttft, kept within bounds.

Queues, not utilisation, tell overload: requests that wait are counted as demand, to be worked off within a horizon. What
queues up while ordered workers are still starting is already paid for (see `backlog_to_order`).
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_autoscaler.observation import PoolSignals, ServiceSignals
from forebay_autoscaler.policy import PoolPolicy, Tuning
from forebay_autoscaler.seed import Seed

UTILISATION_BOUNDS: Final = (0.4, 0.9)
"""Utilisation to which a prefill worker may be loaded, whatever the formula says."""
BURST_DEVIATIONS: Final = 1.5
"""Standard deviations by which the burst rate must exceed the mean rate to be taken as a change of demand."""
LATEST_DEVIATIONS: Final = 2.0
"""The same for the rate between the last two scrapes, which is looked at more often."""
PROOF_DEVIATIONS: Final = 2.0
"""Standard deviations above the measured rate for which the workers that remain after shrinking must suffice."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one worker of a pool can do."""

    work_s: float | None
    """Worker time (prefill) or slot time (else) of one request; None when it was never measured."""
    limit: float
    """Busy share (prefill) or requests at once (else) of one worker within the objective."""
    measured: bool
    """Whether work_s was ever measured; else the capacity model expects it."""

    @property
    def good_rate_per_s(self) -> float | None:
        """Requests a second that one worker serves within the objective."""
        return self.limit / self.work_s if self.work_s else None


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of a pool."""

    rate_per_s: float | None
    """Requests a second; None when it is unknown."""
    backlog: float
    """Requests that wait for a worker, or in one."""
    running: float
    """Requests in work now."""


@dataclass(frozen=True, slots=True)
class Need:
    """How many workers a demand needs, and how that comes about."""

    workers: int
    """Workers for the load, its margin and the running requests."""
    with_backlog: int
    """The same, plus what works off the backlog."""
    to_keep: int
    """The same, should the rate be higher than measured by two standard deviations: below this the pool must not shrink. The
    gap between the two keeps a load near a boundary from moving a worker to and fro."""
    offered: float
    """Mean load, in units of the limit (R)."""
    margin: float
    """Free capacity kept beside it."""


def demand_rate(signals: ServiceSignals, tuning: Tuning) -> float | None:
    """Requests a second to plan for; None when the arrival rate is unknown.

    The mean over the rate window, or a higher rate that was seen lately, as far as it is too large to be chance: of the
    burst window and of the last scrape, what remains after some standard deviations of a Poisson count are taken off.
    """
    arrived = signals.arrived_per_s.known
    if arrived is None:
        return None
    burst = _certain_rate(signals.burst_per_s.known, tuning.burst_window_s, BURST_DEVIATIONS)
    scrape_s = tuning.burst_window_s / max(1.0, signals.scrapes.known or 1.0)
    latest = _certain_rate(signals.latest_per_s.known, scrape_s, LATEST_DEVIATIONS)
    refused = signals.refused_per_s.known or 0.0
    return max(0.0, max(arrived, burst, latest) - min(refused, arrived))


def _certain_rate(rate_per_s: float | None, window_s: float, deviations: float) -> float:
    return 0.0 if rate_per_s is None else rate_per_s - deviations * math.sqrt(rate_per_s / window_s)


def waiting_in_workers(signals: PoolSignals) -> float | None:
    """Requests that wait in the engines, never more than the router has there beside those in work; None when unknown.

    Series of workers that are gone can outlive them in a metrics store; the router's own count does not.
    """
    waiting, in_flight, running = signals.waiting.known, signals.in_flight.known, signals.running.known
    if waiting is None or in_flight is None:
        return waiting
    return min(waiting, max(0.0, in_flight - (running or 0.0)))


def running_in_workers(signals: PoolSignals) -> float | None:
    """Requests in work, never more than the router has there; the router's count when the engines are not heard."""
    running, in_flight = signals.running.known, signals.in_flight.known
    if running is None or in_flight is None:
        return in_flight if running is None else running
    return min(running, in_flight)


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
    """Utilisation at which a prefill worker still answers in time (see the module's formula)."""
    low, high = UTILISATION_BOUNDS
    if work_s is None:
        return high
    tail = -math.log(max(1e-4, 1.0 - objective.target))
    return min(high, max(low, 1.0 - work_s * tail / objective.ttft_s))


def initial_limit(pool: PoolPolicy, work_s: float | None, objective: Objective, seed: Seed | None) -> float:
    """What one worker should carry before anything is learnt about it."""
    if pool.role is Role.PREFILL:
        return utilisation_in_time(work_s, objective)
    return pool.concurrency_max if seed is None or seed.limit is None else min(pool.concurrency_max, seed.limit)


def need_of(role: Role, demand: Demand, capacity: Capacity, *, objective: Objective, tuning: Tuning) -> Need:
    """Workers that a demand needs. Grows with every part of the demand; 0 only when there is none at all."""
    work_s = capacity.work_s or 0.0
    rate_per_s = demand.rate_per_s or 0.0  # unknown: what is known may still ask for workers
    offered = rate_per_s * work_s
    margin = _margin(role, offered, objective, tuning)
    uncertain = PROOF_DEVIATIONS * math.sqrt(rate_per_s / tuning.rate_window_s) * work_s
    offered_at_most = offered + uncertain
    margin_at_most = _margin(role, offered_at_most, objective, tuning)
    # Running requests hold their slots whatever the rate says: it may be unmeasured, or just have fallen.
    in_work = 0.0 if role is Role.PREFILL else demand.running
    backlog = demand.backlog * (capacity.work_s or _unmeasured_work_s(role, objective, tuning)) / tuning.drain_horizon_s
    some = 1 if rate_per_s > 0 or demand.backlog > 0 or demand.running > 0 else 0

    def workers(load: float) -> int:
        # A hair above a whole number is rounding of floats, not demand for one more worker.
        return max(some, math.ceil(load / capacity.limit - 1e-9))

    return Need(
        workers=workers(max(offered + margin, in_work)),
        with_backlog=workers(max(offered + margin, in_work) + backlog),
        to_keep=workers(max(offered_at_most + margin_at_most, in_work) + backlog),
        offered=offered,
        margin=margin,
    )


def _unmeasured_work_s(role: Role, objective: Objective, tuning: Tuning) -> float:
    """Stands in while nothing has finished: a waiting request will hold a slot, or a prefill worker for the whole TTFT."""
    return objective.ttft_s if role is Role.PREFILL else tuning.drain_horizon_s


def _margin(role: Role, offered: float, objective: Objective, tuning: Tuning) -> float:
    if role is Role.PREFILL:  # its limit already leaves room for the tail
        return 0.0
    quantile = NormalDist().inv_cdf(min(objective.target, 0.9999))
    return max(quantile * math.sqrt(offered), tuning.headroom * offered)


def backlog_to_order(
    backlog: float, *, rate_per_s: float | None, ready: int, capacity: Capacity, startup_s: float
) -> float:
    """The part of a backlog that ready workers will not have worked off by the time a new worker could help.

    While the rate or what a worker does is unknown, nobody is known to have time for it.
    """
    good_rate = capacity.good_rate_per_s
    if good_rate is None or rate_per_s is None:
        return backlog
    spare_per_s = max(0.0, ready * good_rate - rate_per_s)
    return max(0.0, backlog - spare_per_s * startup_s)
