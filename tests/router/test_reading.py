"""From bytes to requests, without a connection."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay_router.bodies import LONG_BYTES, BodyMemory, source_of
from forebay_router.reading import Limits, Received, RequestReader

OFFER = b"Host: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n"
BARE = b"GET /bare HTTP/1.1\r\n" + OFFER + b"\r\n"
SIZED = b"POST /sized HTTP/1.1\r\n" + OFFER + b"Content-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /chunked HTTP/1.1\r\n" + OFFER + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
PLAIN = b"POST /plain HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"
BODIES = {b"/bare": b"", b"/sized": b"hello", b"/chunked": b"abc", b"/plain": b"hi"}


def read(data: bytes, size: int | None = None) -> list[Received]:
    """What is read of some bytes, in reads of a size."""
    reader = RequestReader(Limits(head_bytes=65536, body_bytes=1 << 20))
    for start in range(0, len(data), size or len(data)):
        reader.feed(data[start : start + (size or len(data))])
    assert not reader.receiving
    return list(reader.ready)


@pytest.mark.parametrize("request_", [BARE, SIZED, CHUNKED])
def test_any_number_of_offers_to_upgrade_in_one_read_are_requests(request_):
    """Java clients offer h2c; what they pipeline must not deepen a stack."""
    found = read(request_ * 2000 + PLAIN)
    assert len(found) == 2001
    assert not any(one.refused for one in found)
    assert {one.body for one in found[:-1]} == {BODIES[found[0].path]}
    assert found[-1].body == b"hi"


def test_heads_that_come_in_two_reads_do_not_add_up():
    """A connection that is kept for hours, with keys that make heads longer than a segment."""
    reader = RequestReader(Limits(head_bytes=4096, body_bytes=1 << 20))
    request = b"POST /plain HTTP/1.1\r\nHost: a\r\nAuthorization: %b\r\nContent-Length: 2\r\n\r\nhi" % (b"j" * 1800)
    for _ in range(20):
        reader.feed(request[:1448])
        reader.feed(request[1448:])
        assert reader.ready.popleft().refused is None
    assert not reader.ready


@pytest.mark.parametrize("size", [1, 2, 7, 50, 1000])
def test_offers_to_upgrade_are_read_however_they_are_cut(size):
    order = [BARE, SIZED, PLAIN, CHUNKED, CHUNKED, BARE, PLAIN, SIZED]
    found = read(b"".join(order), size)
    assert [one.path for one in found] == [one.split(b" ")[1] for one in order]
    assert all(one.body == BODIES[one.path] and one.refused is None for one in found)


LETTERS = bytes(range(97, 123)) * (LONG_BYTES // 26 + 1)


def long_request(size: int, *, more: bytes = b"") -> bytes:
    head = b"POST /long HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n" % (more, size)
    return head + b"\r\n\r\n" + LETTERS[: size - 4]


@settings(deadline=None)
@example(sizes=[LONG_BYTES], cuts=[len(PLAIN)])  # one read has the whole of it, and what follows
@given(
    sizes=st.lists(st.sampled_from([4, 100, LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1]), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 5 * LONG_BYTES) | st.integers(0, 200), max_size=8),
)
def test_long_bodies_are_read_however_they_are_cut(sizes, cuts):
    """Law: what goes past the parser is what the parser would have read, whatever stands before, behind and in it."""
    reader = RequestReader(Limits(head_bytes=65536, body_bytes=1 << 20))
    data = PLAIN + PLAIN.join(map(long_request, sizes)) + CHUNKED + PLAIN
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for start, end in pairwise(places):
        reader.feed(data[start:end])
    found = list(reader.ready)
    assert not reader.receiving
    assert not any(one.refused for one in found)
    longs = [one for one in found if one.path == b"/long"]
    assert [bytes(one.body) for one in longs] == [b"\r\n\r\n" + LETTERS[: size - 4] for size in sizes]
    for one in longs:
        source, start = source_of(one.body)
        assert source[start:] == one.body, "views go on to the end of what they are of"
    assert len(found) == 2 * len(sizes) + 2
    assert (found[-2].body, found[-1].body) == (b"abc", b"hi")


def test_long_body_that_comes_in_one_read_is_not_copied():
    data = long_request(LONG_BYTES)
    (found,) = read(data)
    assert isinstance(found.body, memoryview)
    assert found.body.obj is data


def test_view_of_a_few_bytes_does_not_keep_a_large_read():
    """The bound over all bodies counts what is held."""
    reader = RequestReader(Limits(head_bytes=65536, body_bytes=1 << 20))
    reader.feed(PLAIN * 1000 + long_request(LONG_BYTES)[:200])
    (part,) = reader._body
    assert isinstance(part, bytes)
    assert len(part) < 200


def test_long_body_that_finds_no_memory_is_refused_and_nothing_behind_it_is_read():
    bodies = BodyMemory(LONG_BYTES + 10)
    reader = RequestReader(Limits(head_bytes=65536, body_bytes=1 << 20, bodies=bodies))
    other = Received(b"", b"", [], {}, http_10=False, keep_alive=True)
    first = long_request(LONG_BYTES)
    reader.feed(first[:100])
    assert bodies.take(other, 100)
    reader.feed(first[100:] + PLAIN)
    (refused,) = reader.ready
    assert refused.refused is not None
    assert refused.refused.status == 503
    assert not reader.receiving
    assert bodies.held_bytes == 100


def test_nothing_is_read_behind_a_long_request_that_closes():
    reader = RequestReader(Limits(head_bytes=65536, body_bytes=1 << 20))
    reader.feed(long_request(LONG_BYTES, more=b"Connection: close\r\n") + PLAIN)
    assert [one.path for one in reader.ready] == [b"/long"]


@pytest.mark.parametrize("size", [5, LONG_BYTES])
def test_what_follows_a_request_for_a_tunnel_is_neither_read_nor_kept(size):
    """The parser takes it for the tunnel's: it is no body, whose memory would be counted, and no next request."""
    reader = RequestReader(Limits(head_bytes=65536, body_bytes=1 << 20))
    reader.feed(
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + PLAIN + LETTERS[: LONG_BYTES // 2]
    )
    (refused,) = reader.ready
    assert refused.refused is not None
    assert refused.refused.status == 405
    assert not refused.keep_alive
    assert not reader._body
