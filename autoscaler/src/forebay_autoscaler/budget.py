"""Pools of one service under one budget of GPUs.

Goodput of a service is limited by its scarcest pool: prefill capacity is worth nothing without decode capacity. So when not
every wish fits, each pool first keeps what it has (of what it wishes), then the next worker always goes to the pool that is
covered worst, (workers + 1) / wish being smallest, as long as it fits. That is the greedy step of maximising the minimum of
workers / wish over the pools. A pool that would not fit any more is left out; smaller ones may still.

A pool does not lose a worker to another one's growth for little: with wishes that vary by one from minute to minute, workers
would be moved to and fro, each at the price of a drain and a start. Only when sharing anew would raise what the scarcest pool
is covered by `MOVE_GAIN` or more (the mix of requests changed for good), or when what the pools have exceeds the budget (it was
lowered), does the sharing begin at their least numbers. Having moved, the pools are where sharing anew leads, so the next move
needs wishes that changed by as much again. While anything about a pool is unknown, nothing is taken from it for the sake of
another. The budget itself is a hard bound: when what is held exceeds it, all pools share it from their least numbers on, in one
step and whatever is known of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MOVE_GAIN: Final = 1.25
"""Ratio of what the scarcest pool is covered, after to before, from which workers move between pools."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What one pool would get without a budget."""

    replicas: int
    current: int
    """Workers it has or has ordered."""
    replicas_min: int
    gpus: int
    """Accelerators of one worker."""
    kept: int = 0
    """Workers that must not be taken from it: all it has while something about it is unknown."""


def share_budget(wishes: Sequence[Wish], budget_gpus: int) -> list[int]:
    """Workers of each pool, in order; together at most the budget, unless the least numbers alone exceed it.

    Every wish is at least the pool's least number.
    """
    if sum(wish.replicas * wish.gpus for wish in wishes) <= budget_gpus:
        return [wish.replicas for wish in wishes]
    kept = [max(wish.replicas_min, min(wish.replicas, wish.current)) for wish in wishes]
    held = [max(wish.replicas_min, min(n, wish.kept)) for n, wish in zip(kept, wishes, strict=True)]
    anew = _spread(wishes, held, budget_gpus)
    if _gpus(wishes, kept) > budget_gpus:
        return anew
    given = _spread(wishes, kept, budget_gpus)
    after, before = _covered(wishes, anew), _covered(wishes, given)
    return anew if after > before and after >= MOVE_GAIN * before else given


def _spread(wishes: Sequence[Wish], given: list[int], budget_gpus: int) -> list[int]:
    """From these numbers on, the next worker to the pool that is covered worst, while one fits."""
    given = list(given)
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


def _covered(wishes: Sequence[Wish], given: Sequence[int]) -> float:
    """The share of its wish that the scarcest pool gets: the share of the demand that is served well."""
    return min((count / wish.replicas for count, wish in zip(given, wishes, strict=True) if wish.replicas), default=1.0)


def _gpus(wishes: Sequence[Wish], given: Sequence[int]) -> int:
    return sum(count * wish.gpus for count, wish in zip(given, wishes, strict=True))
