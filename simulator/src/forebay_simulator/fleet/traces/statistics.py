"""What a trace is like: counts, lengths, burstiness, and how much of it an unbounded shared cache would have.

gap CV                 standard deviation of the gaps between arrivals over their mean; 1 for a Poisson process
index of dispersion    variance over mean of the arrivals in bins of a length; 1 for a Poisson process
reuse                  share of prompt tokens in blocks whose id came before, in time
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from forebay_simulator.fleet.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Lengths:
    """Distribution of a length in tokens."""

    mean: float
    p50: float
    p90: float
    p99: float
    largest: int


@dataclass(frozen=True, slots=True)
class Reuse:
    """What an unbounded cache that every request shares would find."""

    token_share: float
    block_share: float
    first_blocks: int
    """Distinct first blocks."""


def lengths(values: Sequence[int]) -> Lengths:
    """Summarise lengths; percentiles are the nearest rank."""
    ordered = sorted(values)
    return Lengths(
        statistics.fmean(ordered),
        percentile(ordered, 50),
        percentile(ordered, 90),
        percentile(ordered, 99),
        ordered[-1],
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank of sorted values; they must not be empty."""
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def gap_variation(trace: Trace) -> float:
    """Coefficient of variation of the gaps between arrivals."""
    times = [one.at_s for one in trace.arrivals]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return statistics.pstdev(gaps) / statistics.fmean(gaps)


def dispersion(trace: Trace, bin_s: float) -> float:
    """Index of dispersion of the arrivals in whole bins of `bin_s`."""
    bins = [0] * int(trace.duration_s / bin_s)
    for one in trace.arrivals:
        if int(one.at_s / bin_s) < len(bins):
            bins[int(one.at_s / bin_s)] += 1
    return statistics.pvariance(bins) / statistics.fmean(bins)


def ideal_reuse(trace: Trace) -> Reuse:
    """Reuse in order of arrival, each id computed once."""
    seen: set[int] = set()
    tokens = hit_tokens = blocks = hit_blocks = 0
    for one in trace.arrivals:
        tokens += one.prompt_tokens
        blocks += len(one.block_ids)
        for position, block in enumerate(one.block_ids):
            if block in seen:
                hit_blocks += 1
                hit_tokens += min(trace.block_tokens, one.prompt_tokens - position * trace.block_tokens)
            seen.add(block)
    firsts = {one.block_ids[0] for one in trace.arrivals if one.block_ids}
    return Reuse(hit_tokens / tokens, hit_blocks / max(1, blocks), len(firsts))
