"""Laws of `decide` over time, whatever is observed: a machine that looks, starts workers, scales by hand and restarts.

Four laws, each of which fails when the constraint behind it is taken out:

- never outside bounds or budget, and no more leave at once than may;
- never fewer workers on unknown data;
- no flapping: what a need made grow does not shrink again for a whole shrink window, so a pool turns from growing to shrinking at
  most once a window, across restarts too;
- monotone in demand: with the same past and the same knowledge of its workers, no pool gets fewer for more arrivals.
"""

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_autoscaler.constraints import Constraint
from forebay_autoscaler.decide import decide
from forebay_autoscaler.decision import Decision, PoolDecision
from forebay_autoscaler.observation import PoolCounts, PoolObservation, PoolSignals, ServiceObservation, ServiceSignals
from forebay_autoscaler.policy import PoolPolicy
from forebay_autoscaler.reading import UNKNOWN, Reading, read
from forebay_autoscaler.savedstate import Saved, dump, load, resume
from forebay_autoscaler.schedules import Schedule
from forebay_autoscaler.state import ServiceState
from tests.autoscaler.plant import KEY, engine_readings, pool_policy, readings, service_policy

BEGIN_S = 1_780_000_000.0
SERVICE_S = 1.5
DAYLIGHT = Schedule("daylight", tuple(range(7)), 6 * 60, 18 * 60, "UTC", 3)


def reading_of(number: float, age_s: float) -> Reading:
    return read(number, age_s=age_s, stale_after_s=60)


def anything(kind: type, dice: random.Random, *, broken: float) -> ServiceSignals | PoolSignals:
    """Signals of which this share is missing, stale or no number. From a seed, since drawing each one takes long."""

    def one() -> Reading:
        if dice.random() < broken:
            return reading_of(dice.choice([float("nan"), float("inf"), -1.0, 7.0]), dice.choice([1.0, 90.0]))
        return reading_of(dice.choice([0.0, dice.uniform(0, 2), dice.uniform(0, 500)]), 1.0)

    return kind(**{name: one() for name in kind.__dataclass_fields__})


def anything_of_service(dice: random.Random, *, broken: float) -> ServiceSignals:
    """Every router is heard as often as not, since nothing shrinks while one is not."""
    signals = anything(ServiceSignals, dice, broken=broken)
    return replace(signals, routers_gone=dice.choice([UNKNOWN, signals.routers_gone]))


@st.composite
def policies(draw):
    def pool(name: str, role: Role):
        low = draw(st.integers(0, 4))
        high = low + draw(st.integers(0, 30)) or 1
        return pool_policy(
            name,
            role,
            replicas_min=low,
            replicas_max=high,
            gpus=draw(st.sampled_from([1, 2, 4])),
            concurrency_max=draw(st.sampled_from([1.0, 8.0, 256.0])),
            spare=draw(st.sampled_from([0, 0, 2])),
            schedules=draw(st.sampled_from([(), (), (DAYLIGHT,)])),
            price_per_hour=draw(st.sampled_from([None, 1.0, 4.0])),
        )

    split = draw(st.booleans())
    pools = (
        (pool("prefill", Role.PREFILL), pool("decode", Role.DECODE))
        if split
        else tuple(pool(f"mixed{n}", Role.MIXED) for n in range(draw(st.integers(1, 2))))
    )
    least = sum(pool.replicas_min * pool.gpus for pool in pools)
    budget = draw(st.one_of(st.none(), st.integers(max(1, least), max(1, least) + 20)))
    return service_policy(
        *pools,
        budget_gpus=budget,
        scale_up_window_s=draw(st.sampled_from([0.0, 0.0, 6.0, 60.0])),
        scale_down_window_s=draw(st.sampled_from([0.0, 15.0, 300.0])),
        scale_down_limit=draw(st.sampled_from([None, None, 1, 3])),
        objective=Objective(2.0, 0.025, draw(st.sampled_from([0.5, 0.95, 0.99, 1.0]))),
    )


@dataclass(frozen=True)
class Grown:
    """A pool grew because workers were needed."""

    at_s: float
    to: int


class DecideMachine(RuleBasedStateMachine):
    """A service whose every number may be anything, over time; the pools follow the decisions, late."""

    @initialize(policy=policies())
    def begin(self, policy) -> None:
        self.policy = policy
        self.state = ServiceState()
        self.now_s = BEGIN_S
        self.wanted = {pool.name: max(1, pool.replicas_min) for pool in policy.pools}
        self.ready = dict(self.wanted)
        self.draining = dict.fromkeys(self.wanted, 0)
        self.grown: dict[str, list[Grown]] = {name: [] for name in self.wanted}

    @rule(
        seed=st.integers(0, 1 << 30),
        broken=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
        unschedulable=st.sampled_from([False, False, True]),
        after_s=st.sampled_from([0.5, 2.0, 10.0, 400.0]),
        more=st.sampled_from([1.0, 1.2, 1.5, 3.0]),
        held=st.sampled_from([0.0, 0.0, 40.0]),
    )
    def look_at_anything(self, seed, broken, unschedulable, after_s, more, held) -> None:
        dice = random.Random(seed)
        signals = anything_of_service(dice, broken=broken)
        pools = [anything(PoolSignals, dice, broken=broken) for _ in self.policy.pools]
        self.look(signals, pools, after_s, more=more, held=held, unschedulable=unschedulable)

    @rule(
        rate_per_s=st.sampled_from([0.0, 1.0, 8.0, 40.0, 90.0, 400.0]),
        missing=st.sampled_from(["", "", "", "arrived_per_s", "pending", "running", "waiting", "finished_per_s"]),
        times=st.sampled_from([1, 3, 15]),
        more=st.sampled_from([1.0, 1.2, 1.5, 3.0]),
    )
    def look_at_a_load(self, rate_per_s, missing, times, more) -> None:
        """As requests of 1.5 s make it, so that what demand leaves free may really go; one number may be missing."""
        for _ in range(times):
            total = max(1, sum(self.ready.values()))
            signals = readings(
                self.policy,
                **{f"{name}_per_s": rate_per_s for name in ("arrived", "burst", "latest", "ttft", "ttft_within")},
                scrapes=2,
            )
            signals = replace(signals, routers_gone=UNKNOWN, held=UNKNOWN)
            pools = []
            for pool in self.policy.pools:
                part = 1.0 if pool.role is not Role.MIXED else self.ready[pool.name] / total
                running = rate_per_s * part * SERVICE_S
                numbers = {"running": running, "running_mean": running, "finished_per_s": rate_per_s * part}
                own = engine_readings(**numbers, **({"service_time_s": SERVICE_S} if running else {}))
                pools.append(
                    own if missing not in numbers and missing != "waiting" else replace(own, **{missing: UNKNOWN})
                )
            if missing in ("arrived_per_s", "pending"):
                signals = replace(signals, **{missing: UNKNOWN})
            self.look(signals, pools, 10.0, more=more, held=0.0)
            self.start_all()

    def look(self, signals, pools, after_s, *, more, held, unschedulable=False) -> None:
        self.now_s += after_s
        counts = {
            name: PoolCounts(size, self.ready[name], self.draining[name], unschedulable)
            for name, size in self.wanted.items()
        }
        seen = tuple(
            PoolObservation(pool.name, counts[pool.name], own)
            for pool, own in zip(self.policy.pools, pools, strict=True)
        )
        observation = ServiceObservation(KEY, signals, seen)
        decision = decide(self.policy, self.state, observation, self.now_s)
        if self.now_s == BEGIN_S + after_s:  # once, as it takes as long as all the rest
            assert decide(self.policy, self.state, observation, self.now_s) == decision
        self.is_monotone(observation, decision, more=more, held=held)
        for pool, one in zip(self.policy.pools, decision.pools, strict=True):
            self.stays_within_bounds(pool, one)
            self.never_shrinks_on_unknown(pool, one)
            self.does_not_flap(one)
            self.says_why(one)
        self.stays_within_budget(decision)
        self.follow(decision)

    def start_all(self) -> None:
        self.ready, self.draining = dict(self.wanted), dict.fromkeys(self.wanted, 0)

    def follow(self, decision: Decision) -> None:
        self.state = decision.state
        for one in decision.pools:
            self.wanted[one.name] = one.desired
            self.draining[one.name] += max(0, self.ready[one.name] - one.desired)
            self.ready[one.name] = min(self.ready[one.name], one.desired)

    @rule(name=st.integers(0, 1))
    def start(self, name) -> None:
        pool = self.policy.pools[name % len(self.policy.pools)].name
        self.ready[pool], self.draining[pool] = self.wanted[pool], 0

    @rule(number=st.integers(0, 40), name=st.integers(0, 1))
    def somebody_scales(self, number, name) -> None:
        pool = self.policy.pools[name % len(self.policy.pools)].name
        self.wanted[pool] = number
        self.ready[pool] = min(self.ready[pool], number)
        self.grown[pool].clear()

    @precondition(lambda self: self.state.pools)
    @rule(gap_s=st.sampled_from([1.0, 8.0, 100.0, 1000.0]))
    def both_replicas_restart(self, gap_s) -> None:
        tuning = self.policy.tuning
        text = dump(Saved(self.policy.uid, self.now_s, tuning.rate_window_s, self.state))
        self.now_s += gap_s
        self.state = resume(load(text), self.policy, self.now_s)

    def stays_within_bounds(self, pool: PoolPolicy, one: PoolDecision) -> None:
        assert pool.replicas_min <= one.desired <= pool.replicas_max
        allowed = self.policy.scale_down_limit
        if allowed is None or self.budget_took(one) or self.wanted[pool.name] > pool.replicas_max:
            return
        leave = max(0, allowed - self.draining[pool.name])
        assert one.desired >= self.wanted[pool.name] - leave, "more leave at once than may"

    def stays_within_budget(self, decision: Decision) -> None:
        if self.policy.budget_gpus is not None:
            gpus = {pool.name: pool.gpus for pool in self.policy.pools}
            assert sum(gpus[one.name] * one.desired for one in decision.pools) <= self.policy.budget_gpus

    def never_shrinks_on_unknown(self, pool: PoolPolicy, one: PoolDecision) -> None:
        if one.unknown and not self.budget_took(one):
            assert one.desired >= min(self.wanted[pool.name], pool.replicas_max)
        if one.unknown and self.budget_took(one) and one.desired < min(self.wanted[pool.name], pool.replicas_max):
            gpus = {each.name: each.gpus for each in self.policy.pools}
            had = sum(gpus[name] * size for name, size in self.wanted.items())
            assert had > self.policy.budget_gpus, "only what exceeds the budget is taken"

    def does_not_flap(self, one: PoolDecision) -> None:
        window_s, grown = self.policy.scale_down_window_s, self.grown[one.name]
        if one.desired < self.wanted[one.name] and not self.budget_took(one):
            lately = [growth for growth in grown if self.now_s - growth.at_s <= window_s]
            assert all(one.desired >= growth.to for growth in lately), "what grew within the window shrinks again"
        if one.desired > self.wanted[one.name]:
            # What bounds or a schedule raise, they keep; demand keeps what demand needs.
            grown.append(Grown(self.now_s, min(one.desired, one.need.with_backlog if one.need else 0)))

    def is_monotone(self, seen: ServiceObservation, decision: Decision, *, more: float, held: float) -> None:
        """Budgets aside: they move workers between pools, so that more for all may be less for one."""
        if self.policy.budget_gpus is not None:
            return
        signals = seen.signals
        risen = {name: times(getattr(signals, name), more) for name in ("arrived_per_s", "burst_per_s", "latest_per_s")}
        pending = signals.pending if signals.pending.known is None else reading_of(signals.pending.known + held, 1.0)
        twin = replace(seen, signals=replace(signals, **risen, pending=pending))
        busier = decide(self.policy, self.state, twin, self.now_s)
        for one, other in zip(decision.pools, busier.pools, strict=True):
            if one.capacity == other.capacity and same_knowledge(decision, busier):
                what = f"{more:g} times the arrivals, {held:g} more held"
                assert other.desired >= one.desired, what
                if one.need and other.need:
                    most = max(pool.replicas_max for pool in self.policy.pools if pool.name == one.name)
                    assert min(most, other.need.with_backlog) >= min(most, one.need.with_backlog), what
                    assert min(most, other.need.to_keep) >= min(most, one.need.to_keep), what

    @staticmethod
    def budget_took(one: PoolDecision) -> bool:
        return any(rejected.constraint is Constraint.BUDGET for rejected in one.rejected)

    @staticmethod
    def says_why(one: PoolDecision) -> None:
        assert one.reason
        assert (one.desired != one.current) == (one.action in ("grow", "shrink"))


def same_knowledge(decision: Decision, other: Decision) -> bool:
    """Whether both hold the same of every worker: pools of one role divide demand by what their workers can do."""
    return [one.capacity for one in decision.pools] == [one.capacity for one in other.pools]


def times(reading: Reading, factor: float) -> Reading:
    return reading if reading.known is None else reading_of(reading.known * factor, reading.age_s)


DecideMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=20, deadline=None)
TestDecide = DecideMachine.TestCase


@pytest.mark.parametrize("most", [1, 3])
def test_a_first_request_takes_no_worker_from_a_pool_by_cost(most):
    """From no demand at all to a little: both pools are cheap, and neither may be wanted less for it."""
    pools = (
        pool_policy(name, Role.MIXED, replicas_min=0, replicas_max=high, concurrency_max=1.0, price_per_hour=1.0)
        for name, high in (("mixed0", most), ("mixed1", 1))
    )
    objective = Objective(2.0, 0.025, 0.5)
    machine = DecideMachine()
    machine.begin(service_policy(*pools, scale_up_window_s=0.0, scale_down_window_s=0.0, objective=objective))
    for seed in (1, 23483674):
        machine.look_at_anything(
            seed=seed, broken=0.0, unschedulable=False, after_s=0.5, more=1.2 if seed > 1 else 1.0, held=0.0
        )


def test_a_pool_that_has_its_least_workers_keeps_no_fewer_where_demand_rises():
    """What they do is asked of no other pool, so their part of the demand is the same, and a smaller share of more."""
    pools = (
        pool_policy(name, Role.MIXED, replicas_min=low, replicas_max=high, concurrency_max=1.0, price_per_hour=1.0)
        for name, low, high in (("mixed0", 0, 1), ("mixed1", 3, 5))
    )
    machine = DecideMachine()
    machine.begin(service_policy(*pools, scale_up_window_s=0.0, scale_down_window_s=0.0))
    machine.start(0)
    machine.look_at_a_load(rate_per_s=1.0, missing="", times=1, more=1.2)
