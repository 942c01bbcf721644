"""Block hash -> which workers hold it, as a bit set; and the walk along a prompt's chain.

Each worker has a slot, a bit position, from the day it is known to the day all its blocks are forgotten. Chained hashes make
the answer to "who holds the longest start of this prompt" one dictionary lookup and one AND a block, for any number of workers:

    alive = everyone;  for each block: alive &= holders[block];  a worker that drops out at block i holds i blocks
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Slots:
    """Workers' bit positions. A freed position is used again."""

    of: dict[str, int] = field(default_factory=dict)
    names: list[str | None] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)

    def take(self, uid: str) -> int:
        """The slot of a worker, a new one where it has none."""
        slot = self.of.get(uid)
        if slot is None:
            slot = self._free.pop() if self._free else len(self.names)
            if slot == len(self.names):
                self.names.append(None)
            self.of[uid] = slot
            self.names[slot] = uid
        return slot

    def retire(self, uid: str) -> int | None:
        """Forget a worker; its slot stays taken until `free`. None when it has none."""
        slot = self.of.pop(uid, None)
        if slot is not None:
            self.names[slot] = None
        return slot

    def free(self, slot: int) -> None:
        """No block has this slot's bit any more."""
        self._free.append(slot)


def slots_in(mask: int) -> Iterator[int]:
    """Positions of the set bits, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


@dataclass(slots=True)
class Holders:
    """Blocks and their holders."""

    blocks: dict[int, int] = field(default_factory=dict)
    """Hash -> bit set of slots; never an empty set."""

    def add(self, block: int, bit: int) -> None:
        """A worker holds a block."""
        self.blocks[block] = self.blocks.get(block, 0) | bit

    def discard(self, block: int, bit: int) -> None:
        """A worker does not hold a block any more."""
        left = self.blocks.get(block, 0) & ~bit
        if left:
            self.blocks[block] = left
        else:
            self.blocks.pop(block, None)

    def walk(self, hashes: Iterable[int]) -> list[tuple[int, int]]:
        """(bit set of slots, blocks they hold of this chain without a hole) for all that hold the first, shortest first."""
        found = []
        alive = -1
        depth = 0
        get = self.blocks.get
        for block in hashes:
            holders = get(block, 0) & alive
            if holders != alive:
                if depth:
                    found.append((alive & ~holders, depth))
                if not holders:
                    return found
                alive = holders
            depth += 1
        if depth:
            found.append((alive, depth))
        return found
