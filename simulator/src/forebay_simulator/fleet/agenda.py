"""What happens when: a heap of events in virtual time.

Events at one time happen in order of their rank, then in the order in which they were entered; nothing depends on a hash or
an address, so a run repeats exactly. An event is a call. Who may have to take an event back keeps a number of its own and
compares it when the event comes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import IntEnum


class Rank(IntEnum):
    """Order of events at one time: an arrival is seen by the step that begins when it comes."""

    ARRIVAL = 0
    STEP = 1
    SCRAPE = 2
    DECISION = 3


class Agenda:
    """The events of one run. `now_s` only grows."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, int, Callable[[], None]]] = []
        self._entered = 0

    def at(self, when_s: float, call: Callable[[], None], rank: Rank = Rank.ARRIVAL) -> None:
        """Call at a time, which must not have passed."""
        assert when_s >= self.now_s, f"an event at {when_s} s is entered at {self.now_s} s"
        self._entered += 1
        heapq.heappush(self._events, (when_s, rank, self._entered, call))

    def run(self, until_s: float = float("inf")) -> None:
        """Let events happen until none is left or the next one is later than `until_s`."""
        events = self._events
        while events and events[0][0] <= until_s:
            self.now_s, _, _, call = heapq.heappop(events)
            call()
        if until_s != float("inf"):
            self.now_s = max(self.now_s, until_s)

    @property
    def empty(self) -> bool:
        """Nothing is left to happen."""
        return not self._events
