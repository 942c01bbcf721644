"""Speeds by the capacity model, before anything is measured."""

from dataclasses import replace

import pytest

from forebay_capacity.batch import prefill_seconds
from forebay_capacity.steptime import timer_of
from forebay_router.discovery.seeds import _through, seed_of, seed_of_timer
from forebay_router.fitting import BEND_MAX, work_of
from forebay_simulator.fleet.spec import EngineSpec


@pytest.mark.parametrize("tokens", [256, 2048, 8192, 32_768, 65_536])
def test_prompts_of_all_lengths_are_expected_to_take_what_the_model_says(tokens):
    timer = EngineSpec().served().timer
    seed = seed_of_timer(timer)
    expected_s = seed.first_token_s + seed.prefill_token_s * work_of(tokens, tokens, seed.bend)
    assert expected_s == pytest.approx(prefill_seconds(timer, tokens), rel=0.1)


def test_a_small_gpu_computes_long_prompts_in_more_steps():
    """As vLLM does on it, and as the simulated engine does."""
    spec = EngineSpec(accelerator="l40s")
    worker = spec.worker()
    tokens = spec.served().scheduler.max_batched_tokens
    assert worker.step_tokens == tokens == 2048
    seed = seed_of(worker)
    assert seed == replace(spec.seed(), kv_tokens=seed.kv_tokens)
    assert seed != seed_of_timer(timer_of(worker), worker.lanes, seed.kv_tokens)


THREE = {
    "a timer that tells all prompts alike": ((0.02, 0.02, 0.02), (0.0, 0.0)),
    "a straight line": ((256e-5, 2048e-5, 32_768e-5), (1e-5, 0.0)),
    "steeper than any such curve": ((0.0, 0.01792, 60.0), (1e-5, 0.0)),
    "as steep as the curve may be": ((0.0, 0.01792, 0.01792 + 4.4), None),
}


@pytest.mark.parametrize("case", THREE)
def test_a_curve_through_three_prompts_is_never_beyond_what_a_learnt_one_may_be(case):
    times, expected = THREE[case]
    token_s, bend = _through(*times)
    assert 0 <= bend <= BEND_MAX
    if expected is not None:
        assert (token_s, bend) == pytest.approx(expected)
    else:
        assert bend == BEND_MAX
        assert token_s * (1 + bend * (256 + 2048)) == pytest.approx(1e-5), "the usual prompt takes what it takes"
