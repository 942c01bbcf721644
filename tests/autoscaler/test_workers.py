"""What one worker can do: the share of the laws that prefill workers carry, which orders are fulfilled, what says nothing."""

import math

import pytest

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_autoscaler.demand import Demand
from forebay_autoscaler.fitted import Fitted, Measured
from forebay_autoscaler.learn import RECOVERY, Evidence, Facts, Latency, Learnt, latency_of, learn
from forebay_autoscaler.model import Capacity, carried_per_s, need_of, prefill_load
from forebay_autoscaler.observation import PoolCounts, ServiceSignals
from forebay_autoscaler.orders import Orders
from forebay_autoscaler.policy import Tuning
from forebay_autoscaler.seed import Mix, Seed, expect, mix_of
from tests.autoscaler.plant import engine_readings, known, pool_policy, readings, service_policy

OBJECTIVE = Objective(2.0, 0.025, 0.95)


WORK_S = 0.33
LATE = Objective(1.0, 0.05, 0.95)


def learnt_of(ready: int, busy: float, latency: Latency, *, share: float = 1.0) -> Learnt:
    """Of prefill workers that have been so busy for long, and had been found to carry this share."""
    rate_per_s = ready * busy / WORK_S
    signals = engine_readings(finished_per_s=rate_per_s, service_time_s=WORK_S / (1 - busy))
    seed = Seed(WORK_S, None, Mix(8000, 0, 100), Role.PREFILL, Measured(((0, 0.0), (1, 0.1)), ((0, 0.0), (1, 0.1))), 1)
    evidence = Evidence(
        latency, queued_lately=False, rate_per_s=rate_per_s, objective=LATE, tuning=Tuning(rate_window_s=60)
    )
    learnt = Learnt(WORK_S, 1.0, orders=Orders(ready=ready), share=share)
    facts = Facts(PoolCounts(ready, ready), signals, seed, 1.0, 1000.0)
    return learn(pool_policy(role=Role.PREFILL), learnt, facts, evidence)


@pytest.mark.parametrize(
    ("ready", "busy", "share"),
    [
        (4, 0.5, 0.75),
        (20, 0.5, 0.75),
        (4, 0.6, 0.9 * 0.6 / ((4 - WORK_S * -math.log(0.05) / (1 - WORK_S)) / 4)),  # the laws allow 0.63
        (4, 0.7, 1.0),  # more than the laws allow: overload, which teaches nothing
        (4, 0.2, 1.0),  # idle
    ],
)
def test_prefill_workers_that_miss_the_objective_are_given_less_than_the_laws_allow(ready, busy, share):
    assert learnt_of(ready, busy, Latency(ttft_met=False, tpot_met=True)).share == pytest.approx(share)


def test_a_miss_that_chance_explains_teaches_nothing():
    assert learnt_of(4, 0.5, Latency(ttft_met=False, tpot_met=True, ttft_by_chance=True)).share == 1.0


@pytest.mark.parametrize(
    ("room", "share", "after"), [(True, 0.75, 0.75 * RECOVERY), (False, 0.75, 0.75), (True, 0.995, 1.0)]
)
def test_a_lowered_share_comes_back_while_the_objective_is_met_with_room_to_spare(room, share, after):
    assert learnt_of(4, 0.4, Latency(ttft_met=True, tpot_met=True, room=room), share=share).share == after


@pytest.mark.parametrize(("share", "overloaded"), [(1.0, False), (0.6, True)])
def test_prefill_workers_are_overloaded_by_more_than_they_were_found_to_carry(share, overloaded):
    """Half busy, where the laws allow 0.63."""
    learnt = learnt_of(4, 0.5, Latency(ttft_met=True, tpot_met=True), share=share)
    assert (learnt.overloaded_s == 1000.0) is overloaded


def test_a_window_of_few_requests_misses_by_chance_and_one_of_many_does_not():
    """Seven of a hundred late where five may be say little; seventy of a thousand are too many."""
    for requests, by_chance in ((100, True), (2000, False)):
        per_s = requests / 60
        signals = readings(
            service_policy(),
            ttft_per_s=per_s,
            ttft_within_per_s=0.93 * per_s,
            tpot_per_s=per_s,
            tpot_within_per_s=per_s,
        )
        latency = latency_of(signals, LATE, Tuning(rate_window_s=60))
        assert latency.missed_by(Role.PREFILL)
        assert latency.missed_surely().missed_by(Role.PREFILL) is not by_chance


@pytest.mark.parametrize("rate_per_s", [1.0, 4.0, 14.0])
def test_what_one_worker_alone_was_late_with_at_night_costs_the_day_no_more_than_its_share(rate_per_s):
    """A busy share of 0.3 was too much for one; as a limit of each of ten it would double them."""
    objective, tuning = LATE, Tuning(rate_window_s=60)
    before, after = (
        need_of(
            Role.PREFILL,
            Demand(rate_per_s=rate_per_s, backlog=0, running=0),
            Capacity(0.21, 0.9, measured=True, share=share),
            to_work_off=0,
            objective=objective,
            tuning=tuning,
        ).workers
        for share in (1.0, 0.75)
    )
    assert before <= after <= math.ceil(before / 0.75)
    law = [0.75 * prefill_load(workers, 0.21, objective) for workers in (after - 1, after)]
    assert law[0] < rate_per_s * 0.21 <= law[1], "as many as carry it with three quarters of what the laws allow"


def test_a_pool_by_cost_is_taken_for_what_it_was_found_to_carry_in_time():
    whole, part = (
        carried_per_s(Role.PREFILL, 8, Capacity(0.21, 0.9, measured=True, share=share), LATE) for share in (1.0, 0.5)
    )
    assert whole is not None
    assert part == pytest.approx(whole / 2)


@pytest.mark.parametrize(("running", "overloaded"), [(16, False), (22, False), (26, True)])
def test_what_runs_now_is_overload_where_chance_does_not_explain_it(running, overloaded):
    """Two workers of 8: 16 on average vary by 4."""
    tuning = Tuning(rate_window_s=60)
    evidence = Evidence(Latency(None, None), queued_lately=False, rate_per_s=12.0, objective=OBJECTIVE, tuning=tuning)
    facts = Facts(PoolCounts(2, 2), engine_readings(running=running, running_mean=12.0), None, 1.0, 1000.0)
    learnt = learn(pool_policy(concurrency_max=8), Learnt(1.0, orders=Orders(ready=2)), facts, evidence)
    assert (learnt.overloaded_s == 1000.0) is overloaded


def test_a_worker_that_comes_back_fulfils_no_order_that_was_given_for_more():
    """Each look: what is wanted, what is ready, whether that is more than ever since so many were wanted."""
    orders, now_s = Orders(), 0.0
    looks = [(3, 3, False), (3, 2, False), (3, 3, False), (5, 3, False), (5, 2, False), (5, 3, False), (5, 4, True)]
    looks += [(5, 5, True), (2, 5, False), (2, 2, False), (2, 1, False), (2, 2, False), (3, 3, True)]
    looks += [(3, 4, False)]  # one more of which was taken back while it started
    for wanted, ready, more in looks:
        now_s += 10
        orders = orders.follow(wanted=wanted, ready=ready, now_s=now_s)
        assert (orders.fulfilled_s == now_s) is more, (wanted, ready)


def test_the_mean_request_is_one_that_can_be():
    """Counters of several routers need not agree, and a mean of no token would be divided by."""
    few = {"arrived_per_s": 10, "prompt_tokens_per_s": 1, "output_tokens_per_s": 1, "cached_tokens_per_s": 1000}
    signals = ServiceSignals(**{name: known(number) for name, number in few.items()})
    assert mix_of(signals, window_s=60, samples_min=10) == Mix(1, 1, 1)


def test_step_times_of_nothing_tell_nothing():
    nothing = Fitted(Measured(((0, 0.0), (1, 0.0)), ((0, 0.0), (1, 0.0))), 1_000_000)
    for role in Role:
        assert expect(nothing, role, Mix(1000, 0, 200), OBJECTIVE, 8) is None
