"""Connections to workers: HTTP/1.1 client side of the proxy.

One protocol object is one TCP connection, used for one request at a time and kept idle between requests. vLLM closes an idle
connection after 5 s; ours are dropped after `idle_s` (3 s), so that a request hardly ever meets a closing one. When it does,
the connection ends before any byte of the answer has come; the request is then sent once more on a new connection to the same
worker, which had never read it.

Sending never waits. On an idle connection the request is written at once; else a task opens a new one, and whoever asked hears of
either by its answer only.

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
from forebay_router.bodies import Body
from forebay_router.collector import Collector
from forebay_router.errors import FailureReason, WorkerFailure
from forebay_router.headers import Headers
from forebay_router.peer import Peer
from forebay_router.worker_access import WorkerAccess

HEAD_MAX_BYTES = 128 * 1024
"""The most that is read of an answer whose head is not complete."""
IDLE_MAX_PER_PEER = 1024
"""Idle connections kept to one worker."""
Request = tuple[Body, ...]
"""A request's bytes, in one piece or a few."""


class UpstreamConnection:
    """One TCP connection to a worker: an asyncio.Protocol in all but its ancestors, which would keep it from being compiled."""

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
        "_request",
        "_upstreams",
        "answer",
        "idle_since_s",
        "peer",
        "transport",
    )

    def __init__(self, peer: Peer, upstreams: "Upstreams") -> None:
        self.peer = peer
        self._upstreams = upstreams
        self.transport: asyncio.Transport | None = None
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
        self._upstreams.open.add(self)

    def data_received(self, data: bytes) -> None:
        """Called by the loop: one read."""
        answer = self.answer
        if answer is None:
            self.let_go()
            return
        if self._at_boundary and answer.pass_chunk(data):
            return
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
            answer.take_in(block, time.monotonic(), last=self._complete)
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
        self._upstreams.open.discard(self)
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
            self._upstreams.open_and_send(self.peer, request, answer)
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


class _Opening:
    """A connection that is being made for a request."""

    __slots__ = ("answer", "task")

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        answer.carrier = self
        self.task: asyncio.Task[None] | None = None

    def let_go(self) -> None:
        """Stop making it."""
        if self.task is not None:
            self.task.cancel()

    def pause(self) -> None:
        """Nothing is read yet."""

    def resume(self) -> None:
        """Nothing was paused."""


@dataclass(slots=True)
class Upstreams:
    """Sends requests to workers over kept connections."""

    connect_timeout_s: float
    idle_s: float
    access: WorkerAccess = field(default_factory=WorkerAccess)
    open: set[UpstreamConnection] = field(default_factory=set)
    """Every connection there is."""
    _openings: set[_Opening] = field(default_factory=set)

    def send(self, peer: Peer, request: Request, answer: Answer) -> None:
        """Send a request to a peer; all that becomes of it is told to the answer's listener."""
        connection = self._take_idle(peer)
        if connection is not None:
            connection.send(request, answer, reused=True)
        else:
            self.open_and_send(peer, request, answer)

    def open_and_send(self, peer: Peer, request: Request, answer: Answer) -> None:
        """Send a request on a new connection."""
        opening = _Opening(answer)
        self._openings.add(opening)
        opening.task = task = asyncio.get_running_loop().create_task(self._connect(peer, request, answer))
        task.add_done_callback(lambda _: self._openings.discard(opening))

    async def _connect(self, peer: Peer, request: Request, answer: Answer) -> None:
        loop = asyncio.get_running_loop()
        connection = UpstreamConnection(peer, self)
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                await loop.create_connection(
                    lambda: cast("asyncio.Protocol", connection), **self.access.connecting(peer)
                )
        except TimeoutError:
            message = f"{peer.name} did not accept a connection in {self.connect_timeout_s} s"
            refused = False
        except OSError as error:
            message = f"{peer.name} refused the connection: {error}"
            refused = isinstance(error, ConnectionRefusedError)
        else:
            peer.accepted_s = time.monotonic()
            if connection.transport is not None:
                connection.send(request, answer, reused=False)
                return
            message, refused = f"{peer.name} accepted a connection and closed it", False
        answer.carrier = None
        answer.fail(FailureReason.CONNECT, message, refused=refused)

    def awaited(self) -> list[Answer]:
        """Answers that have been asked for and are not over."""
        sent = [connection.answer for connection in self.open if connection.answer is not None]
        return [*sent, *(opening.answer for opening in self._openings if not opening.answer.over)]

    async def get(self, peer: Peer, path: str, *, timeout_s: float) -> Answer:
        """The complete answer to a GET; raises WorkerFailure."""
        head = b"GET %b HTTP/1.1\r\n%b%baccept: application/json\r\n\r\n"
        request = head % (path.encode(), peer.host_line, self.access.authorization)
        return await self.collect(peer, path, request, timeout_s)

    async def collect(self, peer: Peer, path: str, request: bytes, timeout_s: float) -> Answer:
        """The complete answer to a request of the router's own; raises WorkerFailure."""
        collector = Collector()
        answer = Answer(collector, now_s=time.monotonic())
        answer.collect_whole()
        self.send(peer, (request,), answer)
        try:
            async with asyncio.timeout(timeout_s):
                await collector.done
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

    def sweep(self, peers: Iterable[Peer], now_s: float) -> None:
        """Fail overdue answers and close connections that were idle for too long."""
        for answer in self.awaited():
            reason = answer.overdue(now_s)
            if reason is not None:
                answer.fail(reason, f"limit exceeded: {reason.value}")
        for peer in peers:
            if peer.idle:
                self.close_idle(peer, now_s - self.idle_s)

    def close(self) -> None:
        """Close every connection."""
        for opening in tuple(self._openings):
            opening.let_go()
        for connection in tuple(self.open):
            connection.let_go()

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
