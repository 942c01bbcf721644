"""What workers probably hold, from what this router sent them.

A prompt sent to a worker is in that worker's cache from then on, until the cache has taken in so much else that the least
recently used content has gone. So every worker has a mirror of its cache: its blocks in order of use, heads of prompts more
recent than their tails (engines free the tail first), bounded by the bytes of prompts that its KV cache is thought to hold.

How much that is may be unknown, or known from the engine only in tokens; running requests and answers take a share of it too.
So the bound learns. Behind the mirror stands a shadow of the blocks that were dropped last. After each answer that tells its
cached tokens

    bound -= content that was predicted and not delivered       (the engine had dropped it already)
    bound += content that was in the shadow and was delivered   (the engine had not dropped it yet)

which rests where both errors are equally large. Content delivered beyond the shadow is the last answer of a chat, which this
router never sent, and says nothing; unless nothing of the prompt was known at all: then it was dropped too early, long ago.

What one of the last few answered prompts had put there cannot have been pushed out yet. A worker that misses such predictions
entirely, `RESET_MISSES` in a row, has lost its cache and is forgotten; its bound stays.

Memory. All mirrors and shadows together hold at most `entries_max` blocks; beyond it the largest gives up its oldest. A worker
that has gone is forgotten in small steps.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from math import inf
from typing import Final

from forebay_router.index.content import ENDS, SIZES, Content
from forebay_router.index.holders import Holders, Slots

RESET_MISSES: Final = 2
FRESH: Final = 8
"""Answered prompts whose content is surely still there."""
SHADOW_SHARE: Final = 1.0
"""Size of a shadow as a share of its worker's bound."""
_FORGET_PER_STEP: Final = 64
_YIELD_PER_STEP: Final = 32


@dataclass(slots=True)
class Mirror:
    """One worker's cache as it is thought to be."""

    bit: int
    bound_bytes: float
    """Prompt bytes that the worker's cache holds; infinite while nothing shows otherwise."""
    blocks: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """Hash -> bytes, least recently used first."""
    size_bytes: int = 0
    shadow: OrderedDict[int, int] = field(default_factory=OrderedDict)
    shadow_bytes: int = 0
    answered: deque[tuple[int, ...]] = field(default_factory=lambda: deque(maxlen=FRESH))
    """Chains of the last answered prompts."""
    misses: int = 0
    """Predictions of fresh content in a row that missed entirely."""

    @property
    def entries(self) -> int:
        """Blocks kept, the shadow's included."""
        return len(self.blocks) + len(self.shadow)


@dataclass(frozen=True, slots=True)
class Sent:
    """What was known of a prompt when it was sent to a worker."""

    predicted_bytes: int
    """Content that the worker was thought to hold."""
    shadow_bytes: int
    """Content right behind it that the worker was thought to have dropped of late."""
    fresh: bool = False
    """What was predicted was put there by one of the last answered prompts."""


@dataclass(slots=True)
class ApproximateIndex:
    """The mirrors of all workers."""

    entries_max: int
    holders: Holders = field(default_factory=Holders)
    slots: Slots = field(default_factory=Slots)
    mirrors: dict[int, Mirror] = field(default_factory=dict)
    entries: int = 0
    """Blocks kept over all mirrors and shadows."""
    resets: int = 0
    """Workers that were found to have lost their cache, so far."""
    _retired: list[tuple[int, Mirror]] = field(default_factory=list)

    # -- workers ------------------------------------------------------------------------------------------------------

    def add_worker(self, uid: str, bound_bytes: float = inf) -> None:
        """Know a worker, with the prompt bytes that its cache holds where that is known."""
        slot = self.slots.take(uid)
        if slot not in self.mirrors:
            self.mirrors[slot] = Mirror(1 << slot, bound_bytes)

    def drop_worker(self, uid: str) -> None:
        """Forget a worker: no credit from now on, its memory in small steps."""
        slot = self.slots.retire(uid)
        if slot is not None:
            self._retired.append((slot, self.mirrors.pop(slot)))

    def _forget_some(self) -> None:
        slot, mirror = self._retired[-1]
        for _ in range(min(_FORGET_PER_STEP, len(mirror.blocks))):
            block, _size = mirror.blocks.popitem()
            self.holders.discard(block, mirror.bit)
            self.entries -= 1
        if not mirror.blocks:
            self.entries -= len(mirror.shadow)
            self.slots.free(slot)
            self._retired.pop()

    # -- predicting ---------------------------------------------------------------------------------------------------

    def match(self, content: Content) -> dict[str, int]:
        """Worker -> bytes of the prompt that it probably holds, for those that hold any."""
        found: dict[str, int] = {}
        names = self.slots.names
        for mask, depth in self.holders.walk(content.hashes):
            matched = ENDS[depth - 1]
            rest = mask
            while rest:
                lowest = rest & -rest
                name = names[lowest.bit_length() - 1]
                if name is not None:
                    found[name] = matched
                rest ^= lowest
        return found

    # -- learning -----------------------------------------------------------------------------------------------------

    def record(self, uid: str, content: Content) -> Sent:
        """A prompt goes to a worker: it holds it from now on."""
        slot = self.slots.of.get(uid)
        if slot is None:
            return Sent(0, 0)
        mirror = self.mirrors[slot]
        sent = self._state_of(mirror, content)
        blocks, shadow, hashes = mirror.blocks, mirror.shadow, content.hashes
        for index in range(len(hashes) - 1, -1, -1):
            block = hashes[index]
            if block in blocks:
                blocks.move_to_end(block)
                continue
            size = SIZES[index]
            blocks[block] = size
            mirror.size_bytes += size
            self.holders.add(block, mirror.bit)
            if shadow.pop(block, None) is None:
                self.entries += 1
            else:
                mirror.shadow_bytes -= size
        self._hold_bounds(mirror)
        return sent

    @staticmethod
    def _state_of(mirror: Mirror, content: Content) -> Sent:
        held = behind = 0
        hashes = content.hashes
        count = len(hashes)
        while held < count and hashes[held] in mirror.blocks:
            held += 1
        while held + behind < count and hashes[held + behind] in mirror.shadow:
            behind += 1
        predicted = content.bytes_of(held)
        last = hashes[held - 1] if held else None
        fresh = any(len(other) >= held and other[held - 1] == last for other in mirror.answered) if held else False
        return Sent(predicted, content.bytes_of(held + behind) - predicted, fresh)

    def correct(self, uid: str, content: Content, sent: Sent, *, delivered_bytes: float, slack_bytes: float) -> None:
        """An answer told how much of the prompt the worker had. Differences up to the slack say nothing."""
        slot = self.slots.of.get(uid)
        if slot is None:
            return
        mirror = self.mirrors[slot]
        mirror.answered.append(content.hashes)
        missed = sent.predicted_bytes - delivered_bytes
        if sent.fresh and missed > slack_bytes:
            mirror.misses += 1
            if mirror.misses >= RESET_MISSES and delivered_bytes <= slack_bytes:
                self.reset(uid)
            return
        if missed > slack_bytes:
            mirror.bound_bytes = max(0.0, min(mirror.bound_bytes, float(mirror.size_bytes)) - missed)
            self._hold_bounds(mirror)
            return
        if sent.fresh and sent.predicted_bytes > slack_bytes:
            mirror.misses = 0
        found = delivered_bytes - sent.predicted_bytes
        if sent.predicted_bytes or sent.shadow_bytes:
            found = min(found, float(sent.shadow_bytes))
        if found > slack_bytes:
            mirror.bound_bytes += found

    def reset(self, uid: str) -> None:
        """A worker has lost its cache."""
        bound_bytes = self.mirrors[self.slots.of[uid]].bound_bytes
        self.drop_worker(uid)
        self.add_worker(uid, bound_bytes)
        self.resets += 1

    # -- bounds -------------------------------------------------------------------------------------------------------

    def _hold_bounds(self, mirror: Mirror) -> None:
        while mirror.size_bytes > mirror.bound_bytes:
            self._drop_oldest(mirror, keep_shadow=True)
        shadow_max = mirror.bound_bytes * SHADOW_SHARE
        while mirror.shadow_bytes > shadow_max:
            _, size = mirror.shadow.popitem(last=False)
            mirror.shadow_bytes -= size
            self.entries -= 1
        if self._retired:
            self._forget_some()
        while self.entries > self.entries_max:
            if self._retired:
                self._forget_some()
            else:
                self._yield_some(max(self.mirrors.values(), key=lambda one: one.entries))

    def _yield_some(self, mirror: Mirror) -> None:
        """The largest mirror gives up its shadow's oldest, then its own."""
        for _ in range(min(_YIELD_PER_STEP, mirror.entries)):
            if mirror.shadow:
                _, size = mirror.shadow.popitem(last=False)
                mirror.shadow_bytes -= size
                self.entries -= 1
            else:
                self._drop_oldest(mirror, keep_shadow=False)

    def _drop_oldest(self, mirror: Mirror, *, keep_shadow: bool) -> None:
        block, size = mirror.blocks.popitem(last=False)
        mirror.size_bytes -= size
        self.holders.discard(block, mirror.bit)
        if keep_shadow:
            mirror.shadow[block] = size
            mirror.shadow_bytes += size
        else:
            self.entries -= 1
