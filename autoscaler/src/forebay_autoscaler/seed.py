"""What the capacity model expects of a worker: where a pool's knowledge begins before requests have finished. Pure.

For the mean request of the service (prompt, cached part, answer) a worker holds as many sequences as

    its engine allows,  its KV cache holds at their full length,  and decode together with a step no longer than the TPOT;

in a mixed worker each of B sequences also brings its share of prefill to every step, B * uncached / output tokens. At that
batch one step takes T, and a request output * T (plus its prefill in a mixed worker). A request that was *measured* beside
fewer others took less: `stretch` is by how much longer it will take in a full worker, T(full) / T(now).

Everything is an expectation; learn.py lets measurements win.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_autoscaler.observation import ServiceSignals
from forebay_capacity.batch import largest_batch, prefill_seconds
from forebay_capacity.memory import sequences_at
from forebay_capacity.steptime import StepTimer, timer_of
from forebay_capacity.worker import Worker

CACHE_SIZE: Final = 8192
"""Expectations kept: a few for each pool."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The mean request of a service, in tokens."""

    prompt: int
    cached: int
    output: int

    @property
    def context(self) -> float:
        """Mean context while decoding."""
        return self.prompt + self.output / 2

    @property
    def uncached(self) -> int:
        """Prompt tokens that a worker computes; at least one."""
        return max(1, self.prompt - self.cached)


@dataclass(frozen=True, slots=True)
class Seed:
    """What one worker should do with a mix of requests."""

    work_s: float
    """Worker time (prefill) or slot time (else) of one request."""
    limit: float | None
    """Requests at once within the objective; None for prefill, whose limit follows from its work."""
    mix: Mix
    role: Role
    timer: StepTimer
    lanes: int

    def stretch(self, load: float) -> float:
        """How much longer a request takes in a full worker than beside `load` others; at least 1."""
        if self.role is Role.PREFILL or self.limit is None:
            return 1.0
        now = step_s(self.timer, self.role, self.mix, max(1.0, load / self.lanes))
        return max(1.0, step_s(self.timer, self.role, self.mix, self.limit / self.lanes) / now)


def mix_of(signals: ServiceSignals, *, window_s: float, samples_min: float) -> Mix | None:
    """The mean request of the window, rounded to two digits; None with too few."""
    arrived, prompt = signals.arrived_per_s.known, signals.prompt_tokens_per_s.known
    output, cached = signals.output_tokens_per_s.known, signals.cached_tokens_per_s.known
    if not arrived or not prompt or not output or arrived * window_s < samples_min:
        return None
    return Mix(_rounded(prompt / arrived), _rounded((cached or 0.0) / arrived), _rounded(output / arrived))


def _rounded(tokens: float) -> int:
    """Two significant digits: finer is noise, and each new value costs a computation."""
    return round(float(f"{tokens:.1e}"))


@lru_cache(maxsize=CACHE_SIZE)
def expect(worker: Worker, role: Role, mix: Mix, objective: Objective, sequences_max: float) -> Seed | None:
    """What the worker should do; None when it cannot meet the TPOT even alone, or holds no such request."""
    timer, lanes = timer_of(worker), worker.lanes
    if role is Role.PREFILL:
        work_s = prefill_seconds(timer, max(1, mix.prompt), cached_tokens=mix.cached) / lanes
        return Seed(work_s, None, mix, role, timer, lanes)
    by_engine, by_memory = int(sequences_max / lanes), sequences_at(worker, mix.prompt + mix.output) // lanes
    batch = min(by_engine, by_memory, _largest_batch(timer, role, mix, objective.tpot_s))
    if batch < 1:
        return None
    work_s = mix.output * step_s(timer, role, mix, batch)
    if role is Role.MIXED:
        work_s += prefill_seconds(timer, max(1, mix.prompt), cached_tokens=mix.cached)
    return Seed(work_s, float(batch * lanes), mix, role, timer, lanes)


def step_s(timer: StepTimer, role: Role, mix: Mix, sequences: float) -> float:
    """One step of a lane with so many sequences of this mix, in steady state."""
    prompts = sequences / max(1, mix.output) if role is Role.MIXED else 0.0
    return timer.step_seconds(
        decode_sequences=sequences,
        decode_context_tokens=sequences * mix.context,
        prefill_tokens=prompts * mix.uncached,
        prefill_attention=prompts * (mix.prompt**2 - mix.cached**2),
    )


def _largest_batch(timer: StepTimer, role: Role, mix: Mix, tpot_s: float) -> int:
    """Most sequences with steps within the TPOT; step time grows with every sequence, so halving finds it."""
    low, high = 0, largest_batch(timer, mix.context, tpot_s)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if step_s(timer, role, mix, middle) <= tpot_s else (low, middle - 1)
    return low
