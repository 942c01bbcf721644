"""Prompts that a worker still has to compute, and how much is left of them. Pure.

Requests are counted when they are sent, so a burst is seen before the worker has said anything. They are computed in the order
in which they were sent (near enough: engines batch small ones). Two things move the queue on:

- the first token of a streamed request: it and all before it are done, the next one begins now;
- time, for requests whose first token cannot be seen (answers that are not streamed).

    left = all behind the head + the head x |1 - time since it began / its time|

The head's part counts down while it is computed. A head that is overdue counts up again: the longer a worker has been silent
beyond its time, the longer it will go on being so. That keeps new requests away from a worker that hangs.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
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
    computed_tokens: int = 0
    """Of all prompts that were ever computed here."""

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
            tokens = self.prompts.pop(head).tokens
            self.tokens -= tokens
            self.computed_tokens += tokens
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

    def left(self, token_s: float, now_s: float, prompt_s: float = 0.0) -> tuple[float, float]:
        """(tokens, prompts) that are still to be computed, at so many seconds a token and a prompt."""
        tokens, prompts, began_s = self.tokens, len(self.prompts), self.began_s
        for prompt in self.prompts.values():
            began_s = max(began_s, prompt.sent_s)
            head_s = prompt.tokens * token_s + prompt_s
            elapsed_s = now_s - began_s
            tokens -= prompt.tokens
            prompts -= 1
            if prompt.visible or elapsed_s < head_s:
                share = abs(1 - elapsed_s / head_s) if head_s > 0 else 0.0
                return tokens + prompt.tokens * share, prompts + share
            began_s += head_s
        return 0.0, 0.0

    def wait_s(self, token_s: float, now_s: float, prompt_s: float = 0.0) -> float:
        """Time until all of it is computed."""
        tokens, prompts = self.left(token_s, now_s, prompt_s)
        return tokens * token_s + prompts * prompt_s
