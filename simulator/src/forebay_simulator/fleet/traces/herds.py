"""Thundering herds: many requests that come at once and begin alike, on top of other traffic.

A scheduled job, a deployment of agents or a cache that expired everywhere sends hundreds of requests within seconds, all of which
begin with the same system prompt. Each worker has to compute the prefix once, and none should get the whole herd.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from forebay_simulator.fleet.traces.trace import Arrival, Trace

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Herd:
    """Requests that come together."""

    size: int
    within_s: float
    """All of them arrive in this time, uniformly."""
    prefix_blocks: int
    """Blocks of 512 tokens that all begin with."""
    own_tokens: tuple[int, int]
    """Prompt tokens after that: from, to."""
    output_tokens: tuple[int, int]


def herds(traffic: Trace, herd: Herd, *, at_s: Sequence[float], seed: int) -> Trace:
    """Other traffic, which must have no block ids, with a herd at each of these times."""
    assert not traffic.block_tokens, "traffic with block ids of its own would share some with the herd"
    chance = random.Random(f"{seed}/herds")  # noqa: S311  (arrivals, not secrets)
    prefix = tuple(range(herd.prefix_blocks))
    arrivals = list(traffic.arrivals)
    for begins_s in at_s:
        for _ in range(herd.size):
            own, output = chance.randint(*herd.own_tokens), chance.randint(*herd.output_tokens)
            when_s = begins_s + chance.uniform(0.0, herd.within_s)
            arrivals.append(Arrival(when_s, herd.prefix_blocks * BLOCK_TOKENS + own, output, prefix))
    made = Trace.of(f"{traffic.name} (synthetic)", arrivals, block_tokens=BLOCK_TOKENS)
    return replace(made, duration_s=traffic.duration_s)
