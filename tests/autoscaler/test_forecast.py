"""What is forecast of rates that are known: steps, ramps, rhythms, chance; and what orders and backlogs come to."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_autoscaler.demand import Demand, backlog_ahead
from forebay_autoscaler.forecast import Forecast, Method, take
from forebay_autoscaler.habits import burst_of, dispersion_of, echo_of, in_pairs
from forebay_autoscaler.orders import Orders
from forebay_autoscaler.past import LENGTH_MAX, Past
from forebay_autoscaler.season import GRID, PERIOD_MIN, find_season
from forebay_autoscaler.trend import line_of

BIN_S, LEAD = 15.0, 8.0


def followed(rate: Callable[[float], float], seconds: float, *, seed: int = 1, lead: float = LEAD) -> Forecast:
    """The forecast after so long, with Poisson-like counts."""
    chance, forecast, now_s = random.Random(seed), Forecast(), 0.0
    while now_s < seconds:
        now_s += BIN_S
        mean = rate(now_s - BIN_S / 2) * BIN_S
        count = max(0.0, chance.gauss(mean, math.sqrt(mean)))
        past = forecast.past.take(now_s, count / BIN_S, over_s=BIN_S, bin_s=BIN_S)
        forecast = take(forecast, past, lead=lead, bin_s=BIN_S)
    return forecast


def ahead(forecast: Forecast, seconds: float) -> float:
    found = forecast.rate_at(seconds / BIN_S + LEAD, LEAD)
    assert found is not None
    return found


def wave(now_s: float) -> float:
    return 12.5 - 11.5 * math.cos(2 * math.pi * now_s / 900)


@pytest.mark.parametrize("seed", range(3))
def test_a_step_is_not_taken_for_a_slope(seed):
    for seconds in range(300, 480, 15):
        forecast = followed(lambda now_s: 10.0 if now_s < 300 else 40.0, seconds, seed=seed)
        assert ahead(forecast, seconds) < 55


def test_a_steady_rise_is_followed_to_where_it_will_be():
    forecasts = [followed(lambda now_s: 5 + now_s / 20, 600, seed=seed) for seed in range(8)]
    found = sum(ahead(forecast, 600) for forecast in forecasts) / len(forecasts)
    assert found == pytest.approx(5 + (600 + LEAD * BIN_S) / 20, rel=0.1)
    assert all(forecast.method is Method.TREND for forecast in forecasts)


def test_a_steady_rate_is_a_level():
    forecast = followed(lambda _: 40.0, 1200)
    assert forecast.method in (Method.LEVEL, Method.ECHO), "an echo of a level is one"
    assert ahead(forecast, 1200) == pytest.approx(40, rel=0.1)
    assert forecast.dispersion < 2


@pytest.mark.parametrize("seed", range(5))
def test_a_rise_after_a_quiet_night_is_followed_at_once(seed):
    """All night a level lost least, which says nothing of the morning."""
    night_s, lead = 1800.0, 4.0

    def rate(now_s: float) -> float:
        return 2.0 if now_s < night_s else min(14.0, 2.0 + (now_s - night_s) / 8)

    assert not followed(rate, night_s, seed=seed).rises
    minute = followed(rate, night_s + 60.0, seed=seed)
    assert minute.rises
    assert minute.method is not Method.LEVEL
    found = minute.rate_at((night_s + 60.0) / BIN_S + lead, lead)
    assert found is not None
    assert found > 1.2 * rate(night_s + 60.0), "where it will be, not where it is"


@pytest.mark.parametrize("seed", range(3))
def test_one_surprise_is_no_habit_of_falling_short(seed):
    """A rise within three minutes, where a worker takes five: twenty forecasts did not know of it, and it is one event."""

    def rate(now_s: float) -> float:
        return 6.0 + 18.0 * min(1.0, max(0.0, (now_s - 900.0) / 180.0))

    after = followed(rate, 1500.0, seed=seed, lead=20.0)
    assert sum(error > 5.0 for error in after.errors) >= 0.3 * len(after.errors)
    assert after.shortfall < 1.0


def test_what_most_forecasts_lack_is_added_to_the_next():
    forecast = followed(lambda _: 10.0, 600.0)
    for number in range(40, 100):
        forecast = replace(forecast, pending=((number, (7.0, 7.0, None, 7.0)),))
        past = forecast.past.take((number + 1) * BIN_S, 9.0, over_s=BIN_S, bin_s=BIN_S)
        forecast = take(forecast, past, lead=LEAD, bin_s=BIN_S)
    assert forecast.shortfall == pytest.approx(2.0)


def test_chance_is_seldom_taken_for_a_rise():
    chance, lines = random.Random(2), []
    for _ in range(300):
        values = [max(0.0, chance.gauss(2.0, math.sqrt(2.0 / BIN_S))) for _ in range(40)]
        lines.append(line_of(values, 40, dispersion=1.0, lead=4.0, bin_s=BIN_S))
    assert sum(line.rises_surely(4.0) for line in lines) < 0.05 * len(lines)


@pytest.mark.parametrize(("before", "after"), [(2.0, 8.0), (8.0, 2.0)])
@pytest.mark.parametrize("since", [5, 10, 15])
def test_a_step_that_is_over_rises_no_more(before, after, since):
    """Which of its bins lie a little above the others is chance."""
    chance, lines = random.Random(3), []
    for _ in range(100):
        rates = [before] * (40 - since) + [after] * since
        values = [max(0.0, chance.gauss(rate, math.sqrt(rate / BIN_S))) for rate in rates]
        lines.append(line_of(values, 40, dispersion=1.0, lead=4.0, bin_s=BIN_S))
    assert sum(line.rises_surely(4.0) for line in lines) < 0.05 * len(lines)


def test_a_rhythm_is_found_used_and_dropped_when_it_ends():
    forecast = followed(wave, 3000)
    assert forecast.method in (Method.SEASON, Method.ECHO), "what came before comes again"
    assert forecast.season.period * BIN_S == pytest.approx(900, rel=0.03)
    assert ahead(forecast, 3000) == pytest.approx(wave(3000 + LEAD * BIN_S), abs=2.5)
    ended = followed(lambda now_s: wave(now_s) if now_s < 2700 else 1.0, 4500)
    assert ended.method is not Method.SEASON
    assert ahead(ended, 4500) < 3


def test_no_rhythm_is_found_in_chance():
    chance = random.Random(3)
    values = [chance.gauss(20, math.sqrt(20 / BIN_S)) for _ in range(160)]
    assert find_season(values, 0, 20 / BIN_S) is None


@pytest.mark.parametrize("first", [1, 1000, 10**8 + 7])
def test_a_rhythm_is_the_same_wherever_bins_are_counted_from(first):
    turn = 2 * math.pi / (PERIOD_MIN * GRID**10)
    values = [20 + 9 * math.sin(number * turn) + 3 * math.cos(2 * number * turn) for number in range(160)]
    counted_from_zero, counted = find_season(values, 0, 1.0), find_season(values, first, 1.0)
    assert counted is not None
    assert counted_from_zero is not None
    for number, value in enumerate(values):
        assert counted.at(first + number) == pytest.approx(counted_from_zero.at(number), abs=1e-5)
        assert counted.at(first + number) == pytest.approx(value, abs=0.01)


def test_an_echo_knows_a_rise_after_the_first_one():
    values = [wave(number * BIN_S) for number in range(int(960 / BIN_S))]
    found = echo_of(in_pairs(values[5:]), int(LEAD), dispersion=1.0, bin_s=BIN_S)
    assert found is None or found > 0
    again = [wave(number * BIN_S) for number in range(int(1020 / BIN_S))]
    known = echo_of(in_pairs(again), int(LEAD), dispersion=1.0, bin_s=BIN_S)
    assert known is not None
    assert known > 2 * again[-1]


def test_one_step_among_quiet_minutes_is_no_habit():
    assert burst_of(in_pairs([10.0] * 100 + [40.0] * 20 + [10.0] * 30), 4) == 0.0
    assert burst_of(in_pairs([wave(number * BIN_S) for number in range(120)]), 8) > 2


def test_dispersion_is_one_for_poisson_and_more_for_bursts():
    chance = random.Random(5)
    poisson = [chance.gauss(20, math.sqrt(20 / BIN_S)) for _ in range(60)]
    bursty = [chance.gauss(20, math.sqrt(3 * 20 / BIN_S)) for _ in range(60)]
    assert dispersion_of(poisson, BIN_S) < 1.8
    assert dispersion_of(bursty, BIN_S) > 1.8


@settings(deadline=None)
@given(values=st.lists(st.floats(0, 1000), min_size=1, max_size=60), lead=st.floats(1, 40))
def test_a_line_is_finite_and_never_below_zero(values, lead):
    line = line_of(values, 100, dispersion=1.0, lead=lead, bin_s=BIN_S)
    for position in (99.0, 100.0, 100.0 + lead):
        assert 0 <= line.at(position) < 1e5
        assert 0 <= line.at_least(position, 0.8) < 1e5


@settings(deadline=None)
@given(
    scrapes=st.lists(st.tuples(st.floats(0.5, 400), st.floats(0, 100)), max_size=60),
    bin_s=st.sampled_from([15.0, 60.0]),
)
def test_the_past_is_bounded_and_its_bins_consecutive(scrapes, bin_s):
    past, now_s = Past(), 0.0
    for after_s, rate in scrapes:
        now_s += after_s
        past = past.take(now_s, rate, over_s=min(after_s, 60.0), bin_s=bin_s)
        assert all(len(level.values) <= LENGTH_MAX for level in past.levels)
        assert all(0 <= value <= 100 + 1e-9 for level in past.levels for value in level.values)
        assert past.fine.end <= now_s / bin_s + 1


def test_a_scrape_that_was_seen_before_is_no_news():
    past = Past().take(20.0, 5.0, over_s=15.0, bin_s=15.0)
    assert past.take(20.0, 50.0, over_s=15.0, bin_s=15.0) == past


# ---- orders and backlog


def test_orders_teach_start_up_time_oldest_first():
    """An order that is seen was given at the look before."""
    orders = Orders().follow(wanted=2, ready=2, now_s=10)
    orders = orders.follow(wanted=4, ready=2, now_s=40).follow(wanted=5, ready=2, now_s=50)
    assert orders.waiting == ((10, 2), (40, 1))
    assert orders.coming(40, 120) == ((90.0, 2), (120.0, 1))
    orders = orders.follow(wanted=5, ready=4, now_s=110)
    assert orders.startup_s == 100
    assert orders.waiting == ((40, 1),)
    assert orders.follow(wanted=4, ready=4, now_s=120).waiting == ()
    assert orders.follow(wanted=5, ready=5, now_s=200).startup_s == 160, "a longer one counts at once"


def test_a_lost_worker_is_ordered_anew_and_an_overdue_order_is_given_up():
    orders = Orders(startup_s=60.0).follow(wanted=3, ready=3, now_s=10).follow(wanted=3, ready=2, now_s=20)
    assert orders.waiting == ((10, 1),)
    assert orders.coming(20, 120) == ((50.0, 1),)
    assert orders.coming(200, 120) == ()
    assert orders.lead_s(100, 120) == 90, "while an order waits longer than the estimate, that is the estimate"


@pytest.mark.parametrize(
    ("ready", "coming", "left"),
    [(1, (), 50.0), (2, (), 0.0), (1, ((27.0, 1),), 23.0), (1, ((0.0, 1),), 0.0), (1, ((60.0, 9),), 50.0)],
)
def test_a_backlog_is_left_as_far_as_nobody_has_time_for_it(ready, coming, left):
    """9 a second are asked, a worker does 9, a new one takes 30 s: each second worker works 9 off a second until then."""
    demand = Demand(rate_per_s=9.0, backlog=50.0, running=0.0, lead_s=30.0)
    assert backlog_ahead(demand, ready=ready, coming=coming, good_rate_per_s=9.0) == pytest.approx(left)


def test_all_of_a_backlog_is_left_while_nobody_knows_who_works_it_off():
    demand = Demand(rate_per_s=None, backlog=50.0, running=0.0, lead_s=30.0)
    assert backlog_ahead(demand, ready=9, coming=(), good_rate_per_s=9.0) == 50
