"""Connections from clients.

A connection reads requests and answers them one after the other, in one task of its own (making a task a request costs as much
as parsing it). While a request is being answered, further bytes (pipelining) wait unparsed up to `HELD_MAX_BYTES`; then reading
stops. Until that point reading goes on, because only a read tells that the client has left, and then the task is cancelled at
once.

An answer to an HTTP/1.0 client has no chunks and ends with the connection.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

from forebay_router import errors
from forebay_router.reading import Limits, Received, RequestReader

log = logging.getLogger(__name__)

HELD_MAX_BYTES = 64 * 1024
"""Unparsed bytes that may wait behind a request that is being answered."""
LINGER_S = 1.0
"""After an early error answer, how long the rest of the request is read and dropped before the connection closes."""
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}


@dataclass(slots=True)
class ClientConnections:
    """What all client connections share."""

    limits: Limits
    serve: Callable[[Received, "ClientConnection"], Awaitable[None] | None]
    """Answers one request, at once or by what it returns, which is cancelled when the client leaves."""
    draining: bool = False
    """Every answer tells its client to reconnect elsewhere."""
    live: set["ClientConnection"] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """One for each connection that has sent a request."""
    busy: int = 0
    """Requests that are being answered."""
    _all_answered: asyncio.Event = field(default_factory=asyncio.Event)

    def make(self) -> "ClientConnection":
        """The protocol of a new connection."""
        return ClientConnection(self)

    def drain(self) -> None:
        """Close idle connections; busy ones close after their answer."""
        self.draining = True
        for connection in tuple(self.live):
            connection.close_if_idle()

    def close(self) -> None:
        """Close every connection."""
        for connection in tuple(self.live):
            connection.cut()

    def began(self) -> None:
        """A request is being answered."""
        self.busy += 1

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

    async def cancel(self) -> int:
        """End every request that is being answered; how many there were."""
        left = self.busy
        running = list(self.tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        return left

    def sweep(self, now_s: float, *, idle_s: float, request_s: float) -> None:
        """Close connections that are idle, or that take too long to send a request."""
        for connection in tuple(self.live):
            connection.expire(now_s, idle_s=idle_s, request_s=request_s)


class ClientConnection(asyncio.Protocol):
    """One TCP connection from a client."""

    __slots__ = (
        "_busy",
        "_closing",
        "_held",
        "_idle_since_s",
        "_on_pause",
        "_on_resume",
        "_paused_since_s",
        "_reader",
        "_shared",
        "_task",
        "_wake",
        "transport",
    )

    def __init__(self, shared: ClientConnections) -> None:
        self.transport: asyncio.Transport | None = None
        self._shared = shared
        self._reader = RequestReader(shared.limits)
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        """Set while the task waits for a request."""
        self._busy = False
        """A request is being answered."""
        self._held = bytearray()
        self._closing = False
        self._on_pause: Callable[[], None] | None = None
        self._on_resume: Callable[[], None] | None = None
        self._paused_since_s: float | None = None
        """Since when the client has not kept up."""
        self._idle_since_s = time.monotonic()

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        self._shared.live.add(self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Called by the loop: the client is gone; whatever runs for it stops."""
        self.transport = None
        self._shared.live.discard(self)
        self._reader.abandon()
        self._on_pause = self._on_resume = None
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Called by the loop: the write buffer is full."""
        self._paused_since_s = time.monotonic()
        if self._on_pause is not None:
            self._on_pause()

    def resume_writing(self) -> None:
        """Called by the loop: the write buffer has room again."""
        self._paused_since_s = None
        if self._on_resume is not None:
            self._on_resume()

    def watch_flow(self, on_pause: Callable[[], None], on_resume: Callable[[], None]) -> None:
        """Be told, for the rest of this answer, when the client does not keep up and when it does again."""
        self._on_pause, self._on_resume = on_pause, on_resume
        if self._paused_since_s is not None:
            on_pause()

    def data_received(self, data: bytes) -> None:
        """Called by the loop: one read."""
        if self._closing:
            return
        if not self._busy:
            self._read(data)
            return
        self._held += data
        if len(self._held) > HELD_MAX_BYTES and self.transport is not None:
            self.transport.pause_reading()

    def _read(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        if reader.ready:
            self._serve_next()
        elif reader.continue_due and self.transport is not None:
            reader.continue_due = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # -- serving ------------------------------------------------------------------------------------------------------

    def _serve_next(self) -> None:
        """A request is ready: let the task take it."""
        if self.transport is None:
            return
        self._busy = True
        self._shared.began()
        if self._wake is not None:
            if not self._wake.done():
                self._wake.set_result(None)
            return
        if self._task is not None:
            return  # it has just answered a request and goes on with this one
        loop = asyncio.get_running_loop()
        self._task = task = loop.create_task(self._serve(loop))
        self._shared.tasks.add(task)
        task.add_done_callback(self._shared.tasks.discard)

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer requests until the connection ends."""
        while self.transport is not None:
            request = self._reader.ready.popleft()
            try:
                self._closing = self._closing or request.refused is not None
                work = self._shared.serve(request, self)
                if work is not None:
                    await work
            except Exception:
                log.exception("a request was left unanswered")
                self.cut()
            finally:
                self._shared.limits.bodies.give_back(request)
                self._busy = False
                self._on_pause = self._on_resume = None
                self._shared.answered()
            self._idle_since_s = time.monotonic()
            self._go_on()
            if not self._busy:
                self._wake = loop.create_future()
                await self._wake
                self._wake = None

    def _go_on(self) -> None:
        """After an answer: the next request, or more bytes, or the end."""
        transport = self.transport
        if transport is None:
            return
        if self._closing:
            self._linger(transport)
        elif self._reader.ready:
            self._busy = True
            self._shared.began()
        elif self._held:
            data = bytes(self._held)
            self._held.clear()
            transport.resume_reading()
            self._read(data)
        elif self._shared.draining and not self._reader.receiving:
            transport.close()
        elif self._reader.continue_due:
            self._read(b"")

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

    def close_if_idle(self) -> None:
        """Close unless a request is being received or answered."""
        if not self._busy and not self._reader.receiving and self.transport is not None:
            self.transport.close()

    def expire(self, now_s: float, *, idle_s: float, request_s: float) -> None:
        """Close a connection that is idle, whose request does not come to its end, or whose client does not read."""
        if self.transport is None:
            return
        if self._paused_since_s is not None and now_s - self._paused_since_s > request_s:
            self.transport.abort()  # it does not read what it asked for
            return
        if self._busy or self._closing:
            return
        reader = self._reader
        if not reader.receiving:
            if now_s - self._idle_since_s > idle_s:
                self.transport.close()
        elif now_s - reader.since_s > request_s:
            message = f"The request did not arrive within {request_s:g} s."
            reader.refuse(errors.RequestRefused(408, message, code="request_timeout"))
            self._serve_next()

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
