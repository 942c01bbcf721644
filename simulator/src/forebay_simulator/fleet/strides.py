"""The engine's scheduler, many equal steps at once.

While every running request decodes and none can be admitted, step follows step with the same requests, one token each, until
one of them ends or somebody interferes. Such a stretch is a *stride*: its step ends are known beforehand, and its effect on
the scheduler's state is applied once, when the stride ends.

    end(j) = end(j-1) + timer(B decodes, context C + (j-1) B)          C: sum of contexts at the first step

The result equals stepping one at a time to the last bit: the same sums of floats in the same order, and blocks taken in the
same order (by step, then by place in the batch), so that eviction is the same too. tests/simulator/fleet/test_strides.py
compares both under random loads.

A waiting request that did not fit stays unfit during a stride: running requests only take blocks, an evicted block frees
nothing for it, and no prefill runs that could make its prefix findable. Whoever frees blocks or adds the first waiting
request ends the stride.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from forebay_capacity.steptime import StepTimer as CapacityTimer
from forebay_simulator.engine.request import FinishReason, Request
from forebay_simulator.engine.scheduler import Scheduler
from forebay_simulator.engine.scheduling import SchedulerConfig, Step, StepTimer
from forebay_simulator.fleet.timers import MockerTimer

STRIDE_STEPS_MAX = 4096
"""Longest stride, a bound on what is computed ahead and thrown away."""
VECTOR_STEPS_MIN = 12
"""From this length on an array is faster than a loop."""


class StridingScheduler(Scheduler):
    """A scheduler that can also say what the next steps will be, and take them at once."""

    def __init__(self, config: SchedulerConfig, timer: StepTimer) -> None:
        assert not config.records_events, "the journal of cache events is kept step by step"
        super().__init__(config, timer)
        self._vector_timer = _takes_arrays(timer)

    def change_timer(self, timer: StepTimer) -> None:
        """Time further steps otherwise."""
        self._timer = timer
        self._vector_timer = _takes_arrays(timer)

    def stride(self, now_s: float) -> list[float]:
        """End times of the next equal steps from `now_s` on; empty where the next step has to be scheduled.

        The caller knows that no waiting request can be admitted.
        """
        steps, context = STRIDE_STEPS_MAX, 0
        for request in self.running:
            total = request.prompt_tokens + request.output_tokens
            if not request.output_tokens or request.computed_tokens + 1 != total:
                return []
            context += total
            left = _target(request) - request.output_tokens
            steps = min(steps, left)
        steps = self._steps_with_room(steps)
        return self._stride_ends(now_s, steps, context) if self.running and steps > 0 else []

    def take_stride(self, steps: int, now_s: float) -> list[Request]:
        """Account `steps` equal steps, the last of which ended at `now_s`. Returns the requests that finished."""
        self._take_blocks(steps)
        finished = []
        for request in self.running:
            request.computed_tokens += steps
            request.output_tokens += steps
            if request.output_tokens >= _target(request):
                finished.append(request)
        for request in finished:
            stops = request.natural_output_tokens is not None
            reason = FinishReason.STOP if stops and self._stops(request) else FinishReason.LENGTH
            self._leave(request, reason, now_s)
        if finished:
            self._drop_finished()
        return finished

    def equal_step(self) -> Step:
        """The next step of a stride, by itself: its blocks are taken, its tokens are not there yet."""
        self._take_blocks(1)
        return Step(work=[(request, 1) for request in self.running], tokens=len(self.running))

    def _steps_with_room(self, steps: int) -> int:
        """As many of the steps as there are free blocks for; the step after them has to preempt."""
        block_size, free = self.config.block_size, self.pool.free_blocks
        if free >= len(self.running) * (steps // block_size + 1):
            return steps
        crossings = sorted(
            step
            for request in self.running
            for step in range(_first_crossing(request, block_size), steps + 1, block_size)
        )
        return steps if len(crossings) <= free else crossings[free] - 1

    def _take_blocks(self, steps: int) -> None:
        """Give running requests their further blocks, in the order in which single steps would."""
        block_size = self.config.block_size
        crossings = []
        for place, request in enumerate(self.running):
            first = _first_crossing(request, block_size)
            if first <= steps:
                crossings += [(step, place) for step in range(first, steps + 1, block_size)]
        crossings.sort()
        for step, place in crossings:
            self._grow(self.running[place], step)
        for request in self.running:
            if (request.computed_tokens + steps) // block_size > request.registered_blocks:
                self._register(request, request.computed_tokens + steps)

    def _stride_ends(self, now_s: float, steps: int, context: int) -> list[float]:
        decodes = len(self.running)
        if self._vector_timer and steps >= VECTOR_STEPS_MIN:
            contexts = np.arange(context, context + steps * decodes, decodes, dtype=np.float64)
            seconds = cast("Any", self._timer).step_seconds(
                decode_sequences=decodes, decode_context_tokens=contexts, prefill_tokens=0, prefill_attention=0
            )
            sums: list[float] = np.cumsum(np.concatenate(((now_s,), seconds)))[1:].tolist()
            return sums
        ends = [now_s]
        for step in range(steps):
            duration_s = self._timer.step_seconds(
                decode_sequences=decodes,
                decode_context_tokens=context + step * decodes,
                prefill_tokens=0,
                prefill_attention=0,
            )
            ends.append(ends[-1] + duration_s)
        return ends[1:]


def _takes_arrays(timer: StepTimer) -> bool:
    """An array of contexts gives an array of the same sums: only sums and products, or a form made for it."""
    return isinstance(timer, MockerTimer) or (isinstance(timer, CapacityTimer) and not timer.window_tokens)


def _target(request: Request) -> int:
    """Output tokens at which a request ends."""
    natural = request.natural_output_tokens
    return request.output_tokens_max if natural is None else min(natural, request.output_tokens_max)


def _first_crossing(request: Request, block_size: int) -> int:
    """The step, counted from 1, at which a decoding request needs one more block than it has."""
    return len(request.block_ids) * block_size - request.computed_tokens + 1
