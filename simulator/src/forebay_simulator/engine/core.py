"""The engine core: one scheduler, driven by the event loop's clock.

A step is scheduled, its duration passes, its tokens come out, the next step is scheduled; with nothing to do there is no
timer at all. Steps follow each other on a planned time line: the next one starts where the last was planned to end, not
when the loop got around to it, so a late wake-up delays tokens but adds up to nothing. Only when the process is behind
by more than `CATCH_UP_MAX_S` (it was stopped, the machine is overloaded) does the line start anew from now.

Metrics are written here, at the end of a step or at an abort, and nowhere else: between steps gauges stand still.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from forebay_simulator.engine.errors import ENGINE_DEAD, LOAD_FAILED, ApiError, internal
from forebay_simulator.engine.generation import Generation
from forebay_simulator.engine.recorder import Recorder
from forebay_simulator.engine.request import FinishReason, Phase, Request
from forebay_simulator.engine.scheduler import Scheduler
from forebay_simulator.engine.scheduling import Step
from forebay_simulator.engine.text import Answer, Vocabulary

LOG = logging.getLogger("forebay.engine")
CATCH_UP_MAX_S = 0.25
"""The furthest behind its plan that the engine tries to catch up with."""


class EngineCore:
    """Runs generations to their end. All methods are called from the loop's thread."""

    def __init__(self, scheduler: Scheduler, vocabulary: Vocabulary, recorder: Recorder, *, speed: float) -> None:
        self.scheduler = scheduler
        self.recorder = recorder
        self.vocabulary = vocabulary
        self.generations: dict[str, Generation] = {}
        self.draining = False
        """New generations are refused."""
        self.dead = False
        self.start_fetch: Callable[[Generation], None] | None = None
        """Loads a prompt's KV from another engine, then calls `fetch_arrived` or `fetch_failed`."""
        self.cancel_fetch: Callable[[Generation], None] | None = None
        self.on_step: Callable[[], None] | None = None
        """Called when a step has ended (KV events)."""
        self.on_death: Callable[[], None] | None = None
        self._speed = speed
        self._loop = asyncio.get_running_loop()
        self._step: Step | None = None
        self._ends_s = 0.0
        self._timer: asyncio.Handle | None = None
        self._frozen = False
        self._paused = False
        self._idle_calls: list[Callable[[], None]] = []
        self._parked: list[Generation] = []
        """Generations that came while paused."""
        self._lease_timer: asyncio.TimerHandle | None = None

    now = staticmethod(time.monotonic)

    # ---- generations in and out

    def submit(self, generation: Generation) -> None:
        """Start a generation; its listener hears the rest."""
        self.generations[generation.request.request_id] = generation
        if self._paused:
            self._parked.append(generation)
            return
        self.scheduler.add(generation.request)
        self._wake()

    def abort(self, generation: Generation, *, counted: bool) -> None:
        """End a generation without telling its listener. Only aborts of the engine's own making are counted."""
        request = generation.request
        if self.generations.pop(request.request_id, None) is None:
            return
        if request.phase is Phase.FETCHING and self.cancel_fetch is not None:
            self.cancel_fetch(generation)
        if generation in self._parked:
            self._parked.remove(generation)
            request.phase, request.finish_reason = Phase.FINISHED, FinishReason.ABORT
        else:
            self.scheduler.finish(request, FinishReason.ABORT, self.now())
        if counted:
            self.recorder.finished(request)
        self.recorder.gauges(self.scheduler)
        self._after_end()
        self._wake()

    @property
    def running(self) -> int:
        """Generations that are not parked by a pause."""
        return len(self.generations) - len(self._parked)

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call once when no generation is left that is not parked."""
        self._idle_calls.append(call)

    def abort_all(self, *, counted: bool, names: tuple[str, ...] | None = None) -> int:
        """End every generation (whose request id starts with one of the names) with reason abort.

        The listeners are told. Returns how many there were.
        """
        generations = [
            generation
            for request_id, generation in self.generations.items()
            if names is None or request_id.startswith(names)
        ]
        for generation in generations:
            self.abort(generation, counted=counted)
            generation.listener.on_finish(generation, None)
        return len(generations)

    def fail_all(self) -> None:
        """End every generation as if the engine core had died."""
        for generation in list(self.generations.values()):
            self.abort(generation, counted=False)
            generation.listener.on_error(generation, internal(ENGINE_DEAD))

    def die(self) -> None:
        """Stop for good: the failure that an engine process does not survive."""
        if self.dead:
            return
        self.dead = True
        if self._timer is not None:
            self._timer.cancel()
        self.fail_all()
        if self.on_death is not None:
            self.on_death()

    # ---- prefill/decode

    def fetch_arrived(self, generation: Generation) -> None:
        """Let a generation go on whose prompt was loaded."""
        if generation.request.phase is not Phase.FETCHING:
            return
        self.scheduler.remote_kv_arrived(generation.request)
        self._wake()

    def fetch_failed(self, generation: Generation, *, recompute: bool) -> None:
        """Let a generation compute its prompt itself, or fail."""
        request = generation.request
        if request.phase is not Phase.FETCHING:
            return
        if recompute:
            self.scheduler.remote_kv_failed(request)
            generation.remote = None
        else:
            self.fail(generation, internal(LOAD_FAILED))
        self._wake()

    def fail(self, generation: Generation, error: ApiError) -> None:
        """End one generation with an error, counted as such."""
        request = generation.request
        self.generations.pop(request.request_id, None)
        self.scheduler.finish(request, FinishReason.ERROR, self.now())
        self.recorder.finished(request)
        self.recorder.gauges(self.scheduler)
        generation.listener.on_error(generation, error)
        self._after_end()

    def release_held(self, request_id: str) -> bool:
        """Free blocks that another engine has fetched."""
        released = self.scheduler.release_held(request_id)
        self.recorder.gauges(self.scheduler)
        self._wake()
        return released

    def renew_held(self, request_id: str) -> bool:
        """Renew a lease, as the heartbeat of a queued decode asks."""
        return self.scheduler.renew_held(request_id, self.now() + self.scheduler.config.lease_s)

    # ---- pause

    @property
    def paused(self) -> bool:
        """Whether new generations are parked."""
        return self._paused

    def pause(self, *, freeze: bool) -> None:
        """Park new generations; with `freeze` the running ones stand still too."""
        self._paused = True
        self._frozen = self._frozen or freeze

    def resume(self) -> None:
        """Go on, with what was parked meanwhile."""
        self._paused = self._frozen = False
        parked, self._parked = self._parked, []
        for generation in parked:
            self.scheduler.add(generation.request)
        self._ends_s = self.now()
        self._wake()

    # ---- steps

    def _wake(self) -> None:
        if self._timer is None and not self._frozen and not self.dead:
            self._timer = self._loop.call_soon(self._begin_fresh)

    def _begin_fresh(self) -> None:
        self._ends_s = self.now()
        self._begin()

    def _begin(self) -> None:
        """Schedule a step that starts where the last one ended."""
        self._timer = None
        self._step = None
        if self._frozen or self.dead:
            return
        step = self.scheduler.schedule(self.now())
        if step.work:
            self._run(step)
        elif step.fetches:
            self.recorder.gauges(self.scheduler)
        for request in step.fetches:  # last: a fetch that fails at once wakes the core
            self._fetch(request)

    def _run(self, step: Step) -> None:
        self._step = step
        now = self.now()
        if now - self._ends_s > CATCH_UP_MAX_S:
            self._ends_s = now
        self._ends_s += step.duration_s / self._speed
        delay = self._ends_s - now
        self._timer = self._loop.call_later(delay, self._end) if delay > 0 else self._loop.call_soon(self._end)

    def _end(self) -> None:
        try:
            self._finish_step()
        except Exception:  # the boundary of the engine's loop: a core that stumbles is dead, as a real one is
            LOG.exception("the engine core failed")
            self.die()

    def _finish_step(self) -> None:
        step = self._step
        assert step is not None, "a step ends that has not begun"
        now = self.now()
        produced = self.scheduler.complete(step, now)
        self.recorder.step(step)
        for request in produced:
            generation = self.generations.get(request.request_id)
            if generation is not None:
                self._deliver(generation, now)
        self.recorder.gauges(self.scheduler)
        if self.on_step is not None:
            self.on_step()
        self._watch_leases()
        self._begin()

    def _deliver(self, generation: Generation, now: float) -> None:
        request = generation.request
        if request.output_tokens == 1 and self.scheduler.pool.tainted:
            self._taste(generation)
        word = generation.answer.next()
        generation.tokens.ids.append(self.vocabulary.ids[word])
        self.recorder.token(request, now)
        if generation.stop and generation.extend(self.vocabulary.words[word]):
            request.finish_reason = FinishReason.STOP
            self.scheduler.finish(request, FinishReason.STOP, now)
        if not request.finished:
            generation.listener.on_token(generation, word)
            return
        del self.generations[request.request_id]
        self.recorder.finished(request)
        generation.listener.on_finish(generation, word)
        self._after_end()

    def _taste(self, generation: Generation) -> None:
        """Answer from wrong content when any block of the prompt holds it."""
        tainted = self.scheduler.pool.tainted
        for block_id in generation.request.block_ids:
            if block_id in tainted:
                generation.answer = Answer(tainted[block_id])
                return

    def _fetch(self, request: Request) -> None:
        generation = self.generations[request.request_id]
        assert self.start_fetch is not None, "a remote prefill is only accepted with a connector"
        self.start_fetch(generation)

    def _after_end(self) -> None:
        if self.running:
            return
        calls, self._idle_calls = self._idle_calls, []
        for call in calls:
            call()

    # ---- leases

    def _watch_leases(self) -> None:
        if self._lease_timer is None and self.scheduler.held:
            expiry = min(held.expires_s for held in self.scheduler.held.values())
            self._lease_timer = self._loop.call_later(max(0.0, expiry - self.now()) + 0.001, self._expire_leases)

    def _expire_leases(self) -> None:
        self._lease_timer = None
        expired = self.scheduler.expire_held(self.now())
        if expired:
            self.recorder.leases_expired(len(expired))
            self.recorder.gauges(self.scheduler)
            self._wake()
        self._watch_leases()
