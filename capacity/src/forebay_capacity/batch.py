"""What one lane does alone: prefill time, decode batch, chunk budget, longest prompt.

All of these invert or sum `Times.step_seconds`, which grows in every argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from forebay_capacity.accelerators import BATCHED_TOKENS
from forebay_capacity.dtypes import Dtype
from forebay_capacity.errors import require_not_negative, require_positive

if TYPE_CHECKING:
    from forebay_capacity.accelerators import Accelerator
    from forebay_capacity.steptime import Times

SEARCH_MAX = 1 << 24
"""No batch or prompt is larger."""


def decode_seconds(timer: Times, sequences: float, context_tokens: float) -> float:
    """One step of sequences that all decode at this context."""
    return timer.step_seconds(decode_sequences=sequences, decode_context_tokens=sequences * context_tokens)


def prefill_seconds(
    timer: Times,
    tokens: int,
    *,
    cached_tokens: int = 0,
    chunk_tokens: int | None = BATCHED_TOKENS,
    decode_sequences: float = 0,
    context_tokens: float = 0,
) -> float:
    """Prefill of a prompt of `tokens`, the first `cached_tokens` of them cached, beside sequences that decode.

    The prompt is computed in chunks that share each step's token budget with the decoding sequences; None means in
    one step.
    """
    require_positive("tokens", tokens)
    require_not_negative("cached_tokens", cached_tokens)
    start = min(cached_tokens, tokens - 1)
    if chunk_tokens is None:
        chunk = tokens - start
    else:
        require_positive("chunk_tokens", chunk_tokens)
        chunk = max(1, int(chunk_tokens - decode_sequences))
    seconds = 0.0
    while start < tokens:
        end = min(tokens, start + chunk)
        seconds += timer.step_seconds(
            decode_sequences=decode_sequences,
            decode_context_tokens=decode_sequences * context_tokens,
            prefill_tokens=end - start,
            prefill_attention=float(end * end - start * start),
        )
        start = end
    return seconds


def largest_batch(timer: Times, context_tokens: float, tpot_s: float) -> int:
    """Most sequences of one lane that decode together within the time per output token; 0 when not even one does."""
    require_positive("tpot_s", tpot_s, "seconds")
    return _largest(lambda sequences: decode_seconds(timer, sequences, context_tokens) <= tpot_s)


def chunk_budget(timer: Times, sequences: int, context_tokens: float, tpot_s: float) -> int:
    """Most prefill tokens a step can take beside decoding sequences and stay within `tpot_s`; 0 when none.

    Attention of the chunk is counted as if the prompt were as long as the mean context.
    """
    require_positive("tpot_s", tpot_s, "seconds")

    def fits(tokens: int) -> bool:
        return (
            timer.step_seconds(
                decode_sequences=sequences,
                decode_context_tokens=sequences * context_tokens,
                prefill_tokens=tokens,
                prefill_attention=tokens * context_tokens,
            )
            <= tpot_s
        )

    return _largest(fits)


def longest_prompt(timer: Times, seconds: float) -> int:
    """Longest uncached prompt that an idle lane prefills in this time; 0 when none."""
    require_positive("seconds", seconds)

    def fits(tokens: int) -> bool:
        return prefill_seconds(timer, tokens, chunk_tokens=None) <= seconds

    return _largest(fits)


def ridge_tokens(accelerator: Accelerator, weights: Dtype | str = Dtype.BF16) -> float:
    """Tokens of a step at which reading weights takes as long as multiplying them, at the hardware's peaks."""
    chosen = Dtype(weights)
    return accelerator.flops_per_s(chosen) / accelerator.bandwidth_bytes_per_s * chosen.weight_bytes / 2


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest count for which a condition holds that, once false, stays false; at most `SEARCH_MAX`."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high < SEARCH_MAX and fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
