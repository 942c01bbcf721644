"""Laws of the parts of `decide`, whatever is observed. Those of `decide` over time: test_decide_machine.py."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_api.modelservice import AutoscalingMode, Role
from forebay_api.objective import Objective
from forebay_autoscaler.budget import Wish, share_budget
from forebay_autoscaler.constraints import Proposal, require_objective
from forebay_autoscaler.decide import decide
from forebay_autoscaler.demand import Demand, waiting_in_workers
from forebay_autoscaler.fitted import Fitted, Measured
from forebay_autoscaler.model import Capacity, carried_per_s, need_of, prefill_load, prefill_workers, within_law
from forebay_autoscaler.observation import PoolCounts, PoolObservation, PoolSignals, ServiceObservation, ServiceSignals
from forebay_autoscaler.policy import ServicePolicy, Tuning
from forebay_autoscaler.reading import UNKNOWN, Reading, read
from forebay_autoscaler.shares import share_of_role
from forebay_autoscaler.signals import count_within
from forebay_autoscaler.state import ServiceState
from forebay_autoscaler.window import Window
from tests.autoscaler.plant import KEY, pool_policy, service_policy
from tests.autoscaler.test_timelines import situation

RATES = st.floats(0, 1e4)
NUMBERS = st.one_of(RATES, st.sampled_from([float("nan"), float("inf"), -1.0]))


def reading_of(number: float, age_s: float) -> Reading:
    return read(number, age_s=age_s, stale_after_s=60)


READINGS = st.one_of(st.just(UNKNOWN), st.builds(reading_of, NUMBERS, st.sampled_from([0.5, 30.0, 90.0])))
KNOWN = st.builds(reading_of, RATES, st.just(1.0))


def pool_signals(readings: st.SearchStrategy[Reading]) -> st.SearchStrategy[PoolSignals]:
    return st.builds(PoolSignals, **dict.fromkeys(PoolSignals.__dataclass_fields__, readings))


@given(
    demands=st.tuples(*[st.tuples(RATES, RATES)] * 3),
    work_s=st.one_of(st.none(), st.floats(1e-3, 100)),
    limit=st.floats(0.1, 1000),
    role=st.sampled_from(Role),
    target=st.sampled_from([0.1, 0.5, 0.95, 0.999, 1.0]),
)
def test_more_demand_never_needs_fewer_workers(demands, work_s, limit, role, target):
    capacity = Capacity(work_s, limit, measured=True)
    objective = Objective(2.0, 0.025, target)

    def need(pick):
        demand = Demand(*(pick(pair) for pair in demands))
        return need_of(role, demand, capacity, to_work_off=demand.backlog, objective=objective, tuning=Tuning())

    low, high = need(min), need(max)
    assert low.workers <= high.workers
    assert low.with_backlog <= high.with_backlog
    assert low.to_keep <= high.to_keep
    for one in (low, high):
        assert one.workers <= one.with_backlog <= one.to_keep, "what is kept covers what would be ordered"


@given(
    loads=st.tuples(st.floats(0, 1000), st.floats(0, 1000)),
    work_s=st.one_of(st.none(), st.floats(1e-4, 10)),
    ttft_s=st.floats(0.01, 100),
    target=st.sampled_from([0.1, 0.5, 0.95, 0.999, 1.0]),
)
def test_more_prompts_never_need_fewer_prefill_workers_and_always_more_than_they_keep_busy(
    loads, work_s, ttft_s, target
):
    objective = Objective(ttft_s, 0.025, target)
    low, high = (prefill_workers(load, work_s, objective) for load in sorted(loads))
    assert low <= high
    assert max(loads) / 0.9 <= high * (1 + 1e-9)
    assert high <= max(loads) / 0.4 * (1 + 1e-9)


@given(
    load=st.floats(0, 1000),
    workers=st.integers(0, 1000),
    work_s=st.one_of(st.none(), st.floats(1e-4, 10)),
    ttft_s=st.floats(0.01, 100),
    target=st.sampled_from([0.1, 0.5, 0.95, 0.999, 1.0]),
)
def test_what_prefill_workers_carry_is_what_needs_them(load, workers, work_s, ttft_s, target):
    """One formula turned round: whatever many workers carry needs no more, and more than that needs more."""
    objective = Objective(ttft_s, 0.025, target)
    most = prefill_load(workers, work_s, objective)
    assert prefill_workers(most, work_s, objective) == pytest.approx(workers, rel=1e-6, abs=1e-6)
    needed = prefill_workers(load, work_s, objective)
    assert prefill_load(needed, work_s, objective) == pytest.approx(load, rel=1e-6, abs=1e-6)
    assert (load <= most * (1 + 1e-9) + 1e-9) or needed > workers


@given(
    role=st.sampled_from(Role),
    rate_per_s=st.floats(0, 1000),
    work_s=st.floats(1e-3, 10),
    limit=st.floats(0.1, 0.9),
    ttft_s=st.floats(0.01, 100),
)
def test_what_is_told_of_a_worker_times_those_needed_is_what_was_planned(role, rate_per_s, work_s, limit, ttft_s):
    objective, capacity = Objective(ttft_s, 0.025, 0.5), Capacity(work_s, limit, measured=True)
    demand = Demand(rate_per_s, 0.0, 0.0, rate_per_s)
    told = within_law(role, demand, capacity, objective).good_rate_per_s
    need = need_of(role, demand, capacity, to_work_off=0.0, objective=objective, tuning=Tuning(headroom=0.0))
    assert 0 < told <= capacity.good_rate_per_s
    assert need.workers - 1 <= rate_per_s / told * (1 + 1e-9)
    assert rate_per_s / told <= need.workers * (1 + 1e-9)
    carried = carried_per_s(role, need.workers, capacity, objective)
    assert carried >= rate_per_s * (1 - 1e-9), "and they carry it"


@given(rates=st.tuples(RATES, RATES), wanted=st.integers(1, 30))
def test_more_arrivals_never_get_fewer_workers(rates, wanted):
    """Of a whole first decision, with everything else equal."""
    policy = service_policy(pool_policy(replicas_max=1000))

    def size(rate_per_s):
        signals = ServiceSignals(arrived_per_s=reading_of(rate_per_s, 1), pending=reading_of(0, 1))
        engines = PoolSignals(
            running=reading_of(3, 1),
            waiting=reading_of(0, 1),
            service_time_s=reading_of(1.5, 1),
            finished_per_s=reading_of(5, 1),
        )
        seen = PoolObservation("mixed", PoolCounts(wanted, wanted), engines)
        return decide(policy, ServiceState(), ServiceObservation(KEY, signals, (seen,)), 0.0).pools[0].desired

    assert size(min(rates)) <= size(max(rates))


@given(
    proposed=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    wanted=st.integers(0, 40),
    ready=st.integers(0, 40),
    missing=st.booleans(),
)
def test_a_missed_objective_keeps_ready_workers_and_never_makes_fewer_of_more(proposed, wanted, ready, missing):
    seen = situation(missing_objective=missing, counts=PoolCounts(wanted, ready))
    few, many = (require_objective(seen, Proposal(one)).replicas for one in sorted(proposed))
    assert few <= many
    assert min(proposed) <= few <= max(min(proposed), wanted)
    if missing:
        assert few >= min(wanted, ready)


LITTLE = (0.0, 0.0, 0.0, 1e-9, 0.01, 1.0, 30.0, 1e6)
"""Zeros, next to nothing and far too much."""


def little_known_worker(dice: random.Random) -> Fitted | None:
    """Known by step times of which some are nothing at all, if it is known."""
    times = [sorted(dice.choices([0.0, 0.0, 1e-6, 0.02, 1.0], k=2)) for _ in range(2)]
    decode, prefill = (((0, least), (1000, most)) for least, most in times)
    fitted = Fitted(Measured(decode, prefill), dice.choice([0, 1, 1000, 10**6]), lanes=dice.choice([1, 2]))
    return dice.choice([None, fitted])


def little_policy(dice: random.Random) -> ServicePolicy:
    """A service of which many a number is nothing."""
    roles = dice.choice([(Role.MIXED,), (Role.MIXED,) * 2, (Role.PREFILL, Role.DECODE), (Role.PREFILL,) * 2])
    pools = [
        pool_policy(
            f"{role}{number}".lower(),
            role,
            replicas_min=0,
            replicas_max=dice.choice([0, 0, 1, 3]),
            concurrency_max=dice.choice([1.0, 8.0]),
            price_per_hour=dice.choice([None, 0.0, 1.0]),
            worker=little_known_worker(dice),
        )
        for number, role in enumerate(roles)
    ]
    bounds = (dice.choice([0.001, 0.33, 2.0]) for _ in range(2))
    return service_policy(
        *pools,
        objective=Objective(*bounds, dice.choice([0.01, 0.95, 1.0])),
        budget_gpus=dice.choice([None, 0, 2]),
        scale_down_window_s=dice.choice([0.0, 30.0]),
    )


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_no_zero_anywhere_keeps_a_decision_from_being_made(seed):
    """Rates, times, tokens, workers, prices, bounds and step times of nothing: what is divided by them has to be guarded."""
    dice = random.Random(seed)  # since drawing each number takes long
    policy, state, now_s = little_policy(dice), ServiceState(), 0.0

    def anything(kind: type) -> ServiceSignals | PoolSignals:
        return kind(**{name: reading_of(dice.choice(LITTLE), 1.0) for name in kind.__dataclass_fields__})

    for _ in range(6):
        now_s += dice.choice([0.0, 2.0, 60.0])
        counts = [PoolCounts(dice.choice([0, 0, 1, 3]), dice.choice([0, 0, 1, 3])) for _ in policy.pools]
        pairs = zip(policy.pools, counts, strict=True)
        seen = tuple(PoolObservation(pool.name, count, anything(PoolSignals)) for pool, count in pairs)
        decision = decide(policy, state, ServiceObservation(KEY, anything(ServiceSignals), seen), now_s)
        state = decision.state
        assert all(one.reason for one in decision.pools)


@given(
    wishes=st.lists(
        st.builds(Wish, st.integers(0, 20), st.integers(0, 20), st.integers(0, 3), st.sampled_from([1, 2, 4])),
        max_size=4,
    ),
    spare=st.integers(0, 40),
)
def test_a_shared_budget_is_kept_used_and_fair(wishes, spare):
    wishes = [replace(wish, replicas=max(wish.replicas, wish.replicas_min)) for wish in wishes]
    budget = sum(wish.replicas_min * wish.gpus for wish in wishes) + spare
    given_out = share_budget(wishes, budget)
    assert sum(n * wish.gpus for n, wish in zip(given_out, wishes, strict=True)) <= budget
    left = budget - sum(n * wish.gpus for n, wish in zip(given_out, wishes, strict=True))
    has = [max(wish.replicas_min, min(wish.replicas, wish.current)) for wish in wishes]
    fits = sum(wish.gpus * n for n, wish in zip(has, wishes, strict=True)) <= budget
    covered = [
        min((n / wish.replicas for n, wish in zip(numbers, wishes, strict=True) if wish.replicas), default=1.0)
        for numbers in (has, given_out)
    ]
    pays = covered[1] > covered[0]
    for n, wish in zip(given_out, wishes, strict=True):
        assert wish.replicas_min <= n <= wish.replicas
        assert n == wish.replicas or wish.gpus > left, "nothing that fits is left over"
        assert not fits or pays or n >= min(wish.replicas, wish.current), "nobody loses a worker to another for little"


def test_nothing_is_taken_for_another_pool_from_one_that_is_unknown_but_the_budget_binds_all():
    unknown, hungry = Wish(6, 6, 1, 1, kept=6), Wish(60, 2, 1, 1)
    assert share_budget([unknown, hungry], 8) == [6, 2]
    assert share_budget([replace(unknown, kept=0), hungry], 8) == [1, 7], "what would be fair"
    assert share_budget([unknown, replace(unknown)], 4) == [2, 2], "lowered: a hard bound"


@given(points=st.lists(st.tuples(st.floats(0, 10), st.integers(-50, 50)), max_size=30), length_s=st.floats(0, 30))
def test_a_window_knows_the_maximum_of_its_values(points, length_s):
    window, now_s, seen = Window(), 0.0, []
    for after_s, value in points:
        now_s += after_s
        seen.append((now_s, value))
        window = window.add(now_s, value, length_s=length_s)
        alive = [number for at_s, number in seen if at_s >= now_s - length_s]
        assert window.maximum(now_s, length_s=length_s) == max(alive)
        values = [number for _, number in window.points]
        assert values == sorted(values, reverse=True)


@given(
    finished=st.lists(st.one_of(st.none(), RATES), min_size=1, max_size=4),
    wanted=st.lists(st.integers(0, 9), min_size=4, max_size=4),
)
def test_shares_of_a_role_sum_to_one(finished, wanted):
    shares = share_of_role(finished, wanted[: len(finished)])
    assert abs(sum(shares) - 1) < 1e-9
    assert all(share >= 0 for share in shares)


@given(counts=st.lists(st.floats(0, 100), min_size=1, max_size=6), bound=st.floats(0, 50))
def test_samples_within_a_bound_are_between_none_and_all(counts, bound):
    cumulative = [sum(counts[: n + 1]) for n in range(len(counts))]
    bounds = [*(float(2**n) for n in range(len(counts) - 1)), float("inf")]
    total, within = count_within(list(zip(bounds, cumulative, strict=True)), bound)
    assert total is not None
    assert within is not None
    assert 0 <= within <= total + 1e-9
    _, more = count_within(list(zip(bounds, cumulative, strict=True)), bound * 2)
    assert more >= within - 1e-9


@given(signals=pool_signals(READINGS))
def test_no_more_wait_in_workers_than_the_router_has_there(signals):
    waiting = waiting_in_workers(signals)
    if waiting is not None and signals.in_flight.known is not None:
        assert 0 <= waiting <= signals.in_flight.known


def test_a_service_in_any_mode_is_decided_on():
    for mode in AutoscalingMode:
        decision = decide(service_policy(mode=mode), ServiceState(), ServiceObservation(KEY, ServiceSignals(), ()), 0.0)
        assert decision.pools == ()
