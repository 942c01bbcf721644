"""The worker side of the proxy: what is one answer, where it ends, and when its connection may carry another request."""

import asyncio
import itertools
import time
from dataclasses import dataclass, field

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay_router.answer import Answer
from forebay_router.peer import Peer
from forebay_router.upstream import Upstreams
from forebay_router.upstream_connection import UpstreamConnection
from tests.router.ear import Ear
from tests.router.harness import ask, chat, routed
from tests.router.scripted import completion, hello, workers

ASK = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"
OK = b"HTTP/1.1 200 OK\r\n"
JSON = b"Content-Type: application/json\r\n"


@dataclass
class _Transport:
    """A connection's transport, without a network."""

    written: list[bytes] = field(default_factory=list)
    closing: bool = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closing = True

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


@dataclass
class _Understood:
    """What a connection makes of a worker's bytes."""

    whole: tuple[int, bytes] | None
    """Status and body of an answer that came to its end."""
    reusable: bool
    failed: bool


async def _feed(parts: list[bytes], *, then_closed: bool) -> _Understood:
    peer, transport = Peer("w", "127.0.0.1", 1), _Transport()
    connection = UpstreamConnection(peer, Upstreams(connect_timeout_s=1, idle_s=1))
    connection.connection_made(transport)  # type: ignore[arg-type]
    ear = Ear()
    answer = Answer(ear, now_s=time.monotonic())
    answer.collect_whole()
    connection.send((ASK,), answer, reused=False)
    for part in parts:
        if not transport.closing:
            connection.data_received(part)
    reusable = connection in peer.idle and not transport.closing
    if then_closed and connection.answer is not None:
        connection.connection_lost(None)
    failed = bool(ear.ends)
    whole = (answer.status, answer.take_buffered()) if answer.complete and not failed else None
    return _Understood(whole, reusable, failed)


def feed(parts: list[bytes], *, then_closed: bool = True) -> _Understood:
    return asyncio.run(_feed(parts, then_closed=then_closed))


def _h11_reads(data: bytes) -> tuple[tuple[int, bytes] | None, bool]:
    """(status and body as another implementation reads them, whether it would use the connection again)."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "a"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    connection.receive_data(b"")
    status, body = 0, b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                kept = connection.their_state is h11.DONE and connection.our_state is h11.DONE
                return (status, body), kept and not connection.trailing_data[0].strip(
                    b"\r\n"
                )  # empty lines are nobody's answer
            elif event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return None, False
    except h11.RemoteProtocolError:
        return None, False


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places) if end > start]


SMUGGLING = {
    "length and chunked": b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "chunked and length": b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 5\r\n\r\n{}   ",
    "list of lengths": b"Content-Length: 2, 5\r\n\r\n{}   ",
    "signed length": b"Content-Length: +2\r\n\r\n{}",
    "hexadecimal length": b"Content-Length: 0x2\r\n\r\n{}",
    "huge length": b"Content-Length: 99999999999999999999\r\n\r\n{}",
    "space before colon": b"Content-Length : 2\r\n\r\n{}",
    "no size of a chunk": b"Transfer-Encoding: chunked\r\n\r\n\r\n{}\r\n0\r\n\r\n",
    "size that is no number": b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n",
    "huge size of a chunk": b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "chunk longer than its size": b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
    "chunk without its end": b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}0\r\n\r\n",
    "null in a header": b"X: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("case", SMUGGLING)
def test_ambiguous_answers_never_leave_a_connection_in_use(case):
    understood = feed([OK + SMUGGLING[case]])
    assert not understood.reusable
    assert understood.failed or understood.whole == _h11_reads(OK + SMUGGLING[case])[0]


@pytest.mark.parametrize("case", SMUGGLING)
async def test_client_of_an_ambiguous_answer_gets_an_answer_of_another_worker(case):
    """And the next request meets no byte of the bad answer."""

    async def bad(_asked, wire):
        await wire.raw(OK + JSON + SMUGGLING[case])
        await asyncio.sleep(0.05)
        wire.close()

    async with workers(bad, hello) as both, routed(*both) as router:
        for _ in range(3):
            answer = await ask(router, chat())
            assert answer.status in {200, 502}
            if answer.status == 200:
                assert answer.json.get("choices") or answer.body == b"{}"
        await router.no_lease_is_left()


LATER = {
    "a second answer behind the first": OK + b"Content-Length: 2\r\n\r\n{}" + OK + b"Content-Length: 2\r\n\r\n[]",
    "bytes behind the answer": OK + b"Content-Length: 2\r\n\r\n{}x",
    "close": OK + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}",
    "http/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "no length": OK + b"\r\n{}",
}


@pytest.mark.parametrize("case", LATER)
def test_connection_is_not_used_again_after(case):
    assert not feed([LATER[case]]).reusable


def test_connection_is_used_again_after_a_whole_answer():
    for data in (
        OK + b"Content-Length: 2\r\n\r\n{}",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\n{}",
    ):
        understood = feed([data])
        assert (understood.whole, understood.reusable) == ((200, b"{}"), True)


async def test_answer_that_comes_before_its_request_is_not_taken_for_the_next_one():
    """A worker that writes on an idle connection ends it: its bytes are nobody's answer."""

    async def chatty(_asked, wire):
        await wire.json(completion("right"))
        await asyncio.sleep(0.02)
        await wire.raw(OK + JSON + b"Content-Length: 2\r\n\r\n[]")

    async with workers(chatty) as [worker], routed(worker) as router:
        for _ in range(4):
            answer = await ask(router, chat())
            assert answer.json["choices"][0]["message"]["content"] == "right"
            await asyncio.sleep(0.04)


def test_head_that_never_ends_is_given_up():
    lines = [b"X-%d: %b\r\n" % (number, b"y" * 1000) for number in range(200)]
    understood = feed([OK, *lines], then_closed=False)
    assert understood.failed


_FIRST = st.sampled_from(
    [
        OK,
        b"HTTP/1.0 200 OK\r\n",
        b"HTTP/1.1 204 No\r\n",
        b"HTTP/1.1 500\r\n",
        b"HTTP/1.1 100 Go\r\n\r\n" + OK,
        b"HTTP/1.1 2 X\r\n",
    ]
)
_LINES = st.sampled_from(
    [
        b"Content-Length: 3", b"Content-Length: 0", b"content-length:2", b"Content-Length: 3 ", b"Content-Length: 0x3",
        b"Transfer-Encoding: chunked", b"transfer-encoding:Chunked", b"Transfer-Encoding: gzip", b"Connection: close",
        b"Connection: keep-alive", b"X: y", b"X : y", b" X: y", b"X:", b"X: \xc3\xa9", b"X\x00: y", b"Upgrade: h2c",
    ]
)  # fmt: skip
_BODIES = st.sampled_from(
    [b"", b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"0\r\n\r\n", b"3\nabc\r\n0\r\n\r\n", b"3;x=y\r\nabc\r\n0\r\nT: v\r\n\r\n",
     b"abc" + OK + b"Content-Length: 0\r\n\r\n"]
)  # fmt: skip


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_FIRST, st.lists(_LINES, max_size=4), _BODIES, st.lists(st.integers(0, 300), max_size=5))
def test_whatever_is_taken_for_an_answer_is_read_as_h11_reads_it(first, lines, body, cuts):
    """Law: we may refuse what h11 takes, but never read the same bytes differently, nor keep a connection that it gives up."""
    data = first + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body
    understood = feed(_cut(data, cuts))
    theirs, kept = _h11_reads(data)
    if understood.whole is not None and theirs is not None:
        assert understood.whole == theirs
    if theirs is not None:
        assert kept or not understood.reusable


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_FIRST, st.lists(_LINES, max_size=3), _BODIES, st.lists(st.integers(0, 300), max_size=8))
def test_answers_are_the_same_however_they_are_cut(first, lines, body, cuts):
    data = first + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body
    in_parts, at_once = feed(_cut(data, cuts)), feed([data])
    if (
        in_parts.whole is None or at_once.whole is None
    ):  # bytes behind the end fail the answer, if they come along with it
        assert not in_parts.reusable
        assert not at_once.reusable
    else:
        assert in_parts.whole == at_once.whole


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(min_size=1, max_size=300), max_size=5), st.booleans())
def test_no_bytes_of_a_worker_break_the_connection(parts, with_head):
    """Law: whatever comes, the answer ends, well or as a failure, once the connection is gone."""
    understood = feed([OK, *parts] if with_head else parts)
    assert understood.failed or understood.whole is not None
