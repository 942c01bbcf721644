"""What workers probably hold, from what this router sent them.

A prompt sent to a worker is in that worker's cache from then on, until the cache has taken in so much else that the least
recently used content has gone. So every worker has a mirror of its cache: the runs of blocks that it holds (`tree`) in order of
use (`recency`), heads of prompts more recent than their tails (engines free the tail first), bounded by the bytes of prompts that
its KV cache is thought to hold. A run that has to go in part is split.

How much that is may be unknown, or known from the engine only in tokens; running requests and answers take a share of it too.
So the bound learns. Behind the mirror stands a shadow of the runs that were dropped last. After each answer that tells its
cached tokens

    bound -= content that was predicted and not delivered       (the engine had dropped it already)
    bound += content that was in the shadow and was delivered   (the engine had not dropped it yet)

which rests where both errors are equally large. Content delivered beyond the shadow is the last answer of a chat, which this
router never sent, and says nothing; unless nothing of the prompt was known at all: then it was dropped too early, long ago.

What one of the last few answered prompts had put there cannot have been pushed out yet. A worker that misses such predictions
entirely, `RESET_MISSES` in a row, has lost its cache and is forgotten; its bound stays.

Memory. An entry is a block in the tree, or a run in one worker's mirror or shadow. There are at most `entries_max`; beyond it the
largest mirror gives up its oldest runs, those of its shadow first. A worker that has gone is forgotten in small steps.
"""

from array import array
from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Final

from forebay_router.index.content import ENDS, Content
from forebay_router.index.holders import Slots, slots_in
from forebay_router.index.recency import Recency
from forebay_router.index.tree import Run, RunTree

RESET_MISSES: Final = 2
FRESH: Final = 8
"""Answered prompts whose content is surely still there."""
SHADOW_SHARE: Final = 1.0
"""Size of a shadow as a share of its worker's bound."""
CAUTION: Final = 0.25
"""A promise that is not kept counts so much against one that was not made: nobody is sent where nothing is promised, so that the
latter are hardly ever seen, and they cost a prompt's computation while the former cost a place in a queue."""
_FORGET_PER_STEP: Final = 64
_YIELD_PER_STEP: Final = 32
"""Runs: to find the largest of 1,000 mirrors costs more than they do."""


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
    held: Recency = field(default_factory=Recency)
    """By the number of the prompt that used a run last."""
    shadow: Recency = field(default_factory=Recency)
    """By the number of the prompt that pushed a run out."""
    answered: "deque[array[int]]" = field(default_factory=lambda: deque(maxlen=FRESH))
    """Chains of the last answered prompts."""
    misses: int = 0
    """Predictions of fresh content in a row that missed entirely."""

    def answered_with(self, chain: "array[int]", blocks: int) -> bool:
        """One of the last answered prompts has the first blocks of this chain."""
        last = chain[blocks - 1]
        return any(len(other) >= blocks and other[blocks - 1] == last for other in self.answered)

    @property
    def bound_bytes(self) -> float:
        """Prompt bytes that the worker's cache holds."""
        return self.bound.size_bytes

    @property
    def size_bytes(self) -> int:
        """Prompt bytes that the worker is thought to hold now."""
        return self.held.size_bytes

    @property
    def blocks(self) -> int:
        """Blocks of them; counted anew each time."""
        return sum(len(run.hashes) for run in self.held.numbers)

    @property
    def entries(self) -> int:
        """Runs kept, the shadow's included."""
        return len(self.held) + len(self.shadow)


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
    """Content of it that no worker holds any more, though it was pushed out of late only."""


@dataclass(slots=True)
class ApproximateIndex:
    """The mirrors of all workers."""

    entries_max: int
    tree: RunTree = field(default_factory=RunTree)
    slots: Slots = field(default_factory=Slots)
    mirrors: dict[int, Mirror] = field(default_factory=dict)
    resets: int = 0
    """Workers that were found to have lost their cache, so far."""
    records: int = 0
    """Prompts that were sent so far: the clock of `Mirror.held`."""
    victims: dict[str, int] = field(default_factory=dict)
    """Worker -> when what it pushed out last had been used last, for workers whose cache is full."""
    _places: int = 0
    """Runs in all mirrors and shadows."""
    _retired: dict[int, Mirror] = field(default_factory=dict)

    @property
    def entries(self) -> int:
        """Blocks in the tree, and runs in mirrors and shadows."""
        return self.tree.blocks + self._places

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
            self._retired[slot] = mirror

    def _forget_some(self) -> None:
        slot, mirror = next(iter(self._retired.items()))
        for _ in range(min(_FORGET_PER_STEP, mirror.entries)):
            if mirror.held.numbers:
                run, _ = mirror.held.numbers.popitem()
                run.mask &= ~mirror.bit
            else:
                run, _ = mirror.shadow.numbers.popitem()
                run.shadow &= ~mirror.bit
            self._places -= 1
            self.tree.let_go(run)
        if not mirror.entries:
            self.slots.free(slot)
            del self._retired[slot]

    # -- predicting ---------------------------------------------------------------------------------------------------

    def levels(self, content: Content) -> list[tuple[int, int]]:
        """(bit set of workers that probably hold at least so many blocks of the prompt, blocks), fewest first."""
        return self.tree.levels(content.hashes)

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
        hashes, bit, numbers = content.hashes, mirror.bit, mirror.held.numbers
        sent = Sent(0, 0)
        self.records += 1
        run, depth, held, behind = self.tree.root, 0, 0, 0
        count = len(hashes)
        while depth < count:
            child = run.children.get(hashes[depth]) if run.children else None
            if child is None:
                run = self.tree.grow(run, hashes)
                self._take_in(run, mirror, sent)
                break
            run = child
            end = depth + len(run.hashes)
            if end > count or run.hashes[-1] != hashes[end - 1]:
                end = depth + run.followed(hashes)
                self._split(run, end - depth)
            if run.mask & bit:
                numbers[run] = self.records
                held = behind = end
            else:
                if run.shadow & bit:  # behind what it holds, without a hole: heads are dropped after their tails
                    behind = end
                self._take_in(run, mirror, sent)
            depth = end
        if behind:
            sent.predicted_bytes = content.bytes_of(held)
            sent.shadow_bytes = content.bytes_of(behind) - sent.predicted_bytes
            sent.fresh = held > 0 and mirror.answered_with(hashes, held)
        self._hold_bounds(mirror, sent)
        if sent.pushed_out_bytes:
            self.victims[uid] = sent.victim
        return sent

    def _take_in(self, run: Run, mirror: Mirror, sent: Sent) -> None:
        if run.shadow:
            if not run.mask:
                sent.regretted_bytes += run.size_bytes
            if run.shadow & mirror.bit:
                run.shadow ^= mirror.bit
                mirror.shadow.remove(run)
                self._places -= 1
        run.mask |= mirror.bit
        mirror.held.add(run, self.records)
        self._places += 1

    def _split(self, run: Run, blocks: int) -> Run:
        """Returns the tail, which has its head's place in every mirror and shadow."""
        tail = self.tree.split(run, blocks)
        for slots, shadow in ((run.mask, False), (run.shadow, True)):
            for slot in slots_in(slots):
                mirror = self.mirrors.get(slot) or self._retired[slot]
                (mirror.shadow if shadow else mirror.held).divided(run, tail)
                self._places += 1
        return tail

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
        held = mirror.held
        before = held.size_bytes
        bound = mirror.bound
        bound.most_bytes = max(bound.most_bytes, before)
        victim = 0
        bound_bytes = bound.size_bytes
        while held.size_bytes > bound_bytes:
            victim = self._push_out(mirror, held.size_bytes - bound_bytes)
        if victim and sent is not None:
            sent.pushed_out_bytes, sent.victim = before - held.size_bytes, victim
        while mirror.shadow.size_bytes > bound_bytes * SHADOW_SHARE:
            self._forget_shadow(mirror)
        if self._retired:
            self._forget_some()
        while self.entries > self.entries_max:
            if self._retired:
                self._forget_some()
            else:
                self._yield_some(max(self.mirrors.values(), key=lambda one: one.entries))

    def _push_out(self, mirror: Mirror, excess_bytes: float) -> int:
        """So much of the run that goes next, or all of it, goes to the shadow. Returns the number of its last use."""
        run, used = mirror.held.oldest()
        kept = run.blocks_within(run.size_bytes - excess_bytes) if excess_bytes < run.size_bytes else 0
        if kept:
            run = self._split(run, kept)
        assert mirror.held.pop() is run, "a tail goes before its head"
        run.mask ^= mirror.bit
        run.shadow |= mirror.bit
        mirror.shadow.add(run, self.records)
        return used

    def _forget_shadow(self, mirror: Mirror) -> None:
        run = mirror.shadow.pop()
        run.shadow ^= mirror.bit
        self._places -= 1
        self.tree.let_go(run)

    def _yield_some(self, mirror: Mirror) -> None:
        """The largest mirror gives up its shadow's oldest runs, then its own."""
        for _ in range(min(_YIELD_PER_STEP, mirror.entries)):
            if mirror.shadow.numbers:
                self._forget_shadow(mirror)
            else:
                run = mirror.held.pop()
                run.mask ^= mirror.bit
                self._places -= 1
                self.tree.let_go(run)
