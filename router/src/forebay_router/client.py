"""Connections from clients: HTTP/1.1 server side of the proxy.

A connection parses requests and answers them one after the other. While a request is being answered, further bytes
(pipelining) wait unparsed up to `HELD_MAX_BYTES`; then reading stops. Until that point reading goes on, because only a read
tells that the client has left, and then the request's task is cancelled at once.

Framing is strict, since a proxy that reads a request differently from the worker behind it can be made to smuggle one.
llhttp refuses Content-Length with Transfer-Encoding, repeated or malformed lengths, bare CR or LF, folded headers and control
bytes; refused here besides: a missing or repeated Host, transfer codings other than chunked, HTTP versions other than 1.0 and
1.1, and an oversized head or body. Requests go upstream with a head and a Content-Length written anew.

An answer to an HTTP/1.0 client has no chunks and ends with the connection. `Upgrade` is ignored, as the standard allows: Java
clients offer h2c on every first request. httptools skips the body of such a request, so its body goes through a second parser
that is primed with the same framing.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

import httptools

from forebay_router import errors
from forebay_router.headers import Headers, find

HELD_MAX_BYTES = 64 * 1024
"""Unparsed bytes that may wait behind a request that is being answered."""
LINGER_S = 1.0
"""After an early error answer, how long the rest of the request is read and dropped before the connection closes."""
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}


@dataclass(slots=True)
class Received:
    """One request as it came."""

    method: bytes
    target: bytes
    headers: Headers
    http_10: bool
    keep_alive: bool
    started_s: float
    """Monotonic time at which its first byte was parsed."""
    body: bytes = b""
    received_s: float = 0.0
    """Monotonic time at which it was complete."""
    refused: errors.RequestRefused | None = None
    """Set when the request is not valid HTTP or too large."""

    @property
    def path(self) -> bytes:
        """The target without its query."""
        return self.target.partition(b"?")[0]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may send."""

    head_bytes: int
    body_bytes: int


@dataclass(slots=True)
class ClientConnections:
    """What all client connections share."""

    limits: Limits
    serve: Callable[[Received, "ClientConnection"], Awaitable[None]]
    """Answers one request; called in a task of its own, which is cancelled when the client leaves."""
    draining: bool = False
    """Every answer tells its client to reconnect elsewhere."""
    live: set["ClientConnection"] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def make(self) -> "ClientConnection":
        """The protocol of a new connection."""
        return ClientConnection(self)

    def drain(self) -> None:
        """Close idle connections; busy ones close after their answer."""
        self.draining = True
        for connection in tuple(self.live):
            connection.close_if_idle()

    async def finished(self) -> None:
        """Return when no request is being answered."""
        while self.tasks:
            await asyncio.wait(self.tasks)

    def sweep(self, now_s: float, *, idle_s: float, request_s: float) -> None:
        """Close connections that are idle, or that take too long to send a request."""
        for connection in tuple(self.live):
            connection.expire(now_s, idle_s=idle_s, request_s=request_s)


class ClientConnection(asyncio.Protocol):
    """One TCP connection from a client."""

    __slots__ = (
        "_backlog",
        "_body",
        "_body_bytes",
        "_chunked",
        "_closing",
        "_continue_due",
        "_discarding",
        "_head_bytes",
        "_headers",
        "_held",
        "_idle_since_s",
        "_in_head",
        "_on_pause",
        "_on_resume",
        "_parser",
        "_parsing",
        "_paused",
        "_receiving",
        "_resumed",
        "_shared",
        "_target",
        "_task",
        "transport",
    )

    def __init__(self, shared: ClientConnections) -> None:
        self._shared = shared
        self.transport: asyncio.Transport | None = None
        self._on_pause: Callable[[], None] | None = None
        self._on_resume: Callable[[], None] | None = None
        self._paused = False
        self._parser = httptools.HttpRequestParser(self)
        self._backlog: deque[Received] = deque()
        self._task: asyncio.Task[None] | None = None
        self._held = bytearray()
        self._closing = False
        self._discarding = False
        self._parsing = False
        self._resumed = False
        self._chunked = False
        self._continue_due = False
        self._receiving: Received | None = None
        self._idle_since_s = time.monotonic()
        self._start_message()

    def _start_message(self) -> None:
        self._headers: Headers = []
        self._target = b""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._in_head = False

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        self._shared.live.add(self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Called by the loop: the client is gone; whatever runs for it stops."""
        self.transport = None
        self._shared.live.discard(self)
        self._backlog.clear()
        self._on_pause = self._on_resume = None
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Called by the loop: the write buffer is full."""
        self._paused = True
        if self._on_pause is not None:
            self._on_pause()

    def resume_writing(self) -> None:
        """Called by the loop: the write buffer has room again."""
        self._paused = False
        if self._on_resume is not None:
            self._on_resume()

    def watch_flow(self, on_pause: Callable[[], None], on_resume: Callable[[], None]) -> None:
        """Be told, for the rest of this answer, when the client does not keep up and when it does again."""
        self._on_pause, self._on_resume = on_pause, on_resume
        if self._paused:
            on_pause()

    def data_received(self, data: bytes) -> None:
        """Called by the loop: one read."""
        if self._closing:
            return
        if self._task is not None or self._backlog:
            self._hold(data)
        else:
            self._parse(data)

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > HELD_MAX_BYTES and self.transport is not None:
            self.transport.pause_reading()

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_past_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not (self._backlog and not self._backlog[-1].keep_alive):
                self._refuse(errors.bad_http(str(error) or "unreadable"))
        else:
            if self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > self._shared.limits.head_bytes:
                    self._refuse(errors.head_too_large(self._shared.limits.head_bytes))
        self._serve_next()

    def _parse_past_upgrade(self, rest: bytes) -> None:
        """The parser has stopped behind the head of a request that offers an upgrade; the body follows."""
        request = self._receiving
        if self._closing or request is None or request.refused is not None:
            return
        length = find(self._headers, b"content-length")
        framing = b"Transfer-Encoding: chunked" if self._chunked else b"Content-Length: " + (length or b"0")
        self._parser = httptools.HttpRequestParser(self)
        self._resumed = True
        self._parse(b"POST / HTTP/1.1\r\n%b\r\n\r\n%b" % (framing, rest))

    # -- httptools ----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Called by the parser."""
        if self._resumed:
            return
        self._start_message()
        self._in_head = True
        self._idle_since_s = time.monotonic()

    def on_url(self, url: bytes) -> None:
        """Called by the parser, once or more."""
        if not self._resumed:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser; trailers are dropped."""
        if self._in_head and not self._resumed:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self._resumed:
            return
        self._in_head = False
        version = self._parser.get_http_version()
        request = Received(
            method=self._parser.get_method(),
            target=self._target,
            headers=self._headers,
            http_10=version == "1.0",
            keep_alive=self._parser.should_keep_alive(),
            started_s=self._idle_since_s,
        )
        self._receiving = request
        refused = self._check_head(request, version)
        if refused is not None:
            self._refuse(refused)

    def _check_head(self, request: Received, version: str) -> errors.RequestRefused | None:
        """What is wrong with a head beyond what the parser refuses."""
        if version not in {"1.1", "1.0"}:
            return errors.bad_http(f"version {version} is not HTTP/1.0 or HTTP/1.1")
        size = len(request.target)
        hosts = codings = length = 0
        self._chunked = False
        for name, value in request.headers:
            size += len(name) + len(value) + 4
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                codings += 1
                self._chunked = value.lower() == b"chunked"
            elif name == b"expect":
                self._continue_due = value.lower() == b"100-continue" and not request.http_10
        if hosts > 1 or (hosts == 0 and not request.http_10):
            return errors.bad_http("exactly one Host header is required")
        if codings and (codings > 1 or not self._chunked or request.http_10):
            return errors.bad_http("the only transfer coding accepted is chunked, once, with HTTP/1.1")
        return self._check_sizes(size, length)

    def _check_sizes(self, head_bytes: int, body_bytes: int) -> errors.RequestRefused | None:
        limits = self._shared.limits
        if head_bytes > limits.head_bytes:
            return errors.head_too_large(limits.head_bytes)
        if body_bytes > limits.body_bytes:
            return errors.body_too_large(limits.body_bytes)
        if self._continue_due:
            self._continue(has_body=body_bytes > 0 or self._chunked)
        return None

    def _continue(self, *, has_body: bool) -> None:
        """Tell a client that waits before it sends its body to go on."""
        self._continue_due = False
        if has_body and not self._backlog and self._task is None and self.transport is not None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """Called by the parser with the body, transfer coding removed."""
        if self._closing:
            return
        self._body_bytes += len(data)
        if self._body_bytes > self._shared.limits.body_bytes:
            self._refuse(errors.body_too_large(self._shared.limits.body_bytes))
            return
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        request = self._receiving
        if self._closing or request is None:
            return
        if self._parser.should_upgrade() and not self._resumed and self._expects_body():
            return
        self._resumed = False
        self._receiving = None
        body = self._body
        request.body = body[0] if len(body) == 1 else b"".join(body)
        self._body = []
        request.received_s = time.monotonic()
        self._backlog.append(request)

    def _expects_body(self) -> bool:
        return self._chunked or (find(self._headers, b"content-length") or b"0") != b"0"

    def _refuse(self, refused: errors.RequestRefused) -> None:
        """Answer with an error after what is queued, then close: what follows on this connection cannot be trusted."""
        if self._closing:
            return
        self._closing = True
        request = self._receiving or Received(
            method=b"", target=b"", headers=[], http_10=False, keep_alive=False, started_s=self._idle_since_s
        )
        self._receiving = None
        request.keep_alive = False
        request.refused = refused
        request.received_s = time.monotonic()
        self._backlog.append(request)

    # -- serving ------------------------------------------------------------------------------------------------------

    def _serve_next(self) -> None:
        if self._task is not None or not self._backlog or self.transport is None:
            return
        request = self._backlog.popleft()
        task = asyncio.get_running_loop().create_task(self._serve(request))
        self._task = task
        self._shared.tasks.add(task)

    async def _serve(self, request: Received) -> None:
        try:
            await self._shared.serve(request, self)
        finally:
            task, self._task = self._task, None
            if task is not None:
                self._shared.tasks.discard(task)
            self._on_pause = self._on_resume = None
        self._idle_since_s = time.monotonic()
        self._go_on()

    def _go_on(self) -> None:
        """After an answer: the next request, or more bytes."""
        transport = self.transport
        if transport is None:
            return
        if self._backlog:
            self._serve_next()
            return
        if self._closing:
            self._linger()
            return
        if self._held:
            data = bytes(self._held)
            self._held.clear()
            transport.resume_reading()
            self._parse(data)
        elif self._shared.draining and self._receiving is None and not self._in_head:
            transport.close()

    def _linger(self) -> None:
        """Close so that the client gets to read the answer: closing with unread bytes would reset the connection."""
        transport = self.transport
        if transport is None:
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
        idle = self._task is None and not self._backlog and self._receiving is None and not self._in_head
        if idle and self.transport is not None:
            self.transport.close()

    def expire(self, now_s: float, *, idle_s: float, request_s: float) -> None:
        """Close an idle connection, and one whose request does not come to its end."""
        if self._task is not None or self._backlog or self.transport is None:
            return
        receiving = self._receiving is not None or self._in_head
        if now_s - self._idle_since_s <= (request_s if receiving else idle_s):
            return
        if receiving and not self._closing:
            self._refuse(
                errors.RequestRefused(
                    408, f"The request did not arrive within {request_s:g} s.", code="request_timeout"
                )
            )
            self._serve_next()
        else:
            self.transport.close()

    # -- answering ----------------------------------------------------------------------------------------------------

    def begin(self, request: Received, status: int, lines: bytes, length: int | None) -> bool:
        """Write the head of an answer; `lines` are header lines. True when the body is to be chunked."""
        chunked = length is None and not request.http_10
        last = self._shared.draining or not request.keep_alive or (length is None and not chunked)
        if last:
            self._closing = True
        if length is not None:
            framing = b"content-length: %d\r\n" % length
        else:
            framing = b"transfer-encoding: chunked\r\n" if chunked else b""
        if last:
            framing += b"connection: close\r\n"
        elif request.http_10:
            framing += b"connection: keep-alive\r\n"
        status_line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status
        if self.transport is not None:
            self.transport.write(b"%b%b%b\r\n" % (status_line, lines, framing))
        return chunked

    def whole(self, request: Received, status: int, lines: bytes, body: bytes) -> None:
        """Write a complete answer; the body is left out for HEAD."""
        last = self._shared.draining or not request.keep_alive
        end = b""
        if last:
            self._closing = True
            end = b"connection: close\r\n"
        elif request.http_10:
            end = b"connection: keep-alive\r\n"
        status_line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status
        if self.transport is not None:
            self.transport.write(
                b"%b%bcontent-length: %d\r\n%b\r\n%b"
                % (status_line, lines, len(body), end, b"" if request.method == b"HEAD" else body)
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
        if self.transport is not None:
            self.transport.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """End the connection without completing the answer, so that the client sees that it is incomplete."""
        self._closing = True
        if self.transport is not None:
            self.transport.abort()
