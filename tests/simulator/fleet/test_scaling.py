"""What autoscalers see of a simulated fleet, and what they do with it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from forebay_autoscaler.decide import decide
from forebay_autoscaler.policy import Tuning
from forebay_autoscaler.queries import Signal
from forebay_simulator.fleet.autoscaling import AutoscalerSpec
from forebay_simulator.fleet.clairvoyance import MARGINS, Clairvoyant, cheapest
from forebay_simulator.fleet.horizontal import Past
from forebay_simulator.fleet.metrics import Scraping, answer_all
from forebay_simulator.fleet.policies import SCALING
from forebay_simulator.fleet.report import scores_of
from forebay_simulator.fleet.scaling import bounded
from forebay_simulator.fleet.scenarios import SCENARIOS
from forebay_simulator.fleet.scrapes import Target, irate, mean, rate
from forebay_simulator.fleet.simulation import Run, Setting, simulate
from forebay_simulator.fleet.sizing import expectation, mean_request
from forebay_simulator.fleet.traces.generators import fixed, generate, steps

from .fleets import chats, mixed, run, split

# ---- Prometheus' functions


def every(gap_s: float, values: list[float], first_s: float = 0.0) -> list[tuple[float, float]]:
    return [(first_s + gap_s * number, value) for number, value in enumerate(values)]


@pytest.mark.parametrize(
    ("samples", "now_s", "length_s", "expected"),
    [
        # Values that promql/functions.go gives for these samples.
        (every(15, [0, 15, 30, 45, 60]), 60.0, 60.0, 1.0),  # the whole window is covered
        (every(15, [100, 115, 130, 145], 5.0), 60.0, 60.0, 1.0),  # ends within 1.1 gaps: extrapolated to both
        (every(15, [100, 115, 130], 20.0), 60.0, 60.0, 30 * (30 + 7.5 + 10) / 30 / 60),  # half a gap at a far end
        (every(15, [1, 16, 31], 20.0), 60.0, 60.0, 30 * (30 + 1 + 10) / 30 / 60),  # not beyond where it was zero
        (every(15, [50, 65, 5, 20], 15.0), 60.0, 60.0, (20 - 50 + 65) * (45 + 15) / 45 / 60),  # a reset in between
        (every(15, [7, 7, 7, 7], 15.0), 60.0, 60.0, 0.0),
        (every(15, [7]), 60.0, 60.0, None),
        ([], 60.0, 60.0, None),
    ],
)
def test_a_rate_is_prometheus_rate(samples, now_s, length_s, expected):
    found = rate(samples, now_s, length_s)
    assert found is None if expected is None else found == pytest.approx(expected)


def test_the_latest_rate_and_the_mean_over_time_are_prometheus_ones():
    assert irate([(0.0, 5.0), (15.0, 20.0), (30.0, 80.0)]) == 4.0
    assert irate([(15.0, 20.0), (30.0, 3.0)]) == 0.2  # began anew: all of it is growth
    assert irate([(15.0, 20.0)]) is None
    assert mean([(0.0, 1.0), (15.0, 3.0)]) == 2.0
    assert mean([]) is None


def test_a_window_is_open_on_its_left():
    target = Target(("x",), lambda: (0.0,))
    target.rows.extend([(0.0, (1.0,)), (15.0, (2.0,)), (30.0, (3.0,)), (45.0, (4.0,))])
    assert target.window("x", 45.0, 30.0) == [(30.0, 3.0), (45.0, 4.0)]


def test_a_series_is_seen_for_five_minutes_or_until_its_target_has_gone():
    target = Target(("x",), lambda: (1.0,))
    assert not target.seen(0.0)
    target.scrape(10.0, 700.0)
    assert target.seen(309.0)
    assert not target.seen(310.0)
    target.gone = True
    assert not target.seen(11.0)


# ---- what the autoscaler is told


def at_work(fleet, trace, seconds: float, **fields) -> Run:
    """A run that stands still at a time."""
    going = Run(Setting(fleet=fleet, trace=trace, **fields))
    going._enter(0)
    going._scale_later()
    going.agenda.run(seconds)
    return going


def test_every_question_of_the_autoscaler_is_answered():
    going = at_work(split(2, 2), chats(10, 200), 150.0, scraping=Scraping(interval_s=5.0))
    answers = answer_all(going.watch, Tuning(), 300.0)
    assert set(answers) == set(Signal)
    assert all(answers.values())


def test_the_autoscaler_reads_what_is_there():
    going = at_work(split(2, 2), chats(10, 400, output=300), 300.0, scaling="forebay")
    seen = going.scaling.observe(going.watch)
    signals = seen.signals
    assert signals.arrived_per_s.known == pytest.approx(10, rel=0.2)
    assert signals.prompt_tokens_per_s.known == pytest.approx(10_000, rel=0.2)
    assert signals.output_tokens_per_s.known == pytest.approx(3_000, rel=0.2)
    assert signals.good_per_s.known == pytest.approx(10, rel=0.15)
    assert signals.arrived_per_s.age_s <= 15.0
    prefill, decode = seen.pools
    assert prefill.counts.ready == decode.counts.ready == 2
    assert prefill.signals.finished_per_s.known == pytest.approx(10, rel=0.2)
    assert decode.signals.running_mean.known == pytest.approx(
        decode.signals.finished_per_s.known * decode.signals.service_time_s.known, rel=0.2
    )  # Little's law


def test_prometheus_down_is_unknown_and_nothing_shrinks():
    going = at_work(mixed(4), chats(4, 900), 850.0, scaling="forebay", scraping=Scraping(outages=((100.0, 2000.0),)))
    assert going.scaling.observe(going.watch).signals.arrived_per_s.known is None
    assert going.members.pools["mixed"].wanted == 4
    assert going.scaling.observe(going.watch).trouble


def test_decisions_of_a_run_can_be_made_again():
    """Each decision depends on policy, state, observation and time alone."""
    going = at_work(mixed(2), chats(12, 400), 390.0, scaling="forebay")
    scaling = going.scaling
    before = scaling.state
    observation = scaling.observe(going.watch)
    assert decide(scaling.policy, before, observation, 390.0) == decide(scaling.policy, before, observation, 390.0)
    assert len(scaling.decisions) == 39


# ---- what policies do


def test_forebay_grows_with_the_load_and_shrinks_after_it():
    trace = generate("step", steps((0.0, 4.0), (120.0, 30.0), (320.0, 4.0)), fixed(1000, 50), duration_s=700, seed=3)
    spec = AutoscalerSpec(scale_down_window_s=90.0)
    done = run(mixed(1), trace, scaling="forebay", autoscaler=spec, scraping=Scraping(interval_s=5.0))
    numbers = done.members.pools["mixed"].numbers
    most = max(count for _, count in numbers)
    assert most >= 3
    assert numbers[-1][1] <= most // 2
    assert scores_of(done).scaling_steps == len(numbers) - 1


@pytest.mark.parametrize("name", [name for name in SCALING if name not in ("static", "clairvoyant")])
def test_every_autoscaler_meets_ten_times_the_load_with_more_workers(name):
    trace = generate("step", steps((0.0, 4.0), (100.0, 40.0)), fixed(1000, 100), duration_s=250, seed=3)
    done = run(mixed(1), trace, scaling=name, scraping=Scraping(interval_s=5.0))
    numbers = [count for _, count in done.members.pools["mixed"].numbers]
    assert 2 <= max(numbers) <= 16, "no more than some times what is right: workers that start are counted"
    assert numbers[-1] >= 2


def test_the_bound_is_ready_in_time_and_lets_go_at_once():
    trace = generate("step", steps((0.0, 4.0), (120.0, 30.0), (300.0, 4.0)), fixed(1000, 100), duration_s=500, seed=3)
    done = run(mixed(1), trace, scaling=lambda fleet, trace, _spec: Clairvoyant(fleet, trace, 1.3))
    numbers = done.members.pools["mixed"].numbers
    most = max(count for _, count in numbers)
    grown_s = min(at_s for at_s, count in numbers if count == most)
    shrunk_s = max(at_s for at_s, count in numbers if count == most - 1 or count < most)
    assert grown_s < 120.0
    assert 290.0 < shrunk_s < 330.0
    assert scores_of(done).attainment > 0.95


@pytest.mark.parametrize("best", MARGINS)
@pytest.mark.parametrize("least", MARGINS[::3])
def test_the_bound_is_the_smallest_margin_that_meets_the_target(best, least):
    tried = []

    def attainment_of(margin: float) -> float:
        tried.append(margin)
        return 0.95 if margin >= best else 0.94

    assert cheapest(attainment_of, 0.95, least=least) == max(best, least)
    assert max(best, least) in tried
    assert len(tried) == len(set(tried)) <= 5
    assert cheapest(lambda _margin: None, 0.95) == MARGINS[-1]


def test_an_expectation_is_what_a_full_worker_does():
    """The expectation is a mean: at 0.6 of its rate nearly all is good, at 1.6 of it little is."""
    fleet = mixed(1)
    mix = mean_request(chats(1, 50).arrivals)
    good_rate = expectation(fleet.pools[0], mix, fleet.objective).good_rate_per_s
    assert scores_of(run(fleet, chats(0.6 * good_rate, 40))).attainment > 0.95
    assert scores_of(run(fleet, chats(1.6 * good_rate, 40))).attainment < 0.6


def test_numbers_stay_within_bounds_and_budget():
    fleet = replace(split(2, 2), budget_gpus=6)
    current = {"prefill": 2, "decode": 2}
    assert bounded(fleet, current, {"prefill": 9, "decode": 2}) == {"prefill": 4, "decode": 2}
    assert bounded(fleet, current, {"prefill": 0, "decode": 99}) == {"prefill": 1, "decode": 5}
    assert bounded(fleet, current, {}) == current
    assert bounded(fleet, {"prefill": 4, "decode": 4}, {"prefill": 4, "decode": 4}) == {"prefill": 4, "decode": 4}


def test_the_past_is_remembered_for_its_window():
    past = Past(10.0)
    assert [past.highest(at_s, value) for at_s, value in ((0, 5), (4, 2), (11, 3), (22, 1))] == [5, 5, 3, 1]


def test_outages_have_a_beginning_and_an_end():
    scraping = Scraping(outages=((10.0, 20.0),))
    assert [scraping.down(at_s) for at_s in (9.9, 10.0, 19.9, 20.0)] == [False, True, True, False]
    assert not Scraping().down(math.inf)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_on_a_rise_the_routers_own_choice_is_as_good_as_least_load():
    """Prefill and decode apart, too few of both: no prompts on decode workers that are full, and no fresh worker left empty.

    The prompts share nothing, so there is nothing to gain but balance, and most to lose: a fifth of all where decode workers take
    what prefill workers have in their queue. One seed is off by up to three points, so five are let pass.
    """
    ramp = SCENARIOS["ramp"]
    good = {}
    for routing in ("least-load", "forebay"):
        setting = Setting(
            fleet=ramp.fleet,
            trace=ramp.trace(1).first(600.0),
            routing=routing,
            scaling="forebay",
            autoscaler=ramp.autoscaler,
            scraping=ramp.scraping,
            seed=1,
        )
        good[routing] = scores_of(simulate(setting)).attainment or 0.0
    assert good["forebay"] > good["least-load"] - 0.05, good
    assert good["forebay"] > 0.8, good
