"""Step times against kernel tables and against a measured run of vLLM."""

import pytest

from forebay_capacity.steptime import step_timer
from tests.capacity.kernels import Stage, measured_stages
from tests.capacity.report import (
    H100,
    KERNELS,
    LLAMA_8B,
    LLAMA_70B,
    decode_comparisons,
    load_comparison,
    prefill_comparisons,
    rms,
    saturation,
    simulated_comparison,
    table_8b,
    table_70b,
    worst,
)

STAGES = measured_stages()
CACHED = [stage for stage in STAGES if stage.variant == "chunking_and_prefix_caching"]
PLAIN = [stage for stage in STAGES if stage.variant == "plain"]


def test_decode_of_8b_is_within_8_percent_of_every_kernel_sum():
    comparisons = decode_comparisons(table_8b(), step_timer(LLAMA_8B, H100, calibration=KERNELS), 445_000)
    assert len(comparisons) > 100
    assert abs(worst(comparisons).error) <= 0.08, worst(comparisons)
    assert rms(comparisons) <= 0.04


def test_prefill_of_8b_is_within_6_percent_of_every_kernel_sum():
    comparisons = prefill_comparisons(table_8b(), step_timer(LLAMA_8B, H100, calibration=KERNELS))
    assert abs(worst(comparisons).error) <= 0.06, worst(comparisons)


@pytest.mark.parametrize(("tensor", "bound"), [(2, 0.08), (4, 0.05), (8, 0.10)])
def test_70b_follows_its_kernels_without_a_fit_of_its_own(tensor: int, bound: float):
    """Only the all-reduce was fitted on these; the rest is the 8B calibration scaled."""
    timer, table = step_timer(LLAMA_70B, H100, tensor=tensor, calibration=KERNELS), table_70b(tensor)
    comparisons = [*decode_comparisons(table, timer, 1_000_000), *prefill_comparisons(table, timer)]
    assert rms(comparisons) <= bound
    assert abs(worst(comparisons).error) <= 0.19, worst(comparisons)


def test_fp8_follows_its_kernels():
    timer, table = step_timer(LLAMA_8B, H100, weights="fp8", calibration=KERNELS), table_8b("fp8")
    assert rms([*decode_comparisons(table, timer, 445_000), *prefill_comparisons(table, timer)]) <= 0.06


def test_the_step_of_the_mean_load_meets_the_measured_run():
    """Step time is convex in its tokens, so the step of the mean load is short of the mean step at the knee."""
    comparisons = [load_comparison(stage, step_timer(LLAMA_8B, H100)) for stage in STAGES]
    assert len(comparisons) == 28
    assert rms(comparisons) <= 0.065
    assert all(one.error <= 0.10 for one in comparisons)


@pytest.mark.parametrize("stage", CACHED[:5], ids=lambda stage: stage.name)
def test_a_simulated_run_is_within_10_percent_of_the_measured_tpot(stage: Stage):
    comparison = simulated_comparison(stage, step_timer(LLAMA_8B, H100), seconds=12)
    assert abs(comparison.error) <= 0.10, comparison


@pytest.mark.parametrize(("stages", "low", "high"), [(CACHED, 160, 185), (PLAIN, 95, 110)], ids=["cached", "plain"])
def test_a_simulated_run_saturates_where_the_measured_one_did(stages: list[Stage], low: float, high: float):
    assert low <= saturation(stages[5], step_timer(LLAMA_8B, H100), requests=4000) <= high
