"""The mesh over ZeroMQ: one PUB socket that tells, one SUB socket that hears everybody.

Behind the sockets everything is pure (`outbox`, `peers`, `claims`); here the hooks of table and index are joined with them, and
messages become frames:

    topic with the format's number | sender's name | msgpack

A slow or broken peer costs nothing: PUB drops what it cannot send (`QUEUE_MAX` messages a peer), and the peer notices the missing
number. Every address may also be this replica's own, as it is in a list that all replicas share: own messages are passed over.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import zmq
import zmq.asyncio

from forebay_router.index.content import Content
from forebay_router.index.prefix_index import PrefixIndex
from forebay_router.leases import Lease, LeaseEvent
from forebay_router.mesh import messages
from forebay_router.mesh.claims import Claims
from forebay_router.mesh.directory import ListedPeers, PeerAddresses, PodPeers
from forebay_router.mesh.messages import MalformedMessageError, Message, Prefilled, Released, Sent, Taken
from forebay_router.mesh.outbox import FLUSH_S, Outbox
from forebay_router.mesh.peers import Peers
from forebay_router.replicas import ReplicaSettings
from forebay_router.supervision import Background, Supervisor
from forebay_router.table import Worker, WorkerTable

log = logging.getLogger(__name__)

QUEUE_MAX: Final = 200
"""Messages that wait in a socket for one peer: some seconds of them, after which the peer has given this replica up anyway."""
MESSAGE_MAX_BYTES: Final = 64 * 1024 * 1024
WORKERS_WAIT_S: Final = 5.0
LINGER_MS: Final = 100
"""For the farewell."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a replica tells, and where it hears."""

    bind: str | None
    """ZeroMQ address to publish at."""
    hub: tuple[str, str] | None = None
    """Of a process among several: where the parent takes messages in, and where it gives them out."""


def worker_key(uid: str) -> str:
    """A worker's name on the mesh. Addresses from a list are numbered by each router for itself; that number is left out."""
    return uid.partition("#")[0]


@dataclass(slots=True)
class Mesh:
    """This replica among the others."""

    table: WorkerTable
    index: PrefixIndex
    endpoints: Endpoints
    addresses: PeerAddresses
    name: str
    supervisor: Supervisor = field(default_factory=Supervisor)
    clock: Callable[[], float] = time.monotonic
    outbox: Outbox = field(init=False)
    peers: Peers = field(init=False)
    sent_messages: int = 0
    bound: str | None = None
    """Where it publishes, once it does."""
    _uids: dict[str, str] = field(default_factory=dict)
    """Workers that are known, by their name on the mesh."""
    _connected: set[str] = field(default_factory=set)
    _publisher: Any = None
    _subscriber: Any = None

    def __post_init__(self) -> None:
        """Listen to the table and to the index."""
        self.outbox = Outbox(self.name, time.time_ns())
        self.peers = Peers(
            self.name, Claims(), on_sent=self._on_foreign_prompt, on_ask=self._on_ask, on_new=self.outbox.welcome
        )
        self.table.on_added.append(self._on_added)
        self.table.on_gone.append(self._on_gone)
        self.table.on_lease.append(self._on_lease)
        self.index.on_sent.append(self._on_sent)

    # -- what happens here --------------------------------------------------------------------------------------------

    def _on_added(self, worker: Worker) -> None:
        key = worker_key(worker.spec.uid)
        self._uids[key] = worker.spec.uid
        self.peers.claims.add_worker(key, worker.load, self.clock())

    def _on_gone(self, worker: Worker) -> None:
        key = worker_key(worker.spec.uid)
        if self._uids.get(key) == worker.spec.uid:
            del self._uids[key]
        self.peers.claims.drop_worker(key, worker.load)

    def _on_lease(self, lease: Lease[Worker], event: LeaseEvent) -> None:
        if not self.peers.known:
            return  # a newcomer is told everything
        number = lease.number
        if event is LeaseEvent.TAKEN:
            self.outbox.note(self._taken(lease, 0))
        elif event is LeaseEvent.RELEASED:
            self.outbox.note(Released(number))
        else:
            self.outbox.note(Prefilled(number))

    @staticmethod
    def _taken(lease: Lease[Worker], age_ms: int) -> Taken:
        key = worker_key(lease.worker.spec.uid)
        return Taken(lease.number, key, lease.prompt_tokens, lease.output_tokens, lease.visible, age_ms)

    def _leases(self) -> tuple[Taken, ...]:
        """All that this replica holds."""
        now_s = self.clock()
        return tuple(
            self._taken(lease, round(1000 * lease.worker.load.backlog.age_s(lease.number, now_s)))
            for lease in self.table.leases.values()
        )

    def _on_sent(self, uid: str, content: Content) -> None:
        if not content.hashes:
            return
        key = worker_key(uid)
        self.outbox.remember(key, content)
        if self.peers.known:
            self.outbox.note(Sent.of(key, content))

    # -- what is heard ------------------------------------------------------------------------------------------------

    def _on_foreign_prompt(self, sent: Sent) -> None:
        uid = self._uids.get(sent.worker)
        if uid is not None:
            self.index.approximate.record(uid, sent.content())

    def _on_ask(self) -> None:
        self.outbox.asked = True

    def hear(self, frames: list[bytes]) -> None:
        """Take one message in."""
        counts = self.peers.counts
        if len(frames) != 3 or frames[0] != messages.TOPIC:
            counts.malformed += 1
            return
        if frames[1] == self.name.encode():
            return
        claims = self.peers.claims
        before = claims.count
        try:
            asks = self.peers.apply(messages.decode(frames[2]), self.clock())
        except MalformedMessageError as error:
            counts.malformed += 1
            log.debug("message of a peer is malformed: %s", error, extra={"peer": frames[1].decode(errors="replace")})
            return
        if asks is not None:
            self._publish(self.outbox.ask(asks))
        if claims.count < before:
            self.table.room_made()

    # -- sockets ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Tell and hear for ever; say farewell at the end."""
        await self._wait_for_workers()
        context = zmq.asyncio.Context()
        context.set(zmq.IPV6, 1)
        try:
            self._open(context)
            async with asyncio.TaskGroup() as tasks:
                for loop in (self._listen, self._tell, partial(self.addresses.run, self._connect)):
                    tasks.create_task(self.supervisor.keep(Background.MESH, loop))
        finally:
            if self._publisher is not None:
                self._publish(self.outbox.farewell())
                self._publisher.close()
            context.destroy(linger=LINGER_MS)

    async def _wait_for_workers(self) -> None:
        """Until the workers are known, for a while at most: what a newcomer is told of strangers is lost on it."""
        known = asyncio.Event()
        self.table.on_complete.append(known.set)
        if self.table.complete:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WORKERS_WAIT_S):
                await known.wait()

    def _open(self, context: zmq.asyncio.Context) -> None:
        publisher = zmq.Context(context).socket(zmq.PUB)  # never waits, so it needs no loop
        publisher.set(zmq.SNDHWM, QUEUE_MAX)
        publisher.set(zmq.LINGER, LINGER_MS)
        subscriber = context.socket(zmq.SUB)
        subscriber.set(zmq.RCVHWM, QUEUE_MAX)
        subscriber.set(zmq.LINGER, 0)
        subscriber.set(zmq.MAXMSGSIZE, MESSAGE_MAX_BYTES)
        subscriber.subscribe(messages.TOPIC_FAMILY)
        if self.endpoints.bind is not None:
            self.bound = bind_publisher(publisher, self.endpoints.bind)
        if self.endpoints.hub is not None:
            publisher.connect(self.endpoints.hub[0])
            subscriber.connect(self.endpoints.hub[1])
        self._publisher, self._subscriber = publisher, subscriber

    def _connect(self, wanted: frozenset[str]) -> None:
        """Hear these addresses and no others."""
        for change, addresses in (
            (self._subscriber.disconnect, self._connected - wanted),
            (self._subscriber.connect, wanted - self._connected),
        ):
            for address in addresses:
                try:
                    change(address)
                except zmq.ZMQError as error:
                    log.warning("address of a peer cannot be used: %s", error, extra={"address": address})
        self._connected = set(wanted)

    def _publish(self, message: Message) -> None:
        self._publisher.send_multipart([messages.TOPIC, self.name.encode(), messages.encode(message)])
        self.sent_messages += 1

    async def _listen(self) -> None:
        while True:
            self.hear(await self._subscriber.recv_multipart())

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            now_s = self.clock()
            for message in self.outbox.due(now_s, self._leases):
                self._publish(message)
            for dead in self.peers.expire(now_s):
                log.warning("a peer is silent: its leases have ended", extra={"peer": dead.name})
                self.table.room_made()


def bind_publisher(publisher: Any, address: str) -> str:
    """Publish there; the error of a port that is taken names the port."""
    try:
        publisher.bind(address)
    except zmq.ZMQError as error:
        raise SystemExit(f"forebay-router: cannot listen on {address}: {error}; choose another --mesh") from error
    bound: str = publisher.get_string(zmq.LAST_ENDPOINT)
    return bound


def build_mesh(
    settings: ReplicaSettings, table: WorkerTable, index: PrefixIndex, supervisor: Supervisor
) -> Mesh | None:
    """The mesh that the settings ask for; None for a router that is alone."""
    mesh, part = settings.mesh, settings.part
    if mesh is None and part is None:
        return None
    name = settings.name or (socket.gethostname() + (f":{mesh.port}" if mesh is not None else ""))
    addresses: PeerAddresses = ListedPeers(settings.peers)
    if settings.peer_pods and settings.peer_namespace:
        addresses = PodPeers(settings.peer_namespace, settings.peer_pods, own_pod=name)
    if part is not None:
        return Mesh(table, index, Endpoints(None, part.hub), addresses, f"{name}/{part.number}", supervisor)
    return Mesh(table, index, Endpoints(f"tcp://{mesh}"), addresses, name, supervisor)
