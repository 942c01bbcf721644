"""Who holds most of a prompt."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from forebay_router.index.holders import Group, Held, Slots, deepest_of, tokens_in


def held_of(depths: dict[str, int], others: dict[str, int]) -> Held:
    """Workers that hold so many blocks, and workers for which another source speaks."""
    slots = Slots()
    for uid in depths:
        slots.take(uid)
    levels = [
        (sum(1 << slots.of[uid] for uid, blocks in depths.items() if blocks >= least), least)
        for least in sorted(set(depths.values()))
    ]
    return Held(levels, 0.25, slots, others)


@given(
    st.dictionaries(st.integers(0, 40).map(str), st.integers(1, 5), min_size=1),
    st.dictionaries(st.integers(30, 50).map(str), st.integers(1, 200)),
    st.sets(st.integers(0, 50).map(str)),
    st.integers(1, 6),
    st.integers(),
)
def test_of_those_wanted_the_ones_that_hold_most_are_found(depths, others, wanted, count, seed):
    held = held_of(depths, others)
    told = {uid: tokens_in(blocks, 0.25) for uid, blocks in depths.items()} | others
    best = sorted((tokens for uid, tokens in told.items() if uid in wanted), reverse=True)[:count]
    found = deepest_of(told, count, Random(seed), Group(wanted))
    assert [told[uid] for uid in found] == best
    assert wanted.issuperset(found)
    found = held.deepest(count, Random(seed), Group(wanted))
    assert len(set(found)) == len(found) == len(best)
    assert wanted.issuperset(found)
    first = max((tokens for uid, tokens in others.items() if uid in wanted), default=0)
    if first < min(best, default=0):  # the first for which another source speaks has its place
        assert told[found[0]] == first or not first
        best[-1:] = [first] if first else best[-1:]
    assert sorted([told[uid] for uid in found], reverse=True) == best


def test_the_wanted_ones_are_found_behind_many_others_and_as_workers_come_and_go():
    """Of 1,000 holders of all of it, none of which is wanted, and two of half; one of these goes, and its slot is another's."""
    slots = Slots()
    for uid in [*(f"w{at}" for at in range(1000)), "x", "y"]:
        slots.take(uid)
    held, group = Held([((1 << 1002) - 1, 30), ((1 << 1000) - 1, 60)], 0.25, slots, {}), Group(["x", "y", "z"])
    assert all(set(held.deepest(4, Random(at), group)) == {"x", "y"} for at in range(20))
    slots.free(slots.retire("x"))
    assert held.deepest(4, Random(1), group) == ["y"]
    slots.take("other")
    assert held.deepest(4, Random(1), group) == ["y"]
    slots.free(slots.retire("other"))
    slots.take("z")
    assert set(held.deepest(4, Random(1), group)) == {"y", "z"}
