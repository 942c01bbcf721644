"""HTTP/1.1 on the event loop's protocols: httptools parses, an `Exchange` answers.

One protocol object a connection. A request is handled when its last byte has come; requests that are pipelined behind it
wait. A handler answers at once or keeps the exchange and answers later; a stream writes chunks. Reading goes on
meanwhile, so a client that goes away is noticed when the connection closes, not at the next write. A connection that
was used and is idle is closed after the keep-alive time, and only such connections have a timer.

When the client reads slower than tokens come, the transport's buffer fills, `Exchange.writable` turns False, and whoever
streams merges what it would have written until `on_writable` is called.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import cast
from urllib.parse import parse_qsl

import httptools

BODY_BYTES_MAX = 64 << 20
"""Largest request body; a longer one is answered 413 and the connection closed."""
PIPELINED_MAX = 64
"""Requests that may wait behind the one being answered; with more the connection is dropped."""

_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
_JSON = b"application/json"
Handler = Callable[["Exchange"], None]
Observer = Callable[["Exchange", int, float, int], None]
"""Called when an exchange has ended: exchange, status, seconds, content length sent (0 for streams)."""


class _Date:
    """The date header, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = b""

    def text(self) -> bytes:
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._text = formatdate(now, usegmt=True).encode()
        return self._text


_DATE = _Date()


class Exchange:
    """One request and its response."""

    __slots__ = (
        "_connection", "_open", "body", "extra_headers", "headers", "keep_alive", "method",
        "on_disconnect", "on_writable", "path", "query", "query_pairs", "started_s", "status", "written",
    )  # fmt: skip

    def __init__(self, connection: Connection, method: str, target: bytes) -> None:
        path, _, query = target.partition(b"?")
        self._connection = connection
        self.method = method
        self.path = path.decode("latin-1")
        self.query_pairs = parse_qsl(query.decode("latin-1")) if query else []
        self.query: dict[str, str] = dict(self.query_pairs)
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.keep_alive = True
        self.extra_headers = b""
        """Header lines that a handler wants in the response."""
        self.on_disconnect: Callable[[], None] | None = None
        """Called once when the client is gone before the response was complete."""
        self.on_writable: Callable[[], None] | None = None
        self.started_s = time.monotonic()
        self.status = 0
        self.written = False
        """Whether any of a stream's content was sent."""
        self._open = True

    @property
    def writable(self) -> bool:
        """Whether the client keeps up."""
        return self._connection.writable

    @property
    def open(self) -> bool:
        """Whether a response can still be sent or continued."""
        return self._open

    def reply(self, status: int, body: bytes = b"", content_type: bytes | None = _JSON) -> None:
        """Send a whole response. Nothing happens when the client is gone."""
        if not self._open:
            return
        self.status = status
        head = self._head(status, b"content-length: %d\r\n" % len(body), content_type if body else None)
        self._connection.write(head + body)
        self._finish(len(body))

    def start_stream(self) -> None:
        """Send the head of an event stream."""
        if not self._open:
            return
        self.status = 200
        self._connection.write(self._head(200, b"transfer-encoding: chunked\r\n", b"text/event-stream; charset=utf-8"))

    def write(self, data: bytes, *, counts: bool = True) -> None:
        """Send one piece of a stream; comments do not count as written."""
        self.written = self.written or counts
        if self._open:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self, data: bytes = b"") -> None:
        """Send the last piece of a stream."""
        if self._open:
            last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
            self._connection.write(last)
            self._finish(0)

    def abandon(self) -> None:
        """The client is gone."""
        if not self._open:
            return
        self._open = False
        if self.on_disconnect is not None:
            self.on_disconnect()

    def _head(self, status: int, length: bytes, content_type: bytes | None) -> bytes:
        kind = b"content-type: %b\r\n" % content_type if content_type else b""
        close = b"" if self.keep_alive else b"connection: close\r\n"
        return b"HTTP/1.1 %d %b\r\ndate: %b\r\nserver: uvicorn\r\n%b%b%bvary: Origin\r\n%b\r\n" % (
            status, _PHRASES.get(status, b"Unknown"), _DATE.text(), self.extra_headers, length, kind, close,
        )  # fmt: skip

    def _finish(self, sent: int) -> None:
        self._open = False
        self.on_writable = None
        self._connection.finished(self, sent)


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._waiting: deque[Exchange] = deque()
        self._active: Exchange | None = None
        self._incoming: Exchange | None = None
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._size = 0
        self.writable = True

    # ---- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register. The keep-alive clock starts with the first answer, as in vLLM's server."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports inherit from nothing
        self._server.connections.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell whoever still answers."""
        self._transport = None
        self._server.connections.discard(self)
        self._stop_watching()
        if self._active is not None:
            self._active.abandon()
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; garbage closes the connection."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400)
        except httptools.HttpParserError:
            self._refuse(400)

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self.writable = False

    def resume_writing(self) -> None:
        """The client caught up."""
        self.writable = True
        if self._active is not None and self._active.on_writable is not None:
            self._active.on_writable()

    def write(self, data: bytes) -> None:
        """Send bytes if the connection still stands."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close after what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._active is not None

    # ---- parser callbacks

    def on_message_begin(self) -> None:
        """A request begins."""
        self._stop_watching()
        self._url = b""
        self._headers = {}
        self._chunks = []
        self._size = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head of a request is here."""
        exchange = Exchange(self, self._parser.get_method().decode(), self._url)
        exchange.headers = self._headers
        self._incoming = exchange
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._size += len(body)
        if self._size > BODY_BYTES_MAX:
            self._refuse(413)
            return
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        """A whole request is here."""
        exchange, self._incoming = self._incoming, None
        if exchange is None or self._transport is None:
            return
        exchange.body = b"".join(self._chunks)
        self._chunks = []
        exchange.keep_alive = self._parser.should_keep_alive() and not self._server.closing
        if self._active is not None:
            self._waiting.append(exchange)
            if len(self._waiting) > PIPELINED_MAX:
                self.close()
            return
        self._start(exchange)

    # ---- exchanges

    def _start(self, exchange: Exchange) -> None:
        self._active = exchange
        self._server.handle(exchange)

    def finished(self, exchange: Exchange, sent: int) -> None:
        """The response is complete: go on with the next request, or wait for one."""
        assert exchange is self._active, "responses end in order"
        self._active = None
        self._server.observe(exchange, exchange.status, time.monotonic() - exchange.started_s, sent)
        if not exchange.keep_alive or self._server.closing:
            self.close()
        elif self._waiting:
            self._start(self._waiting.popleft())
        else:
            self._watch_idle()

    def _refuse(self, status: int) -> None:
        self.write(b"HTTP/1.1 %d %b\r\nconnection: close\r\ncontent-length: 0\r\n\r\n" % (status, _PHRASES[status]))
        self.close()

    def _watch_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(self._server.keep_alive_s, self.close)

    def _stop_watching(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


class Server:
    """All connections of one listening port."""

    def __init__(self, handle: Handler, observe: Observer, *, keep_alive_s: float) -> None:
        self.handle = handle
        self.observe = observe
        self.keep_alive_s = keep_alive_s
        self.connections: set[Connection] = set()
        self.closing = False
        self._listener: asyncio.AbstractServer | None = None

    async def listen(self, host: str | None, port: int) -> int:
        """Open the port and return its number. Raises OSError when it is taken."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: Connection(self), host or "0.0.0.0", port, backlog=2048)  # noqa: S104  (vLLM's default: all interfaces)
        return int(self._listener.sockets[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Refuse new connections and close idle ones; those that answer close when they are done."""
        self.closing = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            if not connection.busy:
                connection.close()

    @property
    def busy(self) -> bool:
        """Whether any request is being answered."""
        return any(connection.busy for connection in self.connections)
