"""How many workers: the autoscaler's own `decide`, and what other autoscalers do.

All see the fleet through the same scrapes, and all numbers they set are kept within the pools' bounds. Baselines follow their
documentation, with the defaults of that documentation where it has some. What they cannot express, a budget over several pools,
they get as an operator would set it: a largest number for each pool, so that one pool's burst takes no GPU from another.

static          nothing changes
hpa-queue       HorizontalPodAutoscaler on requests waiting per worker (horizontal.py)
hpa-kv          HorizontalPodAutoscaler on the share of KV cache held (horizontal.py)
kpa             Knative's autoscaler on requests in flight per worker: stable window 60 s, panic window 6 s
fixed-ratio     HeteroScale: decode tokens a second per decode worker drive the pool; prefill workers follow in a fixed ratio
token-velocity  TokenScale: token arrival rate over what one worker can take, per stage

KPA: desired = ceil(concurrency / target) over the stable window; in panic (the panic window asks for twice the ready workers)
the larger of both windows, and it grows only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from forebay_simulator.fleet.horizontal import STABILISATION_S, TOLERANCE, Past
from forebay_simulator.fleet.members import State
from forebay_simulator.fleet.metrics import Watch
from forebay_simulator.fleet.spec import FleetSpec

PANIC_SHARE = 2.0
"""Wanted over ready workers at which Knative panics."""


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
class Revision:
    """What Knative's autoscaler remembers of one pool."""

    past: deque[tuple[float, float]] = field(default_factory=deque)
    """(time, requests in flight) of the stable window."""
    panic_until_s: float = -math.inf
    panic_peak: int = 0
    """The most that was wanted in this panic."""


@dataclass(slots=True)
class Knative:
    """Knative's pod autoscaler, one per pool, on requests in flight; with more than one worker it begins in panic, as there."""

    targets: Mapping[str, float]
    """By pool: requests in flight of one worker, times the target utilisation."""
    interval_s: float = 2.0
    stable_s: float = 60.0
    panic_s: float = 6.0
    revisions: dict[str, Revision] = field(default_factory=dict)

    def decide(self, watch: Watch, now_s: float) -> Mapping[str, int]:
        """Its own view of concurrency is live: it comes from the request path, not from Prometheus."""
        wanted = {}
        for name, target in self.targets.items():
            ready = watch.members.pools[name].count(State.READY)
            live = watch.front.pool_in_flight[name] + watch.front.counts.pending
            if name not in self.revisions:
                in_panic = Revision(panic_until_s=now_s + self.stable_s, panic_peak=ready)
                self.revisions[name] = in_panic if ready > 1 else Revision()
            wanted[name] = self._desired(self.revisions[name], live / target, max(1, ready), now_s)
        return wanted

    def _desired(self, revision: Revision, load: float, ready: int, now_s: float) -> int:
        """`load` is in workers. At most half of those that are ready go at once."""
        past = revision.past
        past.append((now_s, load))
        while past[0][0] <= now_s - self.stable_s:
            past.popleft()
        recent = [value for at_s, value in past if at_s > now_s - self.panic_s]
        stable = math.ceil(sum(value for _, value in past) / len(past))
        panic = math.ceil(sum(recent) / len(recent))
        if panic >= PANIC_SHARE * ready:
            revision.panic_until_s = now_s + self.stable_s
        want = max(1, stable, ready // 2)
        if now_s <= revision.panic_until_s:
            revision.panic_peak = want = max(want, panic, revision.panic_peak)
        else:
            revision.panic_peak = 0
        return want


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
    past: Past = field(default_factory=lambda: Past(STABILISATION_S))

    def decide(self, watch: Watch, now_s: float) -> Mapping[str, int]:
        """Both pools from one signal."""
        rate = watch.rate(self.decode, "output_tokens", self.window_s) if watch.answering else None
        if rate is None:
            return {}
        current = watch.members.pools[self.decode].wanted
        ratio = rate / self.tokens_per_s / current if current else 1.0
        raw = current if abs(ratio - 1) <= TOLERANCE else math.ceil(rate / self.tokens_per_s)
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


@dataclass(slots=True)
class Capped:
    """A policy that sizes each pool by itself, with a largest number for each."""

    policy: Scaling
    most: Mapping[str, int]
    """By pool."""
    interval_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Look as often as the policy does."""
        self.interval_s = self.policy.interval_s

    def decide(self, watch: Watch, now_s: float) -> Mapping[str, int]:
        """What it wants, but no more than there may be."""
        return {name: min(number, self.most[name]) for name, number in self.policy.decide(watch, now_s).items()}


def shares(spec: FleetSpec, rates: Mapping[str, float], budget_gpus: int) -> dict[str, int]:
    """Workers of each pool that a budget is for, when each pool takes part in every request.

    `rates`: requests a second that one worker of a pool takes. The next worker is always for the pool that would limit the whole.
    """
    given = {pool.name: 1 for pool in spec.pools}
    gpus = {pool.name: pool.gpus for pool in spec.pools}
    while True:
        free = budget_gpus - sum(given[name] * gpus[name] for name in given)
        fitting = [name for name in given if gpus[name] <= free]
        if not fitting:
            return given
        given[min(fitting, key=lambda name: given[name] * rates[name])] += 1


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
