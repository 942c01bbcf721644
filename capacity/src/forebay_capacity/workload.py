"""What clients ask for: prompts of one length, answers of one length, at a rate.

Lengths are means; arrivals are Poisson. A mix of lengths needs more than its mean suggests where the objective is
strict: plan with the length that the target percentile has to cover.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay_capacity.errors import ImpossibleError, require_positive, require_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A stream of like requests. Construction checks the values (`ImpossibleError`)."""

    input_tokens: int
    """Prompt tokens of a request."""
    output_tokens: int
    """Answer tokens of a request."""
    rate_per_s: float
    """Requests per second, all clients together."""
    cached_share: float = 0.0
    """Share of prompt tokens found in a worker's KV cache."""

    def __post_init__(self) -> None:
        for field in ("input_tokens", "output_tokens"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ImpossibleError(field, f"{value!r} is not a number of tokens", "use a whole number of 1 or more")
        require_positive("rate_per_s", self.rate_per_s, "requests per second")
        require_share("cached_share", self.cached_share)

    @property
    def cached_tokens(self) -> int:
        """Cached prompt tokens; the engine always computes at least one."""
        return min(int(self.cached_share * self.input_tokens), self.input_tokens - 1)

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that a worker computes."""
        return self.input_tokens - self.cached_tokens

    @property
    def prefill_attention(self) -> float:
        """n^2 of the prompt minus n^2 of its cached part."""
        return float(self.input_tokens**2 - self.cached_tokens**2)

    @property
    def decode_context_tokens(self) -> float:
        """Mean context of a sequence while it decodes."""
        return self.input_tokens + self.output_tokens / 2

    @property
    def final_tokens(self) -> int:
        """Length of a finished sequence."""
        return self.input_tokens + self.output_tokens
