import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_api.objective import Objective, Outcome, Verdict, attainment, judge, time_per_output_token_s

OBJECTIVE = Objective(ttft_s=0.5, tpot_s=0.025, target=0.99)
seconds = st.floats(min_value=0, max_value=1000, allow_nan=False)
perhaps = st.none() | seconds


@pytest.mark.parametrize(
    ("outcome", "ttft_s", "tpot_s", "verdict"),
    [
        (Outcome.FINISHED, 0.2, 0.01, Verdict.GOOD),
        (Outcome.FINISHED, 0.5, 0.025, Verdict.GOOD),
        (Outcome.FINISHED, 0.5000001, 0.01, Verdict.BAD),
        (Outcome.FINISHED, 0.2, 0.0250001, Verdict.BAD),
        (Outcome.FINISHED, 0.2, None, Verdict.GOOD),
        (Outcome.FINISHED, None, None, Verdict.GOOD),
        (Outcome.REJECTED, None, None, Verdict.BAD),
        (Outcome.FAILED, None, None, Verdict.BAD),
        (Outcome.CUT_OFF, 0.2, 0.01, Verdict.BAD),
        (Outcome.CLIENT_LEFT, 0.2, 0.01, Verdict.ABANDONED),
        (Outcome.CLIENT_LEFT, None, None, Verdict.ABANDONED),
    ],
)
def test_a_request_is_judged(outcome: Outcome, ttft_s: float | None, tpot_s: float | None, verdict: Verdict):
    assert judge(outcome, ttft_s, tpot_s, OBJECTIVE) is verdict


@given(st.sampled_from(Outcome), perhaps, perhaps)
def test_a_client_that_leaves_and_nobody_else_counts_in_neither(
    outcome: Outcome, ttft_s: float | None, tpot_s: float | None
):
    abandoned = judge(outcome, ttft_s, tpot_s, OBJECTIVE) is Verdict.ABANDONED
    assert abandoned == (outcome is Outcome.CLIENT_LEFT)


@given(seconds, seconds, st.floats(min_value=0, max_value=1), st.floats(min_value=0, max_value=1))
def test_a_faster_request_is_never_judged_worse(ttft_s: float, tpot_s: float, first: float, rest: float):
    if judge(Outcome.FINISHED, ttft_s, tpot_s, OBJECTIVE) is Verdict.GOOD:
        assert judge(Outcome.FINISHED, ttft_s * first, tpot_s * rest, OBJECTIVE) is Verdict.GOOD


@pytest.mark.parametrize(
    ("first_s", "last_s", "tokens", "expected"),
    [(1.0, 2.0, 11, 0.1), (1.0, 1.0, 2, 0.0), (1.0, 1.0, 1, None), (1.0, 1.0, 0, None), (1.0, 2.0, None, None)],
)
def test_time_per_output_token_is_undefined_below_two_tokens(
    first_s: float, last_s: float, tokens: int | None, expected: float | None
):
    assert time_per_output_token_s(first_s, last_s, tokens) == expected


def test_attainment_of_nothing_is_unknown():
    assert attainment(0, 0) is None


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_attainment_is_a_share_and_complements_to_one(good: int, bad: int):
    share = attainment(good, bad)
    if share is None:
        assert good + bad == 0
        return
    assert 0 <= share <= 1
    other = attainment(bad, good)
    assert other is not None
    assert math.isclose(share + other, 1)


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "target", "field"),
    [
        (0, 0.025, 0.99, "objective.ttft"),
        (-1, 0.025, 0.99, "objective.ttft"),
        (math.nan, 0.025, 0.99, "objective.ttft"),
        (0.5, 0, 0.99, "objective.tpot"),
        (0.5, 0.025, 0, "objective.target"),
        (0.5, 0.025, 1.01, "objective.target"),
        (0.5, 0.025, math.nan, "objective.target"),
    ],
)
def test_an_objective_that_nothing_can_be_measured_against_is_refused(
    ttft_s: float, tpot_s: float, target: float, field: str
):
    with pytest.raises(ValueError, match=field):
        Objective(ttft_s=ttft_s, tpot_s=tpot_s, target=target)
