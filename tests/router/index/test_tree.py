"""Runs of chains: how far a prompt follows one, and splitting."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_router.index.content import ENDS
from forebay_router.index.recency import Recency
from forebay_router.index.tree import Run, RunTree


def hashes(*numbers: int) -> "array[int]":
    return array("Q", numbers)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(0, 5))
def test_a_chain_follows_a_run_as_far_as_they_agree(run_blocks, chain_blocks, agreeing, start):
    agreeing = min(agreeing, run_blocks, chain_blocks)
    own = list(range(100, 100 + run_blocks))
    chain = [*range(start), *own[:agreeing], *range(900, 900 + chain_blocks - agreeing)]
    assert Run(None, start, hashes(*own)).followed(chain) == agreeing


@given(st.integers(0, 70), st.integers(1, 70), st.integers(0, 40_000))
def test_the_first_blocks_of_a_run_fill_a_size(start, count, size_bytes):
    run = Run(None, start, hashes(*range(count)))
    kept = run.blocks_within(size_bytes)
    before = ENDS[start - 1] if start else 0
    assert kept == 0 or ENDS[start + kept - 1] - before <= size_bytes
    assert kept == count or ENDS[start + kept] - before > size_bytes


def test_a_split_run_leads_on_as_before():
    tree = RunTree()
    content = hashes(1, 2, 3, 4)
    run = tree.grow(tree.root, content)
    deeper = tree.grow(run, hashes(1, 2, 3, 4, 5, 6))
    run.mask = deeper.mask = 0b1
    tail = tree.split(run, 1)
    assert (list(run.hashes), list(tail.hashes), tail.start, tree.blocks) == ([1], [2, 3, 4], 1, 6)
    assert deeper.parent is tail
    assert content == hashes(1, 2, 3, 4), "the prompt's own"
    assert tree.levels((1, 2, 3, 4, 5, 6, 7)) == [(0b1, 6)]
    assert tree.levels((1, 2, 9)) == [(0b1, 2)]
    assert tree.levels((9,)) == []


def test_what_nobody_holds_is_cut_off_up_to_the_first_run_that_leads_elsewhere():
    tree = RunTree()
    head = tree.grow(tree.root, hashes(1, 2))
    one, other = tree.grow(head, hashes(1, 2, 3)), tree.grow(head, hashes(1, 2, 4))
    other.mask = 0b1
    tree.let_go(one)
    assert (tree.blocks, set(head.children)) == (3, {4})
    other.mask = 0
    tree.let_go(other)
    assert (tree.blocks, tree.root.children) == (0, None)


def test_the_longest_unused_run_goes_first_and_of_one_prompt_the_deepest():
    tree = RunTree()
    head = tree.grow(tree.root, hashes(1))
    tail = tree.grow(head, hashes(1, 2))
    other = tree.grow(tree.root, hashes(7))
    order = Recency()
    for run, number in ((head, 1), (tail, 1), (other, 2)):
        order.add(run, number)
    order.numbers[head] = 3
    assert [order.pop() for _ in range(3)] == [tail, other, head]
    assert order.size_bytes == 0


def test_runs_that_come_and_go_leave_no_entries_behind():
    order = Recency()
    tree = RunTree()
    runs = [tree.grow(tree.root, hashes(at)) for at in range(5)]
    for number in range(1_000):
        for run in runs:
            order.add(run, number)
            order.remove(run)
    assert len(order._heap) < 100
    order.add(runs[0], 1_000)
    assert order.pop() is runs[0]
    with pytest.raises(IndexError):
        order.pop()
