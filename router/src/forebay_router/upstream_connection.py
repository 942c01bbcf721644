"""One connection to a worker: a request out, its answer in.

Framing is strict: llhttp refuses what is ambiguous, bytes after a complete answer or on an idle connection end it, and a
connection is reused only after a complete answer that allows it.

A stream of tokens comes as one whole chunk a read. Such a read may go to the client as it is, chunk framing included, past the
parser: before and after it the parser stands at the same place, the beginning of a chunk (`Answer.pass_chunk`). And where many
come at once it may wait for its turn (`burst`): then nothing of it has been looked at.
"""

import time
from asyncio import BaseTransport, Transport
from typing import Final, Protocol, cast

import httptools

from forebay_router.answer import Answer
from forebay_router.bodies import Body
from forebay_router.burst import Burst
from forebay_router.errors import FailureReason
from forebay_router.headers import Headers
from forebay_router.peer import Peer

HEAD_MAX_BYTES = 128 * 1024
"""The most that is read of an answer whose head is not complete."""
IDLE_MAX_PER_PEER = 1024
"""Idle connections kept to one worker."""
LATE_MAX_BYTES: Final = 64 * 1024
"""The most of one stream that waits for its turn; with more it is passed on at once."""
Request = tuple[Body, ...]
"""A request's bytes, in one piece or a few."""


class Owner(Protocol):
    """Who keeps the connections."""

    open: set["UpstreamConnection"]
    """Every connection there is."""
    burst: Burst

    def open_and_send(self, peer: Peer, request: Request, answer: Answer) -> None:
        """Send a request on a new connection."""


class UpstreamConnection:
    """One TCP connection to a worker: an asyncio.Protocol in all but its ancestors, which would keep it from being compiled."""

    __slots__ = (
        "_at_boundary",
        "_burst",
        "_bytes_seen",
        "_complete",
        "_desynchronised",
        "_framed",
        "_head_bytes",
        "_headers",
        "_headers_complete",
        "_kept",
        "_late",
        "_late_bytes",
        "_late_s",
        "_owner",
        "_parser",
        "_paused",
        "_pieces",
        "_request",
        "answer",
        "idle_since_s",
        "peer",
        "transport",
    )

    def __init__(self, peer: Peer, owner: Owner) -> None:
        self.peer = peer
        self._owner = owner
        self._burst = owner.burst
        self.transport: Transport | None = None
        self.answer: Answer | None = None
        self.idle_since_s = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._paused = False
        self._request: Request = ()
        """What was sent on a reused connection, until the answer begins: it may have to be sent again."""
        self._at_boundary = False
        self._headers: Headers = []
        self._headers_complete = False
        self._complete = False
        self._desynchronised = False
        self._bytes_seen = False
        self._head_bytes = 0
        self._framed = True
        self._kept = False
        self._late: list[bytes] = []
        """Reads that wait for their turn, in order. The first of them comes where the parser stands at a chunk's beginning."""
        self._late_bytes = 0
        self._late_s = 0.0
        """When the last of them was read."""

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, request: Request, answer: Answer, *, reused: bool) -> None:
        """Write a request; its answer goes to `answer`."""
        assert self.answer is None, "a connection carries one request at a time"
        assert self.transport is not None
        if reused:  # the rest is as new: the end of the last answer left it so
            self._headers_complete = self._complete = self._bytes_seen = False
            self._head_bytes = 0
            self._request = request
        self.answer = answer
        answer.carrier = self
        if len(request) == 1:
            self.transport.write(request[0])
        else:
            self.transport.writelines(request)

    def let_go(self) -> None:
        """Close at once and forget the answer."""
        self.answer = None
        self._late = []
        if self.transport is not None:
            self.transport.abort()

    def pause(self) -> None:
        """Stop reading: the client does not keep up."""
        if self.transport is not None and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
        self._paused = False

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast("Transport", transport)  # uvloop's are not subclasses
        self._owner.open.add(self)

    def data_received(self, data: bytes) -> None:
        """Called by the loop: one read."""
        answer = self.answer
        if answer is None:
            self.let_go()
            return
        if self._at_boundary:
            now_s = time.monotonic()
            if answer.steady and (self._late or self._burst.crowded(now_s)):
                self._keep_for_later(data, now_s)
                return
            if answer.pass_chunk(data, now_s):
                return
        self._parse(answer, data)

    def _keep_for_later(self, data: bytes, now_s: float) -> None:
        if not self._late:
            self._burst.join(self)
        self._late.append(data)
        self._late_bytes += len(data)
        self._late_s = now_s
        if self._late_bytes > LATE_MAX_BYTES:
            self.pass_late()

    def pass_late(self) -> None:
        """Pass on what waits, if anything does; what is more than one chunk of content is read as one piece."""
        late, answer = self._late, self.answer
        if not late or answer is None:
            return
        self._late = []
        self._late_bytes = 0
        data = late[0] if len(late) == 1 else b"".join(late)
        if not answer.pass_chunk(data, self._late_s):
            self._parse(answer, data, self._late_s)

    def cut(self) -> None:
        """End the connection; what waits for its answer is told so."""
        if self.transport is not None:
            self.transport.abort()

    def _parse(self, answer: Answer, data: bytes, now_s: float | None = None) -> None:
        """Parse some bytes, and take in what they hold; they came now where no time is given."""
        self._bytes_seen = True
        self._request = ()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            answer.fail(FailureReason.BAD_ANSWER, f"the worker's answer is not valid HTTP: {error}")
            return
        if not self._headers_complete:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_MAX_BYTES:
                answer.fail(FailureReason.BAD_ANSWER, f"the head of the worker's answer is over {HEAD_MAX_BYTES} bytes")
                return
        pieces = self._pieces
        if pieces:
            block = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            answer.take_in(block, time.monotonic() if now_s is None else now_s, last=self._complete)
        if self._complete and self.answer is answer:
            self._finish(answer)

    def _finish(self, answer: Answer) -> None:
        self.answer = None
        if self._paused:
            self.resume()  # by its last part: the next request must not find the connection deaf
        reusable = (
            self._kept
            and not self._desynchronised
            and not self.peer.gone
            and len(self.peer.idle) < IDLE_MAX_PER_PEER
            and self.transport is not None
            and not self.transport.is_closing()
        )
        if reusable:
            self.idle_since_s = time.monotonic()
            self.peer.idle.append(self)
        elif self.transport is not None:
            self.transport.close()
        answer.finish()

    def pause_writing(self) -> None:
        """Called by the loop: the write buffer is full. A request is written at once, whatever its size."""

    def resume_writing(self) -> None:
        """Called by the loop: the write buffer has room again."""

    def eof_received(self) -> None:
        """Called by the loop: the worker sends no more; the connection is closed."""

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop: the connection is gone."""
        self.transport = None
        self._owner.open.discard(self)
        try:
            self.pass_late()
        finally:  # from now on nobody else ends the answer, nor sees that it is overdue
            self._end_answer(error)

    def _end_answer(self, error: Exception | None) -> None:
        """Tell what the end of the connection means to the answer that was awaited, if any."""
        answer, self.answer = self.answer, None
        if answer is None:
            if self in self.peer.idle:
                self.peer.idle.remove(self)
            return
        if self._headers_complete and not self._framed and error is None:
            answer.finish()
            return
        answer.carrier = None
        answer.carrier_lost = True
        request, self._request = self._request, ()
        if request:
            self._owner.open_and_send(self.peer, request, answer)
        elif not self._bytes_seen:
            answer.fail(FailureReason.RESET, "the worker closed the connection before answering")
        else:
            answer.fail(FailureReason.CUT_OFF, "the worker closed the connection within its answer")

    # -- httptools ----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Called by the parser."""
        if self._complete:
            self._desynchronised = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser; trailers are dropped."""
        if not self._headers_complete:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self._complete:
            return
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, []
        if status < 200:
            return
        self._headers_complete = True
        keeps = self._parser.should_keep_alive()  # the parser forgets with the end of the message
        self._kept = keeps and self._parser.get_http_version() == "1.1"  # 1.0 has no chunks: such framing is in doubt
        self._framed = keeps or _has_framing(headers)
        if self.answer is not None:
            self.answer.begin(status, headers, time.monotonic())

    def on_body(self, data: bytes) -> None:
        """Called by the parser with the body, transfer coding removed."""
        if not self._complete:
            self._pieces.append(data)

    def on_chunk_header(self) -> None:
        """Called by the parser: the size line of a chunk."""
        self._at_boundary = False

    def on_chunk_complete(self) -> None:
        """Called by the parser: the next byte begins a new chunk."""
        self._at_boundary = True

    def on_message_complete(self) -> None:
        """Called by the parser; an interim answer (1xx) is not the end."""
        self._at_boundary = False
        if self._headers_complete:
            self._complete = True


def _has_framing(headers: Headers) -> bool:
    """The body's end is told, not marked by the end of the connection."""
    return any(name in {b"content-length", b"transfer-encoding"} for name, _ in headers)
