"""Bursts of tokens: what goes first, and that nothing is lost or turned round by it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_router import burst, upstream_connection
from forebay_router.answer import Answer
from forebay_router.burst import Burst
from forebay_router.endpoints import Dialect
from forebay_router.errors import FailureReason, WorkerFailure
from forebay_router.peer import Peer
from forebay_router.sse import EventScanner
from forebay_router.upstream import Upstreams
from forebay_router.upstream_connection import UpstreamConnection

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def event(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text.encode()


def chunk(text: str) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event(text)), event(text))


def body_of(wire: bytes) -> bytes:
    """The content of some chunks."""
    content = b""
    while wire:
        size, _, wire = wire.partition(b"\r\n")
        content += wire[: int(size, 16)]
        assert wire[int(size, 16) :][:2] == b"\r\n"
        wire = wire[int(size, 16) + 2 :]
    return content


@dataclass
class _Transport:
    """A worker's connection, without a network."""

    owner: "Stream"
    closing: bool = False

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.closing = True
        self.owner.connection.connection_lost(None)

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing


@dataclass
class Stream:
    """One stream on its way through, its first token passed on."""

    upstreams: Upstreams
    written: list[bytes] = field(default_factory=list)
    """To the client, chunk framing included."""
    ends: list[WorkerFailure | None] = field(default_factory=list)
    on_write: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.connection = UpstreamConnection(Peer("w", "127.0.0.1", 1), self.upstreams)
        self.connection.connection_made(_Transport(self))  # type: ignore[arg-type]
        self.scanner = EventScanner(Dialect.CHAT)
        self.answer = Answer(self, now_s=time.monotonic(), scanner=self.scanner)
        self.connection.send((b"POST",), self.answer, reused=False)
        self.read(HEAD + chunk("first"))

    def answer_opened(self, answer: Answer) -> None:
        self.write_chunk(answer.take_buffered())
        answer.sink, answer.chunk_sink = self.write_chunk, self.write

    def answer_ended(self, answer: Answer, failure: WorkerFailure | None) -> None:  # noqa: ARG002 - a listener's
        self.ends.append(failure)

    def write(self, data: bytes) -> None:
        self.on_write()
        self.written.append(data)

    def write_chunk(self, data: bytes) -> None:
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def read(self, data: bytes) -> None:
        self.connection.data_received(data)

    @property
    def passed(self) -> bytes:
        return body_of(b"".join(self.written))


@pytest.fixture
async def upstreams() -> Upstreams:
    made = Upstreams(connect_timeout_s=1, idle_s=1)
    made.burst._since_s = float("inf")  # one window, however slow the machine is
    return made


async def turns(count: int = 1) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_first_chunks_of_a_burst_pass_at_once_and_the_rest_a_few_a_turn(upstreams):
    streams = [Stream(upstreams) for _ in range(burst.AT_ONCE + 2 * burst.TURN)]
    for stream in streams:
        stream.read(chunk("more"))
    passed = []
    for _ in range(4):
        passed.append(sum(stream.passed.endswith(event("more")) for stream in streams))
        await turns()
    assert passed == [burst.AT_ONCE, burst.AT_ONCE + burst.TURN, len(streams), len(streams)]


async def test_what_is_no_later_token_does_not_wait_behind_a_burst(upstreams):
    streams = [Stream(upstreams) for _ in range(100)]
    for stream in streams:
        stream.read(chunk("more"))
    fresh = Stream(upstreams)
    assert fresh.passed == event("first")
    await turns()
    waiting = sum(not stream.passed.endswith(event("more")) for stream in streams)
    assert waiting >= 100 - burst.AT_ONCE - 2 * max(burst.TURN, 100 * burst.SHARE)


async def test_stream_that_waits_gets_what_came_meanwhile_in_one_write_and_in_order(upstreams):
    streams = [Stream(upstreams) for _ in range(burst.AT_ONCE + 1)]
    for stream in streams:
        stream.read(chunk("a"))
    late = streams[-1]
    late.read(chunk("b"))
    late.read(chunk("c")[:9])
    assert late.passed == event("first")
    late.read(chunk("c")[9:] + END)
    await turns()
    assert late.passed == b"".join(map(event, ("first", "a", "b", "c"))) + b"data: [DONE]\n\n"
    assert (len(late.written), late.ends) == (2, [None])
    assert late.connection in late.connection.peer.idle


async def test_chunk_that_waits_is_dated_by_its_read(upstreams, monkeypatch):
    now_s = 1000.0
    streams = [Stream(upstreams) for _ in range(burst.AT_ONCE + 1)]
    monkeypatch.setattr(upstream_connection.time, "monotonic", lambda: now_s)
    for stream in streams:
        stream.read(chunk("more"))
    now_s = 1001.0
    await turns()
    late = streams[-1]
    assert late.passed.endswith(event("more"))
    assert (late.scanner.last_content_s, late.answer.last_byte_s) == (1000.0, 1000.0)


async def test_connection_that_breaks_passes_on_what_waits_before_it_fails(upstreams):
    streams = [Stream(upstreams) for _ in range(burst.AT_ONCE + 1)]
    for stream in streams:
        stream.read(chunk("more"))
    late = streams[-1]
    late.connection.connection_lost(None)
    assert late.passed == event("first") + event("more")
    assert [end.reason for end in late.ends if end] == [FailureReason.CUT_OFF]
    await turns()
    assert len(late.written) == 2


async def test_nothing_is_passed_on_of_an_answer_that_nobody_wants(upstreams):
    streams = [Stream(upstreams) for _ in range(burst.AT_ONCE + 1)]
    for stream in streams:
        stream.read(chunk("more"))
    late = streams[-1]
    late.answer.abandon()
    await turns()
    assert (late.passed, late.ends) == (event("first"), [])


async def test_stream_does_not_wait_with_more_than_a_bound(upstreams):
    streams = [Stream(upstreams) for _ in range(burst.AT_ONCE + 1)]
    for stream in streams:
        stream.read(chunk("more"))
    late, text = streams[-1], "x" * (upstream_connection.LATE_MAX_BYTES // 2)
    late.read(chunk(text))
    assert late.passed == event("first")
    late.read(chunk(text))
    assert late.passed == b"".join(map(event, ("first", "more", text, text)))
    await turns(2)
    assert len(late.written) == 2


async def test_stream_that_cannot_be_passed_on_takes_no_other_with_it(upstreams, caplog):
    streams = [Stream(upstreams) for _ in range(burst.AT_ONCE + 3)]
    broken, *others = streams[-3:]

    def fail() -> None:
        raise ValueError("no")

    broken.on_write = fail
    for stream in streams:
        stream.read(chunk("more"))
    await turns(2)
    assert all(other.passed.endswith(event("more")) for other in others)
    assert [end.reason for end in broken.ends if end] == [FailureReason.CUT_OFF]
    assert "could not be passed on" in caplog.text


async def test_answer_ends_with_its_connection_also_where_what_waits_cannot_be_passed_on(upstreams):
    streams = [Stream(upstreams) for _ in range(burst.AT_ONCE + 1)]
    for stream in streams:
        stream.read(chunk("more"))

    def fail() -> None:
        raise ValueError("no")

    late = streams[-1]
    late.on_write = fail
    with pytest.raises(ValueError, match="no"):  # the loop logs it
        late.connection.connection_lost(None)
    assert [end.reason for end in late.ends if end] == [FailureReason.CUT_OFF]


async def test_reads_cannot_starve_what_waits():
    """A thousand streams, each with a token in every turn of the loop: what waits is passed on within some turns."""
    queue, passed = Burst(), 0

    class One:
        waits = False

        def pass_late(self) -> None:
            nonlocal passed
            passed += self.waits
            self.waits = False

        def cut(self) -> None:
            raise AssertionError

    streams = [One() for _ in range(1000)]
    for _ in range(50):
        for stream in streams:
            if not stream.waits:
                stream.waits = True
                queue.join(stream)
        await turns()
    assert passed > 50 * 1000 * burst.SHARE * 0.9


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 300), st.booleans()), max_size=60))
def test_every_stream_arrives_as_it_was_sent_however_it_is_cut(reads):
    """A read is of one of eight streams, so many bytes, and the loop may turn after it."""

    async def run() -> None:
        upstreams = Upstreams(connect_timeout_s=1, idle_s=1)
        upstreams.burst._since_s = float("inf")
        streams = [Stream(upstreams) for _ in range(8)]
        texts = [str(number) for number in range(20)]
        sent = b"".join(map(chunk, texts)) + END
        rest = [sent] * 8
        for index, size, turn in reads:
            data, rest[index] = rest[index][:size], rest[index][size:]
            if data:
                streams[index].read(data)
            if turn:
                await turns()
        for stream, data in zip(streams, rest, strict=True):
            if data:
                stream.read(data)
        await turns(20)
        for stream in streams:
            assert stream.passed == b"".join(map(event, ["first", *texts])) + b"data: [DONE]\n\n"
            assert stream.ends == [None]

    asyncio.run(run())
