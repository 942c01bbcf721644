"""The published traces read as published: counts, lengths, burstiness and reuse (traces/README.md has the sources)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from forebay_simulator.fleet.jobs import PromptBlocks
from forebay_simulator.fleet.traces.files import read_azure, read_lmcache, read_mooncake, read_week
from forebay_simulator.fleet.traces.scaling import MOONCAKE_TICK_S, jittered, overlaid
from forebay_simulator.fleet.traces.statistics import dispersion, gap_variation, ideal_reuse, lengths
from forebay_simulator.fleet.traces.trace import Arrival, Trace, TraceError

DATA = Path(__file__).resolve().parents[2] / "data" / "traces"


@cache
def published(name: str) -> Trace:
    if name.startswith("mooncake"):
        return read_mooncake(DATA / f"{name}.jsonl.gz")
    if name.startswith("lmcache"):
        return read_lmcache(DATA / f"{name}.jsonl.gz", sessions_per_s=0.05, seed=1)
    return read_azure(DATA / f"{name}.csv.gz")


CONVERSATION = "mooncake_fast25_conversation"
SYNTHETIC = "mooncake_fast25_synthetic"
AGENTS = "lmcache_agent_llama3_blk16"


@pytest.mark.parametrize(
    ("name", "requests", "rate_per_s", "prompt", "output"),
    [
        (CONVERSATION, 12031, 3.40, (12035, 6909, 85400), (343, 350, 1119)),
        (SYNTHETIC, 3993, 3.91, (15325, 11587, 66456), (149, 69, 768)),
        (AGENTS, 1148, None, (3455, 1389, 30903), (419, 274, None)),
        ("azure_llm_2023_code", 8819, 2.57, (2048, 1469, 7436), (28, 13, 251)),
        ("azure_llm_2023_conv", 19366, 5.53, (1155, 1020, 4142), (211, 129, 601)),
    ],
)
def test_counts_and_lengths_are_the_published_ones(name, requests, rate_per_s, prompt, output):
    trace = published(name)
    assert len(trace.arrivals) == requests
    if rate_per_s is not None:
        assert trace.rate_per_s == pytest.approx(rate_per_s, abs=0.006)
    for values, (mean, p50, p99) in (
        ([one.prompt_tokens for one in trace.arrivals], prompt),
        ([one.output_tokens for one in trace.arrivals], output),
    ):
        found = lengths(values)
        assert found.mean == pytest.approx(mean, abs=0.51)
        assert found.p50 == pytest.approx(p50, abs=1)
        if p99 is not None:
            assert found.p99 == pytest.approx(p99, rel=0.004)  # nearest rank against interpolation


@pytest.mark.parametrize(
    ("name", "tokens", "blocks"),
    [(CONVERSATION, 0.374, 0.366), (SYNTHETIC, 0.651, 0.640), (AGENTS, 0.899, None)],
)
def test_an_unbounded_shared_cache_would_find_the_published_share(name, tokens, blocks):
    reuse = ideal_reuse(published(name))
    assert reuse.token_share == pytest.approx(tokens, abs=0.0006)
    if blocks is not None:
        assert reuse.block_share == pytest.approx(blocks, abs=0.0006)


def test_synthetic_requests_begin_in_2211_ways_and_conversations_in_one():
    assert ideal_reuse(published(SYNTHETIC)).first_blocks == 2211
    assert ideal_reuse(published(CONVERSATION)).first_blocks == 1


def test_a_prefix_of_ids_has_one_history():
    """An id names a block together with all before it: so each id has one predecessor, and ids form a forest."""
    for name in (CONVERSATION, SYNTHETIC, AGENTS):
        before: dict[int, int | None] = {}
        for one in published(name).arrivals:
            for earlier, later in zip((None, *one.block_ids), one.block_ids, strict=False):
                assert before.setdefault(later, earlier) == earlier


def test_burstiness_is_the_published_one():
    assert gap_variation(published("azure_llm_2023_code")) == pytest.approx(13.2, abs=0.06)
    assert gap_variation(published("azure_llm_2023_conv")) == pytest.approx(1.09, abs=0.006)
    assert gap_variation(published(SYNTHETIC)) == pytest.approx(1.01, abs=0.006)
    assert dispersion(published("azure_llm_2023_code"), 1) == pytest.approx(13, abs=0.5)
    assert dispersion(published(CONVERSATION), 10) == pytest.approx(2.1, abs=0.06)
    assert dispersion(published(CONVERSATION), 60) == pytest.approx(2.9, abs=0.06)


def test_jitter_spreads_the_ticks_and_keeps_the_requests():
    recorded = published(CONVERSATION)
    assert len({one.at_s for one in recorded.arrivals}) == 1180
    spread = jittered(recorded, tick_s=MOONCAKE_TICK_S, seed=7)
    assert len({one.at_s for one in spread.arrivals}) == 12031
    assert gap_variation(spread) < 1.2 < gap_variation(recorded)
    assert sorted(one.block_ids for one in spread.arrivals) == sorted(one.block_ids for one in recorded.arrivals)
    assert spread == jittered(recorded, tick_s=MOONCAKE_TICK_S, seed=7)
    assert spread != jittered(recorded, tick_s=MOONCAKE_TICK_S, seed=8)


def test_overlaying_multiplies_the_rate_and_keeps_reuse_within_copies():
    recorded = published(SYNTHETIC)
    tripled = overlaid(recorded, 3, seed=1)
    assert len(tripled.arrivals) == 3 * 3993
    assert tripled.duration_s == recorded.duration_s
    assert ideal_reuse(tripled).first_blocks == 3 * 2211
    # A copy is cut in two where it was shifted, and chains that span the cut lose a little.
    assert ideal_reuse(tripled).token_share == pytest.approx(0.651, abs=0.01)


def test_a_fraction_of_a_copy_keeps_whole_sessions():
    half = overlaid(published(AGENTS), 0.5, seed=3)
    whole = {one.session: 0 for one in half.arrivals}
    for one in published(AGENTS).arrivals:
        if one.session in whole:
            whole[one.session] += 1
    assert 0 < len(whole) < 45
    assert sum(whole.values()) == len(half.arrivals)


def test_the_digitised_week_has_the_published_shape():
    for service, mean_per_s, peak_over_mean in (("coding", 27.8, 3.2), ("conversation", 45.1, 1.8)):
        points = read_week(DATA / "azure_llm_2024_weekly_rate_digitised.csv.gz", service)
        rates = [rate for _, rate in points]
        mean = sum(rates) / len(rates)
        assert points[-1][0] == pytest.approx(7 * 86400, rel=0.01)
        assert mean == pytest.approx(mean_per_s, rel=0.006)
        assert max(rates) / mean == pytest.approx(peak_over_mean, abs=0.06)


def names(arrival: Arrival, number: int, *, trace_block: int, engine_block: int) -> list[int]:
    blocks = PromptBlocks(arrival, number, trace_block=trace_block, engine_block=engine_block)
    return [blocks.block_hash(index) for index in range((arrival.prompt_tokens + 64) // engine_block)]


@pytest.mark.parametrize(("trace_block", "engine_block"), [(64, 16), (16, 64), (64, 64)])
def test_engine_blocks_are_shared_exactly_as_far_as_the_trace_says(trace_block, engine_block):
    shared, differs = tuple(range(8)), (0, 1, 2, 3, 24, 25, 26, 27)
    tokens = 8 * trace_block
    one = names(Arrival(0, tokens, 10, shared), 1, trace_block=trace_block, engine_block=engine_block)
    other = names(Arrival(0, tokens, 10, differs), 2, trace_block=trace_block, engine_block=engine_block)
    common = 4 * trace_block // engine_block
    assert one[:common] == other[:common]
    assert not set(one[common:]) & set(other[common:])
    assert len(set(one)) == len(one)


def test_blocks_of_the_answer_are_nobody_elses():
    same = Arrival(0, 100, 60, (1, 2))
    one = names(same, 1, trace_block=64, engine_block=64)
    other = names(same, 2, trace_block=64, engine_block=64)
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_a_line_that_cannot_be_read_is_named(tmp_path):
    file = tmp_path / "broken.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": []}\n{"timestamp": 1}\n')
    with pytest.raises(TraceError, match=r"broken\.jsonl, line 2: input_length"):
        read_mooncake(file)
    with pytest.raises(TraceError, match="cannot read the trace"):
        read_azure(tmp_path / "missing.csv")
