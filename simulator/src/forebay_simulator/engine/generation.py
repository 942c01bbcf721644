"""One answer being generated: the scheduler's request, the words drawn so far, and who listens.

Stop strings are looked for in the text, not in tokens, and what could still become one is held back, as vLLM does: with
the longest stop string of n characters the last n - 1 characters wait until the next token or the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from forebay_simulator.engine.block_hash import TokenSequence
from forebay_simulator.engine.errors import ApiError
from forebay_simulator.engine.request import FinishReason, Request
from forebay_simulator.engine.text import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePrefill:
    """Where the KV of a prompt is: the fields of `kv_transfer_params` that a decode engine needs."""

    engine_id: str
    request_id: str
    block_ids: tuple[int, ...]
    host: str
    port: int
    tensor: int
    cached_tokens: int
    """What the prefill engine found in its own cache."""


class Listener(Protocol):
    """Hears what becomes of a generation. Calls come from the engine's loop and must not wait."""

    def on_token(self, generation: Generation, word: int) -> None:
        """One token was produced, and it ends nothing."""
        ...

    def on_finish(self, generation: Generation, word: int | None) -> None:
        """The generation ended with its request's reason; `word` is the last token, if one came with the end."""
        ...

    def on_error(self, generation: Generation, error: ApiError) -> None:
        """The generation failed."""
        ...


@dataclass(slots=True, eq=False)
class Generation:
    """State of one answer. `index` tells the choices of one response apart."""

    request: Request
    tokens: TokenSequence
    answer: Answer
    listener: Listener
    index: int = 0
    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    echoes_stop: bool = False
    """include_stop_str_in_output."""
    remote: RemotePrefill | None = None
    prefills_for_remote: bool = False
    text: str = ""
    """Text so far, kept only while stop strings are looked for."""
    stop_found: str | None = None

    @property
    def reported_cached_tokens(self) -> int:
        """What usage says was cached: with a remote prefill, what that one found."""
        return self.remote.cached_tokens if self.remote else self.request.cached_tokens

    @property
    def reason(self) -> str | None:
        """The finish reason in the words of the API."""
        reason = self.request.finish_reason
        return reason.value if isinstance(reason, FinishReason) else None

    @property
    def held_back(self) -> int:
        """Characters at the end of the text that may be the start of a stop string."""
        return max(map(len, self.stop), default=1) - 1

    def extend(self, piece: str) -> bool:
        """Add a word to the text; True when a stop string is complete, with the text cut."""
        searched_from = max(0, len(self.text) - self.held_back)
        self.text += piece
        if self.request.output_tokens < self.min_tokens:
            return False
        for stop in self.stop:
            at = self.text.find(stop, searched_from)
            if at >= 0:
                self.text = self.text[: at + len(stop) if self.echoes_stop else at]
                self.stop_found = stop
                return True
        return False
