"""The block pool keeps its books whatever is done to it."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay_simulator.engine.kv_blocks import BlockPool


def test_blocks_are_handed_out_from_one_and_evicted_longest_released_first():
    pool = BlockPool(usable_blocks=4)
    first = pool.take(3)
    assert first == [1, 2, 3]
    for block_id in first:
        pool.register(block_id, f"h{block_id}")
    pool.release(first)
    assert pool.take(1) == [4]
    # The end of the released sequence goes first, so its beginning can still be hit.
    assert pool.take(1) == [3]
    assert pool.find("h3") is None
    assert pool.find("h1") == 1


def test_a_hit_block_leaves_the_eviction_queue_and_keeps_its_content():
    pool = BlockPool(usable_blocks=2)
    (block_id,) = pool.take(1)
    pool.register(block_id, "h")
    pool.release([block_id])
    pool.hold([block_id])
    assert pool.take(1) == [2]
    assert pool.free_blocks == 0
    assert pool.find("h") == block_id


def test_removing_one_of_two_copies_is_reported_while_the_other_serves():
    pool = BlockPool(usable_blocks=2, reports_removals=True)
    for block_id in pool.take(2):
        pool.register(block_id, "same")
    pool.release([1])
    pool.take(1)
    assert pool.removed == ["same"]
    assert pool.find("same") == 2


def test_usage_counts_held_blocks_not_cached_ones():
    pool = BlockPool(usable_blocks=4)
    taken = pool.take(2)
    for block_id in taken:
        pool.register(block_id, block_id)
    assert pool.usage == 0.5
    pool.release(taken)
    assert pool.usage == 0.0
    assert pool.cached_hashes == 2


def test_reset_is_refused_while_a_block_is_held():
    pool = BlockPool(usable_blocks=2)
    taken = pool.take(1)
    pool.register(1, "h")
    assert not pool.reset_cache()
    pool.release(taken)
    assert pool.reset_cache()
    assert pool.find("h") is None


class Pool(RuleBasedStateMachine):
    """Random holders taking, sharing and releasing blocks."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(usable_blocks=12, reports_removals=True)
        self.holders: list[list[int]] = []
        self.content: dict[int, int] = {}
        self.names = 0

    @rule(count=st.integers(1, 5))
    def take(self, count):
        if count > self.pool.free_blocks:
            return
        taken = self.pool.take(count)
        for block_id in taken:
            self.content.pop(block_id, None)
            assert all(block_id not in held for held in self.holders)
        self.holders.append(taken)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def register(self, data):
        for block_id in data.draw(st.sampled_from(self.holders)):
            if block_id not in self.content:
                self.names += 1
                self.content[block_id] = self.names
                self.pool.register(block_id, self.names)

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def hit(self, data):
        block_id, name = data.draw(st.sampled_from(sorted(self.content.items())))
        assert self.pool.find(name) == block_id
        self.pool.hold([block_id])
        self.holders.append([block_id])

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data):
        held = data.draw(st.sampled_from(self.holders))
        self.holders.remove(held)
        self.pool.release(held)

    @invariant()
    def books_agree(self):
        held = {block_id for blocks in self.holders for block_id in blocks}
        assert self.pool.held_blocks == len(held)
        assert self.pool.free_blocks + len(held) == 12
        assert all(self.pool.hash_of(block_id) == name for block_id, name in self.content.items())


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
