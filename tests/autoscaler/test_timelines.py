"""What happens over time, in virtual time: against a queueing system, and against scripted observations.

Cases of the field collection are named by their id.
"""

from dataclasses import replace
from itertools import pairwise

import pytest

from forebay_api.modelservice import AutoscalingMode, Role
from forebay_api.objective import Objective
from forebay_autoscaler.constraints import Proposal, Situation, constrain
from forebay_autoscaler.decide import decide
from forebay_autoscaler.decision import Decision
from forebay_autoscaler.observation import (
    PoolCounts,
    PoolObservation,
    PoolSignals,
    ServiceObservation,
    ServiceSignals,
    Writer,
)
from forebay_autoscaler.policy import ServicePolicy
from forebay_autoscaler.reading import UNKNOWN, DataState, Reading, read
from forebay_autoscaler.state import Action, ServiceState
from forebay_autoscaler.window import Window
from tests.autoscaler.plant import DEMO, KEY, Plant, engine_readings, known, pool_policy, readings, service_policy


def step(low: float, high: float, begin_s: float, end_s: float):
    return lambda now_s: high if begin_s <= now_s < end_s else low


def load_of(
    rate_per_s: float, *, wanted: int, ready: int | None = None, service_s: float = 1.5, **numbers: float
) -> ServiceObservation:
    """A mixed pool that is asked for this rate; everything in time, unless said otherwise."""
    running = rate_per_s * service_s
    service = {"arrived_per_s": rate_per_s, "burst_per_s": rate_per_s}
    for name in ("ttft", "tpot"):
        share = numbers.pop(f"{name}_share", 1.0)
        service |= {f"{name}_per_s": rate_per_s, f"{name}_within_per_s": share * rate_per_s}
    service |= {name: numbers.pop(name) for name in list(numbers) if name in ServiceSignals.__dataclass_fields__}
    engines = {"running": running, "running_mean": running, "finished_per_s": rate_per_s, **numbers}
    if (at_workers := engines.pop("at_workers", None)) is not None:
        engines["in_flight"] = at_workers
    if rate_per_s:
        engines["service_time_s"] = service_s
    counts = PoolCounts(wanted, wanted if ready is None else ready)
    pool = PoolObservation("mixed", counts, engine_readings(**engines))
    return ServiceObservation(KEY, readings(service_policy(), **service), (pool,))


class Script:
    """Decides on one observation after another; the number that was decided is the next one's."""

    def __init__(self, policy: ServicePolicy | None = None, *, wanted: int = 1) -> None:
        self.policy = policy or service_policy()
        self.wanted = wanted
        self.state = ServiceState()
        self.now_s = 0.0
        self.sizes: list[int] = []
        self.last: Decision | None = None

    def see(self, observation: ServiceObservation) -> int:
        """Decide now."""
        self.last = decide(self.policy, self.state, observation, self.now_s)
        self.state = self.last.state
        self.wanted = self.last.pools[0].desired
        self.sizes.append(self.wanted)
        return self.wanted

    def go(self, for_s: float, rate_per_s: float, *, every_s: float = 2.0, **numbers: float) -> int:
        """Decide on a steady load for a while."""
        for _ in range(round(for_s / every_s)):
            self.now_s += every_s
            self.see(load_of(rate_per_s, wanted=self.wanted, **numbers))
        return self.wanted


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_step_up_and_down_is_followed_without_flapping(seed: int):
    plant = Plant(service_policy(), step(2, 20, 30, 120), seed=seed).run(220)
    first_s, _ = plant.sizes[0]
    assert first_s <= 30 + 2 * plant.interval_s, "the step is seen within two intervals"
    top = max(size for _, size in plant.sizes)
    assert top >= 5
    reached_s = next(at_s for at_s, size in plant.sizes if size >= 5)
    assert reached_s <= 45
    soon = [one for one in plant.sizes if one[0] < 180]
    rises = [b > a for (_, a), (_, b) in zip([(0, 1), *soon], soon, strict=False)]
    assert rises == sorted(rises, reverse=True), f"first up, then down, and not soon up again: {plant.sizes}"
    assert min(size for at_s, size in plant.sizes if at_s > 120) == 1
    reached_top_s = next(at_s for at_s, size in plant.sizes if size == top)
    shrinks_s = [at_s for at_s, _ in plant.sizes if at_s > reached_top_s]
    assert shrinks_s[0] > 120, "nothing shrinks while the load holds"


def test_a_steady_load_near_a_boundary_moves_the_pool_at_most_twice_in_ten_minutes():
    for rate_per_s in (15.5, 16.5, 21, 22):
        plant = Plant(service_policy(), lambda _, rate=rate_per_s: rate, wanted=5, seed=3).run(600)
        assert len(plant.sizes) <= 2, (rate_per_s, plant.sizes)


def test_late_requests_are_few_once_workers_are_there():
    plant = Plant(service_policy(), step(2, 20, 30, 1e9)).run(90)
    late, finished = plant.late, plant.finished
    plant.run(240)
    assert (plant.late - late) / (plant.finished - finished) < 0.02


@pytest.mark.parametrize(("after_s", "low"), [(300, 0.5)])
def test_slow_workers_are_ordered_once(after_s: float, low: float):
    """C101: workers that need minutes are part of the number; the same overload does not order them again."""
    script = Script(service_policy(pool_policy(replicas_max=40)), wanted=3)
    script.go(20, 10, ready=3)
    assert script.wanted == 3
    needed = script.go(2, 27, ready=3, waiting=9)
    assert needed in (6, 7)
    assert script.go(480, 27, every_s=15, ready=3, waiting=9) == needed
    assert script.go(30, 27, every_s=15) == needed
    assert script.go(after_s, low, every_s=15) == 1


def test_growing_backlog_during_start_up_is_not_ordered_twice():
    """C101, with a queue that grows as long as workers start."""
    plant = Plant(service_policy(pool_policy(replicas_max=40)), step(8, 24, 20, 1e9), wanted=3, startup_s=120)
    plant.run(130)
    assert max(size for _, size in plant.sizes) <= 9, plant.sizes


def test_many_workers_that_take_minutes_are_kept_while_demand_holds():
    """C106: from 40 to 1,000 at once; nothing is taken back while it holds, all of it through the window afterwards."""
    policy = service_policy(pool_policy(replicas_max=200), scale_down_window_s=300)
    script = Script(policy, wanted=9)
    script.go(60, 40, every_s=10)
    high = script.go(60, 1000 / 1.5, every_s=10, ready=9, waiting=600)
    assert high > 125
    for ready in (9, 9, 9, 60, high):
        assert script.go(60, 1000 / 1.5, every_s=10, ready=ready) >= 0.95 * high, "all but what the queue asked for"
    before = len(script.sizes)
    script.go(280, 40, every_s=10)
    assert set(script.sizes[before:]) == {script.sizes[before]}
    assert script.go(120, 40, every_s=10) < 15


def test_workers_that_find_no_node_stop_growth_and_go_first():
    """C104."""
    script = Script(wanted=1)
    script.go(10, 4)
    assert script.go(2, 20) == 5
    stuck = replace(load_of(26, wanted=5, ready=3), pools=())
    for _ in range(1800):
        script.now_s += 2
        pool = load_of(26, wanted=5, ready=3, waiting=30).pools[0]
        counts = replace(pool.counts, unschedulable=True)
        observed = replace(stuck, signals=load_of(26, wanted=5, ready=3).signals, pools=(replace(pool, counts=counts),))
        assert script.see(observed) == 5
    assert script.last is not None
    assert "find no node" in script.last.pools[0].reason
    before = script.now_s
    while script.wanted > 1:
        script.now_s += 2
        pool = load_of(0, wanted=script.wanted, ready=min(3, script.wanted)).pools[0]
        script.see(
            ServiceObservation(
                KEY, readings(script.policy), (replace(pool, counts=replace(pool.counts, unschedulable=True)),)
            )
        )
        assert script.now_s < before + 60


def test_a_restart_does_not_shrink_before_a_window_of_data():
    """C107."""
    policy = service_policy(pool_policy(replicas_max=20), scale_down_window_s=300)
    script = Script(policy, wanted=8)
    for second in range(0, 300, 10):
        script.now_s = 1e6 + second
        assert script.see(load_of(2, wanted=8)) == 8
    assert script.go(30, 2, every_s=10) < 8


def test_a_need_that_flips_does_not_flap_even_across_a_restart():
    """C118: one rise to 6, then a fall about a window after the last 6."""
    policy = service_policy(pool_policy(replicas_max=20), scale_down_window_s=300)
    script = Script(policy, wanted=2)
    for minute in range(15):
        if minute == 7:
            script.state = ServiceState()
        script.go(60, 24 if minute % 2 == 0 else 5, every_s=10)
        assert script.wanted == 6
    last_six_s = script.now_s
    while script.wanted == 6:
        script.now_s += 10
        script.see(load_of(5, wanted=script.wanted))
    assert 290 <= script.now_s - last_six_s <= 320


def test_series_of_dead_workers_do_not_scale_up_again():
    """C110: the router has 4 requests there, so forty cannot wait."""
    script = Script(wanted=2)
    script.go(20, 3)
    assert script.go(300, 3, waiting=40, at_workers=4.5) == 2


def test_waiting_counts_where_engines_cap_what_runs():
    """C113: one request at a time, fifty waiting."""
    script = Script(service_policy(pool_policy(concurrency_max=1)), wanted=1)
    script.go(10, 0.5)
    assert script.go(2, 0.66, waiting=50) > 2


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), -5.0, 1e309])
def test_numbers_that_are_none_change_nothing(number: float):
    """C098."""
    script = Script(wanted=4)
    reading = read(number, age_s=1, stale_after_s=60)
    assert reading is UNKNOWN
    for _ in range(40):
        script.now_s += 2
        signals = replace(readings(script.policy), arrived_per_s=reading, burst_per_s=reading)
        assert script.see(ServiceObservation(KEY, signals, load_of(0, wanted=4).pools)) == 4
    assert script.last is not None
    assert script.last.unknown == ("arrivals",)


def test_a_known_need_grows_the_pool_while_another_input_is_unknown():
    """C100: what is known may ask for more; what is not known keeps it from shrinking."""
    script = Script(wanted=2)
    observed = load_of(20, wanted=2)
    pool = observed.pools[0]
    blind = replace(pool, signals=replace(pool.signals, running=UNKNOWN, running_mean=UNKNOWN, waiting=UNKNOWN))
    script.now_s = 2
    assert script.see(replace(observed, pools=(blind,))) == 5
    for _ in range(100):
        script.now_s += 2
        few = load_of(1, wanted=5)
        blind = replace(few.pools[0], signals=replace(few.pools[0].signals, waiting=UNKNOWN))
        assert script.see(replace(few, pools=(blind,))) == 5


def test_an_unknown_rate_is_not_taken_for_no_demand():
    """C100: what waits asks for workers even when nobody knows how much more will come; the reason does not say "nothing"."""
    script = Script(service_policy(pool_policy(replicas_max=20)), wanted=2)
    script.go(20, 4)
    learnt = script.state.pools["mixed"].learnt
    state = replace(learnt, orders=replace(learnt.orders, startup_s=60.0))
    script.state = replace(script.state, pools={"mixed": replace(script.state.pools["mixed"], learnt=state)})
    observed = load_of(4, wanted=2, waiting=400)
    assert decide(script.policy, script.state, observed, script.now_s + 2).pools[0].desired == 2, "worked off by then"
    unknown = replace(observed.signals, arrived_per_s=UNKNOWN, burst_per_s=UNKNOWN)
    script.now_s += 2
    assert script.see(replace(observed, signals=unknown)) > 2
    assert "arrivals unknown" in script.last.pools[0].reason
    assert "nothing asked" not in script.last.pools[0].reason


def test_after_an_outage_a_whole_window_of_data_comes_before_anything_shrinks():
    policy = service_policy(scale_down_window_s=60)
    script = Script(policy, wanted=4)
    for _ in range(100):
        script.now_s += 2
        observed = load_of(2, wanted=4)
        unheard = replace(observed.signals, pending=UNKNOWN)
        assert script.see(replace(observed, signals=unheard)) == 4
    assert script.go(58, 2) == 4
    assert script.go(6, 2) < 4


def situation(**changes: object) -> Situation:
    """Four workers, of which one is needed and was for as long as anybody remembers."""
    return replace(
        Situation(
            policy=service_policy(scale_down_window_s=0),
            pool=pool_policy(),
            counts=PoolCounts(4, 4),
            need=None,
            unknown=(),
            missing_objective=False,
            untested=False,
            needs=Window(),
            shortfalls=Window(),
            now_s=0.0,
        ),
        **changes,
    )


def test_each_proof_that_shrinking_needs_is_asked_for_by_itself():
    assert constrain(situation(), Proposal(2)).replicas == 2
    assert constrain(situation(unknown=("waiting",)), Proposal(2)).replicas == 4
    assert constrain(situation(missing_objective=True), Proposal(2)).replicas == 4
    starting = situation(missing_objective=True, counts=PoolCounts(4, 3))
    assert constrain(starting, Proposal(2)).replicas == 3, "the one that starts has missed nothing"
    needed = situation(policy=service_policy(scale_down_window_s=60), needs=Window(((-30.0, 3),)))
    assert constrain(needed, Proposal(2)).replicas == 3


def test_running_requests_of_dead_workers_hold_no_slots():
    """C110, its other half: the router has 4 requests there, so forty cannot run."""
    script = Script(wanted=2)
    script.go(20, 3)
    assert script.go(300, 3, running=40, at_workers=4.5) == 2


def test_an_order_that_is_taken_back_teaches_no_start_up_time():
    script = Script(wanted=3)
    script.go(20, 10)
    script.now_s += 300
    script.see(load_of(10, wanted=5, ready=3))
    script.now_s += 300
    script.see(load_of(10, wanted=3, ready=3))
    assert script.last.state.pools["mixed"].learnt.orders.startup_s == 0.0
    script.see(load_of(10, wanted=4, ready=3))
    script.now_s += 20
    script.see(load_of(10, wanted=4, ready=4))
    assert script.last.state.pools["mixed"].learnt.orders.startup_s == 20.0


def test_late_first_tokens_teach_nothing_while_nobody_knows_of_queues():
    script = Script(service_policy(pool_policy(concurrency_max=64, replicas_max=20)))
    script.go(40, 20)
    for _ in range(60):
        script.now_s += 2
        observed = load_of(20, wanted=1, ttft_share=0.0)
        blind = replace(observed.pools[0], signals=replace(observed.pools[0].signals, waiting=UNKNOWN))
        script.see(replace(observed, pools=(blind,)))
        assert script.last.pools[0].capacity.limit == 64


def test_a_reason_follows_what_stands_in_the_way():
    script = Script(wanted=1)
    script.go(10, 4)
    assert script.go(2, 20) == 5
    observed = load_of(20, wanted=5, ready=3, waiting=60)
    counts = replace(observed.pools[0].counts, unschedulable=True)
    script.now_s += 2
    script.see(replace(observed, pools=(replace(observed.pools[0], counts=counts),)))
    assert "find no node" in script.last.pools[0].reason


def test_a_need_about_a_whole_number_is_told_once_a_window():
    for rate_per_s in (15.5, 24):
        plant = Plant(service_policy(), lambda _, rate=rate_per_s: rate, wanted=5, seed=3).run(600)
        reasons = [decision.pools[0].reason for decision in plant.decisions]
        changes = sum(first != second for first, second in pairwise(reasons))
        assert changes <= 600 / DEMO.rate_window_s, (rate_per_s, changes)


def test_an_outage_at_the_peak_holds_and_ends_by_itself():
    blind = lambda now_s: 60 <= now_s < 120  # noqa: E731
    plant = Plant(service_policy(), step(2, 20, 20, 70), blind=blind).run(121)
    top = max(size for _, size in plant.sizes)
    assert plant.wanted == top
    held = [decision for decision in plant.decisions if decision.pools[0].action is Action.HOLD]
    assert held
    assert "held: unknown: arrivals" in held[-1].pools[0].reason or "held: not everything" in held[-1].pools[0].reason
    plant.run(260)
    assert plant.wanted == 1


def test_a_pool_sleeps_and_wakes_on_a_held_request():
    """C121, as far as the decision goes; the rest is in test_waking.py."""
    policy = service_policy(pool_policy(replicas_min=0))
    script = Script(policy, wanted=1)
    assert script.go(30, 0) == 0
    observed = ServiceObservation(KEY, readings(policy, pending=1), (PoolObservation("mixed", PoolCounts(0, 0)),))
    script.now_s += 2
    assert script.see(observed) == 1


def test_a_missed_objective_without_a_queue_lowers_what_a_worker_is_given():
    """Decoding slows down beyond 40 at once; nothing queues; more workers, and they stay."""
    policy = service_policy(pool_policy(concurrency_max=256, replicas_max=20))
    script = Script(policy)
    assert script.go(40, 60, service_s=1.0) == 1
    assert script.go(4, 60, service_s=1.0, tpot_share=0.5) == 2
    assert script.last.pools[0].capacity.limit == pytest.approx(0.9 * 60)
    assert script.go(120, 60, service_s=1.0) == 2


def test_a_step_is_not_taken_for_workers_that_can_do_less():
    """Four times the load at once: everybody is late before the window's mean shows more than workers should carry."""
    script = Script(service_policy(pool_policy(concurrency_max=64, replicas_max=20)), wanted=2)
    script.go(60, 40, service_s=1.0)
    script.go(6, 50, service_s=1.0, tpot_share=0.5, running=240, running_mean=90)
    assert script.last.pools[0].capacity.limit == 64
    script.go(30, 160, service_s=1.0, tpot_share=0.5, running=400, running_mean=300, ready=2)
    assert script.last.pools[0].capacity.limit == 64, "still overload"


def test_what_overfull_workers_run_is_ordered_for_once():
    """It is what those on their way were ordered for; what still runs a window after they came asks for more."""
    script = Script(service_policy(pool_policy(concurrency_max=10, replicas_max=20)), wanted=2)
    script.go(20, 12, service_s=1.0)
    assert script.go(2, 20, service_s=1.0, running=35, ready=2) == 4
    assert script.go(20, 20, service_s=1.0, running=80, ready=2) == 4, "they start"
    assert script.go(12, 20, service_s=1.0, running=80, ready=4) == 4, "they have just come"
    assert script.go(20, 20, service_s=1.0, running=80) >= 8, "they are there, and it was not enough"


def flapping(sizes: tuple[int, ...], *, for_s: float) -> int:
    """Workers ordered for 180 requests at work, 10 of which are one worker's, while so many are ready, for 8 s each in turn."""
    script = Script(service_policy(pool_policy(concurrency_max=10, replicas_max=30)), wanted=10)
    for _ in range(round(for_s / 2)):
        ready = min(script.wanted, sizes[int(script.now_s // 8) % len(sizes)])
        script.now_s += 2
        script.see(load_of(9, wanted=script.wanted, ready=ready, service_s=10.0, running=180, running_mean=180))
    return script.wanted


@pytest.mark.parametrize("sizes", [(10, 9), (9, 10), (10, 9, 8), (9, 8)])
def test_a_worker_whose_readiness_flaps_does_not_keep_a_crowd_from_being_ordered_for(sizes: tuple[int, ...]):
    """No order is fulfilled when it comes back; while it is away it is waited for during a start-up time and a window at most."""
    assert flapping(sizes, for_s=120) == 18


def test_running_requests_ask_for_workers_where_the_rate_is_unknown():
    script = Script(service_policy(pool_policy(concurrency_max=10, replicas_max=20)), wanted=2)
    script.go(20, 12, service_s=1.0)
    for running, wanted in ((80, 8), (120, 12)):  # in the second look six are on their way
        observed = load_of(20, wanted=script.wanted, ready=2, running=running)
        signals = replace(observed.signals, arrived_per_s=UNKNOWN, burst_per_s=UNKNOWN, latest_per_s=UNKNOWN)
        script.now_s += 2
        assert script.see(replace(observed, signals=signals)) == wanted


def test_a_worker_that_is_late_with_nothing_to_do_gets_no_company():
    """An objective that the hardware cannot meet must not order the whole fleet."""
    script = Script(wanted=1)
    assert script.go(300, 0.8, ttft_share=0.0, tpot_share=0.0) == 1


def test_samples_beyond_the_last_bucket_grow_the_pool():
    """C115: all first tokens above the highest bound are late, not unknown."""
    from forebay_autoscaler.signals import count_within

    total, within = count_within([(5.0, 0.0), (10.0, 0.0), (float("inf"), 100.0)], 2.0)
    assert (total, within) == (100.0, 0.0)
    script = Script(service_policy(pool_policy(concurrency_max=64)), wanted=2)
    script.go(20, 40)
    assert script.go(40, 40, ttft_share=0.0) > 2


def test_a_person_sets_a_new_number_and_is_not_fought_within_the_window():
    script = Script(wanted=1)
    script.go(20, 2)
    writer = Writer("kubectl", "2026-01-01T00:00:00Z")
    for second in range(0, 120, 2):
        script.now_s += 2
        observed = load_of(2, wanted=4 if second < 16 else script.wanted)
        pool = observed.pools[0]
        observed = replace(observed, pools=(replace(pool, counts=replace(pool.counts, writer=writer)),))
        size = script.see(observed)
        assert script.last.pools[0].foreign == (writer if second == 0 else None)
        assert size == 4 if second < 14 else True
    assert script.wanted < 4


def test_a_rival_autoscaler_keeps_its_number():
    script = Script(wanted=3)
    for _ in range(30):
        script.now_s += 2
        observed = load_of(30, wanted=3)
        pool = observed.pools[0]
        counts = replace(pool.counts, rival="HorizontalPodAutoscaler/x")
        assert script.see(replace(observed, pools=(replace(pool, counts=counts),))) == 3
    assert script.last.pools[0].action is Action.STAND_BACK


def disaggregated(**changes: object) -> ServicePolicy:
    prefill = pool_policy("prefill", Role.PREFILL, replicas_max=8, concurrency_max=64)
    decode = pool_policy("decode", Role.DECODE, replicas_max=8, concurrency_max=8)
    return service_policy(prefill, decode, objective=Objective(2.0, 0.025, 0.95), **changes)


def split_load(
    rate_per_s: float, prefill: PoolCounts, decode: PoolCounts, *, prefill_s: float = 0.3
) -> ServiceObservation:
    """Prefill takes `prefill_s` of a worker, decoding 2 s of a slot."""
    share = min(0.95, rate_per_s * prefill_s / max(1, prefill.ready))
    in_prefill_s = prefill_s / (1 - share)
    signals = readings(service_policy(), arrived_per_s=rate_per_s, burst_per_s=rate_per_s)
    finished = known(rate_per_s)
    first = PoolSignals(
        running=known(rate_per_s * in_prefill_s),
        running_mean=known(rate_per_s * in_prefill_s),
        waiting=known(0),
        service_time_s=known(in_prefill_s),
        finished_per_s=finished,
        in_flight=known(rate_per_s * in_prefill_s),
    )
    second = PoolSignals(
        running=known(2 * rate_per_s),
        running_mean=known(2 * rate_per_s),
        waiting=known(0),
        service_time_s=known(2.0),
        finished_per_s=finished,
        in_flight=known(2 * rate_per_s),
    )
    pools = (PoolObservation("prefill", prefill, first), PoolObservation("decode", decode, second))
    return ServiceObservation(KEY, signals, pools)


def run_split(
    policy: ServicePolicy, rate_per_s: float, sizes: tuple[int, int], *, prefill_s: float = 0.3
) -> tuple[int, int]:
    state, (prefill, decode) = ServiceState(), sizes
    for second in range(0, 60, 2):
        observed = split_load(rate_per_s, PoolCounts(prefill, prefill), PoolCounts(decode, decode), prefill_s=prefill_s)
        decision = decide(policy, state, observed, float(second))
        state = decision.state
        prefill, decode = (pool.desired for pool in decision.pools)
    return prefill, decode


def test_prefill_and_decode_are_sized_each_by_its_own_work():
    assert run_split(disaggregated(), 1.0, (1, 1)) == (1, 1)
    prefill, decode = run_split(disaggregated(), 10.0, (1, 1), prefill_s=0.05)
    assert (prefill, decode) == (1, 4)
    prefill, decode = run_split(disaggregated(), 10.0, (1, 1), prefill_s=0.3)
    assert prefill == 4
    assert decode == 4


def test_what_is_told_of_a_prefill_worker_is_what_it_does_under_the_law():
    """3 req/s of 0.33 s each take 2.5 workers by the laws, so one does 1.2; busy for 0.9 of the time it would do 2.7."""
    policy = replace(disaggregated(), objective=Objective(1.0, 0.025, 0.95))
    observed = split_load(3.0, PoolCounts(3, 3), PoolCounts(1, 1), prefill_s=0.33)
    prefill, decode = decide(policy, ServiceState(), observed, 0.0).pools
    assert prefill.need.workers == 3
    assert prefill.good_rate_per_s == pytest.approx(1.217, abs=0.001)
    assert "one worker does 1.2 good/s" in prefill.reason
    assert decode.good_rate_per_s == decode.capacity.good_rate_per_s == pytest.approx(4.0)


def test_pools_share_a_budget_in_proportion_to_their_needs():
    prefill, decode = run_split(disaggregated(budget_gpus=6), 10.0, (1, 1), prefill_s=0.3)
    assert prefill + decode == 6
    assert min(prefill, decode) >= 2


def test_a_cold_start_is_silent_for_one_window_and_then_names_what_is_missing():
    script = Script(wanted=1)
    nothing = ServiceObservation(KEY, ServiceSignals(), (PoolObservation("mixed", PoolCounts(1, 0)),))
    news = []
    for _ in range(15):
        script.now_s += 2
        script.see(nothing)
        news.append(script.last.pools[0].news)
    assert not any(news[: int(DEMO.rate_window_s / 2) - 1])
    assert sum(news) == 1
    assert script.last.pools[0].action is Action.HOLD


def test_advice_is_given_once():
    policy = service_policy(mode=AutoscalingMode.ADVISE)
    state, news = ServiceState(), 0
    for second in range(0, 60, 2):
        decision = decide(policy, state, load_of(20, wanted=1), float(second))
        state = decision.state
        news += decision.pools[0].news
        assert decision.pools[0].desired == 5
    assert news == 1


def test_stale_is_told_from_unknown_and_both_from_zero():
    assert read(0.0, age_s=1, stale_after_s=60) == Reading(DataState.ZERO, 0.0, 1)
    assert read(5.0, age_s=61, stale_after_s=60).state is DataState.STALE
    assert read(None, age_s=1, stale_after_s=60).state is DataState.UNKNOWN
    assert read(5.0, age_s=61, stale_after_s=60).known is None
    assert read(5.0, age_s=61, stale_after_s=60).number == 5.0
    assert read(None, age_s=1, stale_after_s=60).known is None
    assert read(5.0, age_s=None, stale_after_s=60).known is None


def test_a_router_that_is_not_heard_any_more_shrinks_nothing():
    """Half of the arrivals are missing while all data look fresh; more may be asked for all the same."""
    script = Script(wanted=4)
    script.go(80, 16)
    before = script.wanted
    assert script.go(200, 8, routers_gone=1) == before
    assert script.last is not None
    assert script.last.unknown == ("routers",)
    assert script.go(4, 25, routers_gone=1) > before
    assert script.go(200, 8) < before
