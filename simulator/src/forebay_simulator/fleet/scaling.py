"""How many workers: the autoscaler's own `decide`, and what other autoscalers do.

All see the fleet through the same scrapes, and all numbers they set are kept within the pools' bounds. Baselines follow their
documentation, with the defaults of that documentation where it has some; what they cannot express (a budget) is enforced by
refusing growth.

static          nothing changes
hpa-queue       HorizontalPodAutoscaler on requests waiting per worker
hpa-kv          HorizontalPodAutoscaler on the share of KV cache held
kpa             Knative's autoscaler on requests in flight per worker: stable window 60 s, panic window 6 s
fixed-ratio     HeteroScale: decode tokens a second per decode worker drive the pool; prefill workers follow in a fixed ratio
token-velocity  TokenScale: token arrival rate over what one worker can take, per stage

HPA: desired = ceil(current x metric / target) when that is off by more than a tenth; at most +100 % or +4 in 15 s; down to the
largest of the last 300 s. Workers without a metric (they start) count as idle when it would grow and as exactly at the target
when it would shrink, so what was ordered is not ordered again. KPA, for each pool by itself: desired = ceil(concurrency /
target); in panic (panic window asks for twice the ready workers) it grows only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from forebay_simulator.fleet.members import State
from forebay_simulator.fleet.metrics import Watch
from forebay_simulator.fleet.spec import FleetSpec

HPA_TOLERANCE = 0.1
HPA_GROWTH_MIN = 4
HPA_STABILISATION_S = 300.0


class Scaling(Protocol):
    """A scaling policy with whatever it remembers."""

    interval_s: float
    """Time between two looks."""

    def decide(self, watch: Watch, now_s: float) -> Mapping[str, int]:
        """Wanted workers by pool; a pool that is left out keeps its number."""
        ...


@dataclass(slots=True)
class Static:
    """Nothing changes."""

    interval_s: float = 3600.0

    def decide(self, watch: Watch, now_s: float) -> Mapping[str, int]:  # noqa: ARG002
        """Keep what there is."""
        return {}


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


PoolMetric = Callable[[Watch, str], float | None]
"""A metric's mean over a pool's workers; None when unknown."""


@dataclass(slots=True)
class HorizontalPodAutoscaler:
    """Kubernetes' HPA, one per pool, on one metric each."""

    metrics: Mapping[str, tuple[PoolMetric, float]]
    """By pool: the metric and its target per worker."""
    stabilisation_s: float = HPA_STABILISATION_S
    """It shrinks to the largest number that was recommended within this time."""
    interval_s: float = 15.0
    past: dict[str, Past] = field(default_factory=dict)

    def decide(self, watch: Watch, now_s: float) -> Mapping[str, int]:
        """As the HPA controller does; an unknown metric changes nothing."""
        wanted = {}
        for name, (metric, target) in self.metrics.items():
            value = metric(watch, name) if watch.answering else None
            if value is None:
                continue
            current = watch.members.pools[name].wanted
            raw = recommended(current, value / target, seen=len(watch.seen_workers(name)))
            raw = min(raw, max(2 * current, current + HPA_GROWTH_MIN))
            past = self.past.setdefault(name, Past(self.stabilisation_s))
            wanted[name] = max(raw, min(current, past.highest(now_s, raw)))
        return wanted


def recommended(current: int, ratio: float, *, seen: int) -> int:
    """Workers that an HPA asks for. `ratio`: mean over the seen workers to target; those of `current` not seen are filled in."""
    missing = max(0, current - seen)
    filled = (ratio * (current - missing) + (0.0 if ratio > 1 else 1.0) * missing) / current if current else ratio
    if abs(filled - 1) <= HPA_TOLERANCE or (filled > 1) != (ratio > 1):
        return current
    return math.ceil(current * filled)


@dataclass(slots=True)
class Knative:
    """Knative's pod autoscaler, one per pool, on requests in flight."""

    targets: Mapping[str, float]
    """By pool: requests in flight of one worker, times the target utilisation."""
    interval_s: float = 2.0
    stable_s: float = 60.0
    panic_s: float = 6.0
    panic_until_s: dict[str, float] = field(default_factory=dict)
    panic_peak: dict[str, int] = field(default_factory=dict)
    past: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)

    def decide(self, watch: Watch, now_s: float) -> Mapping[str, int]:
        """Its own view of concurrency is live: it comes from the request path, not from Prometheus."""
        wanted = {}
        for name, target in self.targets.items():
            pool = watch.members.pools[name]
            live = watch.front.pool_in_flight[name] + watch.front.counts.pending
            past = self.past.setdefault(name, deque())
            past.append((now_s, live))
            while past[0][0] <= now_s - self.stable_s:
                past.popleft()
            stable = sum(value for _, value in past) / len(past)
            recent = [value for at_s, value in past if at_s > now_s - self.panic_s]
            panic = sum(recent) / len(recent)
            ready = max(1, sum(1 for one in pool.members if one.state is State.READY))
            if panic / target >= 2 * ready:
                self.panic_until_s[name] = now_s + self.stable_s
            want = math.ceil(stable / target)
            if now_s < self.panic_until_s.get(name, -math.inf):
                want = max(math.ceil(panic / target), self.panic_peak.get(name, 0), pool.wanted)
                self.panic_peak[name] = want
            else:
                self.panic_peak.pop(name, None)
                want = max(want, math.floor(pool.wanted / 2))
            wanted[name] = max(1, want)
        return wanted


@dataclass(slots=True)
class FixedRatio:
    """HeteroScale: proportional control on decode tokens a second; prefill follows."""

    decode: str
    prefill: str | None
    tokens_per_s: float
    """Decode tokens a second that one decode worker should produce."""
    ratio: float
    """Prefill workers for one decode worker."""
    interval_s: float = 15.0
    window_s: float = 60.0
    past: Past = field(default_factory=lambda: Past(HPA_STABILISATION_S))

    def decide(self, watch: Watch, now_s: float) -> Mapping[str, int]:
        """Both pools from one signal."""
        rate = watch.rate(self.decode, "output_tokens", self.window_s) if watch.answering else None
        if rate is None:
            return {}
        current = watch.members.pools[self.decode].wanted
        ratio = rate / self.tokens_per_s / current if current else 1.0
        raw = current if abs(ratio - 1) <= HPA_TOLERANCE else math.ceil(rate / self.tokens_per_s)
        decode = max(1, raw, min(current, self.past.highest(now_s, raw)))
        wanted = {self.decode: decode}
        if self.prefill is not None:
            wanted[self.prefill] = max(1, math.ceil(decode * self.ratio))
        return wanted


@dataclass(slots=True)
class TokenVelocity:
    """TokenScale: arrival rate of tokens over what one worker of a stage can take."""

    velocities: Mapping[str, tuple[str, float]]
    """By pool: the router's counter of tokens, and tokens a second of one worker."""
    interval_s: float = 10.0
    window_s: float = 30.0
    past: dict[str, Past] = field(default_factory=dict)

    def decide(self, watch: Watch, now_s: float) -> Mapping[str, int]:
        """Tokens of requests that arrive: their number now, by the mean length of those that finished lately."""
        arrived = watch.router_rate("arrived", self.window_s) if watch.answering else None
        finished = watch.router_rate("good", 300.0)
        bad = watch.router_rate("bad", 300.0)
        if arrived is None or finished is None or bad is None or not finished + bad:
            return {}
        wanted = {}
        for name, (series, velocity) in self.velocities.items():
            tokens = watch.router_rate(series, 300.0)
            if tokens is None:
                continue
            need = math.ceil(arrived * tokens / (finished + bad) / velocity)
            past = self.past.setdefault(name, Past(60.0))
            wanted[name] = max(1, need, min(watch.members.pools[name].wanted, past.highest(now_s, need)))
        return wanted


def bounded(spec: FleetSpec, current: Mapping[str, int], wanted: Mapping[str, int]) -> dict[str, int]:
    """Numbers within the pools' bounds; growth beyond the budget is refused, in the pools' order."""
    given = dict(current)
    for pool in spec.pools:
        if pool.name in wanted:
            given[pool.name] = min(pool.replicas_max, max(pool.replicas_min, wanted[pool.name]))
    if spec.budget_gpus is None:
        return given
    for pool in spec.pools:
        over = sum(given[one.name] * one.gpus for one in spec.pools) - spec.budget_gpus
        if over > 0 and given[pool.name] > current[pool.name]:
            given[pool.name] = max(current[pool.name], given[pool.name] - math.ceil(over / pool.gpus))
    return given
