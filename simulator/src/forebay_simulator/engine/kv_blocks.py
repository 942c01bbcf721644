"""The KV cache as a pool of blocks with reference counts, a prefix cache over them, and LRU eviction.

A block is *held* while its reference count is above zero, *cached* while its content is known by a hash, and both, one
or neither. Blocks that nobody holds wait in one queue: new ones are taken from its head, released ones are put at its
tail, last block of a request first, so the end of a prefix is evicted before its beginning. A cached block stays
readable until the moment it is taken. This is vLLM's scheme, and so are its corners: two requests that compute the same
prefix at once leave two copies under one hash, and taking one copy reports a removal while the other still serves.

Blocks that were never used are not stored anywhere: they are a counter, and they come before every released block, as
they do in vLLM, where the queue starts as 1, 2, 3, ... Block 0 is vLLM's null block and is never handed out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


class BlockPool:
    """All KV blocks of one engine. `usable_blocks` counts without the null block."""

    def __init__(self, *, usable_blocks: int, caching: bool = True, reports_removals: bool = False) -> None:
        if usable_blocks < 1:
            raise ValueError(f"usable_blocks must be at least 1, got {usable_blocks}")
        self.usable_blocks = usable_blocks
        self.caching = caching
        self.removed: list[Hashable] | None = [] if reports_removals else None
        """Hashes of evicted blocks since the reader last emptied it; None when nobody reads."""
        self.tainted: dict[int, int] = {}
        """Blocks whose content is not what their hash says (a fetch that came too late), with a mark of the content."""
        self._next_unused = 1
        self._released: OrderedDict[int, None] = OrderedDict()
        self._references: list[int] = [0]
        self._hashes: list[Hashable | None] = [None]
        self._cached: dict[Hashable, list[int]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return self.usable_blocks - (self._next_unused - 1) + len(self._released)

    @property
    def held_blocks(self) -> int:
        """Blocks with at least one holder."""
        return self.usable_blocks - self.free_blocks

    @property
    def cached_hashes(self) -> int:
        """Distinct hashes that a request could hit now."""
        return len(self._cached)

    @property
    def usage(self) -> float:
        """Share of the blocks that are held, 0 to 1."""
        return self.held_blocks / self.usable_blocks

    def find(self, block_hash: Hashable) -> int | None:
        """Return a block with this content, or None. Takes no reference."""
        copies = self._cached.get(block_hash)
        return copies[0] if copies else None

    def hash_of(self, block_id: int) -> Hashable | None:
        """Return the hash under which a block is cached now; None for a block without one or out of range."""
        return self._hashes[block_id] if 0 < block_id < self._next_unused else None

    def unheld(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks nobody holds: taking hold of them shrinks `free_blocks` by that."""
        references = self._references
        return sum(1 for block_id in block_ids if references[block_id] == 0)

    def hold(self, block_ids: Iterable[int]) -> None:
        """Add a reference to blocks found in the cache."""
        for block_id in block_ids:
            if self._references[block_id] == 0:
                del self._released[block_id]
            self._references[block_id] += 1

    def take(self, count: int) -> list[int]:
        """Return `count` blocks for new content, evicting the longest released. The caller checks `free_blocks`."""
        assert count <= self.free_blocks, f"asked for {count} blocks, {self.free_blocks} are free"
        taken = []
        for _ in range(count):
            if self._next_unused <= self.usable_blocks:
                block_id = self._next_unused
                self._next_unused += 1
                self._references.append(1)
                self._hashes.append(None)
            else:
                block_id = self._released.popitem(last=False)[0]
                self._forget(block_id)
                self._references[block_id] = 1
            taken.append(block_id)
        return taken

    def register(self, block_id: int, block_hash: Hashable) -> None:
        """Make a held block's content findable."""
        if not self.caching:
            return
        assert self._references[block_id] > 0, f"block {block_id} is registered while nobody holds it"
        self._hashes[block_id] = block_hash
        self._cached.setdefault(block_hash, []).append(block_id)

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop one reference of each block, in the order of the sequence they hold."""
        for block_id in reversed(block_ids):
            left = self._references[block_id] - 1
            assert left >= 0, f"block {block_id} is released more often than held"
            self._references[block_id] = left
            if left == 0:
                self._released[block_id] = None

    def reset_cache(self) -> bool:
        """Forget all cached content. Refused, with False, while any block is held."""
        if self.held_blocks:
            return False
        self._cached.clear()
        self._hashes = [None] * len(self._hashes)
        return True

    def _forget(self, block_id: int) -> None:
        self.tainted.pop(block_id, None)
        block_hash = self._hashes[block_id]
        if block_hash is None:
            return
        self._hashes[block_id] = None
        copies = self._cached[block_hash]
        copies.remove(block_id)
        if not copies:
            del self._cached[block_hash]
        if self.removed is not None:
            self.removed.append(block_hash)
