"""What is asked of a service and of its pools: now, when a worker ordered now can answer, and at most. Pure.

Arrivals are counted over several windows. The mean over the rate window is sure and late; the rates of the burst window and of
the last scrape are early and random, so they count as far as they are too large to be chance: less some standard deviations of
a count. Where the forecast sees demand fall, its line stands in for the rate window, which would lag by half its length.

    now        the highest of those
    planned    now, or the most that is forecast until a worker that is ordered now is ready, with room for the forecasts'
               shortfall (forecast.py)
    to keep    the same, should the rate be too low by two standard deviations, or as many fewer as the quantile of the target
               that is planned for is below that of the objective's (credit.py)

A backlog is what waits for a worker, or in one. What is left of it when a new worker could help follows from who has time for
it until then, those that start included as they come: `backlog_ahead`. That is to be worked off within `drain_horizon_s`, or
half a start-up time if that is longer. What piles up while ordered workers start is theirs, and orders nobody else, without a
rule that forbids it; where ordered workers do not come, it orders others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from forebay_autoscaler.forecast import Forecast, Method, take
from forebay_autoscaler.observation import PoolSignals, ServiceSignals
from forebay_autoscaler.policy import ServicePolicy, Tuning

BURST_DEVIATIONS: Final = 1.5
"""Standard deviations by which the burst rate must exceed the mean rate to be taken as a change of demand."""
LATEST_DEVIATIONS: Final = 2.0
"""The same for the rate between the last two scrapes, which is looked at more often."""
PROOF_DEVIATIONS: Final = 2.0
"""Standard deviations above the measured rate for which the workers that remain after shrinking must suffice."""
AHEAD: Final = (0.25, 0.5, 0.75, 1.0)
"""Parts of a lead at which the forecast is asked."""
BINS_PER_WINDOW: Final = 4
"""Bins of the past in a rate window."""
MISSED: Final = 1.5
"""Times between scrapes beyond which one was missed."""
BIN_MIN_S: Final = 15.0
"""Shortest bin, or the rate window if shorter: what rises within less is met by short windows, and holds mostly chance."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of a pool."""

    rate_per_s: float | None
    """Requests a second, now; None when it is unknown."""
    backlog: float
    """Requests that wait for a worker, or in one."""
    running: float
    """Requests in work now."""
    planned_per_s: float = 0.0
    """Requests a second to have workers for; at least the rate."""
    keep_per_s: float = 0.0
    """Requests a second that workers must suffice for after shrinking."""
    lead_s: float = 0.0
    """Time that a new worker takes."""
    dispersion: float = 1.0
    """Variance over mean of what arrives."""
    method: str = ""
    """How the forecast was made."""


def bin_s_of(tuning: Tuning) -> float:
    """Length of a bin of the past, in seconds."""
    return max(min(BIN_MIN_S, tuning.rate_window_s), tuning.rate_window_s / BINS_PER_WINDOW)


def demand_rate(signals: ServiceSignals, tuning: Tuning, falling_to: float | None = None) -> float | None:
    """Requests a second, now; None when the arrival rate is unknown. `falling_to` is the forecast's line, where it falls."""
    arrived = signals.arrived_per_s.known
    if arrived is None:
        return None
    burst = _certain_rate(signals.burst_per_s.known, tuning.burst_window_s, BURST_DEVIATIONS)
    latest = _certain_rate(signals.latest_per_s.known, scrape_s_of(signals, tuning), LATEST_DEVIATIONS)
    refused = min(signals.refused_per_s.known or 0.0, arrived)
    mean = arrived if falling_to is None else min(arrived, falling_to + refused)
    return max(0.0, max(mean, burst, latest) - refused)


def scrape_s_of(signals: ServiceSignals, tuning: Tuning) -> float:
    """Seconds between two scrapes of a router."""
    return tuning.burst_window_s / max(1.0, signals.scrapes.known or 1.0)


def _certain_rate(rate_per_s: float | None, window_s: float, deviations: float) -> float:
    return 0.0 if rate_per_s is None else rate_per_s - deviations * math.sqrt(rate_per_s / window_s)


def look_ahead(
    forecast: Forecast, signals: ServiceSignals, policy: ServicePolicy, *, now_s: float, lead_s: float
) -> Forecast:
    """The forecast after what the routers count now; unchanged without a new scrape."""
    tuning = policy.tuning
    bin_s, latest = bin_s_of(tuning), signals.latest_per_s
    arrived = signals.arrived_per_s.known
    if latest.known is None or latest.age_s is None or arrived is None:
        return forecast
    refused = (signals.refused_per_s.known or 0.0) / arrived if arrived else 0.0
    at_s, scrape_s = now_s - latest.age_s, scrape_s_of(signals, tuning)
    if at_s - forecast.past.sampled_s <= MISSED * scrape_s:  # the scrape before was seen, too
        scrape_s = at_s - forecast.past.sampled_s
    past = forecast.past.take(
        at_s,
        latest.known * (1.0 - min(1.0, refused)),
        over_s=min(bin_s * BINS_PER_WINDOW, scrape_s),
        bin_s=bin_s,
    )
    return take(forecast, past, lead=lead_s / bin_s, bin_s=bin_s, turn=crc32("/".join(policy.key).encode()))


def falling_to(forecast: Forecast, tuning: Tuning, now_s: float) -> float | None:
    """The rate of now on the forecast's line where that falls, else None."""
    if forecast.line is None or not forecast.falls:
        return None
    return forecast.line.at(now_s / bin_s_of(tuning))


def planned_rate(forecast: Forecast, rate_per_s: float, tuning: Tuning, *, now_s: float, lead_s: float) -> float:
    """The most that is asked until a worker that is ordered now is ready.

    Room for what forecasts miss is added to them, not to what is asked now: where demand falls, it is there already.
    """
    bin_s, burst = bin_s_of(tuning), forecast.burst * forecast.blindness
    if forecast.method is Method.LEVEL:  # the rate is the better level: it is newer
        return max(rate_per_s + max(forecast.shortfall, burst), forecast.floor)
    ahead = [(forecast.rate_at((now_s + part * lead_s) / bin_s, lead_s / bin_s), part) for part in AHEAD]
    foreseen = [one + part * forecast.shortfall for one, part in ahead if one is not None]
    later = rate_per_s if forecast.line is None else forecast.line.at((now_s + lead_s) / bin_s)
    return max(rate_per_s, forecast.floor, min(rate_per_s, later) + burst, *foreseen)


def rate_to_keep(rate_per_s: float, planned_per_s: float, tuning: Tuning, *, caution: float = 1.0) -> float:
    """The planned rate, should what was measured be too low by chance. `caution` is the share of the deviations to count."""
    return planned_per_s + caution * PROOF_DEVIATIONS * math.sqrt(rate_per_s / tuning.rate_window_s)


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


def backlog_ahead(
    demand: Demand, *, ready: int, coming: Sequence[tuple[float, int]], good_rate_per_s: float | None
) -> float:
    """What of a backlog is left when a worker ordered now could help; all of it while nobody knows who works it off.

    `coming` says in how many seconds how many workers are ready.
    """
    if good_rate_per_s is None or demand.rate_per_s is None:
        return demand.backlog
    left, workers, passed_s = demand.backlog, ready, 0.0
    for in_s, count in (*sorted(coming), (demand.lead_s, 0)):
        until_s = min(in_s, demand.lead_s)
        passing = (passed_s + until_s) / 2 / demand.lead_s if demand.lead_s else 1.0
        asked_per_s = demand.rate_per_s + passing * max(0.0, demand.planned_per_s - demand.rate_per_s)
        spare_per_s = max(0.0, workers * good_rate_per_s - asked_per_s)
        left = max(0.0, left - spare_per_s * (until_s - passed_s))
        workers, passed_s = workers + count, max(passed_s, until_s)
    return left
