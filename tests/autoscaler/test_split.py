"""Prefill and decode under load that rises and falls, in a plant that takes a second for half an hour."""

import math

import pytest

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
