"""Connections to workers: HTTP/1.1 client side of the proxy.

One protocol object is one TCP connection, used for one request at a time and kept idle between requests. vLLM closes an idle
connection after 5 s; ours are dropped after `idle_s` (3 s), so that a request hardly ever meets a closing one. When it does,
the answer fails before any byte has come, `Upstreams.send` sees that the connection was a reused one and tries once more on
a new connection to the same worker: it had never read the request.

Framing is strict: llhttp refuses what is ambiguous, bytes after a complete answer or on an idle connection end it, and a
connection is reused only after a complete answer that allows it.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

import httptools

from forebay_router.answer import Answer
from forebay_router.errors import FailureReason, WorkerFailure
from forebay_router.headers import Headers
from forebay_router.table import Worker

IDLE_MAX_PER_WORKER = 1024
"""Idle connections kept to one worker."""


class UpstreamConnection(asyncio.Protocol):
    """One TCP connection to a worker."""

    __slots__ = (
        "_bytes_seen",
        "_complete",
        "_desynchronised",
        "_framed",
        "_headers",
        "_headers_complete",
        "_parser",
        "_pieces",
        "answer",
        "idle_since_s",
        "reused",
        "transport",
        "worker",
    )

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.transport: asyncio.Transport | None = None
        self.answer: Answer | None = None
        self.idle_since_s = 0.0
        self.reused = False
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._reset()

    def _reset(self) -> None:
        self._headers: Headers = []
        self._headers_complete = False
        self._complete = False
        self._desynchronised = False
        self._bytes_seen = False
        self._framed = True

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, request: list[bytes], answer: Answer) -> None:
        """Write a request; its answer goes to `answer`."""
        assert self.answer is None, "a connection carries one request at a time"  # noqa: S101
        assert self.transport is not None  # noqa: S101
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
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses

    def data_received(self, data: bytes) -> None:
        """Called by the loop: one read."""
        answer = self.answer
        if answer is None:
            self.abort()
            return
        self._bytes_seen = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            answer.fail(FailureReason.BAD_ANSWER, f"the worker's answer is not valid HTTP: {error}")
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
        reusable = (
            self._framed
            and not self._desynchronised
            and self._parser.should_keep_alive()
            and not self.worker.gone
            and len(self.worker.idle) < IDLE_MAX_PER_WORKER
            and self.transport is not None
            and not self.transport.is_closing()
        )
        if reusable:
            self.idle_since_s = time.monotonic()
            self.reused = True
            self.worker.idle.append(self)
        elif self.transport is not None:
            self.transport.close()
        answer.finish()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop: the connection is gone."""
        self.transport = None
        answer, self.answer = self.answer, None
        if answer is None:
            if self in self.worker.idle:
                self.worker.idle.remove(self)
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
        names = {name for name, _ in headers}
        self._framed = b"content-length" in names or b"transfer-encoding" in names or status in {204, 304}
        if self.answer is not None:
            self.answer.begin(status, headers, time.monotonic())

    def on_body(self, data: bytes) -> None:
        """Called by the parser with the body, transfer coding removed."""
        if not self._complete:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        """Called by the parser; an interim answer (1xx) is not the end."""
        if self._headers_complete:
            self._complete = True


@dataclass(slots=True)
class Upstreams:
    """Sends requests to workers over kept connections."""

    connect_timeout_s: float
    idle_s: float
    in_flight: set[Answer] = field(default_factory=set)
    """Answers that are awaited; the sweep looks at their deadlines."""

    async def send(self, worker: Worker, request: list[bytes], answer: Answer) -> UpstreamConnection:
        """Write a request to a worker and wait until its answer has opened.

        Raises WorkerFailure. A connection that had been idle and dies before any byte is replaced once; the answer object
        stays the same.
        """
        connection = self._take_idle(worker)
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
        connection = await self._connect(worker)
        connection.send(request, answer)
        await answer.opened
        return connection

    def _take_idle(self, worker: Worker) -> UpstreamConnection | None:
        """The most recently used idle connection that is young enough."""
        oldest_s = time.monotonic() - self.idle_s
        while worker.idle:
            connection: UpstreamConnection = worker.idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                if connection.idle_since_s >= oldest_s:
                    return connection
                connection.transport.close()
        return None

    async def _connect(self, worker: Worker) -> UpstreamConnection:
        spec = worker.spec
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                _, connection = await loop.create_connection(lambda: UpstreamConnection(worker), spec.host, spec.port)
        except TimeoutError as error:
            raise WorkerFailure(
                FailureReason.CONNECT, f"worker {spec.name} did not accept a connection in {self.connect_timeout_s} s"
            ) from error
        except OSError as error:
            raise WorkerFailure(FailureReason.CONNECT, f"worker {spec.name} refused the connection: {error}") from error
        return connection

    def sweep(self, workers: list[Worker], now_s: float) -> None:
        """Fail overdue answers and close connections that were idle for too long."""
        for answer in tuple(self.in_flight):
            reason = answer.overdue(now_s)
            if reason is not None:
                answer.fail(reason, f"limit exceeded: {reason.value}")
        for worker in workers:
            self.close_idle(worker, now_s - self.idle_s)

    @staticmethod
    def close_idle(worker: Worker, before_s: float = float("inf")) -> None:
        """Close a worker's connections that are idle since before a time."""
        kept = []
        for connection in worker.idle:
            if connection.idle_since_s >= before_s:
                kept.append(connection)
            elif connection.transport is not None:
                connection.transport.close()
        worker.idle = kept
