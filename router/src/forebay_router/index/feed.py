"""The order of one engine's KV events. Pure: messages in, batches and requests for replay out.

Each engine (each data-parallel rank) numbers its messages from 0. A subscriber may come late, miss some, or outlive the engine:

    next number           apply
    a gap                 ask for a replay from the first missing one; hold what comes meanwhile
    a number that is not  the engine has started anew with an empty cache: all that was known of it is wrong;
    above the last live   begin again, with a replay from 0 unless this is 0

A connection that breaks ends its feed, and with it all that was known: the engine may have gone and come back unseen.

A replay that does not reach back far enough (the engine keeps its last `buffer_steps` messages) leaves a hole: what was known is
dropped, since the removals in the hole are unknown, and what is stored from then on counts. The same when a replay fails.
Live messages held during a replay are bounded by `HELD_MAX`; beyond it the hole is accepted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

HELD_MAX: Final = 4096


@dataclass(slots=True)
class Feed:
    """One engine's (rank's) messages."""

    apply: Callable[[bytes], None]
    """Takes the payload of each message, in order."""
    forget: Callable[[], None]
    """Everything known of the engine is wrong."""
    applied: int = -1
    """Number of the last message that was applied."""
    last_live: int = -1
    """Number of the last message that came by subscription."""
    wanted: int | None = None
    """A replay from this number is to be asked for, or under way."""
    held: dict[int, bytes] = field(default_factory=dict)
    messages: int = 0
    gaps: int = 0
    restarts: int = 0
    holes: int = 0
    """Times that messages were lost for good."""

    def live(self, sequence: int, payload: bytes) -> int | None:
        """A message came by subscription; returns the number from which a replay is needed now, if one is."""
        self.messages += 1
        if sequence <= self.last_live:
            self.restarts += 1
            self._begin_anew()
        self.last_live = sequence
        if self.wanted is not None:
            self._hold(sequence, payload)
            return None
        if sequence <= self.applied:
            return None
        if sequence == self.applied + 1:
            self._apply(sequence, payload)
            return None
        self.gaps += self.applied >= 0
        self.wanted = self.applied + 1
        self.held[sequence] = payload
        return self.wanted

    def connected(self) -> int | None:
        """The subscription stands; returns where to replay from, to learn what was stored before."""
        if self.wanted is None and self.applied < 0:
            self.wanted = 0
            return 0
        return None

    def replayed(self, sequence: int, payload: bytes) -> None:
        """A message of the replay under way."""
        if self.wanted is None or sequence <= self.applied:
            return
        if sequence > self.applied + 1:
            self._accept_hole()
        self._apply(sequence, payload)

    def replay_over(self) -> None:
        """The replay has ended, well or not: go on with what was held."""
        self.wanted = None
        for sequence, payload in sorted(self.held.items()):
            if sequence <= self.applied:
                continue
            if sequence > self.applied + 1:
                self._accept_hole()
            self._apply(sequence, payload)
        self.held.clear()

    def _hold(self, sequence: int, payload: bytes) -> None:
        self.held[sequence] = payload
        if len(self.held) > HELD_MAX:
            del self.held[min(self.held)]

    def _accept_hole(self) -> None:
        """Messages between the last applied one and the next are lost; before the first one nothing was known to lose."""
        if self.applied >= 0:
            self.holes += 1
            self.forget()

    def _begin_anew(self) -> None:
        self.forget()
        self.applied = self.last_live = -1
        self.wanted = None
        self.held.clear()

    def _apply(self, sequence: int, payload: bytes) -> None:
        self.applied = sequence
        self.apply(payload)
