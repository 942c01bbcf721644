"""A worker that is known by its step times alone: fitted to an engine, or measured in it, whatever its model and hardware. Pure.

Measured times are points of a curve, as a profile of an engine gives them. Between two points the line that joins them holds,
beyond the last one the line goes on. So a step time that bends (an engine whose steps grow slower as its cache fills) keeps
its form, which a straight line through two points would miss by a fifth at either end.
"""

from bisect import bisect_left
from dataclasses import dataclass

from forebay_capacity.accelerators import BATCHED_TOKENS
from forebay_capacity.steptime import StepTimer

Curve = tuple[tuple[float, float], ...]
"""(tokens, seconds) in ascending order of tokens; at least two."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Step times as measured."""

    decode: Curve
    """By the tokens of context of all sequences that decode."""
    prefill: Curve
    """By the prompt tokens of the step."""

    def step_seconds(
        self,
        *,
        decode_sequences: float,
        decode_context_tokens: float,
        prefill_tokens: float = 0,
        prefill_attention: float = 0,  # noqa: ARG002  (a profile of prompts from their beginning has it in it)
    ) -> float:
        """Seconds of one step."""
        seconds = _on(self.decode, decode_context_tokens) if decode_sequences else 0.0
        return seconds + (_on(self.prefill, prefill_tokens) if prefill_tokens else 0.0)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A worker known by measured step times instead of its model and hardware."""

    timer: StepTimer | Measured
    kv_tokens: int
    """Tokens that its KV cache holds."""
    chunk_tokens: int = BATCHED_TOKENS
    """Token budget of a step."""
    lanes: int = 1


def _on(curve: Curve, tokens: float) -> float:
    place = min(max(1, bisect_left(curve, (tokens,))), len(curve) - 1)
    (before, low_s), (after, high_s) = curve[place - 1], curve[place]
    return low_s + (high_s - low_s) * (tokens - before) / (after - before)
