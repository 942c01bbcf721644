"""What one worker can do: how a prefill worker's limit begins, which orders are fulfilled, and numbers that say nothing."""

import math

import pytest

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_autoscaler.fitted import Fitted, Measured
from forebay_autoscaler.learn import Evidence, Facts, Latency, Learnt, learn
from forebay_autoscaler.observation import PoolCounts, ServiceSignals
from forebay_autoscaler.orders import Orders
from forebay_autoscaler.policy import Tuning
from forebay_autoscaler.seed import Mix, Seed, expect, mix_of
from tests.autoscaler.plant import engine_readings, known, pool_policy

OBJECTIVE = Objective(2.0, 0.025, 0.95)


@pytest.mark.parametrize(
    ("ready", "busy", "limit"),
    [
        (4, 0.5, pytest.approx(0.75 * (4 - 0.33 * -math.log(0.05) / 0.67) / 4)),  # the laws allow 0.63
        (20, 0.5, pytest.approx(0.75 * 0.75)),
        (4, 0.6, pytest.approx(0.9 * 0.6)),
        (4, 0.7, None),  # more than the laws allow: overload, which teaches nothing
        (4, 0.2, None),  # idle
    ],
)
def test_prefill_workers_that_miss_the_objective_are_given_less_than_the_laws_allow_at_once(ready, busy, limit):
    """From the highest utilisation there is, 0.9, it would take three windows to come down to what is carried."""
    work_s, objective, tuning = 0.33, Objective(1.0, 0.05, 0.95), Tuning(rate_window_s=60)
    rate_per_s = ready * busy / work_s
    signals = engine_readings(finished_per_s=rate_per_s, service_time_s=work_s / (1 - busy))
    seed = Seed(work_s, None, Mix(8000, 0, 100), Role.PREFILL, Measured(((0, 0.0), (1, 0.1)), ((0, 0.0), (1, 0.1))), 1)
    evidence = Evidence(
        Latency(ttft_met=False, tpot_met=True),
        queued_lately=False,
        rate_per_s=rate_per_s,
        objective=objective,
        tuning=tuning,
    )
    learnt = Learnt(work_s, 1.0, orders=Orders(ready=ready))
    facts = Facts(PoolCounts(ready, ready), signals, seed, 1.0, 1000.0)
    assert learn(pool_policy(role=Role.PREFILL), learnt, facts, evidence).limit == limit


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
