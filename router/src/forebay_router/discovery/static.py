"""Workers from a list of addresses, without a cluster: from flags, or from a file that may change.

Each address is asked for /health and /v1/models, one loop a worker. A worker is ready while /health answers 200; the models it
lists become services under the namespace `local`, one for each base model, with aliases and adapters as further names. A file
names the services itself (`worker_file`); what their workers list becomes their names.

A refused connection or a 503 means that the engine is gone; when it comes back it is a new worker (a generation is part of its
uid), which has lost its cache and its requests. A probe that times out or breaks may just have met a busy engine: after
`PATIENCE` of them in a row the worker is not ready, and keeps its identity and its load.

The list is complete when every address has answered once, or after `GRACE_S`: until then a request for a model that nobody has
told of yet is held, not refused.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import urlsplit

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_router.discovery.cards import Cards, read_cards
from forebay_router.errors import WorkerFailure
from forebay_router.peer import Peer
from forebay_router.supervision import Background, Supervisor
from forebay_router.table import ServiceKey, ServiceSpec, Timeouts, WorkerSpec, WorkerState, WorkerTable, WorkerUid
from forebay_router.upstream import Upstreams

log = logging.getLogger(__name__)

LOCAL_NAMESPACE = "local"
FIRST_INTERVAL_S = 0.1
"""Between probes of a worker that has not been ready yet; grows to the usual interval."""
GRACE_S = 10.0
PATIENCE = 3
"""Probes without an answer, in a row, after which a worker gets no requests."""


@dataclass(frozen=True, slots=True)
class Address:
    """One configured worker."""

    url: str
    role: Role
    service: str | None = None
    """The service that a file puts it in; None leaves it to the model it serves."""
    pool: str = ""
    """Its pool; named for the role when empty."""
    kv_events_port: int | None = None
    """Where it publishes KV events, with replays one port above; None where it does not."""

    @property
    def host(self) -> str:
        """Host name or address."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """TCP port."""
        return urlsplit(self.url).port or 80


@dataclass(frozen=True, slots=True)
class ServiceDefaults:
    """What a service has that no resource describes."""

    objective: Objective
    timeouts: Timeouts


@dataclass(frozen=True, slots=True)
class StaticService:
    """A service as a file describes it."""

    models: tuple[str, ...]
    """Names that are known before a worker tells them."""
    pools: tuple[tuple[str, Role], ...]
    defaults: ServiceDefaults


@dataclass(frozen=True, slots=True)
class Layout:
    """All that is configured."""

    addresses: tuple[Address, ...]
    services: Mapping[str, StaticService] = field(default_factory=dict)
    """By name; empty where services follow from what workers serve."""


@dataclass(slots=True)
class _Known:
    """What is known of one address."""

    address: Address
    peer: Peer
    """Connections for probes; requests have their own."""
    generation: int = 0
    uid: WorkerUid | None = None
    cards: Cards | None = None
    answered: bool = False
    misses: int = 0
    """Probes without an answer, in a row."""
    watch: asyncio.Task[None] | None = None
    """Probes it."""


@dataclass(slots=True)
class StaticDiscovery:
    """Probes the configured addresses and keeps the table."""

    table: WorkerTable
    layout: Layout
    defaults: ServiceDefaults
    upstreams: Upstreams
    interval_s: float
    timeout_s: float = 2.0
    supervisor: Supervisor = field(default_factory=Supervisor)
    failures: int = 0
    """Failed probes so far."""
    _known: dict[Address, _Known] = field(default_factory=dict)
    _tasks: asyncio.TaskGroup | None = None
    """Of the probes, while they run."""

    def __post_init__(self) -> None:
        """Nothing is known of the workers yet."""
        self.take(self.layout)

    def take(self, layout: Layout) -> None:
        """Follow a changed list: workers that are no longer there get no further requests."""
        self.layout = layout
        for address in self._known.keys() - set(layout.addresses):
            self._forget(self._known.pop(address))
        for name in layout.services:
            self.table.put_service(self._described(name), time.monotonic())
        if layout.services:
            for key in [key for key in self.table.services if key.name not in layout.services]:
                self.table.drop_service(key)
        for address in layout.addresses:
            if address not in self._known:
                known = self._known[address] = _Known(address, Peer(address.url, address.host, address.port))
                if self._tasks is not None:
                    self._begin(known, self._tasks)

    def _begin(self, known: _Known, tasks: asyncio.TaskGroup) -> None:
        """Probe it from now on."""
        known.watch = tasks.create_task(self.supervisor.keep(Background.DISCOVERY, partial(self._watch, known)))

    def _forget(self, known: _Known) -> None:
        if known.watch is not None:
            known.watch.cancel()
        if known.uid is not None:
            log.info("worker is listed no more", extra={"worker": known.address.url})
            self.table.drop_worker(known.uid, time.monotonic())
        known.peer.gone = True
        self.upstreams.close_idle(known.peer)

    def _described(self, name: str, cards: Cards = ()) -> ServiceSpec:
        """A service of the file, with the names that its workers have told, and those that a new one tells."""
        service, key = self.layout.services[name], ServiceKey(LOCAL_NAMESPACE, name)
        known = self.table.services.get(key)
        told = [worker.cards or () for worker in known.workers.values()] if known else []
        names = [str(card["id"]) for one in (*told, cards) for card in one]
        if not names and known is not None:
            names = list(known.spec.models)  # its workers are exchanged: the new ones will tell
        models = (*service.models, *names)
        return ServiceSpec(
            key=key,
            models=tuple(dict.fromkeys(models)) or (name,),
            objective=service.defaults.objective,
            timeouts=service.defaults.timeouts,
            created_s=known.spec.created_s if known else 0,
            pools=service.pools,
        )

    @property
    def synced(self) -> bool:
        """The list of workers is complete."""
        return self.table.complete

    async def run(self) -> None:
        """Probe for ever."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._give_up_waiting())
                for known in self._known.values():
                    self._begin(known, tasks)
                await asyncio.get_running_loop().create_future()  # a file may add workers at any time
        finally:
            self._tasks = None

    async def _give_up_waiting(self) -> None:
        await asyncio.sleep(GRACE_S)
        self.table.complete_now()

    async def _watch(self, known: _Known) -> None:
        pause_s = FIRST_INTERVAL_S
        while True:
            try:
                self._note(known, healthy=await self._probe(known))
                known.misses = 0
            except WorkerFailure as failure:
                self.failures += 1
                level = logging.DEBUG if known.misses or failure.refused else logging.WARNING
                log.log(level, "probe of %s failed: %s", known.address.url, failure.message)
                self._note_failure(known, failure)
            pause_s = self.interval_s if known.uid is not None else min(self.interval_s, pause_s * 1.5)
            await asyncio.sleep(pause_s)

    def _note_failure(self, known: _Known, failure: WorkerFailure) -> None:
        """A probe without an answer."""
        known.misses += 1
        if failure.refused:
            self._note(known, healthy=False)
        elif known.misses == PATIENCE and known.uid is not None:
            log.warning("worker does not answer", extra={"worker": known.address.url})
            self._set_state(known.uid, WorkerState.NOT_READY)

    def _set_state(self, uid: WorkerUid, state: WorkerState) -> None:
        self.table.put_worker(replace(self.table.workers[uid].spec, state=state), time.monotonic())

    async def _probe(self, known: _Known) -> bool:
        """Whether the worker is healthy; on its first healthy answer also what it serves."""
        health = await self.upstreams.get(known.peer, "/health", timeout_s=self.timeout_s)
        if health.status != 200:
            return False
        if known.uid is None:
            known.cards = await read_cards(self.upstreams, known.peer, timeout_s=self.timeout_s)
        return True

    def _note(self, known: _Known, *, healthy: bool) -> None:
        """Take a probe's result over into the table."""
        if healthy and known.uid is not None and known.misses >= PATIENCE:
            self._set_state(known.uid, WorkerState.READY)
        elif healthy and known.uid is None:
            self._add(known)
        elif not healthy and known.uid is not None:
            log.warning("worker is away", extra={"worker": known.address.url})
            self.table.drop_worker(known.uid, time.monotonic())
            known.uid = None
        if healthy:
            known.answered = True
            if all(one.answered for one in self._known.values()):
                self.table.complete_now()

    def _add(self, known: _Known) -> None:
        assert known.cards is not None
        known.generation += 1
        uid = WorkerUid(f"{known.address.url}#{known.generation}")
        key = self._put_service(known.address, known.cards)
        port = known.address.kv_events_port
        spec = WorkerSpec(
            uid=uid,
            name=known.address.url,
            host=known.address.host,
            port=known.address.port,
            service=key,
            pool=known.address.pool or known.address.role.value.lower(),
            role=known.address.role,
            state=WorkerState.READY,
            kv_events_port=port,
            kv_replay_port=port + 1 if port else None,
        )
        self.table.put_worker(spec, time.monotonic())
        self.table.workers[uid].cards = known.cards
        known.uid = uid
        log.info("worker is ready", extra={"worker": known.address.url, "service": str(key)})

    def _put_service(self, address: Address, cards: Cards) -> ServiceKey:
        """The service that a worker belongs to, else that of its base model; names that it serves are added to it."""
        if address.service is not None:
            described = self._described(address.service, cards)
            self.table.put_service(described, time.monotonic())
            return described.key
        base = next((card for card in cards if not card.get("parent")), cards[0])
        key = ServiceKey(LOCAL_NAMESPACE, str(base["id"]))
        known = self.table.services.get(key)
        models = dict.fromkeys(known.spec.models if known else ())
        models.update(dict.fromkeys(str(card["id"]) for card in cards))
        pools = dict(known.spec.pools if known else ())
        pools.update({one.role.value.lower(): one.role for one in self.layout.addresses})
        created = base.get("created")
        self.table.put_service(
            ServiceSpec(
                key=key,
                models=tuple(models),
                objective=self.defaults.objective,
                timeouts=self.defaults.timeouts,
                created_s=known.spec.created_s if known else created if isinstance(created, int) else 0,
                pools=tuple(pools.items()),
            )
        )
        return key
