"""Block hash -> which workers hold it, as a bit set; and the walk along a prompt's chain.

Each worker has a slot, a bit position, from the day it is known to the day all its blocks are forgotten. Chained hashes make
the answer to "who holds the longest start of this prompt" one dictionary lookup and one AND a block, for any number of workers:

    alive = everyone;  for each block: alive &= holders[block];  a worker that drops out at block i holds i blocks
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Final

from forebay_router.index.content import ENDS

_LOOKED_MAX: Final = 256
"""Holders, of all levels together, that are gone through where another source speaks for most."""


@dataclass(slots=True)
class Slots:
    """Workers' bit positions. A freed position is used again."""

    of: dict[str, int] = field(default_factory=dict)
    names: list[str | None] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    changes: int = 0
    """How often a worker got or lost one."""

    def take(self, uid: str) -> int:
        """The slot of a worker, a new one where it has none."""
        slot = self.of.get(uid)
        if slot is None:
            slot = self._free.pop() if self._free else len(self.names)
            if slot == len(self.names):
                self.names.append(None)
            self.of[uid] = slot
            self.names[slot] = uid
            self.changes += 1
        return slot

    def retire(self, uid: str) -> int | None:
        """Forget a worker; its slot stays taken until `free`. None when it has none."""
        slot = self.of.pop(uid, None)
        if slot is not None:
            self.names[slot] = None
            self.changes += 1
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

    def discard(self, block: int, bit: int) -> bool:
        """A worker does not hold a block any more; returns whether none does."""
        left = self.blocks.get(block, 0) & ~bit
        if left:
            self.blocks[block] = left
            return False
        self.blocks.pop(block, None)
        return True


def tokens_in(blocks: int, tokens_per_byte: float) -> int:
    """Tokens of so many blocks, of at least one."""
    return int(ENDS[blocks - 1] * tokens_per_byte)


class Group:
    """Some workers, as names and as a set of slots: kept, since the holders of every prompt are looked for in it."""

    __slots__ = ("_changes", "_mask", "_slots", "uids")

    def __init__(self, uids: Iterable[str]) -> None:
        self.uids = frozenset(uids)
        self._slots: Slots | None = None
        self._changes = 0
        self._mask = 0

    def mask(self, slots: Slots) -> int:
        """The bits of those that have one."""
        if slots is not self._slots or slots.changes != self._changes:
            self._slots, self._changes = slots, slots.changes
            self._mask = sum(1 << slot for uid, slot in slots.of.items() if uid in self.uids)
        return self._mask


def deepest_of(cached: Mapping[str, int], count: int, rng: Random, group: Group) -> list[str]:
    """So many of a group that hold most, the deepest first; of equal ones random ones."""
    uids = group.uids
    names = [uid for uid in cached if uid in uids]
    turn = int(rng.random() * len(names))
    return sorted(names[turn:] + names[:turn], key=cached.__getitem__, reverse=True)[:count]  # equal ones stay in turn


class Held(Mapping[str, int]):
    """Worker -> tokens of a prompt that it holds, without listing them: of 1,000 holders that would cost more than the walk.

    The levels are nested, so a worker's is found by bisection.
    """

    __slots__ = ("_levels", "_masks", "_others", "_slots", "_tokens_per_byte")

    def __init__(
        self, levels: Sequence[tuple[int, int]], tokens_per_byte: float, slots: Slots, others: Mapping[str, int]
    ) -> None:
        """`levels` are nested sets of slots and their blocks, fewest blocks first; workers for which another source speaks."""
        self._levels = levels
        self._masks = [mask for mask, _ in levels]
        self._tokens_per_byte = tokens_per_byte
        self._slots = slots
        self._others = others

    def get(self, uid: str, default: int = 0) -> int:  # type: ignore[override]
        """Tokens that a worker holds."""
        if uid in self._others:
            return self._others[uid]
        slot = self._slots.of.get(uid)
        if slot is None:
            return default
        masks, bit = self._masks, 1 << slot
        low, high = 0, len(masks)
        while low < high:
            middle = (low + high) >> 1
            if masks[middle] & bit:
                low = middle + 1
            else:
                high = middle
        return tokens_in(self._levels[low - 1][1], self._tokens_per_byte) if low else default

    def with_one(self, uid: str, tokens: int) -> "Held":
        """The same, but for one worker."""
        return Held(self._levels, self._tokens_per_byte, self._slots, {**self._others, uid: tokens})

    def __getitem__(self, uid: str) -> int:
        """Tokens that a worker holds; KeyError where it holds none."""
        tokens = self.get(uid, 0)
        if not tokens:
            raise KeyError(uid)
        return tokens

    def __iter__(self) -> Iterator[str]:
        """Every worker that holds any."""
        names = self._slots.names
        for slot in slots_in(self._masks[0]):
            name = names[slot]
            if name is not None and name not in self._others:
                yield name
        yield from self._others

    def __bool__(self) -> bool:
        """Somebody holds some: made for many only."""
        return True

    def __len__(self) -> int:
        """Workers that hold any."""
        return sum(1 for _ in self)

    def deepest(self, count: int, rng: Random, group: Group) -> list[str]:
        """So many of a group that hold most; of equal ones random ones.

        Where another source speaks for some, the first of these is among them: a session's guess, say, which shows its worth only
        where it is tried.
        """
        found: list[str] = []
        names, others, among = self._slots.names, self._others, group.mask(self._slots)
        width = max(1, len(names))
        turn = int(rng.random() * width)
        below = (1 << turn) - 1
        seen, looked_at = 0, max(count, _LOOKED_MAX // len(self._masks))
        for mask in reversed(self._masks):
            fresh, seen = (mask ^ seen) & among, mask  # the sets are nested
            turned = fresh >> turn | (fresh & below) << width - turn
            for slot in islice(slots_in(turned), looked_at):
                name = names[(slot + turn) % width]
                if name is not None and name not in others:
                    found.append(name)
                    if len(found) == count:
                        break
            if len(found) == count:
                break
        if not others:
            return found
        most = deepest_of(others, count, rng, group)
        return [*most[:1], *sorted(found + most[1:], key=self.get, reverse=True)][:count]
