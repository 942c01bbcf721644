"""What this replica has to tell, until it is told. Pure.

Events gather for `FLUSH_S` and go out as one Batch: a message costs as much as some fifty events. A message at least every
`HEARTBEAT_S` says that this replica lives. More than `EVENTS_MAX` events between two messages drop the oldest; then a number is
left out, which peers notice, and Everything follows at once. It also goes out when a peer asks, at most every
`EVERYTHING_PAUSE_S`, and unasked every `EVERYTHING_S`, for a peer whose questions are not heard.

A newcomer is also told the prompts that this replica sent of late (`RECENT_BLOCKS`), a part with each flush, so that a replica
that takes another's place knows the caches as that one did.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from forebay_router.index.content import Content
from forebay_router.mesh.messages import Ask, Batch, Event, Everything, Farewell, Message, Prompts, Sent, Taken

FLUSH_S: Final = 0.02
HEARTBEAT_S: Final = 0.5
EVERYTHING_S: Final = 30.0
EVERYTHING_PAUSE_S: Final = 0.5
EVENTS_MAX: Final = 20_000
RECENT_BLOCKS: Final = 50_000
"""Blocks of prompts that are kept for newcomers."""
PART_BLOCKS: Final = 1_000
"""Told a newcomer with one flush: what it takes in in less than a millisecond."""
WELCOMES_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that was sent to a worker."""

    worker: str
    content: Content

    @property
    def blocks(self) -> int:
        """Length."""
        return len(self.content.hashes)


@dataclass(slots=True)
class Outbox:
    """Events that wait to be told, and when what was told last."""

    name: str
    incarnation: int
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))
    sequence: int = 0
    """Of the last Batch or Everything."""
    dropped: int = 0
    """Events that were never told, so far."""
    asked: bool = False
    """A peer wants Everything."""
    recent: deque[Prompt] = field(default_factory=deque)
    """Sent by this replica, the oldest first."""
    recent_blocks: int = 0
    _welcomes: deque[tuple[str, deque[Prompt]]] = field(default_factory=lambda: deque(maxlen=WELCOMES_MAX))
    """Newcomers, and what each has still to be told."""
    _overflowed: bool = False
    _told_s: float = -inf
    _everything_s: float = -inf

    def note(self, event: Event) -> None:
        """Something happened."""
        if len(self.events) == EVENTS_MAX:
            self.dropped += 1
            self._overflowed = True
        self.events.append(event)

    def remember(self, worker: str, content: Content) -> None:
        """A prompt was sent: newcomers will be told."""
        self.recent.append(Prompt(worker, Content(content.hashes, content.size_bytes)))
        self.recent_blocks += len(content.hashes)
        while self.recent_blocks > RECENT_BLOCKS:
            self.recent_blocks -= self.recent.popleft().blocks

    def welcome(self, name: str) -> None:
        """A replica is heard for the first time."""
        self.asked = True
        if self.recent:
            self._welcomes.append((name, self.recent.copy()))

    def _next_prompts(self) -> Prompts:
        """The next part of what a newcomer is told."""
        name, left = self._welcomes[0]
        part: list[Sent] = []
        blocks = 0
        while left and blocks < PART_BLOCKS:
            prompt = left.popleft()
            blocks += prompt.blocks
            part.append(Sent.of(prompt.worker, prompt.content))
        if not left:
            self._welcomes.popleft()
        return Prompts(self.name, self.incarnation, name, tuple(part))

    def due(self, now_s: float, leases: Callable[[], tuple[Taken, ...]]) -> list[Message]:
        """What is to be told now. `leases` lists all that are held."""
        messages: list[Message] = []
        whole = self._everything_due(now_s)
        if self._overflowed:
            self.sequence += 1
            self._overflowed = False
        if self.events or (not whole and now_s - self._told_s >= HEARTBEAT_S):
            self.sequence += 1
            messages.append(Batch(self.name, self.incarnation, self.sequence, tuple(self.events)))
            self.events.clear()
        if whole:
            self.sequence += 1
            messages.append(Everything(self.name, self.incarnation, self.sequence, leases()))
            self._everything_s = now_s
            self.asked = False
        if messages:
            self._told_s = now_s
        if self._welcomes:
            messages.append(self._next_prompts())
        return messages

    def _everything_due(self, now_s: float) -> bool:
        since_s = now_s - self._everything_s
        return self._overflowed or since_s >= EVERYTHING_S or (self.asked and since_s >= EVERYTHING_PAUSE_S)

    def ask(self, of: str) -> Ask:
        """A question for a peer's Everything."""
        return Ask(self.name, self.incarnation, of)

    def farewell(self) -> Farewell:
        """The last message."""
        return Farewell(self.name, self.incarnation)
