from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_api.conditions import Condition, ConditionStatus, find_condition, merge_conditions, rfc3339

THEN = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
NOW = THEN + timedelta(minutes=5)
types = st.sampled_from(["Accepted", "Fits", "Ready", "Routable"])
conditions = st.lists(
    st.builds(Condition, types, st.sampled_from(ConditionStatus), st.just("Reason"), st.text(max_size=20)),
    unique_by=lambda one: one.type,
)


def ready(status: ConditionStatus, message: str = "All workers answer.") -> Condition:
    return Condition("Ready", status, "WorkersReady", message)


def test_a_new_condition_gets_the_present_time():
    (made,) = merge_conditions([], [ready(ConditionStatus.TRUE)], generation=3, now=NOW)
    assert made == {
        "type": "Ready",
        "status": "True",
        "reason": "WorkersReady",
        "message": "All workers answer.",
        "observedGeneration": 3,
        "lastTransitionTime": "2026-01-01T12:05:00Z",
    }


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        (ConditionStatus.TRUE, ConditionStatus.TRUE, False),
        (ConditionStatus.TRUE, ConditionStatus.FALSE, True),
        (ConditionStatus.TRUE, ConditionStatus.UNKNOWN, True),
        (ConditionStatus.UNKNOWN, ConditionStatus.UNKNOWN, False),
    ],
)
def test_the_time_moves_only_when_the_status_flips(before: ConditionStatus, after: ConditionStatus, *, moved: bool):
    stored = merge_conditions([], [ready(before, "Old words.")], generation=1, now=THEN)
    (made,) = merge_conditions(stored, [ready(after, "New words.")], generation=2, now=NOW)
    assert made["lastTransitionTime"] == rfc3339(NOW if moved else THEN)
    assert made["message"] == "New words."
    assert made["observedGeneration"] == 2


def test_a_stored_condition_without_a_time_gets_one():
    stored = [{"type": "Ready", "status": "True"}]
    (made,) = merge_conditions(stored, [ready(ConditionStatus.TRUE)], generation=1, now=NOW)
    assert made["lastTransitionTime"] == rfc3339(NOW)


@given(conditions)
def test_merging_again_changes_nothing(current: list[Condition]):
    once = merge_conditions([], current, generation=1, now=THEN)
    assert merge_conditions(once, current, generation=1, now=NOW) == once


@given(conditions, conditions)
def test_the_result_has_the_writers_conditions_in_the_writers_order(before: list[Condition], after: list[Condition]):
    stored = merge_conditions([], before, generation=1, now=THEN)
    made = merge_conditions(stored, after, generation=2, now=NOW)
    assert [one["type"] for one in made] == [one.type for one in after]


def test_a_time_is_written_in_utc_without_fractions():
    moment = datetime(2026, 1, 1, 1, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))
    assert rfc3339(moment) == "2025-12-31T23:00:00Z"


def test_a_condition_is_found_by_its_type():
    stored = merge_conditions([], [ready(ConditionStatus.TRUE)], generation=1, now=NOW)
    assert find_condition(stored, "Ready") == stored[0]
    assert find_condition(stored, "Fits") is None
