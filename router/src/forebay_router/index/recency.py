"""Runs of blocks in the order in which they go: longest unused first, of one prompt's the deepest first.

A heap with an entry a run that may be out of date: using a run again changes a number in a dictionary and nothing else. An entry
that comes to the top with an old number goes back with the present one. Numbers only grow, so an entry's key is never more than
its run's, and a top that is up to date is the least of all.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from forebay_router.index.tree import Run

_SERIAL: Final = count()
"""Tells entries apart that are equal otherwise: runs have no order."""
_SPARE: Final = 64
"""Entries out of date that are not worth a clearing."""


class Recency:
    """Runs, each with the number of its last use, and how much content they are."""

    __slots__ = ("_heap", "numbers", "size_bytes")

    def __init__(self) -> None:
        self.numbers: dict[Run, int] = {}
        self.size_bytes = 0
        self._heap: list[tuple[int, int, int, Run]] = []

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, run: Run, number: int) -> None:
        """A run that is not there comes in."""
        self.numbers[run] = number
        self.size_bytes += run.size_bytes
        heappush(self._heap, (number, -run.start, next(_SERIAL), run))
        if len(self._heap) > _SPARE + 2 * len(self.numbers):  # of runs that went out of turn and came back
            self._heap = [(last, -one.start, next(_SERIAL), one) for one, last in self.numbers.items()]
            heapify(self._heap)

    def remove(self, run: Run) -> None:
        """A run goes out of its turn; its entry is dropped when it comes to the top."""
        del self.numbers[run]
        self.size_bytes -= run.size_bytes

    def divided(self, run: Run, tail: Run) -> None:
        """A run that is here was split."""
        number = self.numbers[tail] = self.numbers[run]
        heappush(self._heap, (number, -tail.start, next(_SERIAL), tail))

    def oldest(self) -> tuple[Run, int]:
        """The run that goes next, and the number of its last use. There must be one."""
        heap, numbers = self._heap, self.numbers
        while True:
            number, depth, _, run = heap[0]
            present = numbers.get(run)
            if present == number:
                return run, number
            heappop(heap)
            if present is not None:
                heappush(heap, (present, depth, next(_SERIAL), run))

    def pop(self) -> Run:
        """Take out the run that goes next."""
        run, _ = self.oldest()
        heappop(self._heap)
        self.remove(run)
        return run
