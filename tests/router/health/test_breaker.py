"""One worker's record, and when it is left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_router.health.breaker import (
    ATTEMPTS_MIN,
    FAILURES_IN_ROW,
    RECOVERED,
    RESTS,
    Cause,
    Condition,
    Health,
)


def after(outcomes: str) -> Health:
    """A worker's record after these: + went well, - failed."""
    made = Health()
    for outcome in outcomes:
        made.succeeded() if outcome == "+" else made.failed()
    return made


@pytest.mark.parametrize(
    ("outcomes", "others_share", "failing"),
    [
        ("", 0.0, False),
        ("-" * (FAILURES_IN_ROW - 1), 0.0, False),
        ("-" * FAILURES_IN_ROW, 0.0, True),
        ("+" * 50 + "-" * FAILURES_IN_ROW, 0.0, True),
        ("---+---+", 0.0, False),
        ("-" * FAILURES_IN_ROW, 0.6, False),
        ("-" * 50, 1.0, False),
        ("++-" * 10, 0.0, True),
        ("++-" * 10, 0.3, False),
        ("++-" * 4, 0.0, False),
        ("+" * 49 + "-", 0.0, False),
    ],
    ids=[
        "nothing known",
        "few in a row",
        "enough in a row",
        "enough in a row after a good life",
        "few attempts, some good",
        "the others fail as well",
        "everything fails everywhere",
        "a third of its requests, none of the others'",
        "a third of everybody's requests",
        "a third of too few to tell",
        "one of fifty",
    ],
)
def test_failing(outcomes, others_share, failing):
    assert after(outcomes).failing(others_share) is failing


@given(st.lists(st.booleans(), max_size=200))
def test_share_is_of_the_last_attempts(outcomes):
    made = after("".join("+" if well else "-" for well in outcomes))
    assert 0 <= made.failing_share <= 1
    if outcomes and len(outcomes) <= 50:
        assert made.failing_share == pytest.approx(outcomes.count(False) / len(outcomes))
    for _ in range(300):
        made.succeeded()
    assert made.failing_share < 0.01
    assert not made.failing(0.0)


@pytest.mark.parametrize("cause", Cause)
def test_rests_double_up_to_a_bound_and_start_again_after_a_recovery(cause):
    made, rests = Health(), []
    for _ in range(12):
        made.eject(cause, 100.0)
        rests.append(made.until_s - 100.0)
        made.probe()
        made.try_out()
    assert rests[:3] == [RESTS[cause].first_s * factor for factor in (1, 2, 4)]
    assert rests[-1] == RESTS[cause].longest_s
    made.restore()
    for _ in range(RECOVERED - 1):
        made.succeeded()
    assert made.ejections, "not yet"
    made.succeeded()
    made.eject(cause, 0.0)
    assert made.until_s == RESTS[cause].first_s


def test_offered_only_while_sound_or_to_be_tried():
    made = Health()
    assert made.offered(0.0)
    made.eject(Cause.FAILING, 0.0)
    assert not made.offered(made.until_s - 0.01)
    assert made.offered(made.until_s), "also when nobody has noticed yet that the rest is over"
    made.probe()
    assert made.offered(0.0)
    made.try_out()
    assert not made.offered(1e9)
    made.restore()
    assert made.offered(0.0)


def test_frozen_worker_s_rest_does_not_end_by_itself():
    made = Health()
    made.eject(Cause.FROZEN, 0.0)
    assert not made.offered(1e9)
    assert not made.due(1e9)


def test_restored_worker_is_out_again_at_its_first_failure():
    made = after("-" * FAILURES_IN_ROW)
    made.eject(Cause.FAILING, 0.0)
    made.probe()
    made.try_out()
    made.restore()
    assert made.condition is Condition.SOUND
    made.failed()
    assert made.failing(0.0)


def test_restored_worker_that_does_well_has_a_clean_record():
    made = after("-" * FAILURES_IN_ROW)
    made.restore()
    for _ in range(ATTEMPTS_MIN):
        made.succeeded()
    made.failed()
    assert not made.failing(0.0)
