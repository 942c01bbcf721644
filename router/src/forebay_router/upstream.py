"""Connections to workers: HTTP/1.1 client side of the proxy.

One protocol object is one TCP connection, used for one request at a time and kept idle between requests. vLLM closes an idle
connection after 5 s; ours are dropped after `idle_s` (3 s), so that a request hardly ever meets a closing one. When it does,
the answer fails before any byte has come, `Upstreams.send` sees that the connection was a reused one and tries once more on
a new connection to the same worker: it had never read the request.

Framing is strict: llhttp refuses what is ambiguous, bytes after a complete answer or on an idle connection end it, and a
connection is reused only after a complete answer that allows it.

A stream of tokens comes as one whole chunk a read. Such a read may go to the client as it is, chunk framing included, past the
parser: before and after it the parser stands at the same place, the beginning of a chunk (`Answer.pass_chunk`).
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import httptools

from forebay_router.answer import Answer
from forebay_router.errors import FailureReason, WorkerFailure
from forebay_router.headers import Headers
from forebay_router.peer import Peer

HEAD_MAX_BYTES = 128 * 1024
"""The most that is read of an answer whose head is not complete."""
IDLE_MAX_PER_PEER = 1024
"""Idle connections kept to one worker."""


class UpstreamConnection(asyncio.Protocol):
    """One TCP connection to a worker."""

    __slots__ = (
        "_at_boundary",
        "_bytes_seen",
        "_complete",
        "_desynchronised",
        "_framed",
        "_head_bytes",
        "_headers",
        "_headers_complete",
        "_kept",
        "_parser",
        "_paused",
        "_pieces",
        "_register",
        "answer",
        "idle_since_s",
        "peer",
        "reused",
        "transport",
    )

    def __init__(self, peer: Peer, register: set["UpstreamConnection"]) -> None:
        self.peer = peer
        self._register = register
        """Holds this connection while it is open."""
        self.transport: asyncio.Transport | None = None
        self.answer: Answer | None = None
        self.idle_since_s = 0.0
        self.reused = False
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._paused = False
        self._reset()

    def _reset(self) -> None:
        self._at_boundary = False
        self._headers: Headers = []
        self._headers_complete = False
        self._complete = False
        self._desynchronised = False
        self._bytes_seen = False
        self._head_bytes = 0
        self._framed = True
        self._kept = False

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, request: list[bytes], answer: Answer) -> None:
        """Write a request; its answer goes to `answer`."""
        assert self.answer is None, "a connection carries one request at a time"
        assert self.transport is not None
        self._reset()
        self.answer = answer
        answer.attach(self.abort)
        if len(request) == 1:
            self.transport.write(request[0])
        else:
            self.transport.writelines(request)

    def abort(self) -> None:
        """Close at once and forget the answer."""
        self.answer = None
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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        self._register.add(self)

    def data_received(self, data: bytes) -> None:
        """Called by the loop: one read."""
        answer = self.answer
        if answer is None:
            self.abort()
            return
        if self._at_boundary and answer.pass_chunk(data):
            return
        self._bytes_seen = True
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
            answer.take_in(block, time.monotonic())
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
            self.reused = True
            self.peer.idle.append(self)
        elif self.transport is not None:
            self.transport.close()
        answer.finish()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop: the connection is gone."""
        self.transport = None
        self._register.discard(self)
        answer, self.answer = self.answer, None
        if answer is None:
            if self in self.peer.idle:
                self.peer.idle.remove(self)
            return
        if self._headers_complete and not self._framed and error is None:
            answer.finish()
            return
        if not self._bytes_seen:
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


@dataclass(slots=True)
class Upstreams:
    """Sends requests to workers over kept connections."""

    connect_timeout_s: float
    idle_s: float
    in_flight: set[Answer] = field(default_factory=set)
    """Answers that are awaited; the sweep looks at their deadlines."""
    open: set[UpstreamConnection] = field(default_factory=set)
    """Every connection there is."""

    async def send(self, peer: Peer, request: list[bytes], answer: Answer) -> UpstreamConnection:
        """Write a request to a peer and wait until its answer has opened.

        Raises WorkerFailure. A connection that had been idle and dies before any byte is replaced once; the answer object
        stays the same.
        """
        connection = self._take_idle(peer)
        if connection is not None:
            connection.send(request, answer)
            try:
                await answer.opened
            except WorkerFailure as failure:
                if failure.reason is not FailureReason.RESET:
                    raise
                answer.reopen()
            else:
                return connection
        connection = await self._connect(peer)
        connection.send(request, answer)
        await answer.opened
        return connection

    async def get(self, peer: Peer, path: str, *, timeout_s: float) -> Answer:
        """The complete answer to a GET; raises WorkerFailure."""
        request = b"GET %b HTTP/1.1\r\n%baccept: application/json\r\n\r\n" % (path.encode(), peer.host_line)
        return await self._collect(peer, path, request, timeout_s)

    async def post(self, peer: Peer, path: str, body: bytes, *, timeout_s: float) -> Answer:
        """The complete answer to a POST of JSON; raises WorkerFailure."""
        head = b"POST %b HTTP/1.1\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        return await self._collect(peer, path, head % (path.encode(), peer.host_line, len(body)) + body, timeout_s)

    async def _collect(self, peer: Peer, path: str, request: bytes, timeout_s: float) -> Answer:
        answer = Answer(asyncio.get_running_loop(), now_s=time.monotonic(), scanner=None)
        answer.collect_whole()
        try:
            async with asyncio.timeout(timeout_s):
                await self.send(peer, [request], answer)
        except TimeoutError as error:
            raise WorkerFailure(
                FailureReason.FIRST_BYTE_TIMEOUT, f"{peer.name} did not answer {path} in {timeout_s} s"
            ) from error
        finally:
            if not answer.complete:
                answer.abandon()
        return answer

    def _take_idle(self, peer: Peer) -> UpstreamConnection | None:
        """The most recently used idle connection that is young enough."""
        idle = peer.idle
        if not idle:
            return None
        oldest_s = time.monotonic() - self.idle_s
        while idle:
            connection: UpstreamConnection = idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                if connection.idle_since_s >= oldest_s:
                    return connection
                connection.transport.close()
        return None

    async def _connect(self, peer: Peer) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(peer, self.open), peer.host, peer.port
                )
        except TimeoutError as error:
            raise WorkerFailure(
                FailureReason.CONNECT, f"{peer.name} did not accept a connection in {self.connect_timeout_s} s"
            ) from error
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            message = f"{peer.name} refused the connection: {error}"
            raise WorkerFailure(FailureReason.CONNECT, message, refused=refused) from error
        return connection

    def sweep(self, peers: Iterable[Peer], now_s: float) -> None:
        """Fail overdue answers and close connections that were idle for too long."""
        for answer in tuple(self.in_flight):
            reason = answer.overdue(now_s)
            if reason is not None:
                answer.fail(reason, f"limit exceeded: {reason.value}")
        for peer in peers:
            if peer.idle:
                self.close_idle(peer, now_s - self.idle_s)

    def close(self) -> None:
        """Close every connection."""
        for connection in tuple(self.open):
            connection.abort()

    @staticmethod
    def close_idle(peer: Peer, before_s: float = float("inf")) -> None:
        """Close a peer's connections that are idle since before a time."""
        kept = []
        for connection in peer.idle:
            if connection.idle_since_s >= before_s:
                kept.append(connection)
            elif connection.transport is not None:
                connection.transport.close()
        peer.idle = kept
