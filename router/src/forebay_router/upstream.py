"""Connections to workers: HTTP/1.1 client side of the proxy.

One protocol object is one TCP connection, used for one request at a time and kept idle between requests. vLLM closes an idle
connection after 5 s; ours are dropped after `idle_s` (3 s), so that a request hardly ever meets a closing one. When it does,
the connection ends before any byte of the answer has come; the request is then sent once more on a new connection to the same
worker, which had never read it.

Sending never waits. On an idle connection the request is written at once; else a task opens a new one, and whoever asked hears of
either by its answer only.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from forebay_router.answer import Answer
from forebay_router.burst import Burst
from forebay_router.collector import Collector
from forebay_router.errors import FailureReason, WorkerFailure
from forebay_router.peer import Peer
from forebay_router.upstream_connection import Request, UpstreamConnection
from forebay_router.worker_access import WorkerAccess


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
    burst: Burst = field(default_factory=Burst)
    """Tokens that wait for their turn."""
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
