"""Messages over the wire."""

from array import array
from sys import getsizeof

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_router.index.content import Content
from forebay_router.mesh.messages import (
    Ask,
    Batch,
    Everything,
    Farewell,
    MalformedMessageError,
    Prefilled,
    Prompts,
    Released,
    Sent,
    Taken,
    decode,
    encode,
)

NUMBERS = st.integers(0, 2**40)
TAKEN = st.builds(Taken, NUMBERS, st.text(max_size=40), NUMBERS, NUMBERS, st.booleans(), NUMBERS)
SENT = st.builds(Sent, st.text(max_size=40), NUMBERS, st.binary(max_size=64))
EVENTS = st.one_of(
    TAKEN,
    st.builds(Prefilled, NUMBERS),
    st.builds(Released, NUMBERS),
    SENT,
)
MESSAGES = st.one_of(
    st.builds(Batch, st.text(), NUMBERS, NUMBERS, st.lists(EVENTS).map(tuple)),
    st.builds(Everything, st.text(), NUMBERS, NUMBERS, st.lists(TAKEN).map(tuple)),
    st.builds(Ask, st.text(), NUMBERS, st.text()),
    st.builds(Farewell, st.text(), NUMBERS),
    st.builds(Prompts, st.text(), NUMBERS, st.text(), st.lists(SENT).map(tuple)),
)


@given(MESSAGES)
def test_a_message_comes_as_it_went(message):
    assert decode(encode(message)) == message


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(0, 2**30))
def test_a_prompt_comes_as_it_went(hashes, size):
    content = Content(array("Q", hashes), size)
    assert Sent.of("w", content).content() == content


def test_a_prompt_that_came_takes_the_room_of_its_hashes():
    """The prefix index keeps it."""
    hashes = Sent.of("w", Content(array("Q", range(400)), 60_000)).content().hashes
    assert getsizeof(hashes) == getsizeof(hashes[:])


@given(st.binary(max_size=80))
def test_any_other_bytes_are_malformed_or_a_message(payload):
    try:
        decode(payload)
    except MalformedMessageError:
        return


def test_half_a_hash_is_malformed():
    with pytest.raises(MalformedMessageError, match="no whole number"):
        Sent("w", 128, b"1234567").content()


def test_what_a_request_costs_on_the_wire():
    """Docs say: about 60 bytes a lease event with a pod's uid, 8 a block of its prompt."""
    uid = "0b6f3c1e-4d1b-4a4e-9d7c-6f1f0a2b3c4d"
    taken = len(encode(Batch("router-1", 1, 1, (Taken(100_000, uid, 1000, 256),)))) - len(
        encode(Batch("router-1", 1, 1))
    )
    sent = len(encode(Sent.of(uid, Content(array("Q", range(2**63, 2**63 + 31)), 4000))))
    assert taken <= 60
    assert sent <= 60 + 31 * 8
