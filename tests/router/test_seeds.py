"""Speeds by the capacity model, before anything is measured."""

import pytest

from forebay_capacity.batch import prefill_seconds
from forebay_router.discovery.seeds import seed_of_timer
from forebay_router.fitting import work_of
from forebay_simulator.fleet.spec import EngineSpec


@pytest.mark.parametrize("tokens", [256, 2048, 8192, 32_768, 65_536])
def test_prompts_of_all_lengths_are_expected_to_take_what_the_model_says(tokens):
    timer = EngineSpec().served().timer
    seed = seed_of_timer(timer)
    expected_s = seed.first_token_s + seed.prefill_token_s * work_of(tokens, tokens, seed.bend)
    assert expected_s == pytest.approx(prefill_seconds(timer, tokens), rel=0.1)
