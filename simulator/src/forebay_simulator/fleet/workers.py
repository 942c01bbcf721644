"""One simulated worker in virtual time: the engine's scheduler, driven step by step or stride by stride.

Between two events of a worker its state stands still: what the steps on the way did is applied when they are over. Who looks
in between (a metrics scrape) sees the batch as it was at the last event, which is the truth but for the blocks that decoding
requests took since.

A request that comes, goes or is given room while a stride runs cuts it short at the end of the step in progress, as the
engine would look at its queues then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from forebay_simulator.engine.request import FinishReason, Phase, Request
from forebay_simulator.engine.scheduling import Step, StepTimer
from forebay_simulator.fleet.agenda import Agenda, Rank
from forebay_simulator.fleet.strides import StridingScheduler


@dataclass(frozen=True, slots=True)
class SlowTimer:
    """Another timer's times, stretched: a worker whose accelerator throttles."""

    timer: StepTimer
    factor: float

    def step_seconds(
        self, *, decode_sequences: int, decode_context_tokens: int, prefill_tokens: int, prefill_attention: int
    ) -> float:
        """Seconds of one step."""
        return self.factor * self.timer.step_seconds(
            decode_sequences=decode_sequences,
            decode_context_tokens=decode_context_tokens,
            prefill_tokens=prefill_tokens,
            prefill_attention=prefill_attention,
        )


@dataclass(slots=True)
class Hooks:
    """Who hears of what. Calls come at the end of the step in which it happened."""

    first_token: Callable[[Request, float], None]
    finished: Callable[[Request, float], None]
    fetch: Callable[[Request, float], None]
    """A request has blocks and wants its KV from the worker that computed it."""


class Engine:
    """Runs requests. `strides` off means one event a step: the same outcomes, slower."""

    def __init__(self, scheduler: StridingScheduler, agenda: Agenda, hooks: Hooks, *, strides: bool = True) -> None:
        self.scheduler = scheduler
        self.steps = 0
        """Engine steps taken."""
        self.output_tokens = 0
        """Tokens produced."""
        self.computed_prompt_tokens = 0
        """Prompt tokens of admitted requests that were not found in the cache."""
        self.busy_s = 0.0
        self.stopped = False
        self._agenda = agenda
        self._hooks = hooks
        self._strides = strides
        self._step: Step | None = None
        self._ends: list[float] = []
        self._began_s = 0.0
        self._version = 0
        self._ending = False
        """A step's outcome is being told: what hooks add is seen by the step after it."""
        self._shut_out = False
        """The waiting requests did not fit when last looked at, and nothing was freed since."""

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return self.scheduler.queued

    # ---- what others do to it

    def add(self, request: Request) -> None:
        """Take a request in."""
        self.scheduler.add(request)
        self._wake()

    def arrived(self, request: Request) -> None:
        """The KV that a request fetches has come."""
        if request.phase is Phase.FETCHING:
            self.scheduler.remote_kv_arrived(request)
            self._shut_out = False
            self._wake()

    def fetch_failed(self, request: Request) -> None:
        """The KV that a request fetches will not come: it computes its prompt itself."""
        if request.phase is Phase.FETCHING:
            self.scheduler.remote_kv_failed(request)
            self._shut_out = False
            self._wake()

    def release(self, request: Request) -> None:
        """Free the blocks that were held for another worker to fetch."""
        if self.scheduler.release_held(request.request_id):
            self._shut_out = False
            self._wake()

    def abort(self, request: Request) -> None:
        """End a request whose client or other leg is gone."""
        if self._ends:
            self._settle()
        self.scheduler.finish(request, FinishReason.ABORT, self._agenda.now_s)
        self._shut_out = False
        self._wake()

    def change_timer(self, timer: StepTimer) -> None:
        """Steps that begin from now on take other times."""
        if self._ends:
            self._settle()
        self.scheduler.change_timer(timer)

    def stop(self) -> list[Request]:
        """Die. Returns the requests that were in it, waiting, fetching or running."""
        self.stopped = True
        self._version += 1
        scheduler = self.scheduler
        lost = [*scheduler.running, *scheduler.fetching.values(), *scheduler.arrived, *scheduler.waiting]
        for request in lost:
            scheduler.finish(request, FinishReason.ABORT, self._agenda.now_s)
        return lost

    # ---- steps

    def _wake(self) -> None:
        if self.stopped or self._ending:
            return
        if self._ends:
            self._cut()
        elif self._step is None:
            self._begin(self._agenda.now_s)

    def _cut(self) -> None:
        """End the running stride with the step in progress."""
        steps = bisect_left(self._ends, self._agenda.now_s) + 1
        if steps < len(self._ends):
            del self._ends[steps:]
            self._await(self._ends[-1])

    def _settle(self) -> None:
        """Account the running stride up to the step in progress, which goes on as a step of its own."""
        steps, ends = bisect_left(self._ends, self._agenda.now_s), self._ends
        self._ends = []
        self.steps += steps
        self.output_tokens += steps * self.running
        self.scheduler.take_stride(steps, self._agenda.now_s)  # nobody ends before the stride does
        self._step = self.scheduler.equal_step()
        self._await(ends[steps])

    def _await(self, end_s: float) -> None:
        self._version += 1
        version = self._version
        self._agenda.at(end_s, lambda: self._end(version), Rank.STEP)

    def _begin(self, now_s: float) -> None:
        """Start a stride where possible, else a step."""
        scheduler = self.scheduler
        self._began_s = now_s
        if self._strides and (self._shut_out or not scheduler.queued) and scheduler.running:
            self._ends = scheduler.stride(now_s)
            if self._ends:
                self._await(self._ends[-1])
                return
        step = scheduler.schedule(now_s)
        self._shut_out = (
            scheduler.queued > 0 and step.tokens < scheduler.config.max_batched_tokens and not step.preempted
        )
        if step.work:
            self._step = step
            self._await(now_s + step.duration_s)
        for request in step.fetches:
            self._hooks.fetch(request, now_s)

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        now_s = self._agenda.now_s
        self.busy_s += now_s - self._began_s
        self._ending = True
        if self._ends:
            self.steps += len(self._ends)
            self.output_tokens += len(self._ends) * self.running
            finished = self.scheduler.take_stride(len(self._ends), now_s)
            self._ends = []
        else:
            finished = self._end_step(now_s)
        if finished:
            self._shut_out = False
        for request in finished:
            request.last_token_s = now_s
            self._hooks.finished(request, now_s)
        self._ending = False
        if not self.stopped:
            self._begin(now_s)

    def _end_step(self, now_s: float) -> list[Request]:
        step = self._step
        assert step is not None, "a step ends that has not begun"
        self._step = None
        self.steps += 1
        finished = []
        for request in self.scheduler.complete(step, now_s):
            self.output_tokens += 1
            if request.output_tokens == 1:
                self.computed_prompt_tokens += request.prompt_tokens - request.cached_tokens - request.fetched_tokens
                self._hooks.first_token(request, now_s)
            if request.finished:
                finished.append(request)
        return finished
