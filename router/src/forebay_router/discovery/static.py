"""Workers from a list of addresses, without a cluster.

Each address is asked for /health and /v1/models, one loop a worker. A worker is ready while /health answers 200; the models it
lists become services under the namespace `local`, one for each base model, with aliases and adapters as further names.

A refused connection or a 503 means that the engine is gone; when it comes back it is a new worker (a generation is part of its
uid), which has lost its cache and its requests. A probe that times out or breaks may just have met a busy engine: after
`PATIENCE` of them in a row the worker is not ready, and keeps its identity and its load.

The list is complete when every address has answered once, or after `GRACE_S`: until then a request for a model that nobody has
told of yet is held, not refused.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_router.discovery.cards import Cards, read_cards
from forebay_router.errors import WorkerFailure
from forebay_router.peer import Peer
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


@dataclass(slots=True)
class StaticDiscovery:
    """Probes the configured addresses and keeps the table."""

    table: WorkerTable
    addresses: tuple[Address, ...]
    defaults: ServiceDefaults
    upstreams: Upstreams
    interval_s: float
    kv_events_port: int | None = None
    """Where every worker publishes KV events, with replays one port above; None where none does."""
    timeout_s: float = 2.0
    failures: int = 0
    """Failed probes so far."""
    _known: list[_Known] = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is known yet."""
        self._known = [_Known(address, Peer(address.url, address.host, address.port)) for address in self.addresses]

    @property
    def synced(self) -> bool:
        """The list of workers is complete."""
        return self.table.complete

    async def run(self) -> None:
        """Probe for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._give_up_waiting())
            for known in self._known:
                tasks.create_task(self._watch(known))

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
                log.debug("probe of %s failed: %s", known.address.url, failure.message)
                self._note_failure(known, failure)
            pause_s = self.interval_s if known.uid is not None else min(self.interval_s, pause_s * 1.5)
            await asyncio.sleep(pause_s)

    def _note_failure(self, known: _Known, failure: WorkerFailure) -> None:
        """A probe without an answer."""
        known.misses += 1
        if failure.refused:
            self._note(known, healthy=False)
        elif known.misses >= PATIENCE and known.uid is not None:
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
            if all(one.answered for one in self._known):
                self.table.complete_now()

    def _add(self, known: _Known) -> None:
        assert known.cards is not None
        known.generation += 1
        uid = WorkerUid(f"{known.address.url}#{known.generation}")
        key = self._put_service(known.cards)
        spec = WorkerSpec(
            uid=uid,
            name=known.address.url,
            host=known.address.host,
            port=known.address.port,
            service=key,
            pool=known.address.role.value.lower(),
            role=known.address.role,
            state=WorkerState.READY,
            kv_events_port=self.kv_events_port,
            kv_replay_port=self.kv_events_port + 1 if self.kv_events_port else None,
        )
        self.table.put_worker(spec, time.monotonic())
        self.table.workers[uid].cards = known.cards
        known.uid = uid
        log.info("worker is ready", extra={"worker": known.address.url, "service": str(key)})

    def _put_service(self, cards: Cards) -> ServiceKey:
        """The service of a worker's base model; names that it serves are added to the service's."""
        base = next((card for card in cards if not card.get("parent")), cards[0])
        key = ServiceKey(LOCAL_NAMESPACE, str(base["id"]))
        known = self.table.services.get(key)
        models = dict.fromkeys(known.spec.models if known else ())
        models.update(dict.fromkeys(str(card["id"]) for card in cards))
        pools = dict(known.spec.pools if known else ())
        pools.update({one.role.value.lower(): one.role for one in self.addresses})
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
