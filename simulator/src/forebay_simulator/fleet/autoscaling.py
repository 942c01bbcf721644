"""The autoscaler itself in virtual time: its signals, its `decide`, its tuning; only the clock and Prometheus are simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay_api.modelservice import AutoscalingMode
from forebay_autoscaler.decide import decide
from forebay_autoscaler.decision import Decision
from forebay_autoscaler.fitted import Fitted, Measured
from forebay_autoscaler.learn import Learnt
from forebay_autoscaler.observation import PoolCounts, PoolObservation, ServiceObservation
from forebay_autoscaler.orders import Orders
from forebay_autoscaler.policy import PoolPolicy, ServicePolicy, Tuning
from forebay_autoscaler.schedules import schedule_of
from forebay_autoscaler.signals import Signals
from forebay_autoscaler.state import PoolState, ServiceState
from forebay_capacity.worker import Worker
from forebay_simulator.engine.scheduling import StepTimer as EngineTimer
from forebay_simulator.fleet.members import Pool, State
from forebay_simulator.fleet.metrics import NAMESPACE, SERVICE, Watch, answer_all
from forebay_simulator.fleet.spec import FleetSpec, PoolSpec

KEY = (NAMESPACE, SERVICE)
ATTAINMENT_WINDOW_S = 300.0
STALE_AFTER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerSpec:
    """The autoscaler's settings, with their defaults."""

    interval_s: float = 10.0
    scale_up_window_s: float = 0.0
    scale_down_window_s: float = 300.0
    """Also of the baselines that have a stabilisation window."""
    stale_after_s: float = STALE_AFTER_S
    tuning: Tuning = field(default_factory=Tuning)
    capacity_known: bool = True
    """The capacity model knows model and accelerator."""
    startups_known: bool = False
    """Start-up times were measured before the run, as a state tells that outlived both replicas."""
    prices_known: bool = True
    """Accelerators have the prices of their pools."""
    scale_down_limit: int | None = None
    """Most workers of a pool that leave at the same time."""
    begins_s: float = 0.0
    """What the clock shows when a run begins, in seconds since 1970: for schedules. 0 is midnight of a Thursday, UTC."""


def policy_of(fleet: FleetSpec, spec: AutoscalerSpec) -> ServicePolicy:
    """What the ModelService of such a fleet asks for."""
    return ServicePolicy(
        key=KEY,
        uid="fleet",
        generation=1,
        mode=AutoscalingMode.AUTO,
        objective=fleet.objective,
        budget_gpus=fleet.budget_gpus,
        scale_up_window_s=spec.scale_up_window_s,
        scale_down_window_s=spec.scale_down_window_s,
        pools=tuple(_pool_policy(pool, spec) for pool in fleet.pools),
        tuning=spec.tuning,
        scale_down_limit=spec.scale_down_limit,
    )


def _pool_policy(pool: PoolSpec, spec: AutoscalerSpec) -> PoolPolicy:
    return PoolPolicy(
        name=pool.name,
        role=pool.role,
        replicas_min=pool.replicas_min,
        replicas_max=pool.replicas_max,
        gpus=pool.gpus,
        concurrency_max=float(pool.engine.served().scheduler.max_sequences),
        worker=_known_worker(pool) if spec.capacity_known else None,
        spare=pool.spare,
        schedules=tuple(schedule_of(one) for one in pool.schedules),
        price_per_hour=pool.price_of_worker if spec.prices_known else None,
    )


def _known_worker(pool: PoolSpec) -> Worker | Fitted:
    """What the capacity model knows of a pool's worker: its model and hardware, or a profile of its steps."""
    timer = pool.engine.timer
    if timer is None:
        return pool.engine.worker()
    limits = pool.engine.served().scheduler
    kv_tokens, chunk_tokens = limits.usable_blocks * limits.block_size, limits.max_batched_tokens
    return Fitted(profile(timer, kv_tokens=kv_tokens, chunk_tokens=chunk_tokens), kv_tokens, chunk_tokens)


PROFILE_POINTS = 8
"""Points of a profile on either curve."""


def profile(timer: EngineTimer, *, kv_tokens: int, chunk_tokens: int) -> Measured:
    """What measuring another engine's steps gives: decode up to a full cache, prompts up to a full step."""
    parts = [(number + 0.5) / PROFILE_POINTS for number in range(PROFILE_POINTS)] + [1.0]

    def decode_s(context: int) -> float:
        return timer.step_seconds(
            decode_sequences=1, decode_context_tokens=context, prefill_tokens=0, prefill_attention=0
        )

    def prefill_s(tokens: int) -> float:
        return timer.step_seconds(
            decode_sequences=0, decode_context_tokens=0, prefill_tokens=tokens, prefill_attention=tokens**2
        )

    contexts, prompts = ([round(part * most) for part in parts] for most in (kv_tokens, chunk_tokens))
    return Measured(
        decode=tuple((float(one), decode_s(one)) for one in contexts),
        prefill=tuple((float(one), prefill_s(one)) for one in prompts),
    )


@dataclass(slots=True)
class ForebayAutoscaler:
    """Looks, decides, and hands the numbers over."""

    fleet: FleetSpec
    spec: AutoscalerSpec = field(default_factory=AutoscalerSpec)
    interval_s: float = field(init=False)
    state: ServiceState = field(default_factory=ServiceState)
    decisions: list[Decision] = field(default_factory=list)
    policy: ServicePolicy = field(init=False)

    def __post_init__(self) -> None:
        """Write the policy once."""
        self.interval_s = self.spec.interval_s
        self.policy = policy_of(self.fleet, self.spec)
        if self.spec.startups_known:
            self.state = ServiceState(pools={pool.name: _remembered(pool) for pool in self.fleet.pools})

    def observe(self, watch: Watch) -> ServiceObservation:
        """What the autoscaler's observer would make of Prometheus' answers and the WorkerPools."""
        answers = answer_all(watch, self.spec.tuning, ATTAINMENT_WINDOW_S)
        signals = Signals(answers, stale_after_s=self.spec.stale_after_s)
        pools = tuple(
            PoolObservation(pool.spec.name, _counts(pool), signals.of_pool(KEY, pool.spec.name))
            for pool in watch.members.pools.values()
        )
        trouble = "" if watch.answering else "Prometheus does not answer"
        return ServiceObservation(KEY, signals.of_service(KEY, self.fleet.objective), pools, trouble)

    def decide(self, watch: Watch, now_s: float) -> Mapping[str, int]:
        """One cycle."""
        decision = decide(self.policy, self.state, self.observe(watch), self.spec.begins_s + now_s)
        self.state = decision.state
        self.decisions.append(decision)
        return {pool.name: pool.desired for pool in decision.pools}

    def told(self) -> list[str]:
        """What was said, one line a piece of news."""
        return [
            f"{one.at_s - self.spec.begins_s:6.0f} s  {pool.name}: {pool.reason}"
            for one in self.decisions
            for pool in one.pools
            if pool.news
        ]


def _remembered(pool: PoolSpec) -> PoolState:
    """What is known of a pool's start-up from before: the longest, which is followed at once."""
    return PoolState(learnt=Learnt(orders=Orders(startup_s=pool.startup_s[1])))


def _counts(pool: Pool) -> PoolCounts:
    return PoolCounts(
        wanted=pool.wanted,
        ready=pool.count(State.READY),
        draining=pool.count(State.DRAINING),
        unschedulable=pool.count(State.UNPLACED) > 0,
    )
