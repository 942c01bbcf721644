"""The bound: an autoscaler that knows every request before it comes.

For each ten seconds of the trace it works out, from the requests that really arrive around then and the capacity model's
expectation of one worker, how many workers of each pool are needed; it orders them so early that they are ready in time, and
lets them go when nothing in sight needs them. What it cannot know is chance inside a worker, so its capacity has a margin;
`cheapest` searches for the smallest one that meets the target. No policy that learns from the past can expect to be
cheaper by more than the coarseness of that search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from forebay_simulator.fleet.metrics import Watch
from forebay_simulator.fleet.sizing import expectation, mean_request
from forebay_simulator.fleet.spec import FleetSpec, PoolSpec
from forebay_simulator.fleet.traces.trace import Arrival, Trace

BIN_S = 10.0
MARGINS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0)
"""Capacity over the expectation that are tried: below 1, too, since an expectation may be too careful."""
AROUND_BINS = 1
"""Bins on either side that count for the need of one: queues and running requests carry over."""


@dataclass(slots=True)
class Clairvoyant:
    """Follows a schedule made from the trace."""

    fleet: FleetSpec
    trace: Trace
    margin: float = 1.0
    hit_share: float = 0.0
    """Share of prompts that will be found in cache."""
    interval_s: float = 5.0
    needs: dict[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        """Make the schedule."""
        self.needs = {pool.name: self._schedule(pool) for pool in self.fleet.pools}

    def decide(self, watch: Watch, now_s: float) -> Mapping[str, int]:  # noqa: ARG002
        """The most that will be needed until an order of the next look could be ready."""
        wanted = {}
        for pool in self.fleet.pools:
            until_s = now_s + pool.startup_s[1] + 2 * self.interval_s
            ahead = self.needs[pool.name][int(now_s / BIN_S) : int(until_s / BIN_S) + 1]
            wanted[pool.name] = max(ahead, default=pool.replicas_min)
        return wanted

    def _schedule(self, pool: PoolSpec) -> list[int]:
        bins: list[list[Arrival]] = [[] for _ in range(int(self.trace.duration_s / BIN_S) + 1)]
        for one in self.trace.arrivals:
            bins[int(one.at_s / BIN_S)].append(one)
        needs = []
        for number in range(len(bins)):
            near = bins[max(0, number - AROUND_BINS) : number + AROUND_BINS + 1]
            needs.append(self._need(pool, [one for part in near for one in part], BIN_S * len(near)))
        return needs

    def _need(self, pool: PoolSpec, arrivals: Sequence[Arrival], seconds: float) -> int:
        if not arrivals:
            return pool.replicas_min
        one = expectation(pool, mean_request(arrivals, self.hit_share), self.fleet.objective)
        if one is None:
            return pool.replicas_max
        return max(pool.replicas_min, math.ceil(self.margin * len(arrivals) / seconds / one.good_rate_per_s))


def cheapest(attainment_of: Callable[[float], float | None], target: float, *, least: float = MARGINS[0]) -> float:
    """The smallest margin, from `least` on, whose run meets the target; the largest when none does.

    Tries few: `least` itself, and then halves what is left, since a larger margin never attains less but by chance. The margin
    that is returned has been tried.
    """
    margins = [margin for margin in MARGINS if margin >= least]
    tried: dict[float, bool] = {}

    def meets(margin: float) -> bool:
        if margin not in tried:
            found = attainment_of(margin)
            tried[margin] = found is not None and found >= target
        return tried[margin]

    low, high = 0, len(margins) - 1
    if least > MARGINS[0] and meets(least):
        return least
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(margins[middle]) else (middle + 1, high)
    meets(margins[low])
    return margins[low]
