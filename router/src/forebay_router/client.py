"""Connections from clients.

A connection reads requests and has them answered one after the other, in the callbacks that bring the bytes: a task a request
would cost as much as parsing it. What answers a request is a `Work`; while there is one, further bytes (pipelining) wait unparsed
up to `HELD_MAX_BYTES`; then reading stops. Until that point reading goes on, because only a read tells that the client has left,
and then the work is told at once.

An answer to an HTTP/1.0 client has no chunks and ends with the connection.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol, cast

from forebay_router import errors
from forebay_router.reading import Limits, Received, RequestReader

log = logging.getLogger(__name__)

HELD_MAX_BYTES = 64 * 1024
"""Unparsed bytes that may wait behind a request that is being answered."""
LINGER_S = 1.0
"""After an early error answer, how long the rest of the request is read and dropped before the connection closes."""
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}


class Work(Protocol):
    """What answers one request. It ends with `ClientConnection.answered`, called once."""

    def begin(self) -> None:
        """Start; may be answered when this returns."""

    def client_left(self) -> None:
        """Nobody waits for the answer any more."""

    def give_up(self) -> None:
        """The router stops: end the answer at once."""

    def client_slow(self) -> None:
        """The client does not keep up."""

    def client_ready(self) -> None:
        """The client takes more."""


@dataclass(slots=True)
class ClientConnections:
    """What all client connections share."""

    limits: Limits
    serve: Callable[[Received, "ClientConnection"], Work | None]
    """Answers one request at once, or returns what will."""
    draining: bool = False
    """Every answer tells its client to reconnect elsewhere."""
    live: set["ClientConnection"] = field(default_factory=set)
    busy: int = 0
    """Requests that are being answered."""
    _all_answered: asyncio.Event = field(default_factory=asyncio.Event)

    def make(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        return cast("asyncio.Protocol", ClientConnection(self))

    def drain(self) -> None:
        """Close idle connections; busy ones close after their answer."""
        self.draining = True
        for connection in tuple(self.live):
            connection.close_if_idle()

    def close(self) -> None:
        """Close every connection."""
        for connection in tuple(self.live):
            connection.cut()

    def answered(self) -> None:
        """A request has been answered, or its client is gone."""
        self.busy -= 1
        if not self.busy:
            self._all_answered.set()

    async def finished(self) -> None:
        """Return when no request is being answered."""
        while self.busy:
            self._all_answered.clear()
            await self._all_answered.wait()

    def give_up(self) -> int:
        """End every request that is being answered; how many there were."""
        left = self.busy
        for connection in tuple(self.live):
            connection.give_up()
        return left

    def sweep(self, now_s: float, *, idle_s: float, request_s: float) -> None:
        """Close connections that are idle, or that take too long to send a request."""
        for connection in tuple(self.live):
            connection.expire(now_s, idle_s=idle_s, request_s=request_s)


class ClientConnection:
    """One TCP connection from a client: an asyncio.Protocol in all but its ancestors, which would keep it from being compiled."""

    __slots__ = (
        "_closing",
        "_held",
        "_idle_since_s",
        "_in_turn",
        "_paused_since_s",
        "_reader",
        "_shared",
        "_work",
        "transport",
    )

    def __init__(self, shared: ClientConnections) -> None:
        self.transport: asyncio.Transport | None = None
        self._shared = shared
        self._reader = RequestReader(shared.limits)
        self._work: Work | None = None
        """Answers the current request."""
        self._in_turn = False
        """`_go_on` runs."""
        self._held = bytearray()
        self._closing = False
        self._paused_since_s: float | None = None
        """Since when the client has not kept up."""
        self._idle_since_s = time.monotonic()

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        self._shared.live.add(self)

    def eof_received(self) -> None:
        """Called by the loop: the client sends no more; the connection is closed."""

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Called by the loop: the client is gone; whatever runs for it stops."""
        self.transport = None
        self._shared.live.discard(self)
        self._reader.abandon()
        if self._work is not None:
            self._work.client_left()

    def pause_writing(self) -> None:
        """Called by the loop: the write buffer is full."""
        self._paused_since_s = time.monotonic()
        if self._work is not None:
            self._work.client_slow()

    def resume_writing(self) -> None:
        """Called by the loop: the write buffer has room again."""
        self._paused_since_s = None
        if self._work is not None:
            self._work.client_ready()

    def data_received(self, data: bytes) -> None:
        """Called by the loop: one read."""
        if self._closing:
            return
        if self._work is None:
            self._reader.feed(data)
            self._go_on()
            return
        self._held += data
        if len(self._held) > HELD_MAX_BYTES and self.transport is not None:
            self.transport.pause_reading()

    # -- serving ------------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Have requests answered in order, until one takes its time or more bytes are needed.

        A loop, since answers that are given at once come back here: a recursion would grow with what a client pipelines.
        """
        if self._in_turn:
            return
        self._in_turn = True
        try:
            while self._work is None and self.transport is not None and self._turn(self.transport):
                pass
        finally:
            self._in_turn = False

    def _turn(self, transport: asyncio.Transport) -> bool:
        """The next request, or more bytes, or the end; False when there is nothing to do now."""
        reader = self._reader
        if self._closing:
            self._linger(transport)
        elif reader.ready:
            self._begin(reader.ready.popleft())
            return True
        elif self._held:
            data = bytes(self._held)
            self._held.clear()
            transport.resume_reading()
            reader.feed(data)
            return True
        elif reader.continue_due:
            reader.continue_due = False
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif self._shared.draining and not reader.receiving:
            transport.close()
        return False

    def _begin(self, request: Received) -> None:
        self._shared.busy += 1
        self._closing = request.refused is not None
        work = None
        try:
            work = self._shared.serve(request, self)
        except Exception:
            log.exception("a request was left unanswered")
            self.cut()
        if work is None:
            self._shared.limits.bodies.give_back(request)
            self.answered()
        else:
            self._work = work
            work.begin()

    def answered(self) -> None:
        """The request has been answered, or cannot be."""
        self._work = None
        self._idle_since_s = time.monotonic()
        self._shared.answered()
        self._go_on()

    def give_up(self) -> None:
        """End the request that is being answered."""
        if self._work is not None:
            self._work.give_up()

    def _linger(self, transport: asyncio.Transport) -> None:
        """Close so that the client gets to read the answer: closing with unread bytes would reset the connection."""
        if not self._reader.ended and not self._held:
            transport.close()
            return
        self._held.clear()
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()
        asyncio.get_running_loop().call_later(LINGER_S, transport.close)

    @property
    def connected(self) -> bool:
        """The client is still there."""
        return self.transport is not None

    @property
    def slow(self) -> bool:
        """The client does not keep up with what has been written."""
        return self._paused_since_s is not None

    def close_if_idle(self) -> None:
        """Close unless a request is being received or answered."""
        if self._work is None and not self._reader.receiving and self.transport is not None:
            self.transport.close()

    def expire(self, now_s: float, *, idle_s: float, request_s: float) -> None:
        """Close a connection that is idle, whose request does not come to its end, or whose client does not read."""
        if self.transport is None:
            return
        if self._paused_since_s is not None and now_s - self._paused_since_s > request_s:
            self.transport.abort()  # it does not read what it asked for
            return
        if self._work is not None or self._closing:
            return
        reader = self._reader
        if not reader.receiving:
            if now_s - self._idle_since_s > idle_s:
                self.transport.close()
        elif now_s - reader.since_s > request_s:
            message = f"The request did not arrive within {request_s:g} s."
            reader.refuse(errors.RequestRefused(408, message, code="request_timeout"))
            self._go_on()

    # -- answering ----------------------------------------------------------------------------------------------------

    def _connection_line(self, request: Received, *, known_end: bool) -> bytes:
        """The Connection header of an answer; notes whether the connection ends with it."""
        if self._shared.draining or not request.keep_alive or not known_end:
            self._closing = True
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" if request.http_10 else b""

    def begin(self, request: Received, status: int, lines: bytes, length: int | None) -> bool:
        """Write the head of an answer; `lines` are header lines. True when the body is to be chunked."""
        chunked = length is None and not request.http_10
        connection = self._connection_line(request, known_end=length is not None or chunked)
        if length is not None:
            framing = b"content-length: %d\r\n" % length
        else:
            framing = b"transfer-encoding: chunked\r\n" if chunked else b""
        self.write(b"%b%b%b%b\r\n" % (_status_line(status), lines, framing, connection))
        return chunked

    def whole(self, request: Received, status: int, lines: bytes, body: bytes) -> None:
        """Write a complete answer; the body is left out for HEAD."""
        connection = self._connection_line(request, known_end=True)
        shown = b"" if request.method == b"HEAD" else body
        if self.transport is not None:
            self.transport.write(
                b"%b%bcontent-length: %d\r\n%b\r\n%b" % (_status_line(status), lines, len(body), connection, shown)
            )

    def write(self, block: bytes) -> None:
        """Write a part of a body as it is."""
        if self.transport is not None:
            self.transport.write(block)

    def write_chunk(self, block: bytes) -> None:
        """Write a part of a body as one chunk."""
        if self.transport is not None:
            self.transport.write(b"%x\r\n%b\r\n" % (len(block), block))

    def end_chunks(self) -> None:
        """Write the end of a chunked body."""
        self.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """End the connection without completing the answer, so that the client sees that it is incomplete."""
        self._closing = True
        if self.transport is not None:
            self.transport.abort()


def _status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status
