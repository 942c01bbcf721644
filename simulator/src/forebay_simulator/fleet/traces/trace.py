"""A trace: when requests come, how long they are, and which prefixes they share.

A block id names `block_tokens` tokens of a prompt together with everything before them, so two requests share the KV cache of
their first k blocks exactly when their first k ids are equal. A trace without identities has no ids, and none of its requests
share anything. Answers have no id: what a later turn repeats of them has an id of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


class TraceError(Exception):
    """A trace that cannot be read; the text names file, line and field."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request."""

    at_s: float
    """Seconds after the trace's beginning."""
    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    """Of the prompt's blocks in order; the last one may be partly filled."""
    session: str = ""
    """Requests of one session belong to one client; empty when not known."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of time."""

    name: str
    arrivals: tuple[Arrival, ...]
    block_tokens: int = 0
    """Tokens that a block id stands for; 0 when there are no ids."""
    duration_s: float = 0.0
    """Length of the recorded time; what is after the last arrival counts too."""

    @classmethod
    def of(cls, name: str, arrivals: Iterable[Arrival], *, block_tokens: int = 0, duration_s: float = 0.0) -> Trace:
        """Sort arrivals; the duration is at least the last arrival's time."""
        ordered = tuple(sorted(arrivals, key=lambda one: one.at_s))
        last_s = ordered[-1].at_s if ordered else 0.0
        return cls(name, ordered, block_tokens, max(duration_s, last_s))

    @property
    def rate_per_s(self) -> float:
        """Mean rate."""
        return len(self.arrivals) / self.duration_s if self.duration_s else 0.0

    def first(self, seconds: float) -> Trace:
        """The part before `seconds`."""
        kept = tuple(one for one in self.arrivals if one.at_s < seconds)
        return replace(self, arrivals=kept, duration_s=min(seconds, self.duration_s))

    def capped(self, tokens_max: int) -> tuple[Trace, int]:
        """The trace without requests whose prompt and answer exceed `tokens_max`, and how many those were."""
        kept = tuple(one for one in self.arrivals if one.prompt_tokens + one.output_tokens <= tokens_max)
        return replace(self, arrivals=kept), len(self.arrivals) - len(kept)
