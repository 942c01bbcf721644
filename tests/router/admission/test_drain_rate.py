"""How fast a queue is served."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_router.admission.drain_rate import LEAST_S, DrainRate


def test_guess_holds_until_something_is_seen():
    rate = DrainRate()
    rate.begin(100.0, 4.0)
    assert rate.per_s(100.0) == pytest.approx(4.0)


def test_nothing_is_known_without_a_guess():
    rate = DrainRate()
    rate.begin(100.0, None)
    assert rate.per_s(100.1) is None
    rate.served(1.0, 100.2)
    assert rate.per_s(100.0 + LEAST_S / 2) is None
    rate.served(1.0, 102.0)
    assert rate.per_s(102.0) == pytest.approx(1.0, rel=0.1)


def test_queue_that_stands_still_has_no_rate_for_ever():
    rate = DrainRate()
    rate.begin(0.0, None)
    assert rate.per_s(50.0) is None


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_measured_rate_takes_the_guess_s_place(guess, real):
    rate = DrainRate()
    rate.begin(0.0, guess)
    for second in range(1, 101):
        rate.served(real, float(second))
    assert rate.per_s(100.0) == pytest.approx(real, rel=0.05, abs=0.02 * guess)


def test_rate_falls_when_nothing_is_served_any_more():
    rate = DrainRate()
    rate.begin(0.0, 10.0)
    rates = [rate.per_s(float(second)) for second in range(60)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 1
