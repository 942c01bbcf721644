"""More of the same: a trace at another rate, and its arrivals spread within the recorder's ticks.

Rate is scaled by laying copies over one another, each shifted by its own seeded share of the trace (what runs over the end
comes in at the beginning) and with fresh block ids. Compressing time instead would shorten the gaps between reuses of a
prefix and flatter every cache. A fraction of a copy is a seeded choice of sessions, or of single requests where sessions are
not known; without sessions, a chain of turns loses links, so whole factors are the honest ones for traces with identities.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from forebay_simulator.fleet.traces.trace import Arrival, Trace

MOONCAKE_TICK_S = 3.0
"""Mooncake's conversation and agent traces are recorded in ticks of this length."""


def jittered(trace: Trace, *, tick_s: float, seed: int) -> Trace:
    """Every arrival moved by a uniform share of the tick; its order among others of the tick is drawn, too."""
    chance = random.Random(seed)  # noqa: S311  (arrivals, not secrets)
    moved = [replace(one, at_s=one.at_s + chance.random() * tick_s) for one in trace.arrivals]
    return Trace.of(trace.name, moved, block_tokens=trace.block_tokens, duration_s=trace.duration_s + tick_s)


def overlaid(trace: Trace, factor: float, *, seed: int) -> Trace:
    """The trace at `factor` times its rate."""
    if factor <= 0:
        raise ValueError(f"the factor must be above zero, got {factor}")
    chance = random.Random(seed)  # noqa: S311  (arrivals, not secrets)
    arrivals: list[Arrival] = []
    for number in range(int(factor)):
        arrivals += _copy(trace, number, chance)
    share = factor - int(factor)
    if share:
        kept: dict[str, bool] = {}
        for position, one in enumerate(_copy(trace, int(factor), chance)):
            whole = one.session or str(position)
            if kept.setdefault(whole, chance.random() < share):
                arrivals.append(one)
    name = trace.name if factor == 1 else f"{trace.name} x{factor:g}"
    return Trace.of(name, arrivals, block_tokens=trace.block_tokens, duration_s=trace.duration_s)


def _copy(trace: Trace, number: int, chance: random.Random) -> Iterator[Arrival]:
    """Copy `number` of a trace; number 0 is the trace itself."""
    if number == 0:
        yield from trace.arrivals
        return
    shift_s = chance.random() * trace.duration_s
    fresh = number * (1 + max((max(one.block_ids, default=-1) for one in trace.arrivals), default=-1))
    for one in trace.arrivals:
        yield Arrival(
            (one.at_s + shift_s) % trace.duration_s if trace.duration_s else one.at_s,
            one.prompt_tokens,
            one.output_tokens,
            tuple(block + fresh for block in one.block_ids),
            f"{one.session}#{number}" if one.session else "",
        )
