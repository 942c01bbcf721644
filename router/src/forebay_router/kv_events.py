"""KV events over ZeroMQ: from each worker that publishes them into the precise index.

For each ready worker with a kv-events port, and each of its data-parallel ranks, a SUB socket follows the events and a DEALER
socket asks for what was missed. Where they are the engine lists at /kv_event_sources; one that has no such path (404) is taken to
have one rank, at the ports that are known of it. `index.feed` decides what is applied; here are only sockets.

    connection made      ask for a replay from the start: what was stored before
    gap                  ask for a replay of what is missing; live messages wait meanwhile
    connection broken    everything known of the worker is forgotten, and it is asked anew where it publishes: the engine may
                         have come back as another one, on other ports
    restart              the replay under way, if any, is of the old engine: dropped

No events may mean nothing to do or a feed that is cut. Heartbeats tell: a peer that does not answer within `HEARTBEAT_TIMEOUT_S`
counts as a broken connection, so a cut feed is known after `HEARTBEAT_S` more at the latest, and the worker is judged by what it
was sent until it is followed again. A feed that lies in any other way is found by the audit.

A replay that stalls for `REPLAY_IDLE_S` is given up; a worker that cannot be followed is tried again after a pause that doubles.
Queues are bounded: `QUEUE_MAX` messages in the socket, then the engine drops and a gap shows it. The loop is given back after
every message, since a long prompt's event takes about a millisecond.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from forebay_router.errors import WorkerFailure
from forebay_router.index.audit import Audit
from forebay_router.index.events import MalformedBatchError, decode_batch
from forebay_router.index.feed import Feed
from forebay_router.index.precise import PreciseIndex
from forebay_router.supervision import Background, Supervisor
from forebay_router.table import Worker, WorkerSpec, WorkerState, WorkerTable
from forebay_router.upstream import Upstreams

log = logging.getLogger(__name__)

QUEUE_MAX: Final = 10_000
REPLAY_IDLE_S: Final = 5.0
SOURCES_TIMEOUT_S: Final = 2.0
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10.0
HEARTBEAT_S: Final = 5.0
HEARTBEAT_TIMEOUT_S: Final = 20.0
"""A starved machine may leave an engine without a CPU for some seconds."""
RANK_DIGITS_MAX: Final = 6
END_OF_REPLAY: Final = b"\xff" * 8


@dataclass(frozen=True, slots=True)
class Source:
    """Where one rank publishes."""

    rank: int
    events: str
    """ZeroMQ address of the PUB socket."""
    replay: str | None
    """Of the ROUTER socket; None where there is none."""


def read_sources(body: bytes, host: str) -> tuple[Source, ...]:
    """The ranks that an engine lists, under the worker's address: what an engine has bound may be an address of its own."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ()
    if not isinstance(told, dict):
        return ()
    found = []
    for rank, one in told.items():
        events = _address(one.get("endpoint"), host) if isinstance(one, dict) else None
        if events is not None and rank.isascii() and rank.isdecimal() and len(rank) <= RANK_DIGITS_MAX:
            found.append(Source(int(rank), events, _address(one.get("replay_endpoint"), host)))
    return tuple(found)


def _address(endpoint: Any, host: str) -> str | None:
    """An engine's bound endpoint as seen from here."""
    try:
        parts = urlsplit(endpoint) if isinstance(endpoint, str) else None
        port = parts.port if parts is not None and parts.scheme == "tcp" else None
    except ValueError:
        return None
    return f"tcp://{_bracketed(host)}:{port}" if port else None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class CacheState(StrEnum):
    """How a worker's cache is known."""

    PRECISE = "precise"
    """Its events are followed."""
    LOST = "lost"
    """It publishes events and they cannot be followed."""
    DISTRUSTED = "distrusted"
    """Its events were wrong more often than what was sent to it."""
    NONE = "none"
    """It publishes none, or is not ready."""


def _cache_state(spec: WorkerSpec, audit: Audit | None, *, followed: bool) -> CacheState:
    if spec.kv_events_port is None or spec.state is not WorkerState.READY:
        return CacheState.NONE
    if not followed:
        return CacheState.LOST
    return CacheState.DISTRUSTED if audit is not None and audit.distrusted else CacheState.PRECISE


@dataclass(slots=True)
class Counts:
    """For the metrics; sums over all workers since the start."""

    messages: int = 0
    malformed: int = 0
    gaps: int = 0
    restarts: int = 0
    holes: int = 0


@dataclass(slots=True)
class KvEvents:
    """Follows every worker that publishes."""

    table: WorkerTable
    index: PreciseIndex
    upstreams: Upstreams
    counts: Counts = field(default_factory=Counts)
    connected: set[tuple[str, int]] = field(default_factory=set)
    """Worker and rank of every subscription that stands."""
    supervisor: Supervisor = field(default_factory=Supervisor)
    heartbeat_s: float = HEARTBEAT_S
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _awaited: bool = False
    """Some worker that publishes has not been ready yet."""

    def __post_init__(self) -> None:
        """Listen to the table."""
        self.table.on_added.append(lambda _worker: self._changed.set())
        self.table.on_gone.append(lambda _worker: self._changed.set())
        self.table.on_change.append(lambda _service: self._changed.set() if self._awaited else None)

    def states(self, workers: Iterable[Worker], audits: Mapping[str, Audit]) -> dict[CacheState, int]:
        """Workers by how their caches are known."""
        followed = {uid for uid, _ in self.connected}
        counts = dict.fromkeys(CacheState, 0)
        for worker in workers:
            counts[_cache_state(worker.spec, audits.get(worker.spec.uid), followed=worker.spec.uid in followed)] += 1
        return counts

    async def run(self) -> None:
        """Follow for ever. A worker that was ready once is followed until it is gone."""
        context = zmq.asyncio.Context()
        following: dict[str, asyncio.Task[None]] = {}
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._changed.clear()
                    workers = self.table.workers
                    for uid in following.keys() - workers.keys():
                        following.pop(uid).cancel()
                    unfollowed = [
                        one for uid, one in workers.items() if one.spec.kv_events_port and uid not in following
                    ]
                    ready = [one for one in unfollowed if one.spec.state is WorkerState.READY]
                    self._awaited = len(ready) < len(unfollowed)
                    for one in ready:
                        following[one.spec.uid] = tasks.create_task(self._keep(context, one))
                    await self._changed.wait()
        finally:
            context.destroy(linger=0)

    async def _keep(self, context: zmq.asyncio.Context, worker: Worker) -> None:
        await self.supervisor.keep(Background.KV_EVENTS, partial(self._follow, context, worker))

    async def _follow(self, context: zmq.asyncio.Context, worker: Worker) -> None:
        """One worker, until it is gone."""
        pause_s = FIRST_PAUSE_S
        while True:
            subscriptions: list[Subscription] = []
            try:
                subscriptions += [Subscription(self, context, worker, one) for one in await self._sources(worker)]
                async with asyncio.TaskGroup() as tasks:
                    for one in subscriptions:
                        tasks.create_task(one.run())
            except* (zmq.ZMQError, OSError, WorkerFailure) as errors:
                log.warning("kv events of a worker fail: %r", errors.exceptions, extra={"worker": worker.spec.name})
            if any(one.stood for one in subscriptions):
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _sources(self, worker: Worker) -> tuple[Source, ...]:
        """Where a worker publishes: as it says, else by its ports. Raises WorkerFailure for one that does not answer."""
        spec = worker.spec
        answer = await self.upstreams.get(worker.peer, "/kv_event_sources", timeout_s=SOURCES_TIMEOUT_S)
        if answer.status == 200 and (sources := read_sources(answer.take_buffered(), spec.host)):
            return sources
        host = _bracketed(spec.host)
        replay = f"tcp://{host}:{spec.kv_replay_port}" if spec.kv_replay_port else None
        return (Source(0, f"tcp://{host}:{spec.kv_events_port}", replay),)


class Subscription:
    """One rank's sockets and its feed."""

    def __init__(self, owner: KvEvents, context: zmq.asyncio.Context, worker: Worker, source: Source) -> None:
        self.owner = owner
        self.context = context
        self.source = source
        self.uid = str(worker.spec.uid)
        self.name = worker.spec.name
        self.stood = False
        """The connection has been made."""
        self.feed = Feed(apply=self._apply, forget=self._forget)
        self._replay: asyncio.Task[None] | None = None

    def _apply(self, payload: bytes) -> None:
        try:
            batch = decode_batch(payload)
        except MalformedBatchError as error:
            self.owner.counts.malformed += 1
            log.debug("kv event batch is malformed: %s", error, extra={"worker": self.name})
            return
        self.owner.counts.malformed += batch.malformed
        self.owner.index.apply(self.uid, replace(batch, rank=self.source.rank))

    def _forget(self) -> None:
        self.owner.index.forget_rank(self.uid, self.source.rank)

    async def run(self) -> None:
        """Subscribe until cancelled; what was known is forgotten at the end. Raises ConnectionError when it breaks."""
        socket = self.context.socket(zmq.SUB)
        try:
            socket.set(zmq.RCVHWM, QUEUE_MAX)
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.HEARTBEAT_IVL, round(self.owner.heartbeat_s * 1e3))
            socket.set(zmq.HEARTBEAT_TIMEOUT, round(self.owner.heartbeat_timeout_s * 1e3))
            socket.subscribe(b"")
            monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            socket.connect(self.source.events)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch(monitor, tasks))
                await self._listen(socket, tasks)
        finally:
            self.owner.connected.discard((self.uid, self.source.rank))
            self._forget()
            socket.disable_monitor()
            socket.close()

    async def _watch(self, monitor: Any, tasks: asyncio.TaskGroup) -> None:
        """Hear of the connection's state."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                while (await recv_monitor_message(monitor))["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    continue
        except TimeoutError as error:
            raise ConnectionError(f"nothing publishes at {self.source.events}") from error
        self.stood = True
        self.owner.connected.add((self.uid, self.source.rank))
        self._ask(self.feed.connected(), tasks)
        while (await recv_monitor_message(monitor))["event"] != zmq.EVENT_DISCONNECTED:
            continue
        raise ConnectionError(f"the connection to {self.source.events} broke")

    async def _listen(self, socket: zmq.asyncio.Socket, tasks: asyncio.TaskGroup) -> None:
        while True:
            frames = await socket.recv_multipart()
            if len(frames) < 2 or len(frames[-2]) != 8:
                self.owner.counts.malformed += 1
                continue
            before = self._counted()
            self._ask(self.feed.live(int.from_bytes(frames[-2], "big"), frames[-1]), tasks)
            self._count(before)
            await asyncio.sleep(0)

    def _counted(self) -> tuple[int, int, int, int]:
        feed = self.feed
        return feed.messages, feed.gaps, feed.restarts, feed.holes

    def _count(self, before: tuple[int, int, int, int]) -> None:
        messages, gaps, restarts, holes = (now - past for now, past in zip(self._counted(), before, strict=True))
        counts = self.owner.counts
        counts.messages += messages
        counts.gaps += gaps
        counts.restarts += restarts
        counts.holes += holes

    # -- replay -------------------------------------------------------------------------------------------------------

    def _ask(self, start: int | None, tasks: asyncio.TaskGroup) -> None:
        """Begin a replay, in place of one that is under way."""
        if start is None:
            return
        self._stop_replay()
        self._replay = tasks.create_task(self._run_replay(start))

    def _stop_replay(self) -> None:
        if self._replay is not None:
            self._replay.cancel()
            self._replay = None

    async def _run_replay(self, start: int) -> None:
        before = self._counted()
        try:
            if self.source.replay is not None:
                await self._fetch(self.source.replay, start)
        except (TimeoutError, zmq.ZMQError) as error:
            log.warning("replay of kv events fails: %r", error, extra={"worker": self.name})
        self.feed.replay_over()
        self._count(before)

    async def _fetch(self, address: str, start: int) -> None:
        socket = self.context.socket(zmq.DEALER)
        try:
            socket.set(zmq.RCVHWM, QUEUE_MAX)
            socket.set(zmq.LINGER, 0)
            socket.connect(address)
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
            while True:
                async with asyncio.timeout(REPLAY_IDLE_S):
                    frames = await socket.recv_multipart()
                if len(frames) < 2 or len(frames[-2]) != 8:
                    self.owner.counts.malformed += 1
                    continue
                if frames[-2] == END_OF_REPLAY:
                    return
                self.feed.replayed(int.from_bytes(frames[-2], "big"), frames[-1])
                await asyncio.sleep(0)
        finally:
            socket.close()
