"""Waiting times and concurrency: the two queues that serving is made of.

*Prefill* is first come, first served. With c lanes sharing one queue (the router sends each prompt where it starts
first) and Poisson arrivals, a prompt waits longer than t with probability about

    P(W > t) = C(c, lambda s) exp(-t / w),    w = s (1 + rho / 2) / (2 c (1 - rho)),    rho = lambda v / c

with Erlang's C, s the time a prompt takes alone and v what one more adds where steps are full. 1 / (2 (1 - rho)) is
the queue of constant service times in heavy traffic; the factor 1 + rho / 2 is for the prompts behind, which share the
step and delay its end (fitted to a step-by-step simulation, see docs/capacity-model.md).

*Decode* is processor sharing: all sequences advance together, the more the slower. With Poisson arrivals at rate
lambda, L steps a sequence and step time T(n) at n sequences, the number of sequences has the distribution

    p(n) ~ product over k <= n of lambda L T(k) / k

which, as for every processor-sharing queue, holds whatever the distribution of L. Sequences beyond the cap wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

NEGLIGIBLE = 1e-12
STATES_MAX = 200_000
"""Longest run of states that is looked at on each side of the mode."""


def erlang_c(servers: int, load: float) -> float:
    """Chance that an arrival finds all servers busy; `load` is the offered load in servers."""
    if load >= servers:
        return 1.0
    blocking = 1.0
    for count in range(1, servers + 1):
        blocking = load * blocking / (count + load * blocking)
    return blocking / (1 - load / servers * (1 - blocking))


def poisson_at_most(count: int, mean: float) -> float:
    """Chance that a Poisson variable is at most `count`; by the normal approximation for large means."""
    if count < 0:
        return 0.0
    if mean > 150:
        return 0.5 * math.erfc((mean - count - 0.5) / math.sqrt(2 * mean))
    term, total = math.exp(-mean), 0.0
    for value in range(count + 1):
        total += term
        term *= mean / (value + 1)
        if value > mean and term < NEGLIGIBLE:
            break
    return min(1.0, total)


def poisson_mean(values: list[float], mean: float) -> float:
    """Mean of values[k] with k Poisson; what lies beyond the last value counts as the last."""
    if mean > 400:
        return values[-1]
    weight, total, covered = math.exp(-mean), 0.0, 0.0
    for count, value in enumerate(values):
        total += weight * value
        covered += weight
        weight *= mean / (count + 1)
    return total + max(0.0, 1 - covered) * values[-1]


@dataclass(frozen=True, slots=True)
class PromptQueue:
    """The queue for prefill."""

    lanes: int
    arrivals_per_s: float
    alone_s: float
    """Time of a prompt that has a lane to itself."""
    marginal_s: float
    """Time one more prompt adds where steps are full; at most `alone_s`."""

    utilization: float = field(init=False)
    """Load of a lane; at 1 or above the queue grows without end."""
    busy: float = field(init=False)
    """Chance that a prompt has to wait."""
    scale_s: float = field(init=False)
    """Mean wait of those that wait; infinite when overloaded."""

    def __post_init__(self) -> None:
        """Work out once what every question needs."""
        rho = self.arrivals_per_s * self.marginal_s / self.lanes
        scale_s = self.alone_s * (1 + rho / 2) / (2 * self.lanes * (1 - rho)) if rho < 1 else math.inf
        object.__setattr__(self, "utilization", rho)
        object.__setattr__(self, "busy", erlang_c(self.lanes, self.arrivals_per_s * self.alone_s))
        object.__setattr__(self, "scale_s", scale_s)

    def exceeds(self, wait_s: float) -> float:
        """Chance to wait longer than this."""
        if wait_s < 0 or self.utilization >= 1:
            return 1.0
        return self.busy * math.exp(-wait_s / self.scale_s)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many sequences a pool holds, waiting ones included, in equilibrium."""

    states: tuple[int, ...]
    shares: tuple[float, ...]
    """Share of time in each state."""

    @property
    def mean(self) -> float:
        """Mean number of sequences."""
        return math.fsum(n * share for n, share in zip(self.states, self.shares, strict=True))


def concurrency(pace: Callable[[float], float], cap: int) -> Concurrency | None:
    """The distribution of a processor-sharing queue; None when it is overloaded.

    `pace(n)` is lambda L T(n), the mean number of sequences if all went at the pace of state n. States above `cap`
    wait, so their pace stays that of the cap.
    """
    if cap < 1 or pace(cap) >= cap:
        return None

    def ratio(state: int) -> float:
        return pace(min(state, cap)) / min(state, cap)

    mode = _mode(ratio, cap)
    below: list[float] = []
    weight = 1.0
    for state in range(mode, 0, -1):
        step = ratio(state)
        weight = weight / step if step > 0 else 0.0
        if weight < NEGLIGIBLE or len(below) >= STATES_MAX:
            break
        below.append(weight)
    above: list[float] = []
    weight = 1.0
    for state in range(mode + 1, mode + 1 + STATES_MAX):
        weight *= ratio(state)
        if weight < NEGLIGIBLE:
            break
        above.append(weight)
    weights = [*reversed(below), 1.0, *above]
    total = math.fsum(weights)
    first = mode - len(below)
    return Concurrency(
        states=tuple(range(first, first + len(weights))), shares=tuple(weight / total for weight in weights)
    )


def _mode(ratio: Callable[[int], float], cap: int) -> int:
    """The likeliest state: the last one that the chain more often enters than leaves, by bisection."""
    if ratio(1) < 1:
        return 0
    low, high = 1, cap
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ratio(middle) >= 1 else (low, middle)
    return low
