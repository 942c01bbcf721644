"""Kubernetes' HorizontalPodAutoscaler on one metric of each pool's workers (type Pods), with the defaults of `autoscaling/v2`.

As in its replica calculator, a mean says little while workers start, so those that cannot be measured yet count in the way that
changes least. Of the pods with a metric, ratio = mean / target; then

    ratio > 1    a pod that has no metric, or waits for its node, counts as 0
    ratio < 1    one that has no metric counts as the target; one that waits for its node does not count
    leaving pods never count

and the ratio is taken again over all that count: desired = ceil(ratio x pods that count). Nothing changes when a ratio is within
a tenth of 1, when the second one points the other way, or when no pod has a metric. So an overload is ordered for once, though
it lasts until the new workers are ready.

What is desired then passes the largest desire of the stabilisation window on its way down (300 s, in which the number at the
beginning counts, too), and on its way up at most +100 % or +4 pods in 15 s, whichever is more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay_simulator.fleet.members import Pool, State
from forebay_simulator.fleet.metrics import Watch

TOLERANCE = 0.1
GROWTH_MIN = 4
STABILISATION_S = 300.0


@dataclass(slots=True)
class Past:
    """The largest number recommended in a window."""

    length_s: float
    entries: deque[tuple[float, int]] = field(default_factory=deque)

    def highest(self, now_s: float, value: int) -> int:
        """Note a recommendation; the largest of the window."""
        self.entries.append((now_s, value))
        while self.entries[0][0] < now_s - self.length_s:
            self.entries.popleft()
        return max(one for _, one in self.entries)


@dataclass(frozen=True, slots=True)
class Pods:
    """A pool's pods as the HPA sorts them; those that leave are left out."""

    values: tuple[float, ...]
    """The metric of each that has it."""
    missing: int = 0
    """Run, but have no metric: they load the model, or were not scraped yet."""
    pending: int = 0
    """Wait for a node."""


def pods_of(watch: Watch, pool: Pool, series: str) -> Pods:
    """A pool's pods now, with what Prometheus knows of a gauge."""
    now_s = watch.agenda.now_s
    targets = [watch.workers.get(one.uid) for one in pool.members if one.state is State.READY]
    values = tuple(one.last(series) for one in targets if one is not None and one.seen(now_s))
    return Pods(values, pool.count(State.STARTING, State.READY) - len(values), pool.count(State.UNPLACED))


def desired(pods: Pods, target: float, current: int) -> int:
    """The replica calculator's number, before any window or limit."""
    if not pods.values:
        return current
    total = sum(pods.values)
    ratio = total / target / len(pods.values)
    grows = ratio > 1
    if not pods.missing and not (grows and pods.pending):
        return current if abs(ratio - 1) <= TOLERANCE else math.ceil(ratio * len(pods.values))
    if ratio == 1:
        return current
    counted = len(pods.values) + pods.missing + (pods.pending if grows else 0)
    filled = total + (0.0 if grows else pods.missing * target)
    again = filled / target / counted
    if abs(again - 1) <= TOLERANCE or (ratio < 1 < again) or (again < 1 < ratio):
        return current
    number = math.ceil(again * counted)
    turns_round = (again < 1 and number > current) or (again > 1 and number < current)
    return current if turns_round else number


@dataclass(slots=True)
class HorizontalPodAutoscaler:
    """One per pool."""

    metrics: Mapping[str, tuple[str, float]]
    """By pool: the workers' gauge, and its target for one of them."""
    stabilisation_s: float = STABILISATION_S
    """`behavior.scaleDown.stabilizationWindowSeconds`."""
    interval_s: float = 15.0
    past: dict[str, Past] = field(default_factory=dict)

    def decide(self, watch: Watch, now_s: float) -> Mapping[str, int]:
        """As the controller does; an unknown metric changes nothing."""
        if not watch.answering:
            return {}
        wanted = {}
        for name, (series, target) in self.metrics.items():
            pool = watch.members.pools[name]
            pods = pods_of(watch, pool, series)
            if pods.values:
                wanted[name] = self.limited(name, pool.wanted, desired(pods, target, pool.wanted), now_s)
        return wanted

    def limited(self, name: str, current: int, number: int, now_s: float) -> int:
        """A number after the stabilisation window and the limit of growth."""
        if name not in self.past:
            self.past[name] = Past(self.stabilisation_s)
            self.past[name].highest(now_s, current)
        stable = max(number, min(current, self.past[name].highest(now_s, number)))
        return min(stable, max(2 * current, current + GROWTH_MIN))
