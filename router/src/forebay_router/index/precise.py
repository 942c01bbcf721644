"""What workers say they hold, from their KV events, matched by token ids.

Engines name blocks by hashes that nobody else can compute in every version (a pickle, a per-process seed, an adapter's path), so
their names are only used to tell their blocks apart: a stored block's own hash here is made from its parent's and its token ids,

    own = xxh3(token ids of the block, seed=own hash of the parent)     own of a prompt's start = root(block size, adapter)

plus whatever tells the block apart besides tokens and adapter (cache salt, images), and an engine's name leads to it. A request's
token ids give the same chain. Removal names a block; everything behind it goes out of reach by itself, since the walk along a
chain ends at the first block that is not held.

- A block may be held by several tiers (GPU, CPU) under one name; it is held until the last one removes it. Within a tier a name
  is stored once, however often that is told: some engines tell it again on every hit. So when two requests fill one block at
  once and one of the two copies goes, the other is missed.
- A block whose parent is unknown (its message was missed) cannot be placed and is counted as an orphan.
- A model with several KV cache groups sends events for each; the lowest group with full attention is followed, since the others
  keep less of a prompt, not more. Where it is wrong the audit shows it.
- The data-parallel ranks of a worker have caches of their own, and the engine picks the rank without looking at them: a
  worker's match is the mean over its ranks.

Bounded: at most `blocks_max` blocks a rank; beyond it the oldest are forgotten, as if removed.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from forebay_router.index.events import Batch, Cleared, EngineHash, Removed, Stored
from forebay_router.index.holders import Holders, Slots, slots_in

FULL_ATTENTION: Final = "full_attention"


def token_root(block_size: int, lora: str | None) -> int:
    """Where chains of one block size and adapter start."""
    return xxh3_64_intdigest((lora or "").encode(), block_size)


def salted(own: int, salt: bytes) -> int:
    """The own hash of a block with something that tells it apart besides its tokens."""
    return xxh3_64_intdigest(salt, own)


def salt_digest(salt: str) -> bytes:
    """What stands for a cache salt; the salt itself is never kept."""
    return xxh3_64_intdigest(salt.encode()).to_bytes(8, "big")


@dataclass(slots=True)
class _Block:
    own: int
    media: tuple[str, ...]
    """The tiers that hold it."""


@dataclass(slots=True)
class Rank:
    """The cache of one data-parallel rank of a worker."""

    slot: int
    block_size: int = 0
    """Tokens a block; 0 until an event told."""
    group: int | None = None
    """The KV cache group that is followed."""
    group_is_full: bool = False
    blocks: dict[EngineHash, _Block] = field(default_factory=dict)
    """By the engine's names, oldest first."""


@dataclass(slots=True)
class PreciseIndex:
    """What all workers said."""

    blocks_max: int = 500_000
    """Per rank."""
    holders: Holders = field(default_factory=Holders)
    slots: Slots = field(default_factory=Slots)
    ranks: dict[str, dict[int, Rank]] = field(default_factory=dict)
    orphans: int = 0
    """Stored blocks whose parent was unknown, so far."""

    # -- from events --------------------------------------------------------------------------------------------------

    def apply(self, uid: str, batch: Batch) -> None:
        """A batch of a worker's events, in order."""
        rank = self._rank(uid, batch.rank)
        for event in batch.events:
            if isinstance(event, Stored):
                self._store(rank, event)
            elif isinstance(event, Removed):
                if rank.group is None or event.group == rank.group:
                    self._remove(rank, event)
            elif isinstance(event, Cleared):
                self._clear(rank)

    def _rank(self, uid: str, number: int) -> Rank:
        ranks = self.ranks.setdefault(uid, {})
        rank = ranks.get(number)
        if rank is None:
            rank = ranks[number] = Rank(self.slots.take(f"{uid}/{number}"))
        return rank

    def _follows(self, rank: Rank, event: Stored) -> bool:
        """Whether the event's group is the one that is followed; a full-attention group takes over from another kind."""
        full = event.kind in {FULL_ATTENTION, ""}
        better = rank.group is None or full > rank.group_is_full
        if better or (full == rank.group_is_full and rank.group is not None and event.group < rank.group):
            if rank.group is not None and rank.group != event.group:
                self._clear(rank)
            rank.group, rank.group_is_full = event.group, full
        return event.group == rank.group

    def _store(self, rank: Rank, event: Stored) -> None:
        if not self._follows(rank, event):
            return
        if event.block_size != rank.block_size:
            self._clear(rank)
            rank.block_size = event.block_size
        if event.parent is None:
            own = token_root(event.block_size, event.lora)
        else:
            parent = rank.blocks.get(event.parent)
            if parent is None:
                self.orphans += len(event.hashes)
                return
            own = parent.own
        packed = memoryview(array("I", event.token_ids)).cast("B")
        width = 4 * event.block_size
        for index, name in enumerate(event.hashes):
            own = xxh3_64_intdigest(packed[index * width : (index + 1) * width], own)
            own = _told_apart(own, event, index)
            self._hold(rank, name, own, event.medium)
        while len(rank.blocks) > self.blocks_max:
            self._forget(rank, next(iter(rank.blocks)))

    def _hold(self, rank: Rank, name: EngineHash, own: int, medium: str) -> None:
        known = rank.blocks.get(name)
        if known is not None and known.own == own:
            if medium not in known.media:
                known.media += (medium,)
            return
        if known is not None:
            self._forget(rank, name)
        rank.blocks[name] = _Block(own, (medium,))
        self.holders.add(own, 1 << rank.slot)

    def _remove(self, rank: Rank, event: Removed) -> None:
        for name in event.hashes:
            known = rank.blocks.get(name)
            if known is None:
                continue
            known.media = tuple(one for one in known.media if event.medium and one != event.medium)
            if not known.media:
                self._forget(rank, name)

    def _forget(self, rank: Rank, name: EngineHash) -> None:
        self.holders.discard(rank.blocks.pop(name).own, 1 << rank.slot)

    def _clear(self, rank: Rank) -> None:
        bit = 1 << rank.slot
        for block in rank.blocks.values():
            self.holders.discard(block.own, bit)
        rank.blocks.clear()

    def forget_rank(self, uid: str, number: int) -> None:
        """Nothing is known of a rank's cache any more."""
        rank = self.ranks.get(uid, {}).pop(number, None)
        if rank is not None:
            self._clear(rank)
            slot = self.slots.retire(f"{uid}/{number}")
            assert slot is not None
            self.slots.free(slot)

    def drop_worker(self, uid: str) -> None:
        """Forget a worker."""
        for number in tuple(self.ranks.get(uid, {})):
            self.forget_rank(uid, number)
        self.ranks.pop(uid, None)

    # -- predicting ---------------------------------------------------------------------------------------------------

    def speaks(self, uid: str) -> bool:
        """Events have told of the worker's cache."""
        return any(rank.block_size for rank in self.ranks.get(uid, {}).values())

    def match(self, token_ids: Sequence[int], lora: str | None = None, salt: bytes | None = None) -> dict[str, int]:
        """Worker -> prompt tokens that it holds, for every worker of whose cache events have told."""
        depths = self._depths(token_ids, lora, salt)
        found = {}
        for uid, ranks in self.ranks.items():
            told = [rank for rank in ranks.values() if rank.block_size]
            if told:
                tokens = sum(depths.get(rank.slot, 0) * rank.block_size for rank in told)
                found[uid] = min(tokens // len(told), _hit_max(len(token_ids), told[0].block_size))
        return found

    def _depths(self, token_ids: Sequence[int], lora: str | None, salt: bytes | None) -> dict[int, int]:
        """Slot -> blocks held."""
        sizes = {rank.block_size for ranks in self.ranks.values() for rank in ranks.values() if rank.block_size}
        depths: dict[int, int] = {}
        for size in sizes:
            seen = 0
            for mask, depth in reversed(self._levels(token_ids, token_root(size, lora), size, salt)):
                depths |= dict.fromkeys(slots_in(mask & ~seen), depth)
                seen = mask
        return depths

    def _levels(self, token_ids: Sequence[int], root: int, size: int, salt: bytes | None) -> list[tuple[int, int]]:
        """(bit set of all that hold at least so many full blocks of a prompt without a hole, blocks), fewest blocks first.

        The sets shrink: whoever is in the last one holds most. A salt belongs to the first block. Hashing and looking up take
        turns, in one loop without a call: a prompt of 100,000 tokens has 6,250 blocks, and the chain of most ends early.
        """
        width = 4 * size
        end = len(token_ids) // size * width
        if not end:
            return []
        packed, get = array("I", token_ids).tobytes(), self.holders.blocks.get
        own = xxh3_64_intdigest(packed[:width], root)
        if salt is not None:
            own = salted(own, salt)
        alive = get(own, 0)
        if not alive:
            return []
        found = []
        for start in range(width, end, width):
            own = xxh3_64_intdigest(packed[start : start + width], own)
            holders = get(own, 0)
            if holders != alive:
                left = alive & holders
                if left != alive:
                    found.append((alive, start // width))
                    if not left:
                        return found
                    alive = left
        found.append((alive, end // width))
        return found


def _hit_max(prompt_tokens: int, block_size: int) -> int:
    """An engine computes at least the last token: the largest hit is the whole blocks of all tokens but one."""
    return (prompt_tokens - 1) // block_size * block_size if prompt_tokens else 0


def _told_apart(own: int, event: Stored, index: int) -> int:
    """Add what tells a block apart besides tokens and adapter, in the order in which the engine has it."""
    if not event.extra_keys:
        return own
    keys = event.extra_keys[index]
    if event.lora is not None and keys and _names_adapter(keys[0], event.lora):
        keys = keys[1:]
    for key in keys:
        said = key[1] if isinstance(key, list | tuple) and len(key) == 2 and key[0] == "cache_salt" else key
        own = salted(own, salt_digest(said) if isinstance(said, str) else repr(said).encode())
    return own


def _names_adapter(key: Any, lora: str) -> bool:
    """Whether an extra key is the adapter's, which the root stands for already; tagged or bare."""
    return bool(key == lora or (isinstance(key, list | tuple) and key and key[0] == "lora"))
