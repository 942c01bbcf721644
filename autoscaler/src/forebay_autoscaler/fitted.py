"""A worker that is known by its step times alone: fitted to an engine, whatever its model and hardware."""

from dataclasses import dataclass

from forebay_capacity.batch import BATCHED_TOKENS
from forebay_capacity.steptime import StepTimer


@dataclass(frozen=True, slots=True)
class Fitted:
    """A worker known by measured step times instead of its model and hardware."""

    timer: StepTimer
    kv_tokens: int
    """Tokens that its KV cache holds."""
    chunk_tokens: int = BATCHED_TOKENS
    """Token budget of a step."""
    lanes: int = 1
