"""The start of a prompt that nearly every request of a service shares.

Every worker holds such a start after its first request, so it must earn no affinity: it would make an already warm worker look
cheaper than an idle cold one for ever. A reference prompt stands for what is common; each request's agreement with it (in
blocks: a binary search, since hashes are chained) goes into a window, and the common start is what at least `SHARE` of the
window agrees with. A reference that nothing agrees with is replaced by a recent prompt.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from forebay_router.index.content import ENDS, Content

WINDOW: Final = 128
SHARE: Final = 0.9
_MINIMUM: Final = 16
"""Requests before anything is called common."""


def agreement(one: Sequence[int], other: Sequence[int]) -> int:
    """Blocks that two chains share."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high) // 2
        if one[middle] == other[middle]:
            low = middle + 1
        else:
            high = middle
    return low


@dataclass(slots=True)
class CommonStart:
    """One service's common start."""

    reference: Sequence[int] = ()
    recent: deque[int] = field(default_factory=deque)
    ordered: list[int] = field(default_factory=list)
    """The window's agreements, smallest first."""
    _fruitless: int = 0

    def note(self, content: Content) -> None:
        """A request arrived."""
        if not self.reference or self._fruitless >= WINDOW // 2:
            self._restart(content)
        agreed = agreement(self.reference, content.hashes)
        self.recent.append(agreed)
        insort(self.ordered, agreed)
        if len(self.recent) > WINDOW:
            oldest = self.recent.popleft()
            del self.ordered[bisect_left(self.ordered, oldest)]
        self._fruitless = 0 if self.blocks else self._fruitless + 1

    def _restart(self, content: Content) -> None:
        self.reference = content.hashes
        self.recent.clear()
        self.ordered.clear()
        self._fruitless = 0

    @property
    def blocks(self) -> int:
        """Blocks of the common start; 0 while too little is known."""
        count = len(self.ordered)
        return self.ordered[int(count * (1 - SHARE))] if count >= _MINIMUM else 0

    def start_of(self, content: Content) -> int:
        """The hash of a prompt's first block behind the common start; 0 where there is none."""
        common = self.blocks
        return content.hashes[common] if common < len(content.hashes) else 0

    def bytes_in(self, content: Content) -> int:
        """Bytes of a prompt that are the common start, as far as it goes along."""
        common = self.blocks
        if not common:
            return 0
        blocks = min(common, agreement(self.reference, content.hashes))
        return ENDS[blocks - 1] if blocks else 0
