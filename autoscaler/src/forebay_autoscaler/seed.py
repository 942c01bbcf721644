"""What the capacity model expects of a worker: where a pool's knowledge begins before requests have finished. Pure.

For the mean request of the service (prompt, cached part, answer) a worker holds as many sequences as

    its engine allows,  its KV cache holds at their full length,  and decode together with a step no longer than the TPOT;

in a mixed worker each of B sequences also brings its share of prefill to every step, B * uncached / output tokens. At that
batch one step takes T, and a request output * T (plus its prefill in a mixed worker).

*At the objective's percentile.* The number in work varies around its mean. Near the TPOT a step grows with the batch, so a few
more requests make all slower, and more are in work when the next ones come. For such a system (a delay a beside processor
sharing, T = a + c B) variance over mean of B is T / a where Poisson arrivals alone would give 1: the `amplification` of the
margin in model.py. In a mixed worker the prefills that happen to fall into an answer of n tokens add to its mean step: their
number is Poisson, so the answer's time per token has a deviation of s * sqrt(x T (1 + v) / n), with s seconds of prefill,
x requests a second and v the squared variation of prompts; the TPOT must hold with the target's quantile of it on top.

`time_ratio` says how much longer a request takes beside `load` others than in a full worker, so that a measurement at any
load tells the speed of the worker: learn.py.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_autoscaler.chance import quantile
from forebay_autoscaler.fitted import Fitted
from forebay_autoscaler.observation import ServiceSignals
from forebay_capacity.batch import largest_batch, prefill_seconds
from forebay_capacity.memory import sequences_at
from forebay_capacity.steptime import Times, timer_of
from forebay_capacity.worker import Worker

CACHE_SIZE: Final = 8192
"""Expectations kept: a few for each pool."""
PROMPT_VARIATION: Final = 1.0
"""Squared coefficient of variation that prompts are taken to have."""
SHORT_ANSWER: Final = 0.5
"""Share of the mean answer for which the TPOT must hold beside prefills: shorter ones are few tokens of the whole."""
AMPLIFICATION_MAX: Final = 6.0
"""A step that is nearly all load would ask for a margin without end."""


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
    timer: Times
    lanes: int
    amplification: float = 1.0
    """Variance over mean of the requests in work, where the limit is the TPOT's."""

    def time_ratio(self, load: float) -> float:
        """Time of a request in a full worker over its time beside `load` requests; below 1 beyond the limit."""
        if self.role is Role.PREFILL or self.limit is None:
            return 1.0
        now = step_s(self.timer, self.role, self.mix, max(1.0, load / self.lanes))
        return step_s(self.timer, self.role, self.mix, self.limit / self.lanes) / now


def mix_of(signals: ServiceSignals, *, window_s: float, samples_min: float) -> Mix | None:
    """The mean request of the window, rounded to two digits; None with too few."""
    # Tokens are counted as requests end, so they are of those that ended: while demand rises, fewer than arrived.
    ended = (signals.tpot_per_s | signals.arrived_per_s).known
    prompt, output = signals.prompt_tokens_per_s.known, signals.output_tokens_per_s.known
    if not ended or not prompt or not output or ended * window_s < samples_min:
        return None
    cached = signals.cached_tokens_per_s.known or 0.0
    # Counters of several routers need not agree: no request is of no token, and none has more cached than it has.
    mean = max(1, _rounded(prompt / ended))
    return Mix(mean, min(mean, _rounded(cached / ended)), max(1, _rounded(output / ended)))


def _rounded(tokens: float) -> int:
    """Two significant digits: finer is noise, and each new value costs a computation."""
    return round(float(f"{tokens:.1e}"))


@lru_cache(maxsize=CACHE_SIZE)
def expect(worker: Worker | Fitted, role: Role, mix: Mix, objective: Objective, sequences_max: float) -> Seed | None:
    """What the worker should do; None when it cannot meet the TPOT even alone, holds no such request, or needs no time."""
    fitted = _fitted(worker, mix.prompt + mix.output)
    timer, lanes = fitted.timer, fitted.lanes
    prefill_s = prefill_seconds(timer, max(1, mix.prompt), cached_tokens=mix.cached, chunk_tokens=fitted.chunk_tokens)
    if role is Role.PREFILL:
        return Seed(prefill_s / lanes, None, mix, role, timer, lanes) if prefill_s > 0 else None
    held = fitted.kv_tokens // (mix.prompt + mix.output)
    by_engine, by_memory = int(sequences_max / lanes), held // lanes
    by_tpot = _largest_batch(timer, role, mix, objective, prefill_s)
    batch = min(by_engine, by_memory, by_tpot)
    alone_s = step_s(timer, role, mix, 1)
    if batch < 1 or alone_s <= 0.0:
        return None
    full_s = step_s(timer, role, mix, batch)
    work_s = mix.output * full_s + (prefill_s if role is Role.MIXED else 0.0)
    # Where slots or memory end first, more requests wait and slow nobody down.
    slows = batch == by_tpot
    amplification = min(AMPLIFICATION_MAX, full_s / alone_s) if slows else 1.0
    return Seed(work_s, float(batch * lanes), mix, role, timer, lanes, amplification)


def _fitted(worker: Worker | Fitted, length: int) -> Fitted:
    """The worker by its step times; its KV cache as large as it is for sequences of this length (windows end growing)."""
    if isinstance(worker, Fitted):
        return worker
    kv_tokens = sequences_at(worker, length) * length
    return Fitted(timer_of(worker), kv_tokens, worker.step_tokens, worker.lanes)


def step_s(timer: Times, role: Role, mix: Mix, sequences: float) -> float:
    """One step of a lane with so many sequences of this mix, in steady state."""
    prompts = sequences / max(1, mix.output) if role is Role.MIXED else 0.0
    return timer.step_seconds(
        decode_sequences=sequences,
        decode_context_tokens=sequences * mix.context,
        prefill_tokens=prompts * mix.uncached,
        prefill_attention=prompts * (mix.prompt**2 - mix.cached**2),
    )


def _largest_batch(timer: Times, role: Role, mix: Mix, objective: Objective, prefill_s: float) -> int:
    """Most sequences within the TPOT at the target's percentile; step time grows with every sequence: halving finds it."""
    deviations = quantile(objective)
    answer = max(1.0, SHORT_ANSWER * mix.output)

    def within(sequences: int) -> bool:
        time_s = step_s(timer, role, mix, sequences)
        if role is Role.MIXED:
            prefills = sequences / max(1, mix.output) * (1.0 + PROMPT_VARIATION)  # a step, variation included
            time_s += deviations * prefill_s * math.sqrt(prefills / answer)
        return time_s <= objective.tpot_s

    low, high = 0, largest_batch(timer, mix.context, objective.tpot_s)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if within(middle) else (low, middle - 1)
    return low
