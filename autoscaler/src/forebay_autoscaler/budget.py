"""Pools of one service under one budget of GPUs.

Goodput of a service is limited by its scarcest pool: prefill capacity is worth nothing without decode capacity. So when not
every wish fits, each pool first keeps what it has (of what it wishes), then the next worker always goes to the pool that is
covered worst, (workers + 1) / wish being smallest, as long as it fits. That is the greedy step of maximising the minimum of
workers / wish over the pools. A pool that would not fit any more is left out; smaller ones may still.

No pool loses a worker to another one's growth: with wishes that vary by one from minute to minute, workers would be moved to
and fro, each at the price of a drain and a start. Only when what the pools have exceeds the budget (it was lowered) does the
sharing begin at their least numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wish:
    """What one pool would get without a budget."""

    replicas: int
    current: int
    """Workers it has or has ordered."""
    replicas_min: int
    gpus: int
    """Accelerators of one worker."""


def share_budget(wishes: Sequence[Wish], budget_gpus: int) -> list[int]:
    """Workers of each pool, in order; together at most the budget, unless the least numbers alone exceed it.

    Every wish is at least the pool's least number.
    """
    if sum(wish.replicas * wish.gpus for wish in wishes) <= budget_gpus:
        return [wish.replicas for wish in wishes]
    given = [max(wish.replicas_min, min(wish.replicas, wish.current)) for wish in wishes]
    if _gpus(wishes, given) > budget_gpus:
        given = [wish.replicas_min for wish in wishes]
    left = budget_gpus - _gpus(wishes, given)
    while True:
        open_pools = [n for n, wish in enumerate(wishes) if given[n] < wish.replicas and wish.gpus <= left]
        if not open_pools:
            return given
        worst = min(open_pools, key=lambda n: (given[n] + 1) / wishes[n].replicas)
        given[worst] += 1
        left -= wishes[worst].gpus


def _gpus(wishes: Sequence[Wish], given: Sequence[int]) -> int:
    return sum(count * wish.gpus for count, wish in zip(given, wishes, strict=True))
