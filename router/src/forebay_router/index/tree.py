"""Prompts' chains as a tree of runs, and which workers hold each run.

A prompt is a chain of hashes, each of which stands for everything before it (`content`). Prompts that begin alike share a path
from the root and part where they differ, so the tree's nodes are runs of blocks: an array of hashes, eight bytes a block. Two
chains that agree at a position agree everywhere before it; how far a prompt follows a run is found by bisection, not by
comparing block after block, and a prompt of 100,000 tokens costs a few steps a node instead of a dictionary entry a block.

Who holds a run is a bit set of slots (`holders.Slots`): `mask` for those that are thought to hold all of it now, `shadow` for
those that dropped it of late. A worker holds a prompt's start without a hole, since heads are used with their tails and dropped
after them; the walk ANDs the sets all the same, as the bits of a worker that has gone are taken back in any order.

A run is split where somebody holds, uses or drops a part of it only; whoever follows a node's place in an order of its own has to
hear of it (`split` returns the new tail). Runs that nobody holds or remembers are cut off.
"""

from array import array
from collections.abc import Sequence

from forebay_router.index.content import ENDS


class Run:
    """Blocks [start, end) of every chain that passes here."""

    __slots__ = ("children", "hashes", "mask", "parent", "shadow", "start")

    def __init__(self, parent: "Run | None", start: int, hashes: "array[int]") -> None:
        self.parent = parent
        """None for the root, and for a run that was cut off."""
        self.start = start
        self.hashes = hashes
        self.children: dict[int, Run] | None = None
        """By their first hash; None where there are none, as of most."""
        self.mask = 0
        self.shadow = 0

    @property
    def end(self) -> int:
        """The position behind the last block."""
        return self.start + len(self.hashes)

    @property
    def size_bytes(self) -> int:
        """Content of its blocks."""
        return _bytes(self.start, self.start + len(self.hashes))

    def followed(self, chain: Sequence[int]) -> int:
        """How many of its blocks a chain shares that shares its first."""
        hashes, start = self.hashes, self.start
        low, high = 1, min(len(hashes), len(chain) - start)
        if hashes[high - 1] == chain[start + high - 1]:
            return high
        while low < high - 1:
            middle = (low + high) >> 1
            if hashes[middle - 1] == chain[start + middle - 1]:
                low = middle
            else:
                high = middle
        return low

    def blocks_within(self, size_bytes: float) -> int:
        """How many of its first blocks are at most so much content."""
        low, high = 0, len(self.hashes)
        while low < high:
            middle = (low + high + 1) >> 1
            if _bytes(self.start, self.start + middle) <= size_bytes:
                low = middle
            else:
                high = middle - 1
        return low


def _bytes(start: int, end: int) -> int:
    return ENDS[end - 1] - (ENDS[start - 1] if start else 0)


class RunTree:
    """The runs of all prompts."""

    __slots__ = ("blocks", "root")

    def __init__(self) -> None:
        self.root = Run(None, 0, array("Q"))
        self.blocks = 0
        """In all runs together."""

    def levels(self, chain: Sequence[int]) -> list[tuple[int, int]]:
        """(bit set of all that hold at least so many blocks of this chain, blocks), fewest blocks first.

        The sets shrink: whoever is in the last one holds most.
        """
        found: list[tuple[int, int]] = []
        children, depth, alive = self.root.children, 0, -1
        count = len(chain)
        while depth < count and children:
            child = children.get(chain[depth])
            if child is None:
                break
            holders = child.mask & alive
            if holders != alive:
                if not holders:
                    break
                if depth:
                    found.append((alive, depth))
                alive = holders
            hashes = child.hashes
            end = depth + len(hashes)
            if end > count or hashes[-1] != chain[end - 1]:
                depth += child.followed(chain)
                break
            depth = end
            children = child.children
        if depth:
            found.append((alive, depth))
        return found

    def grow(self, run: Run, chain: "array[int]") -> Run:
        """A new run behind this one with the rest of a chain."""
        start = run.end
        rest = chain[start:] if start else chain  # nobody changes either
        if run.children is None:
            run.children = {}
        child = run.children[chain[start]] = Run(run, start, rest)
        self.blocks += len(rest)
        return child

    def split(self, run: Run, blocks: int) -> Run:
        """Cut a run behind so many of its blocks. It keeps the head; the tail, held by the same workers, is returned."""
        tail = Run(run, run.start + blocks, run.hashes[blocks:])
        tail.children, tail.mask, tail.shadow = run.children, run.mask, run.shadow
        for child in (tail.children or {}).values():
            child.parent = tail
        run.hashes = run.hashes[:blocks]
        run.children = {tail.hashes[0]: tail}
        return tail

    def let_go(self, run: Run) -> None:
        """Cut off a run that nobody holds or remembers, and what leads to nothing else."""
        while not (run.mask or run.shadow or run.children) and run.parent is not None:
            parent = run.parent
            assert parent.children is not None
            del parent.children[run.hashes[0]]
            if not parent.children:
                parent.children = None
            self.blocks -= len(run.hashes)
            run.parent = None
            run = parent
