"""Both sources together: common starts, audit, fallback, tokens and bytes."""

import time
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from forebay_router.index.approximate import ApproximateIndex, Sent
from forebay_router.index.audit import Audit, Source
from forebay_router.index.content import Content, chain, content_of
from forebay_router.index.events import Batch, Cleared, Stored
from forebay_router.index.prefix_index import Known, PrefixIndex
from forebay_router.index.sharing import SHARE, WINDOW, CommonStart, agreement


def content(start: str, rest: str = "", size: int = 4096) -> Content:
    data = (start + rest).encode().ljust(size, b".")
    return Content(chain(data, 0), len(data))


def index_of(*uids: str, entries_max: int = 100_000) -> PrefixIndex:
    made = PrefixIndex(ApproximateIndex(entries_max))
    for uid in uids:
        made.add_worker(uid)
    return made


# -- the common start -------------------------------------------------------------------------------------------------


def test_a_start_that_nearly_all_share_is_common():
    common = CommonStart()
    start = "system " * 200
    for at in range(40):
        common.note(content(start, f"question {at} " * 20))
    assert common.bytes_in(content(start, "new")) == len(start) // 128 * 128
    assert common.bytes_in(content("another")) == 0


def test_a_start_that_a_third_share_is_not_common():
    """The hot prefix of 38 % of traffic keeps its affinity."""
    common, rng = CommonStart(), Random(38)
    for at in range(400):
        common.note(content("hot " * 300) if rng.random() < 0.38 else content(f"{at} " * 300))
    assert common.bytes_in(content("hot " * 300)) == 0


def test_what_is_common_follows_the_traffic():
    common = CommonStart()
    for at in range(200):
        common.note(content("old " * 300, str(at)))
    for at in range(3 * WINDOW):
        common.note(content("new " * 300, str(at)))
    assert common.bytes_in(content("new " * 300)) > 1000
    assert common.bytes_in(content("old " * 300)) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=16, max_size=200))
def test_no_more_is_common_than_the_share_of_the_window_has(traffic):
    common = CommonStart()
    prompts = [content("a" * 128 * one, "b" * 128 * other, 1024) for one, other in traffic]
    for one in prompts:
        common.note(one)
    seen = prompts[-len(common.recent) :]
    having = sum(agreement(common.reference, one.hashes) >= common.blocks for one in seen)
    assert having >= SHARE * len(seen) - 1


# -- look-ups ---------------------------------------------------------------------------------------------------------


def test_tokens_per_byte_are_learnt_from_answers():
    index = index_of("a")
    prompt = content("x" * 4000)
    assert index.look_up("s", prompt).prompt_tokens == 1024
    for _ in range(50):
        sent = index.sent("a", index.look_up("s", prompt))
        index.answered(sent, prompt_tokens=2048, cached_tokens=None)
    looked = index.look_up("s", prompt)
    assert looked.prompt_tokens == 2048
    assert looked.cached == {"a": 2048}


def test_what_a_smaller_bound_pushed_out_and_is_wanted_again_says_nothing_of_what_prompts_push_out():
    known = Known()
    known.note_push(Sent(0, 0, regretted_bytes=1024), 1)
    assert known.displacement(ApproximateIndex(entries_max=10)) is None
    known.note_push(Sent(0, 0, pushed_out_bytes=4096, victim=1), 2)
    assert known.displacement(ApproximateIndex(entries_max=10)) is not None


def test_what_was_missed_long_ago_costs_nothing_any_more():
    known, index = Known(), ApproximateIndex(entries_max=10)
    known.note_push(Sent(0, 0, pushed_out_bytes=128, victim=1), 1)
    known.note_push(Sent(0, 0, pushed_out_bytes=128, victim=1, regretted_bytes=128), 2)
    assert known.displacement(index) is not None
    for at in range(3, 2000):
        known.note_push(Sent(0, 0), at)
    assert known.displacement(index) is None


def test_a_right_prediction_is_audited_as_right():
    index = index_of("a")
    prompt = content("x" * 4000)
    for at in range(10):
        sent = index.sent("a", index.look_up("s", prompt))
        index.answered(sent, prompt_tokens=1024, cached_tokens=1008 if at else 0)
    errors = index.audits["a"].errors[Source.APPROXIMATE]
    assert errors.total < 0.02
    assert index.services["s"].predicted_tokens == 9 * 1024


def _told(token_ids: tuple[int, ...]) -> Batch:
    names = tuple(range(len(token_ids) // 16))
    return Batch((Stored(names, None, token_ids[: len(names) * 16], 16),), 0)


def test_events_answer_for_token_ids_and_the_router_for_the_rest():
    index = index_of("a", "b")
    ids = tuple(range(1000, 1100))
    index.precise.apply("b", _told(ids))
    assert index.look_up("s", content_of({"model": "m", "prompt": list(ids)})).cached == {"b": 96}
    text = content("x" * 4000)
    index.sent("a", index.look_up("s", text))
    assert index.look_up("s", text).cached == {"a": 1024}


def test_a_source_that_drifts_is_dropped_and_comes_back():
    """Events that promise what is not there lose against the router's own memory, until they are right again."""
    index = index_of("a")
    fields = {"model": "m", "prompt": list(range(200))}
    index.precise.apply("a", _told(tuple(range(200))))

    def ask(cached: int) -> Source:
        sent = index.sent("a", index.look_up("s", content_of(fields)))
        index.answered(sent, prompt_tokens=200, cached_tokens=cached)
        return sent.used

    assert ask(0) is Source.PRECISE
    index.precise.apply("a", Batch((Cleared(),), 0))
    used = [ask(192) for _ in range(40)]
    assert used[-1] is Source.APPROXIMATE
    assert index.audits["a"].fallbacks == 1
    index.precise.apply("a", _told(tuple(range(200))))
    used = [ask(192) for _ in range(200)]
    assert used[-1] is Source.PRECISE


def test_a_silent_feed_does_not_hide_what_was_sent():
    """C088: a worker whose events never come is judged by what it was sent."""
    index = index_of("a")
    fields = {"model": "m", "prompt": list(range(200))}
    index.sent("a", index.look_up("s", content_of(fields)))
    looked = index.look_up("s", content_of(fields))
    assert looked.cached["a"] >= 190


def test_equal_sources_keep_the_precise_one():
    audit = Audit()
    for _ in range(50):
        audit.note({Source.APPROXIMATE: 100, Source.PRECISE: 100}, 100, 120)
    assert audit.source(precise_speaks=True) is Source.PRECISE
    assert audit.source(precise_speaks=False) is Source.APPROXIMATE


def test_a_hundred_thousand_tokens_are_looked_up_and_recorded_within_a_millisecond():
    """Hash, walk and record, with 1,000 workers of which 300 hold the prompt's start."""
    text = "".join(chr(97 + at * 7 % 26) for at in range(1000)) * 400
    fields = {"model": "m", "messages": [{"role": "system", "content": text}, {"role": "user", "content": "Hi"}]}
    index = index_of(*(f"w{at}" for at in range(1000)), entries_max=1_000_000)
    first = content_of(fields)
    assert first is not None
    for at in range(300):
        blocks = 1 + at % len(first.hashes)
        index.approximate.record(f"w{at}", Content(first.hashes[:blocks], first.bytes_of(blocks)))
    best = 1.0
    for _ in range(10):
        start = time.process_time()
        made = content_of(fields)
        assert made is not None
        looked = index.look_up("s", made)
        index.sent("w999", looked)
        best = min(best, time.process_time() - start)
    assert len(looked.cached) >= 300
    assert best < 0.001
