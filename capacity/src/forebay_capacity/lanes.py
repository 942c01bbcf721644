"""Step times of a lane at n sequences, with the prefill of other prompts where the worker is mixed.

Prompts reach a mixed lane at rate a, and a longer step takes in more of them, so the mean step solves

    T = E[ step(n, k prompts) ],   k Poisson with mean a T           prompts that fit into a step whole
    T = (1 - x) step(n) + x step(n, full chunk),   x = a T / share    prompts longer than a step, in chunks

The expectation matters: step time is convex in its tokens, so the step of the mean load is shorter than the mean step.
One request sees a random number of prompts pass. Over its L steps that adds K (T - T0) / (a T L) to its mean step T0
without prompts, with K Poisson.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay_capacity.batch import decode_seconds
from forebay_capacity.queueing import poisson_at_most, poisson_mean

if TYPE_CHECKING:
    from forebay_capacity.steptime import StepTimer
    from forebay_capacity.workload import Workload

PROMPTS_PER_STEP_MAX = 256
"""Prompts that one step is modelled to take; more never arrive within a step at a sane load."""
ROUNDS_MAX = 60
"""Iterations until the step time agrees with the prompts it takes in."""
GRID = 16
"""Solved points between no sequence and the cap; linear in between."""


@dataclass(frozen=True, slots=True)
class DecodeLane:
    """A lane that only decodes."""

    timer: StepTimer
    context_tokens: float

    def step_s(self, sequences: float) -> float:
        """Step time at this many sequences."""
        return decode_seconds(self.timer, sequences, self.context_tokens)

    def meets(self, sequences: float, tpot_s: float) -> float:
        """Chance that a request beside so many has at most this time per output token: 0 or 1."""
        return 1.0 if self.step_s(sequences) <= tpot_s else 0.0


@dataclass(frozen=True, slots=True)
class MixedLane:
    """A lane that decodes and prefills, solved for one arrival rate."""

    grid: tuple[int, ...]
    steps_s: tuple[float, ...]
    """Mean step at each point of the grid."""
    bare_steps_s: tuple[float, ...]
    """Step without prefill at each point of the grid."""
    arrivals_per_s: float
    """Prompts that reach this lane."""
    steps: int
    """Steps of one request."""

    def step_s(self, sequences: float) -> float:
        """Mean step time at this many sequences."""
        return _interpolated(self.grid, self.steps_s, sequences)

    def meets(self, sequences: float, tpot_s: float) -> float:
        """Chance that a request beside so many has at most this time per output token."""
        mean_s = self.step_s(sequences)
        bare_s = _interpolated(self.grid, self.bare_steps_s, sequences)
        if bare_s > tpot_s:
            return 0.0
        added_s = (mean_s - bare_s) / (self.arrivals_per_s * mean_s)
        if added_s <= 0:
            return 1.0
        passing = self.arrivals_per_s * self.steps * tpot_s
        return poisson_at_most(int((tpot_s - bare_s) * self.steps / added_s), passing)


Lane = DecodeLane | MixedLane


def mixed_lane(timer: StepTimer, workload: Workload, *, arrivals_per_s: float, cap: int, budget: int) -> MixedLane:
    """A mixed lane under this share of the workload's prompts."""
    grid = tuple(sorted({0, 1, *(round(cap * (point / GRID) ** 2) for point in range(GRID + 1))}))
    return MixedLane(
        grid=grid,
        steps_s=tuple(_mean_step_s(timer, workload, arrivals_per_s, n, budget) for n in grid),
        bare_steps_s=tuple(decode_seconds(timer, n, workload.decode_context_tokens) for n in grid),
        arrivals_per_s=arrivals_per_s,
        steps=max(1, workload.output_tokens - 1),
    )


def step_with_prompts_s(timer: StepTimer, workload: Workload, sequences: float, prompts: float) -> float:
    """One step with decoding sequences and so many (or such a part of) prompts."""
    return timer.step_seconds(
        decode_sequences=sequences,
        decode_context_tokens=sequences * workload.decode_context_tokens,
        prefill_tokens=prompts * workload.uncached_tokens,
        prefill_attention=prompts * workload.prefill_attention,
    )


def _mean_step_s(timer: StepTimer, workload: Workload, arrivals_per_s: float, sequences: int, budget: int) -> float:
    """The step time at which prompts arrive as fast as steps take them in, found by iteration from below."""
    room = max(1, budget - sequences)
    whole = workload.uncached_tokens <= room
    prompts_max = min(PROMPTS_PER_STEP_MAX, room // workload.uncached_tokens) if whole else 1
    part = 1.0 if whole else room / workload.uncached_tokens
    times = [step_with_prompts_s(timer, workload, sequences, k * part) for k in range(prompts_max + 1)]
    seconds = times[0]
    for _ in range(ROUNDS_MAX):
        expected = arrivals_per_s * seconds / part
        updated = poisson_mean(times, expected) if whole else times[0] + min(1.0, expected) * (times[1] - times[0])
        if updated - seconds <= 1e-4 * seconds:
            return updated
        seconds = updated
    return seconds


def _interpolated(grid: tuple[int, ...], values: tuple[float, ...], at: float) -> float:
    index = min(max(bisect_left(grid, at), 1), len(grid) - 1)
    low, high = grid[index - 1], grid[index]
    along = (at - low) / (high - low)
    return values[index - 1] + along * (values[index] - values[index - 1])
