"""What of the allowed misses is planned for: saved ones are used, debts are worked off first."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_api.objective import Objective
from forebay_autoscaler.credit import AIM, DEBT_MAX_S, FACTOR_MAX, PATIENCE_DELAYS, PATIENCE_S, Credit
from forebay_autoscaler.demand import rate_to_keep
from forebay_autoscaler.learn import Learnt
from forebay_autoscaler.policy import Tuning
from forebay_autoscaler.savedstate import Saved, dump, load
from tests.autoscaler.plant import pool_policy, service_policy
from tests.autoscaler.test_timelines import Script

OBJECTIVE = Objective(1.0, 0.05, 0.95)
LOOK_S = 10.0


def after(credit: Credit, seconds: float, *, missed: float, rate_per_s: float = 10.0) -> Credit:
    """So long, with this share missed."""
    begins_s = credit.at_s or 0.0
    for number in range(int(seconds / LOOK_S) + 1):
        credit = credit.take(
            rate_per_s * (1 - missed),
            rate_per_s * missed,
            target=OBJECTIVE.target,
            now_s=begins_s + number * LOOK_S,
            longest_s=60.0,
        )
    return credit


def planned_share(credit: Credit) -> float:
    return 1.0 - credit.planned(OBJECTIVE).target


def test_nothing_known_plans_for_what_the_objective_allows():
    assert Credit().planned(OBJECTIVE) == OBJECTIVE


def test_misses_that_are_saved_let_more_be_planned_for_up_to_a_bound():
    proven = after(Credit(), DEBT_MAX_S / AIM, missed=0.0)
    assert planned_share(proven) == pytest.approx(0.05), "nothing is let go before the target was met for some minutes"
    later = after(proven, PATIENCE_S, missed=0.0)
    assert later.saved_s == pytest.approx(AIM * PATIENCE_S, rel=0.04)
    assert planned_share(later) == pytest.approx(0.05 * math.exp(AIM), rel=0.04)
    assert planned_share(after(Credit(), 86_400.0, missed=0.0)) == pytest.approx(0.05 * FACTOR_MAX)


def test_the_first_requests_after_a_silent_day_save_no_more_than_their_minutes():
    """Its mean is next to nothing, of which one request is many times all that is allowed."""
    silent = after(Credit(), 86_400.0, missed=0.0, rate_per_s=0.0)
    for rate_per_s in (1 / 60, 50.0):
        begun = after(silent, 240.0, missed=0.0, rate_per_s=rate_per_s)
        assert begun.planned(OBJECTIVE) == OBJECTIVE
        assert planned_share(after(begun, 300.0, missed=0.0, rate_per_s=rate_per_s)) < 0.05 * math.exp(0.4)


def test_a_debt_is_worked_off_first_and_asks_for_nothing_more():
    late = after(Credit(saved_s=100.0), 300.0, missed=0.5)
    assert late.saved_s == -DEBT_MAX_S
    assert planned_share(late) == pytest.approx(0.05)
    assert planned_share(after(late, DEBT_MAX_S, missed=0.0)) == pytest.approx(0.05)
    assert planned_share(after(late, 2 * DEBT_MAX_S / AIM, missed=0.0)) > 0.06


@pytest.mark.parametrize("careful", [0.4, 0.8])
def test_as_many_are_missed_in_the_end_as_are_aimed_at_whatever_the_laws_are_wrong_by(careful):
    credit = Credit()
    for _ in range(360):
        credit = after(credit, 60.0, missed=careful * planned_share(credit))
    assert careful * planned_share(credit) == pytest.approx(AIM * 0.05, rel=0.05)


@pytest.mark.parametrize("delay_s", [0.0, 60.0, 120.0, 300.0, 900.0])
def test_it_comes_to_rest_without_overshooting_however_late_it_sees_what_it_did(delay_s):
    delay_s += 60.0  # verdicts are of a rate window
    credit, planned = Credit().paced(delay_s), []
    for number in range(1200):  # five hours
        planned.append(planned_share(credit))
        seen = planned[max(0, number - int(delay_s / 15.0))]
        at_s = number * 15.0
        credit = credit.take(10 - 4 * seen, 4 * seen, target=OBJECTIVE.target, now_s=at_s, longest_s=60.0)
    rest = AIM * 0.05 / 0.4
    assert planned[-1] == pytest.approx(rest, rel=0.02)
    assert max(planned) < 1.1 * rest


def test_a_longer_delay_makes_it_more_patient_and_what_was_saved_before_is_worth_as_much():
    credit = Credit(saved_s=450.0)
    quick, slow = credit.paced(60.0), credit.paced(900.0)
    assert (quick.patience_s, slow.patience_s) == (60.0 * PATIENCE_DELAYS, 900.0 * PATIENCE_DELAYS)
    assert planned_share(quick) == pytest.approx(planned_share(credit))
    assert planned_share(slow) == pytest.approx(planned_share(credit))
    assert planned_share(after(quick, 120.0, missed=0.0)) > planned_share(after(slow, 120.0, missed=0.0)) > 0.05
    assert Credit(saved_s=-200.0).paced(900.0).saved_s == -200.0, "a debt is minutes, however patient it is"


def test_more_than_the_bound_is_never_planned_for_whatever_was_saved():
    assert planned_share(Credit(saved_s=1e9)) == pytest.approx(0.05 * FACTOR_MAX)


@given(
    saved_s=st.tuples(*[st.floats(-DEBT_MAX_S, 2000.0)] * 2), target=st.floats(0.01, 1.0), rate_per_s=st.floats(0, 1e4)
)
def test_the_more_was_saved_the_less_is_kept_against_chance_and_nothing_less_before(saved_s, target, rate_per_s):
    objective = Objective(1.0, 0.05, target)
    more, less = (Credit(saved_s=one).caution(objective) for one in sorted(saved_s, reverse=True))
    assert 0.0 <= more <= less <= 1.0
    assert Credit(saved_s=min(0.0, *saved_s)).caution(objective) == 1.0
    kept = [rate_to_keep(rate_per_s, 10.0, Tuning(), caution=one) for one in (more, less)]
    assert 10.0 <= kept[0] <= kept[1] <= rate_to_keep(rate_per_s, 10.0, Tuning())


def test_a_gap_or_unknown_verdicts_change_nothing():
    credit = after(Credit(saved_s=0.0), 600.0, missed=0.0)
    assert credit.take(None, 1.0, target=0.95, now_s=700.0, longest_s=60.0) == credit
    assert credit.take(9.0, 1.0, target=0.95, now_s=5000.0, longest_s=60.0).saved_s == credit.saved_s
    assert credit.take(0.0, 0.0, target=0.95, now_s=610.0, longest_s=60.0).saved_s == credit.saved_s, "nothing ended"


def test_a_promise_for_all_requests_is_kept_for_all():
    whole = Objective(1.0, 0.05, 1.0)
    credit = Credit().take(10.0, 0.0, target=1.0, now_s=0.0, longest_s=60.0)
    credit = credit.take(10.0, 0.0, target=1.0, now_s=10.0, longest_s=60.0)
    assert credit.planned(whole) == whole


def asked(good_per_s: float) -> Script:
    """A service of which half an hour's verdicts say so."""
    script = Script(service_policy(pool_policy(concurrency_max=2, replicas_max=20), objective=OBJECTIVE), wanted=12)
    script.go(1800, 10.0, every_s=10.0, good_lately_per_s=good_per_s)
    return script


@pytest.mark.parametrize(("startup_s", "window_s", "delay_s"), [(120.0, 400.0, 460.0), (500.0, 400.0, 560.0)])
def test_it_is_as_patient_as_workers_take_to_start_or_to_go_and_the_rate_to_be_known(startup_s, window_s, delay_s):
    policy = service_policy(pool_policy(), tuning=Tuning(startup_s=startup_s), scale_down_window_s=window_s)
    script = Script(policy, wanted=1)
    script.go(60, 1.0, every_s=10.0)
    assert script.state.credit.patience_s == pytest.approx(PATIENCE_DELAYS * delay_s)


def test_a_service_that_saves_misses_keeps_fewer_against_chance():
    demands = [script.last.pools[0].demand for script in (asked(10.0), asked(0.0)) if script.last]
    proven, unproven = (demand.keep_per_s - demand.planned_per_s for demand in demands if demand)
    assert 0.0 < proven < unproven


def test_a_service_that_saves_misses_gets_by_with_fewer_workers_and_says_for_which_target():
    proven, unproven = asked(10.0), asked(0.0)
    assert proven.wanted < unproven.wanted
    assert proven.last is not None
    need = proven.last.pools[0].need
    assert need is not None
    assert need.target == proven.state.credit.planned(OBJECTIVE).target < 0.9


def test_saved_misses_outlive_the_process_but_no_other_spec():
    script = asked(10.0)
    assert script.state.credit.saved_s > 0
    read = load(dump(Saved("uid", script.now_s, 60.0, script.state)))
    assert read.state.credit == script.state.credit
    learnt = {
        name: replace(pool, learnt=replace(pool.learnt, share=0.5, limit=5.0, speed=2.0))
        for name, pool in script.state.pools.items()
    }
    script.state = replace(script.state, pools=learnt)
    script.policy = replace(script.policy, generation=script.policy.generation + 1)
    script.go(2, 10.0)
    assert script.state.credit == Credit()
    after = script.state.pools["mixed"].learnt
    assert (after.share, after.limit) == (Learnt().share, Learnt().limit)


@given(
    looks=st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 100)), max_size=30),
    target=st.floats(0.01, 1.0),
)
def test_a_target_to_plan_for_is_one_and_asks_for_no_more_than_is_promised(looks, target):
    credit, now_s, objective = Credit(), 0.0, Objective(1.0, 0.05, target)
    for good, bad, passed_s in looks:
        now_s += passed_s
        credit = credit.take(good, bad, target=target, now_s=now_s, longest_s=60.0)
        assert -DEBT_MAX_S <= credit.saved_s <= PATIENCE_S * math.log(FACTOR_MAX) + 1e-6
        assert 0 < credit.planned(objective).target <= target
