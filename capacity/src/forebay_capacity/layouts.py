"""Layouts: which workers serve, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay_capacity.errors import ImpossibleError

if TYPE_CHECKING:
    from forebay_capacity.worker import Worker
    from forebay_capacity.workload import Workload


@dataclass(frozen=True, slots=True)
class PoolSize:
    """So many workers of one kind."""

    worker: Worker
    replicas: int

    def __post_init__(self) -> None:
        """Refuse a pool without workers."""
        if self.replicas < 1:
            raise ImpossibleError("replicas", f"{self.replicas!r} workers serve nothing", "use 1 or more")

    @property
    def gpus(self) -> int:
        """GPUs of the pool."""
        return self.replicas * self.worker.parallelism.gpus

    @property
    def lanes(self) -> int:
        """Batches in flight in the pool."""
        return self.replicas * self.worker.lanes

    @property
    def price_usd_per_hour(self) -> float:
        """Price of the pool."""
        return self.gpus * self.worker.accelerator.price_usd_per_hour


@dataclass(frozen=True, slots=True)
class MixedLayout:
    """Workers that do both prefill and decode."""

    mixed: PoolSize

    @property
    def pools(self) -> tuple[PoolSize, ...]:
        """All pools."""
        return (self.mixed,)


@dataclass(frozen=True, slots=True)
class SplitLayout:
    """Prefill workers that hand the KV cache to decode workers."""

    prefill: PoolSize
    decode: PoolSize

    @property
    def pools(self) -> tuple[PoolSize, ...]:
        """All pools."""
        return (self.prefill, self.decode)


Layout = MixedLayout | SplitLayout


def layout_gpus(layout: Layout) -> int:
    """GPUs of a layout."""
    return sum(pool.gpus for pool in layout.pools)


def layout_price_usd_per_hour(layout: Layout) -> float:
    """Price of a layout."""
    return sum(pool.price_usd_per_hour for pool in layout.pools)


def usd_per_million_output_tokens(layout: Layout, workload: Workload) -> float:
    """Price of a million answer tokens at the workload's rate."""
    tokens_per_hour = workload.rate_per_s * workload.output_tokens * 3600
    return layout_price_usd_per_hour(layout) / tokens_per_hour * 1e6
