"""Prefill and decode under load that rises and falls, in a plant that takes a second for half an hour."""

import math

import pytest

from forebay_autoscaler.credit import PATIENCE_DELAYS
from forebay_autoscaler.learn import Learnt
from forebay_autoscaler.orders import Orders
from forebay_autoscaler.state import PoolState, ServiceState
from tests.autoscaler.split_plant import SplitPlant


def wave(now_s: float) -> float:
    """1 to 24 requests a second and back in 900 s."""
    return 12.5 - 11.5 * math.cos(2 * math.pi * now_s / 900)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_wave_is_served_with_fewer_workers_than_its_peak_needs(seed):
    """Start-up 30 s: static 5 and 7 would take 7.0 GPU-hours."""
    plant = SplitPlant(wave, seed=seed, startup_s=30.0).run(2100)
    assert plant.attainment >= 0.97
    assert plant.gpu_hours <= 5.6


def test_a_wave_that_was_seen_before_is_met_even_when_workers_take_two_minutes():
    plant = SplitPlant(wave, seed=1).run(2700)
    good, bad, gpu_s = plant.counts["good"], plant.counts["bad"], plant.gpu_s
    plant.run(4500)
    good, bad = plant.counts["good"] - good, plant.counts["bad"] - bad
    assert good / (good + bad) >= 0.97
    assert (plant.gpu_s - gpu_s) / 3600 <= 5.5, "of half an hour; static 5 and 7 would take 6.0"


def test_a_steady_load_settles():
    plant = SplitPlant(lambda _: 12.0, sizes=(3, 4), startup_s=60.0, scale_down_window_s=300.0, seed=2).run(1200)
    before = len(plant.decisions)
    plant.run(3000)
    changes = sum(pool.desired != pool.current for one in plant.decisions[before:] for pool in one.pools)
    assert changes <= 6, "half an hour, two pools"
    assert plant.attainment >= 0.97


@pytest.mark.parametrize(
    ("measured", "leads"),
    [
        ({}, {"prefill": 120.0, "decode": 120.0}),
        ({"prefill": 40.0}, {"prefill": 40.0, "decode": 40.0}),
        ({"prefill": 40.0, "decode": 200.0}, {"prefill": 40.0, "decode": 200.0}),
    ],
)
def test_a_pool_that_started_no_worker_yet_is_taken_to_start_them_as_the_services_others_do(measured, leads):
    plant = SplitPlant(lambda _: 5.0)
    known = {name: PoolState(learnt=Learnt(orders=Orders(startup_s=seconds))) for name, seconds in measured.items()}
    plant.state = ServiceState(pools=known)
    plant.run(40)
    decision = plant.decisions[-1]
    assert {pool.name: pool.demand.lead_s for pool in decision.pools} == leads
    delay_s = max(leads.values()) + plant.tuning.rate_window_s
    assert decision.state.credit.patience_s == pytest.approx(PATIENCE_DELAYS * delay_s), "the credit waits as long"
