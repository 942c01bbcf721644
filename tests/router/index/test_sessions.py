"""What the names of sessions add to what prompts show."""

from array import array
from random import Random

import pytest

from forebay_router.index.approximate import ApproximateIndex
from forebay_router.index.content import Content, chain
from forebay_router.index.holders import Group, Held
from forebay_router.index.prefix_index import LISTED_MAX, Known, PrefixIndex
from forebay_router.index.sessions import NAME_MAX_BYTES, SESSIONS_MAX, Sessions, session_of

NAMED = {
    "a header": ({b"x-session-id": b"one"}, {}),
    "another router's header": ({b"x-dynamo-session-id": b"one"}, {}),
    "a key": ({}, {"prompt_cache_key": "one"}),
    "a user": ({}, {"user": "one", "prompt_cache_key": None}),
    "a header before a field": ({b"x-session-id": b"one"}, {"user": "two"}),
}
UNNAMED = {
    "nothing": ({}, {}),
    "an empty name": ({b"x-session-id": b""}, {"user": ""}),
    "another type": ({}, {"user": ["one"]}),
    "a long name": ({}, {"user": "x" * (NAME_MAX_BYTES + 1)}),
    "a name of few characters and many bytes": ({}, {"user": "\N{GRINNING FACE}" * (NAME_MAX_BYTES // 4 + 1)}),
}


@pytest.mark.parametrize("case", NAMED)
def test_where_a_session_is_named(case):
    assert session_of(*NAMED[case]) == session_of({b"x-session-id": b"one"}, {})


@pytest.mark.parametrize("case", UNNAMED)
def test_where_none_is_named(case):
    assert session_of(*UNNAMED[case]) is None


def test_only_the_last_sessions_are_kept():
    sessions = Sessions()
    for session in range(SESSIONS_MAX + 10):
        sessions.went(session, "a", 1000)
    sessions.went(10, "a", 1000)
    sessions.went(SESSIONS_MAX + 10, "a", 1000)
    assert len(sessions) == SESSIONS_MAX
    assert sessions.last(11) is None, "10 was used since"
    assert sessions.last(9) is None
    assert sessions.last(10) == ("a", 1000)


def prompt(name: str) -> Content:
    data = name.encode().ljust(4000, b".")
    return Content(chain(data, 0), len(data))


def index_of(*uids: str) -> PrefixIndex:
    made = PrefixIndex(ApproximateIndex(100_000))
    for uid in uids:
        made.add_worker(uid)
    return made


def turn(index: PrefixIndex, name: str, session: int | None, cached_tokens: int):
    """A prompt that goes to `a`; returns what was known of it."""
    looked = index.look_up("s", prompt(name), session=session)
    sent = index.sent("a", looked)
    index.answered(sent, prompt_tokens=1000, cached_tokens=cached_tokens)
    return looked


def test_a_rewritten_history_is_expected_where_its_session_was():
    """The engine keeps nine tenths, whatever the text looks like from here."""
    index = index_of("a", "b")
    assert turn(index, "first", 1, 0).cached == {}
    for at in range(60):
        assert set(turn(index, f"rewritten {at}", 1, 900).cached) == {"a"}
    assert index.look_up("s", prompt("again"), session=1).cached["a"] == pytest.approx(900, rel=0.05)
    assert index.look_up("s", prompt("again"), session=2).cached == {}
    assert index.look_up("s", prompt("again")).cached == {}


def test_a_name_that_many_chats_share_comes_to_mean_nothing():
    index = index_of("a", "b")
    for at in range(200):
        turn(index, f"chat {at}", 1, 0)
    assert index.look_up("s", prompt("another"), session=1).cached.get("a", 0) < 20


def chat(index: PrefixIndex, number: int, session: int, turns: int = 6) -> int | None:
    """A chat whose engine keeps all it was sent and its own answers; returns what its first turn is told of the old worker."""
    told, text, held = None, b"", 0
    for at in range(turns):
        text += f"chat {number}, turn {at} ".encode().ljust(8000 if at == 0 else 400, b".")
        looked = index.look_up("s", Content(chain(text, 0), len(text)), session=session)
        if at == 0:
            told = looked.cached.get("a", 0)
        sent = index.sent("a", looked)
        index.answered(sent, prompt_tokens=len(text) // 4, cached_tokens=held)
        text += b"an answer ".ljust(200, b".")
        held = len(text) // 4 // 16 * 16
    return told


@pytest.mark.parametrize("turns", [2, 6, 20])
def test_further_turns_do_not_make_a_name_that_many_chats_share_mean_much(turns):
    """Of 30 users with one chat after the other, each of which begins anew."""
    index = index_of("a", "b")
    told = [chat(index, number, number % 30, turns) for number in range(300)]
    assert index.services["s"].sessions.share < 0.01
    assert max(told[-30:]) <= 20, "of 2,000 tokens"


def test_short_prompts_that_the_content_does_not_show_teach_nothing():
    index = index_of("a", "b")
    share = index.services.setdefault("s", Known()).sessions.share
    for at in range(40):
        looked = index.look_up("s", Content(array("Q"), 100), session=1)
        index.answered(index.sent("a", looked), prompt_tokens=25, cached_tokens=16 if at else 0)
    assert index.services["s"].sessions.share == share


def test_a_name_counts_where_more_workers_hold_the_start_than_are_listed():
    uids = [f"w{at}" for at in range(LISTED_MAX + 8)]
    index = index_of("a", *uids)
    start = b"start ".ljust(1280, b".")
    for uid in uids:
        data = start + uid.encode().ljust(2000, b".")
        index.sent(uid, index.look_up("s", Content(chain(data, 0), len(data))))
    turn(index, "first", 1, 0)
    data = start + b"of that session".ljust(2720, b".")
    looked = index.look_up("s", Content(chain(data, 0), len(data)), session=1)
    plain = index.look_up("s", Content(chain(data, 0), len(data)))
    assert isinstance(looked.cached, Held)
    assert looked.cached["a"] == looked.guess.expected > plain.cached.get("a", 0)
    assert {uid: looked.cached[uid] for uid in uids} == {uid: plain.cached[uid] for uid in uids}
    assert set(looked.cached) == {"a", *uids}
    assert "a" in looked.cached.deepest(4, Random(1), Group(["a", *uids]))


def test_a_name_takes_nothing_from_what_the_content_shows():
    index = index_of("a", "b")
    for _ in range(50):
        turn(index, "same", 1, 1000)
    seen = index.look_up("s", prompt("same")).cached["a"]
    assert seen <= index.look_up("s", prompt("same"), session=1).cached["a"] <= seen + 8, (
        "no more than the last, partial block"
    )


def guessed(index: PrefixIndex, text: bytes, session: int = 1):
    return index.look_up("s", Content(chain(text, 0), len(text)), session=session).guess


def test_of_a_history_that_is_known_in_part_a_name_says_nothing():
    """What an engine holds beyond what the content shows would not be the name's doing."""
    index = index_of("a")
    text = b"first half ".ljust(4000, b".")
    index.sent("a", index.look_up("s", Content(chain(text * 2, 0), 8000), session=1))
    assert guessed(index, text + b"second half, rewritten ".ljust(4000, b".")) is None
    assert guessed(index, b"all rewritten ".ljust(8000, b".")) is not None


def test_no_more_is_expected_than_the_prompt_has():
    index = index_of("a")
    turn(index, "first", 1, 0)
    guess = guessed(index, b"a short one ".ljust(1000, b"."))
    assert (guess.seen, guess.whole) == (0, 250)


def test_what_all_prompts_begin_with_is_not_the_names_doing():
    index, start = index_of("a"), b"You are helpful. ".ljust(2048, b".")
    for at in range(20):
        text = start + f"chat {at} ".encode().ljust(2000, b".")
        looked = index.look_up("s", Content(chain(text, 0), len(text)))
        index.arrived(looked)
        index.sent("a", looked)
    text = start + b"of the session ".ljust(2000, b".")
    index.sent("a", index.look_up("s", Content(chain(text, 0), len(text)), session=1))
    index.drop_worker("a")
    index.add_worker("a")
    guess = guessed(index, start + b"its next one ".ljust(2000, b"."))
    assert guess.seen == 512, "it will be there, though nothing is known to be"


def test_another_workers_answer_says_nothing_of_what_the_sessions_worker_held():
    index = index_of("a", "b")
    turn(index, "first", 1, 0)
    looked = index.look_up("s", prompt("second"), session=1)
    share = index.services["s"].sessions.share
    assert looked.guess is not None
    index.answered(index.sent("b", looked), prompt_tokens=1000, cached_tokens=0)
    assert index.services["s"].sessions.share == share


def test_a_worker_that_is_gone_holds_nothing_of_a_session():
    index = index_of("a", "b")
    turn(index, "first", 1, 0)
    index.drop_worker("a")
    assert index.look_up("s", prompt("second"), session=1).cached == {}
