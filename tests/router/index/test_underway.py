"""Prompts under way: of a burst with one new beginning, the first one's worker counts as holding it."""

from hypothesis import given
from hypothesis import strategies as st

from forebay_router.index.approximate import ApproximateIndex
from forebay_router.index.content import Content, chain, content_of
from forebay_router.index.events import Batch, Stored
from forebay_router.index.prefix_index import PrefixIndex
from forebay_router.index.underway import LIFE_S, PROMPTS_MAX, Underway

IDS = list(range(1000, 1400))


def content(text: str) -> Content:
    data = text.encode()
    return Content(chain(data, 0), len(data))


class Clock:
    """Time as a test sets it."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def following(*uids: str) -> PrefixIndex:
    """An index that hears events of these workers, of which none holds anything of IDS."""
    index = PrefixIndex(ApproximateIndex(1000), clock=Clock())
    for uid in uids:
        index.add_worker(uid)
        index.precise.apply(uid, Batch((Stored((1,), None, tuple(range(16)), 16),), 0))
    return index


def look_up(index: PrefixIndex, *end: int):
    made = content_of({"model": "m", "prompt": [*IDS, *end]})
    assert made is not None
    return index.look_up("s", made)


def test_what_is_under_way_to_a_worker_counts_as_held_there():
    index = following("a", "b")
    assert look_up(index, 1).cached == {"a": 0, "b": 0}
    index.sent("a", look_up(index, 1))
    found = look_up(index, 2)
    assert found.cached == {"a": 384, "b": 0}
    assert found.precise == found.cached, "the audit compares what was promised"


def test_an_answer_ends_it_and_so_does_time():
    index = following("a")
    sent = index.sent("a", look_up(index, 1))
    index.answered(sent, prompt_tokens=401, cached_tokens=0)
    assert look_up(index, 2).precise == {"a": 0}
    index.sent("a", look_up(index, 2))
    assert look_up(index, 3).precise == {"a": 384}
    index.clock.now_s = LIFE_S
    assert look_up(index, 3).precise == {"a": 0}


def test_a_burst_keeps_the_precise_source_trusted():
    """Each finds what the first one is computing; the promise holds."""
    index = following("a")
    sent = [index.sent("a", look_up(index, at)) for at in range(40)]
    for at, one in enumerate(sent):
        index.answered(one, prompt_tokens=401, cached_tokens=384 if at else 0)
    assert not index.audits["a"].distrusted


def test_memory_is_bounded():
    underway = Underway()
    for at in range(2 * PROMPTS_MAX):
        underway.note("a", content(f"{at} " * 100), at * 1e-6)
    assert len(underway.order) == PROMPTS_MAX
    assert len(underway.by_hash) <= 3 * PROMPTS_MAX
    underway.note("a", content("x" * 300), 1e6)
    assert len(underway.order) == 1
    assert len(underway.by_hash) == 1


SENT = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.integers(0, 3)), max_size=16)


@given(SENT, st.integers(0, 60))
def test_no_more_counts_than_what_is_shared(sent, size):
    """Law: for each worker at most the longest common start with what is under way to it, in full blocks."""
    underway = Underway()
    for uid, blocks, end in sent:
        underway.note(uid, content("s" * 128 * blocks + f"{end}" * 256), 0.0)
    asked = content("s" * 128 * size + "9" * 256)
    for uid, held in underway.match(asked, 1.0).items():
        assert held in {128 * min(blocks, size) for one, blocks, _ in sent if one == uid}
