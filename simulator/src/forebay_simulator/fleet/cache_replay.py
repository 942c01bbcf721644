"""What a routing rule finds in cache, without time: the reference measure of hit shares.

Requests come in order, each is placed, computed and done before the next. Every worker has a cache of so many blocks, the
engine's own: least recently used out, the end of a prompt before its beginning. Load is the sum of computed tokens so far.
Without queues, batches and KV held by running requests, this is an upper bound that depends on nothing but the rule, the
number of workers and the memory of each; `simulate` shows how much of it is left under load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from forebay_simulator.engine.kv_blocks import BlockPool
from forebay_simulator.fleet.traces.trace import Arrival, Trace

H100_8B_BLOCKS = 879
"""Blocks of 512 tokens in the KV cache of Llama 3.1 8B on one H100: 445k tokens, and a little room."""


@dataclass(slots=True)
class Cache:
    """One worker's cache, and what it had to compute."""

    pool: BlockPool
    computed_tokens: int = 0

    def matched(self, ids: Sequence[int]) -> int:
        """How many of the first blocks it has."""
        for position, block in enumerate(ids):
            if self.pool.find(block) is None:
                return position
        return len(ids)

    def serve(self, one: Arrival, block_tokens: int) -> int:
        """Compute a prompt; returns the tokens that were there already."""
        ids, pool = one.block_ids, self.pool
        hits = self.matched(ids)
        held = [block for block_id in ids[:hits] if (block := pool.find(block_id)) is not None]
        pool.hold(held)
        missing = min(len(ids) - hits, pool.free_blocks)
        taken = pool.take(missing)
        for block, block_id in zip(taken, ids[hits:], strict=False):
            pool.register(block, block_id)
        pool.release([*held, *taken])
        hit_tokens = min(one.prompt_tokens, hits * block_tokens)
        self.computed_tokens += one.prompt_tokens - hit_tokens
        return hit_tokens


Rule = Callable[[Arrival, Sequence[Cache]], int]
"""The index of the worker for a request."""


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome."""

    hit_share: float
    """Prompt tokens found in cache, of all."""
    imbalance: float
    """Computed tokens of the busiest worker over the mean."""


@dataclass(slots=True)
class RoundRobin:
    """Each worker in turn."""

    turns: int = field(default=0)

    def __call__(self, _one: Arrival, caches: Sequence[Cache]) -> int:
        """The next one."""
        self.turns += 1
        return (self.turns - 1) % len(caches)


def affinity(common: int, chance: Random) -> Rule:
    """The longest match; among equals the least computed tokens, then at random.

    The first `common` blocks, which every request shares, count for nothing: else the first warm worker would get all.
    """

    def rule(one: Arrival, caches: Sequence[Cache]) -> int:
        matched = [max(0, cache.matched(one.block_ids) - common) for cache in caches]
        best = max(matched)
        equal = [number for number, blocks in enumerate(matched) if blocks == best]
        least = min(caches[number].computed_tokens for number in equal)
        return chance.choice([number for number in equal if caches[number].computed_tokens == least])

    return rule


def replay(trace: Trace, rule: Rule, *, workers: int, blocks: int) -> Found:
    """Serve a trace with `workers` caches of `blocks` blocks each."""
    caches = [Cache(BlockPool(usable_blocks=blocks)) for _ in range(workers)]
    tokens = hit = 0
    for one in trace.arrivals:
        tokens += one.prompt_tokens
        hit += caches[rule(one, caches)].serve(one, trace.block_tokens)
    computed = [cache.computed_tokens for cache in caches]
    return Found(hit / tokens, max(computed) * workers / sum(computed))


def common_blocks(trace: Trace, share: float = 0.9) -> int:
    """How many first blocks (nearly) all requests share."""
    ids = trace.arrivals[0].block_ids if trace.arrivals else ()
    for position, block in enumerate(ids):
        having = sum(1 for one in trace.arrivals if one.block_ids[position : position + 1] == (block,))
        if having < share * len(trace.arrivals):
            return position
    return len(ids)
