"""Looks after workers that hang, once a second, and asks those that did for a sign of life.

What moved is read off the connections that there are (no request tells anybody). A worker that is quiet for long is asked for
its counters, one that `frozen` finds hanging is ejected and what waits there for its first byte fails over at once: nothing of
it has reached the client, so another worker answers. Answers that have begun are left to the idle limit.

A frozen worker comes back by a real success only: when its rest is over it is asked for one token, by the router itself, so
that no client has to wait for the answer. Engines that make no completions refuse that (4xx) and are tried with a client's
request.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import orjson

from forebay_router.errors import FailureReason, WorkerFailure
from forebay_router.health.breaker import Cause, Condition
from forebay_router.health.frozen import LIMITS, Limits, Pulse, read_counters
from forebay_router.health.guard import Guard
from forebay_router.peer import Peer
from forebay_router.supervision import Background, Supervisor
from forebay_router.table import Worker, WorkerTable
from forebay_router.upstream import Upstreams

log = logging.getLogger(__name__)

ROUND_S: Final = 1.0
LOOK_TIMEOUT_S: Final = 2.0
SIGN_TIMEOUT_S: Final = 10.0
_SIGN_PATH: Final = "/v1/completions"
_SIGN: Final = b"POST /v1/completions HTTP/1.1\r\n%b%bcontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
AT_ONCE_MAX: Final = 16
"""Workers that are asked in one round."""


@dataclass(slots=True)
class _Watched:
    pulse: Pulse
    peer: Peer
    """Connections of the watch's own: those for requests would look like requests."""
    asked_s: float = 0.0
    """When it was asked last."""


@dataclass(slots=True)
class Watch:
    """Of all workers."""

    table: WorkerTable
    guard: Guard
    upstreams: Upstreams
    limits: Limits = LIMITS
    round_s: float = ROUND_S
    sign_timeout_s: float = SIGN_TIMEOUT_S
    supervisor: Supervisor = field(default_factory=Supervisor)
    watched: dict[str, _Watched] = field(default_factory=dict)
    """By worker uid."""

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            await asyncio.sleep(self.round_s)
            await self.round()

    async def round(self) -> None:
        """One look at everybody."""
        now_s = time.monotonic()
        self.observe(now_s)
        quiet, resting = [], []
        for worker in self.table.workers.values():
            health = worker.health
            if health.condition is Condition.EJECTED and health.cause is Cause.FROZEN:
                if health.until_s <= now_s:
                    resting.append(worker)
            elif self.watched[worker.spec.uid].pulse.quiet(now_s):
                quiet.append(worker)
        if quiet or resting:
            await asyncio.gather(
                *(self._attempt(self._look, worker) for worker in self._next(quiet, now_s)),
                *(self._attempt(self._ask_for_sign, worker) for worker in self._next(resting, now_s)),
            )

    async def _attempt(self, ask: Callable[[Worker], Awaitable[None]], worker: Worker) -> None:
        await self.supervisor.attempt(Background.WATCH, partial(ask, worker))

    def _next(self, workers: list[Worker], now_s: float) -> list[Worker]:
        """Who is asked now: those that have waited longest for it, so that everybody's turn comes."""
        chosen = sorted(workers, key=lambda worker: self.watched[worker.spec.uid].asked_s)[:AT_ONCE_MAX]
        for worker in chosen:
            self.watched[worker.spec.uid].asked_s = now_s
        return chosen

    def observe(self, now_s: float) -> None:
        """Note what has moved since the last look."""
        content_s = self._content_s(now_s)
        for uid in self.watched.keys() - self.table.workers.keys():
            del self.watched[uid]
        for uid, worker in self.table.workers.items():
            watched, spec = self.watched.get(uid), worker.spec
            if watched is None or (watched.peer.host, watched.peer.port) != (spec.host, spec.port):
                # A pod is seen before it has an address.
                watched = self.watched[uid] = _Watched(
                    Pulse(now_s, limits=self.limits), Peer(spec.name, spec.host, spec.port)
                )
            pulse, finished = watched.pulse, worker.candidate.speed.finished
            worked_s = content_s.get(worker.peer, 0.0)
            if finished != pulse.finished:
                pulse.finished = finished
                worked_s = now_s
            pulse.worked_s = max(pulse.worked_s, worked_s)
            moved_s = worked_s if worker.peer in content_s else now_s
            if moved_s > pulse.moved_s:
                pulse.move(moved_s)

    def _content_s(self, now_s: float) -> dict[Peer, float]:
        """By worker that has requests in flight: when content came last, 0 where none has."""
        latest: dict[Peer, float] = {}
        for connection in self.upstreams.open:
            answer = connection.answer
            if answer is None:
                continue
            scanner = answer.scanner
            begun = answer.status != 0 if scanner is None else scanner.data_seen
            content_s = now_s if answer.paused else answer.last_byte_s if begun else 0.0
            latest[connection.peer] = max(content_s, latest.get(connection.peer, 0.0))
        return latest

    async def _look(self, worker: Worker) -> None:
        """Ask a quiet worker for its counters, and eject it when they stand still."""
        watched = self.watched[worker.spec.uid]
        counters = None
        try:
            answer = await self.upstreams.get(watched.peer, "/metrics", timeout_s=LOOK_TIMEOUT_S)
            if answer.status == 200:
                counters = read_counters(answer.take_buffered())
        except WorkerFailure as failure:
            log.debug("quiet worker does not show its counters: %s", failure.message)
        now_s = time.monotonic()
        watched.pulse.look(counters, now_s)
        detail = watched.pulse.frozen(now_s, others_worked_s=self._others_worked_s(worker))
        if detail is not None and self.guard.freeze(worker, detail):
            self._fail_over(worker, detail)

    def _others_worked_s(self, worker: Worker) -> float:
        """When another worker of the service made progress last."""
        service = self.table.services.get(worker.spec.service)
        others = () if service is None else (uid for uid in service.workers if uid != worker.spec.uid)
        return max((self.watched[uid].pulse.worked_s for uid in others if uid in self.watched), default=0.0)

    def _fail_over(self, worker: Worker, detail: str) -> None:
        """Give up what waits for its first byte there: other workers will answer."""
        for connection in tuple(self.upstreams.open):
            answer = connection.answer
            if connection.peer is worker.peer and answer is not None and not answer.opened:
                answer.fail(FailureReason.FROZEN, f"{worker.spec.name} hangs: {detail}")

    async def _ask_for_sign(self, worker: Worker) -> None:
        """Ask a frozen worker for one token."""
        service = self.table.services.get(worker.spec.service)
        if service is None:
            return  # deleted meanwhile
        body = orjson.dumps({"model": service.spec.models[0], "prompt": "a", "max_tokens": 1})
        peer = self.watched[worker.spec.uid].peer
        request = _SIGN % (peer.host_line, self.upstreams.access.authorization, len(body)) + body
        try:
            answer = await self.upstreams.collect(peer, _SIGN_PATH, request, self.sign_timeout_s)
        except WorkerFailure as failure:
            log.debug("frozen worker gives no sign of life: %s", failure.message)
            self.guard.rest_on(worker, time.monotonic())
            return
        if answer.status < 500:
            log.info("frozen worker answers again", extra={"worker": worker.spec.name, "status": answer.status})
            self.guard.revive(worker)
        else:
            self.guard.rest_on(worker, time.monotonic())
