"""From bytes to requests, without a connection."""

import pytest

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
