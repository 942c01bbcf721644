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
from forebay_router.index.holders import Holders, Slots, slots_in

RESET_MISSES: Final = 2
FRESH: Final = 8
"""Answered prompts whose content is surely still there."""
SHADOW_SHARE: Final = 1.0
"""Size of a shadow as a share of its worker's bound."""
CAUTION: Final = 0.25
"""A promise that is not kept counts so much against one that was not made: nobody is sent where nothing is promised, so that the
latter are hardly ever seen, and they cost a prompt's computation while the former cost a place in a queue."""
SAMPLE: Final = 16
"""One block of so many is looked for when it comes back."""
_FORGET_PER_STEP: Final = 64
_YIELD_PER_STEP: Final = 32


@dataclass(slots=True)
class Bound:
    """How much the caches of equal workers hold."""

    size_bytes: float = inf
    """Of prompts; infinite while nothing shows otherwise."""
    tokens: int | None = None
    """The same in tokens, as told from outside; None once answers have shown better."""
    given: bool = False
    """It was told once: caches that are not full yet say nothing against it."""
    most_bytes: float = 0.0
    """Most that a cache has been thought to hold."""
    workers: int = 0
    """That share it: each one's experience counts as one of so many."""

    def told(self, tokens_per_byte: float) -> None:
        """Tokens are so many to a byte: what was told from outside comes to so many bytes."""
        if self.tokens is not None:
            self.given = True
            self.size_bytes = self.tokens / tokens_per_byte

    def shrink(self, missed_bytes: float) -> None:
        """A cache lacked so much of a prompt that it was thought to hold."""
        self.tokens = None
        size_bytes = self.size_bytes if self.given else min(self.size_bytes, self.most_bytes)
        self.size_bytes = max(0.0, size_bytes - CAUTION * missed_bytes / max(1, self.workers))

    def grow(self, found_bytes: float) -> None:
        """So much had not been dropped yet."""
        self.tokens = None
        self.size_bytes += found_bytes / max(1, self.workers)


@dataclass(slots=True)
class Mirror:
    """One worker's cache as it is thought to be."""

    bit: int
    bound: Bound
    """Shared by the workers of a pool."""
    blocks: OrderedDict[int, tuple[int, int]] = field(default_factory=OrderedDict)
    """Hash -> (number of the prompt that used it last, bytes), least recently used first."""
    size_bytes: int = 0
    shadow: OrderedDict[int, int] = field(default_factory=OrderedDict)
    shadow_bytes: int = 0
    answered: deque[tuple[int, ...]] = field(default_factory=lambda: deque(maxlen=FRESH))
    """Chains of the last answered prompts."""
    misses: int = 0
    """Predictions of fresh content in a row that missed entirely."""

    @property
    def bound_bytes(self) -> float:
        """Prompt bytes that the worker's cache holds."""
        return self.bound.size_bytes

    @property
    def entries(self) -> int:
        """Blocks kept, the shadow's included."""
        return len(self.blocks) + len(self.shadow)


@dataclass(slots=True)
class Sent:
    """What was known of a prompt when it was sent to a worker, and what it did there."""

    predicted_bytes: int
    """Content that the worker was thought to hold."""
    shadow_bytes: int
    """Content right behind it that the worker was thought to have dropped of late."""
    fresh: bool = False
    """What was predicted was put there by one of the last answered prompts."""
    pushed_out_bytes: int = 0
    """Content that gave way to it."""
    victim: int = 0
    """Number of the prompt that had used last what gave way last."""
    regretted_bytes: int = 0
    """Content of it that no worker holds any more, though it was pushed out of late only; estimated from a sample."""


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
    records: int = 0
    """Prompts that were sent so far: the clock of `Mirror.blocks`."""
    victims: dict[str, int] = field(default_factory=dict)
    """Worker -> when what it pushed out last had been used last, for workers whose cache is full."""
    _ghosts: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """A sample of the blocks that no worker holds any more, the last ones."""
    _retired: list[tuple[int, Mirror]] = field(default_factory=list)

    # -- workers ------------------------------------------------------------------------------------------------------

    def add_worker(self, uid: str, bound: Bound | None = None) -> None:
        """Know a worker, with the bound that it shares with others where there are such."""
        slot = self.slots.take(uid)
        if slot not in self.mirrors:
            mirror = self.mirrors[slot] = Mirror(1 << slot, bound or Bound())
            mirror.bound.workers += 1

    def bound_of(self, uid: str) -> Bound | None:
        """How much a worker holds; None where it is not known."""
        slot = self.slots.of.get(uid)
        return None if slot is None else self.mirrors[slot].bound

    def drop_worker(self, uid: str) -> None:
        """Forget a worker: no credit from now on, its memory in small steps."""
        slot = self.slots.retire(uid)
        self.victims.pop(uid, None)
        if slot is not None:
            mirror = self.mirrors.pop(slot)
            mirror.bound.workers -= 1
            self._retired.append((slot, mirror))

    def _forget_some(self) -> None:
        slot, mirror = self._retired[-1]
        for _ in range(min(_FORGET_PER_STEP, len(mirror.blocks))):
            block, _ = mirror.blocks.popitem()
            self.holders.discard(block, mirror.bit)
            self.entries -= 1
        if not mirror.blocks:
            self.entries -= len(mirror.shadow)
            self.slots.free(slot)
            self._retired.pop()

    # -- predicting ---------------------------------------------------------------------------------------------------

    def levels(self, content: Content) -> list[tuple[int, int]]:
        """(bit set of workers that probably hold at least so many blocks of the prompt, blocks), fewest first."""
        return self.holders.walk(content.hashes)

    def match(self, content: Content) -> dict[str, int]:
        """Worker -> bytes of the prompt that it probably holds, for those that hold any."""
        found: dict[str, int] = {}
        names = self.slots.names
        seen = 0
        for mask, depth in reversed(self.levels(content)):
            for slot in slots_in(mask & ~seen):
                name = names[slot]
                if name is not None:
                    found[name] = ENDS[depth - 1]
            seen = mask
        return found

    # -- learning -----------------------------------------------------------------------------------------------------

    def record(self, uid: str, content: Content) -> Sent:
        """A prompt goes to a worker: it holds it from now on."""
        slot = self.slots.of.get(uid)
        if slot is None:
            return Sent(0, 0)
        mirror = self.mirrors[slot]
        sent = self._state_of(mirror, content)
        self.records += 1
        use = (self.records, 0)
        blocks, shadow, hashes, bit = mirror.blocks, mirror.shadow, content.hashes, mirror.bit
        holders = self.holders.blocks
        for index in range(len(hashes) - 1, -1, -1):
            block = hashes[index]
            size = SIZES[index]
            if use[1] != size:  # one object for many blocks
                use = (self.records, size)
            known = block in blocks
            blocks[block] = use
            if known:
                blocks.move_to_end(block)
                continue
            mirror.size_bytes += size
            held = holders.get(block, 0)
            holders[block] = held | bit
            if not held and block % SAMPLE == 0 and self._ghosts.pop(block, None) is not None:
                sent.regretted_bytes += size * SAMPLE
            if shadow.pop(block, None) is None:
                self.entries += 1
            else:
                mirror.shadow_bytes -= size
        self._hold_bounds(mirror, sent)
        if sent.pushed_out_bytes:
            self.victims[uid] = sent.victim
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
            mirror.bound.shrink(missed)
            self._hold_bounds(mirror)
            return
        if sent.fresh and sent.predicted_bytes > slack_bytes:
            mirror.misses = 0
        found = delivered_bytes - sent.predicted_bytes
        if sent.predicted_bytes or sent.shadow_bytes:
            found = min(found, float(sent.shadow_bytes))
        if found > slack_bytes:
            mirror.bound.grow(found)

    def reset(self, uid: str) -> None:
        """A worker has lost its cache."""
        bound = self.mirrors[self.slots.of[uid]].bound
        self.drop_worker(uid)
        self.add_worker(uid, bound)
        self.resets += 1

    # -- bounds -------------------------------------------------------------------------------------------------------

    def _hold_bounds(self, mirror: Mirror, sent: Sent | None = None) -> None:
        before = mirror.size_bytes
        bound = mirror.bound
        bound.most_bytes = max(bound.most_bytes, before)
        victim = 0
        bound_bytes = bound.size_bytes
        while mirror.size_bytes > bound_bytes:
            victim = self._drop_oldest(mirror, keep_shadow=True)
        if victim and sent is not None:
            sent.pushed_out_bytes, sent.victim = before - mirror.size_bytes, victim
        shadow_max = bound_bytes * SHADOW_SHARE
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

    def _drop_oldest(self, mirror: Mirror, *, keep_shadow: bool) -> int:
        """Returns the number of the prompt that had used it last."""
        block, (used, size) = mirror.blocks.popitem(last=False)
        mirror.size_bytes -= size
        gone = self.holders.discard(block, mirror.bit)
        if keep_shadow:
            mirror.shadow[block] = size
            mirror.shadow_bytes += size
            if gone and block % SAMPLE == 0:
                self._ghosts[block] = used
                if len(self._ghosts) * SAMPLE > len(self.holders.blocks):
                    self._ghosts.popitem(last=False)
        else:
            self.entries -= 1
        return used
