"""What of the allowed misses is planned for: saved ones are used, debts are worked off, a moment's share follows its rate."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_api.objective import Objective
from forebay_autoscaler.credit import AIM, DEBT_MAX_S, FACTOR_MAX, PATIENCE_S, SPREAD, Credit

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


def planned_share(credit: Credit, rate_per_s: float | None = None) -> float:
    return 1.0 - credit.planned(OBJECTIVE, rate_per_s).target


def test_nothing_known_plans_for_what_the_objective_allows():
    assert Credit().planned(OBJECTIVE, 10.0) == OBJECTIVE


def test_misses_that_are_saved_let_more_be_planned_for_up_to_a_bound():
    half_an_hour = after(Credit(), PATIENCE_S, missed=0.0)
    assert half_an_hour.saved_s == pytest.approx(AIM * PATIENCE_S)
    assert planned_share(half_an_hour) == pytest.approx(0.05 * math.exp(AIM))
    assert planned_share(after(Credit(), 86_400.0, missed=0.0)) == pytest.approx(0.05 * FACTOR_MAX)


def test_a_debt_is_worked_off_first_and_asks_for_nothing_more():
    late = after(Credit(), 300.0, missed=0.5)
    assert late.saved_s == -DEBT_MAX_S
    assert planned_share(late) == pytest.approx(0.05)
    assert planned_share(after(late, DEBT_MAX_S, missed=0.0)) == pytest.approx(0.05)
    assert planned_share(after(late, 2 * DEBT_MAX_S / AIM, missed=0.0)) > 0.1


@pytest.mark.parametrize("careful", [0.4, 0.8])
def test_as_many_are_missed_in_the_end_as_are_aimed_at_whatever_the_laws_are_wrong_by(careful):
    credit = Credit()
    for _ in range(360):
        credit = after(credit, 60.0, missed=careful * planned_share(credit))
    assert careful * planned_share(credit) == pytest.approx(AIM * 0.05, rel=0.05)


def test_a_gap_or_unknown_verdicts_change_nothing():
    credit = after(Credit(), 600.0, missed=0.0)
    assert credit.take(None, 1.0, target=0.95, now_s=700.0, longest_s=60.0) == credit
    assert credit.take(9.0, 1.0, target=0.95, now_s=5000.0, longest_s=60.0).saved_s == credit.saved_s
    assert credit.take(0.0, 0.0, target=0.95, now_s=610.0, longest_s=60.0).saved_s == credit.saved_s, "nothing ended"


def test_a_promise_for_all_requests_is_kept_for_all():
    whole = Objective(1.0, 0.05, 1.0)
    credit = Credit().take(10.0, 0.0, target=1.0, now_s=0.0, longest_s=60.0)
    credit = credit.take(10.0, 0.0, target=1.0, now_s=10.0, longest_s=60.0)
    assert credit.planned(whole, 1.0) == whole


def test_each_second_may_miss_as_many_so_a_night_has_the_larger_share():
    credit = after(Credit(), 600.0, missed=AIM * 0.05)
    assert planned_share(credit, 10.0) == pytest.approx(0.05)
    assert planned_share(credit, 8.0) * 8.0 == pytest.approx(0.05 * 10.0)
    assert planned_share(credit, 1.0) == pytest.approx(0.05 * SPREAD[1])
    assert planned_share(credit, 1000.0) == pytest.approx(0.05 * SPREAD[0])


@given(
    looks=st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 100)), max_size=30),
    target=st.floats(0.01, 1.0),
    rates=st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)),
)
def test_a_target_to_plan_for_is_one_and_not_below_it_where_more_is_asked(looks, target, rates):
    credit, now_s, objective = Credit(), 0.0, Objective(1.0, 0.05, target)
    for good, bad, passed_s in looks:
        now_s += passed_s
        credit = credit.take(good, bad, target=target, now_s=now_s, longest_s=60.0)
    little, much = (
        (credit.planned(objective, rate).target for rate in sorted(rates) if rate > 0) if all(rates) else (1, 1)
    )
    assert 0 < little <= much <= 1
