"""What the router and the workers count, as their /metrics would show it; the simulated Prometheus reads it.

Latency histograms have the router's own buckets, so that what the autoscaler interpolates is as coarse as in reality.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from forebay_api.objective import Verdict
from forebay_router.metrics import TPOT_BUCKETS_S, TTFT_BUCKETS_S


@dataclass(slots=True)
class Histogram:
    """Samples by bucket, not cumulated; the last bucket has no bound."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin empty."""
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one sample."""
        self.counts[bisect_left(self.bounds, value)] += 1

    def cumulated(self) -> list[int]:
        """Samples up to each bound, then all."""
        total, sums = 0, []
        for count in self.counts:
            total += count
            sums.append(total)
        return sums


@dataclass(slots=True)
class RouterCounts:
    """Counters and gauges of the router for the model service."""

    arrived: int = 0
    in_flight: int = 0
    pending: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    retries: int = 0
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BUCKETS_S))
    tpot: Histogram = field(default_factory=lambda: Histogram(TPOT_BUCKETS_S))
