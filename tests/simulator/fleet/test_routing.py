"""Hit shares, balance and order of routing policies on the published traces."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random

import pytest

from forebay_api.objective import Outcome
from forebay_simulator.fleet.cache_replay import H100_8B_BLOCKS, RoundRobin, affinity, common_blocks, replay
from forebay_simulator.fleet.report import scores_of
from forebay_simulator.fleet.spec import EngineSpec
from forebay_simulator.fleet.traces.files import read_mooncake
from forebay_simulator.fleet.traces.generators import constant, hot_prefixes
from forebay_simulator.fleet.traces.herds import Herd, herds
from forebay_simulator.fleet.traces.scaling import MOONCAKE_TICK_S, jittered
from forebay_simulator.fleet.traces.statistics import ideal_reuse
from forebay_simulator.fleet.traces.trace import Trace

from .fleets import chats, mixed, run
from .test_traces import DATA

UNLIMITED = 400_000


@cache
def conversation() -> Trace:
    return jittered(read_mooncake(DATA / "mooncake_fast25_conversation.jsonl.gz"), tick_s=MOONCAKE_TICK_S, seed=1)


@cache
def synthetic() -> Trace:
    return read_mooncake(DATA / "mooncake_fast25_synthetic.jsonl.gz")


@pytest.mark.parametrize(
    ("workers", "blocks", "conversations", "synthetics"),
    [
        (4, H100_8B_BLOCKS, (0.054, 0.076), (0.066, 0.217)),
        (8, H100_8B_BLOCKS, (0.060, 0.162), (0.060, 0.352)),
        (16, H100_8B_BLOCKS, (0.060, 0.249), (0.056, 0.507)),
        (4, 4 * H100_8B_BLOCKS, (0.106, 0.254), (0.180, 0.514)),
        (8, 4 * H100_8B_BLOCKS, (0.098, 0.327), (0.156, 0.624)),
        (16, 4 * H100_8B_BLOCKS, (0.082, 0.364), (0.122, 0.651)),
        (4, UNLIMITED, (0.195, 0.373), (0.372, 0.651)),
        (8, UNLIMITED, (0.136, 0.373), (0.231, 0.651)),
        (16, UNLIMITED, (0.095, 0.373), (0.138, 0.651)),
    ],
)
@pytest.mark.parametrize("trace", [conversation, synthetic])
@pytest.mark.slow
def test_hit_shares_are_the_reference_ones_within_a_point(workers, blocks, conversations, synthetics, trace):
    round_robin, affine = conversations if trace is conversation else synthetics
    requests = trace()
    turned = replay(requests, RoundRobin(), workers=workers, blocks=blocks)
    matched = replay(requests, affinity(common_blocks(requests), Random(1)), workers=workers, blocks=blocks)
    assert turned.hit_share == pytest.approx(round_robin, abs=0.01)
    assert matched.hit_share == pytest.approx(affine, abs=0.01)
    assert matched.imbalance < 1.2


@pytest.mark.parametrize(("tokens", "share"), [(0.45e6, 0.045), (3.6e6, 0.163), (7.2e6, 0.255), (14.4e6, 0.327)])
def test_one_shared_cache_finds_the_reference_share(tokens, share):
    found = replay(conversation(), RoundRobin(), workers=1, blocks=round(tokens / 512))
    assert found.hit_share == pytest.approx(share, abs=0.01)


def test_every_conversation_shares_its_first_block_only():
    assert common_blocks(conversation()) == 1
    assert common_blocks(synthetic()) == 0


def measured(routing: str, trace: Trace, *, workers: int, blocks: int | None = None):
    fleet = mixed(workers)
    engine = EngineSpec(block_tokens=512, blocks=blocks)
    fleet = type(fleet)(pools=(pool_with(fleet.pools[0], engine),), objective=fleet.objective)
    return scores_of(run(fleet, trace, routing=routing, seed=1))


def pool_with(pool, engine):
    return type(pool)(name=pool.name, role=pool.role, replicas=pool.replicas, engine=engine, startup_s=pool.startup_s)


def test_under_load_knowing_the_caches_finds_what_affinity_can():
    """With queues, batches and KV held by running requests, within two points of the timeless reference."""
    part = conversation().first(900)
    for routing, rule in (("precise-prefix", affinity(1, Random(1))), ("round-robin", RoundRobin())):
        timeless = replay(part, rule, workers=16, blocks=H100_8B_BLOCKS)
        assert measured(routing, part, workers=16).hit_share == pytest.approx(timeless.hit_share, abs=0.02)


def test_first_tokens_wait_in_the_published_order():
    """Mooncake, figure 5, means: random is behind balancing by load, which is behind knowing the caches."""
    part = conversation().first(600)
    names = ("random", "least-load", "precise-prefix")
    mean_s = {name: measured(name, part, workers=8).ttft_mean_s for name in names}
    assert mean_s["random"] > 1.2 * mean_s["least-load"]
    assert mean_s["least-load"] > 1.05 * mean_s["precise-prefix"]


def test_a_hot_prefix_does_not_pile_up_on_one_worker_under_bounded_loads():
    trace = hot_prefixes(constant(6.5), duration_s=300, seed=2)
    ideal = ideal_reuse(trace).token_share
    bounded = measured("chwbl", trace, workers=4)
    assert bounded.imbalance < 1.3
    assert bounded.hit_share > 0.9 * ideal


@pytest.mark.parametrize("routing", ["forebay", "chwbl"])
def test_a_herd_spreads_and_still_finds_its_prefix(routing):
    """A hundred requests within two seconds begin alike: every worker computes that once, and none gets them all."""
    traffic = chats(4, 20)
    herd = Herd(size=100, within_s=2.0, prefix_blocks=8, own_tokens=(100, 300), output_tokens=(20, 40))
    done = run(mixed(4), herds(traffic, herd, at_s=(8.0,), seed=1), routing=routing, seed=1)
    agents = [job for job in done.jobs if job.arrival.block_ids]
    assert max(Counter(job.worker for job in agents).values()) <= 0.5 * len(agents)
    assert all(job.outcome is Outcome.FINISHED for job in done.jobs)
    hit_share = sum(job.cached_tokens for job in agents) / sum(job.arrival.prompt_tokens for job in agents)
    assert hit_share > 0.7  # 8 of some 8.4 blocks, less what comes while a worker computes them first
