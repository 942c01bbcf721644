"""The measured H100 run, replayed in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay_simulator.engine.measured_run import VARIANTS, read_measured, replay, table

MEASURED = read_measured(Path(__file__).parents[2] / "data/capacity/h100_llama31_8b_vllm0110_measured.csv.gz")
CACHED, PLAIN, LARGER = VARIANTS


@pytest.mark.slow
@pytest.mark.parametrize("stage", range(5))
def test_time_per_output_token_is_within_a_tenth_of_the_measured(stage):
    real = MEASURED[CACHED.name][stage]
    assert replay(CACHED, real).tpot_s == pytest.approx(real.tpot_s, rel=0.10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "low", "high"),
    [(CACHED, 160, 185), (PLAIN, 95, 110), (LARGER, 105, 120)],
    ids=lambda v: getattr(v, "name", v),
)
def test_the_engine_saturates_where_the_measured_one_does(variant, low, high):
    for real in MEASURED[variant.name][5:]:
        assert real.requested_per_s > high
        assert low < replay(variant, real).completed_per_s < high


def test_a_replay_depends_on_its_seed_alone():
    real = MEASURED[CACHED.name][1]
    assert replay(CACHED, real, seed=1) == replay(CACHED, real, seed=1)
    assert replay(CACHED, real, seed=1) != replay(CACHED, real, seed=2)


def test_the_table_in_the_docs_is_the_one_that_is_printed():
    """Only its first stages: the whole takes ten seconds."""
    docs = (Path(__file__).parents[3] / "docs/simulated-engine.md").read_text(encoding="utf-8")
    few = {name: stages[:2] for name, stages in MEASURED.items()}
    for line in table(few):
        assert line in docs
