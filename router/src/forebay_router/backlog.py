"""Prompt tokens that a worker still has to compute, and how long that will take. Pure.

Requests are counted when they are sent, so a burst is seen before the worker has said anything. They are computed in the order
in which they were sent (near enough: engines batch small ones). Two things move the queue on:

- the first token of a streamed request: it and all before it are done, the next one begins now;
- time, for requests whose first token cannot be seen (answers that are not streamed).

    wait = seconds of all behind the head + |seconds of the head - time since it began|

The head's part counts down while it is computed. A head that is overdue counts up again: the longer a worker has been silent
beyond its time, the longer it will go on being so. That keeps new requests away from a worker that hangs.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class _Prompt:
    tokens: int
    sent_s: float
    visible: bool
    """Its first token will be seen."""


@dataclass(slots=True)
class Backlog:
    """One worker's queue of prompts."""

    prompts: dict[int, _Prompt] = field(default_factory=dict)
    """By lease, in the order in which they were sent."""
    tokens: int = 0
    """Sum of the queue."""
    began_s: float = 0.0
    """Monotonic time at which the head began, or the one before it ended."""

    def add(self, lease: int, tokens: int, now_s: float, *, visible: bool) -> None:
        """A request was sent."""
        self.prompts[lease] = _Prompt(tokens, now_s, visible)
        self.tokens += tokens

    def computed(self, lease: int, now_s: float) -> None:
        """A request's first token came: it and all before it are done."""
        if lease not in self.prompts:
            return
        while True:
            head = next(iter(self.prompts))
            self.tokens -= self.prompts.pop(head).tokens
            if head == lease:
                break
        self.began_s = now_s if self.prompts else 0.0

    def drop(self, lease: int, now_s: float) -> None:
        """A request ended before its first token."""
        if lease not in self.prompts:
            return
        was_head = next(iter(self.prompts)) == lease
        self.tokens -= self.prompts.pop(lease).tokens
        if was_head:
            self.began_s = now_s if self.prompts else 0.0

    def age_s(self, lease: int, now_s: float) -> float:
        """Time since a request that is still to be computed was sent; 0 for others."""
        prompt = self.prompts.get(lease)
        return 0.0 if prompt is None else max(0.0, now_s - prompt.sent_s)

    def wait_s(self, token_s: float, now_s: float) -> float:
        """Time until all of it is computed, at so many seconds a token."""
        tokens, began_s = self.tokens, self.began_s
        for prompt in self.prompts.values():
            began_s = max(began_s, prompt.sent_s)
            head_s = prompt.tokens * token_s
            elapsed_s = now_s - began_s
            tokens -= prompt.tokens
            if prompt.visible or elapsed_s < head_s:
                return tokens * token_s + abs(head_s - elapsed_s)
            began_s += head_s
        return 0.0

    def tokens_left(self, token_s: float, now_s: float) -> float:
        """Prompt tokens that are still to be computed, the head's computed part left out."""
        if not self.prompts:
            return 0.0
        return self.tokens if token_s <= 0 else min(float(self.tokens), self.wait_s(token_s, now_s) / token_s)
