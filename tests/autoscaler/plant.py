"""A small queueing system around `decide`: what a pool of engines would do with the workers it gets, in virtual time.

Arrivals are Poisson (seeded), a request holds one of a worker's slots for its service time, the rest wait in one queue.
Workers take `startup_s` to become ready. What the autoscaler sees is computed over the same windows as Prometheus would.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from forebay_api.modelservice import AutoscalingMode, Role
from forebay_api.objective import Objective
from forebay_autoscaler.decide import decide
from forebay_autoscaler.decision import Decision
from forebay_autoscaler.observation import PoolCounts, PoolObservation, PoolSignals, ServiceObservation, ServiceSignals
from forebay_autoscaler.policy import PoolPolicy, ServicePolicy, Tuning
from forebay_autoscaler.reading import UNKNOWN, Reading, read
from forebay_autoscaler.state import ServiceState

KEY = ("default", "llama-8b")
DEMO = Tuning(rate_window_s=15, burst_window_s=5, drain_horizon_s=5, startup_s=30)


def pool_policy(name: str = "mixed", role: Role = Role.MIXED, **changes: object) -> PoolPolicy:
    """One pool of 1 to 6 workers with 8 slots each, on one GPU."""
    return replace(
        PoolPolicy(name=name, role=role, replicas_min=1, replicas_max=6, gpus=1, concurrency_max=8), **changes
    )


def service_policy(*pools: PoolPolicy, **changes: object) -> ServicePolicy:
    """A service as in the demo: 2 s to the first token, 95 %."""
    return replace(
        ServicePolicy(
            key=KEY,
            uid="1",
            generation=1,
            mode=AutoscalingMode.AUTO,
            objective=Objective(ttft_s=2, tpot_s=0.025, target=0.95),
            budget_gpus=None,
            scale_up_window_s=0,
            scale_down_window_s=15,
            pools=pools or (pool_policy(),),
            tuning=DEMO,
        ),
        **changes,
    )


def known(number: float, age_s: float = 1.0) -> Reading:
    """A fresh reading."""
    return read(number, age_s=age_s, stale_after_s=60)


def readings(policy: ServicePolicy, **numbers: float) -> ServiceSignals:
    """A router's readings, zero where not given."""
    zero = {name: known(0) for name in ServiceSignals.__dataclass_fields__}
    return ServiceSignals(**zero | {name: known(number) for name, number in numbers.items()})


def engine_readings(**numbers: float) -> PoolSignals:
    """Workers' readings, zero where not given; the service time is unknown unless given."""
    zero = {name: known(0) for name in PoolSignals.__dataclass_fields__ if name not in ("service_time_s", "in_flight")}
    return PoolSignals(**zero | {name: known(number) for name, number in numbers.items()})


@dataclass
class Plant:
    """One mixed pool under load, scaled by `decide` every `interval_s`."""

    policy: ServicePolicy
    rate_per_s: Callable[[float], float]
    service_s: float = 1.5
    slots: int = 8
    startup_s: float = 6.0
    interval_s: float = 2.0
    seed: int = 1
    step_s: float = 0.02
    wanted: int = 1
    blind: Callable[[float], bool] = field(default=lambda _: False)
    now_s: float = 0.0
    state: ServiceState = field(default_factory=ServiceState)
    decisions: list[Decision] = field(default_factory=list)
    sizes: list[tuple[float, int]] = field(default_factory=list)
    late: int = 0
    finished: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.queue: deque[float] = deque()
        self.busy: list[tuple[float, float]] = []  # (ends, duration)
        self.starting: list[float] = []
        self.ready = self.wanted
        self.arrivals: deque[float] = deque()
        self.endings: deque[tuple[float, float]] = deque()
        self.first_tokens: deque[tuple[float, bool]] = deque()
        self.running_log: deque[tuple[float, int]] = deque()

    def run(self, until_s: float) -> "Plant":
        """Advance to `until_s`, deciding on the way."""
        next_decision_s = self.now_s + self.interval_s
        while self.now_s < until_s:
            self._advance()
            if self.now_s >= next_decision_s:
                next_decision_s += self.interval_s
                self._decide()
        return self

    def _advance(self) -> None:
        self.now_s += self.step_s
        self.ready += sum(1 for at_s in self.starting if at_s <= self.now_s)
        self.starting = [at_s for at_s in self.starting if at_s > self.now_s]
        for _ in range(self._poisson(self.rate_per_s(self.now_s) * self.step_s)):
            self.arrivals.append(self.now_s)
            self.queue.append(self.now_s)
        for ends_s, duration_s in self.busy:
            if ends_s <= self.now_s:
                self.endings.append((ends_s, duration_s))
                self.finished += 1
        self.busy = [one for one in self.busy if one[0] > self.now_s]
        while self.queue and len(self.busy) < self.ready * self.slots:
            waited_s = self.now_s - self.queue.popleft()
            duration_s = self.service_s * self.random.uniform(0.8, 1.2)
            self.busy.append((self.now_s + duration_s, duration_s))
            in_time = waited_s + 0.1 <= self.policy.objective.ttft_s
            self.late += not in_time
            self.first_tokens.append((self.now_s, in_time))
        self.running_log.append((self.now_s, len(self.busy)))
        oldest_s = self.now_s - self.policy.tuning.rate_window_s
        while self.arrivals and self.arrivals[0] < oldest_s:
            self.arrivals.popleft()
        for log in (self.endings, self.first_tokens, self.running_log):
            while log and log[0][0] < oldest_s:
                log.popleft()

    def _poisson(self, mean: float) -> int:
        count, product = 0, self.random.random()
        limit = 2.718281828459045**-mean
        while product > limit:
            count += 1
            product *= self.random.random()
        return count

    def observe(self) -> ServiceObservation:
        """What Prometheus and the API server would say now."""
        window_s, burst_s = self.policy.tuning.rate_window_s, self.policy.tuning.burst_window_s
        counts = PoolCounts(wanted=self.wanted, ready=self.ready)
        if self.blind(self.now_s):
            return ServiceObservation(KEY, ServiceSignals(), (PoolObservation("mixed", counts),), "Prometheus is down")
        finished = len(self.endings)
        mean_s = sum(one for _, one in self.endings) / finished if finished else None
        in_time = sum(1 for _, good in self.first_tokens if good)
        signals = readings(
            self.policy,
            arrived_per_s=len(self.arrivals) / window_s,
            burst_per_s=sum(1 for at_s in self.arrivals if at_s > self.now_s - burst_s) / burst_s,
            latest_per_s=sum(1 for at_s in self.arrivals if at_s > self.now_s - 2) / 2,
            scrapes=burst_s / 2,
            ttft_per_s=len(self.first_tokens) / window_s,
            ttft_within_per_s=in_time / window_s,
            tpot_per_s=finished / window_s,
            tpot_within_per_s=finished / window_s,
            good_per_s=in_time / window_s,
            bad_per_s=(len(self.first_tokens) - in_time) / window_s,
        )
        pool = PoolSignals(
            running=known(len(self.busy)),
            running_mean=known(sum(n for _, n in self.running_log) / max(1, len(self.running_log))),
            waiting=known(len(self.queue)),
            service_time_s=UNKNOWN if mean_s is None else known(mean_s),
            finished_per_s=known(finished / window_s),
            in_flight=known(len(self.queue) + len(self.busy)),
        )
        return ServiceObservation(KEY, signals, (PoolObservation("mixed", counts, pool),))

    def _decide(self) -> None:
        decision = decide(self.policy, self.state, self.observe(), self.now_s)
        self.state = decision.state
        self.decisions.append(decision)
        (pool,) = decision.pools
        if self.policy.mode is AutoscalingMode.AUTO:
            self.scale(pool.desired)

    def scale(self, workers: int) -> None:
        """Order or remove workers; those that start go first."""
        if workers == self.wanted:
            return
        self.sizes.append((self.now_s, workers))
        while self.wanted < workers:
            self.starting.append(self.now_s + self.startup_s)
            self.wanted += 1
        while self.wanted > workers:
            if self.starting:
                self.starting.pop()
            else:
                self.ready -= 1
            self.wanted -= 1

    @property
    def reasons(self) -> list[str]:
        """What was said of each change."""
        return [f"{d.at_s:.0f}s {p.action} {p.reason}" for d in self.decisions for p in d.pools if p.news]
