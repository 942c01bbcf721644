"""What this replica has to tell, until it is told. Pure.

Events gather for `FLUSH_S` and go out as one Batch: a message costs as much as some fifty events. A message at least every
`HEARTBEAT_S` says that this replica lives. More than `EVENTS_MAX` events between two messages drop the oldest; then a number is
left out, which peers notice, and Everything follows at once. It also goes out when a peer asks, at most every
`EVERYTHING_PAUSE_S`, and unasked every `EVERYTHING_S`, for a peer whose questions are not heard.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from forebay_router.mesh.messages import Ask, Batch, Event, Everything, Farewell, Message, Taken

FLUSH_S: Final = 0.02
HEARTBEAT_S: Final = 0.5
EVERYTHING_S: Final = 30.0
EVERYTHING_PAUSE_S: Final = 0.5
EVENTS_MAX: Final = 20_000


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
    _overflowed: bool = False
    _told_s: float = -inf
    _everything_s: float = -inf

    def note(self, event: Event) -> None:
        """Something happened."""
        if len(self.events) == EVENTS_MAX:
            self.dropped += 1
            self._overflowed = True
        self.events.append(event)

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
