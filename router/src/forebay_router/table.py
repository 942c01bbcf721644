"""The workers the router knows, the services they belong to, and who has claimed what.

Discovery writes membership, leases write load; both in plain `def` methods of one object on one thread, so no change is ever
seen half done. A worker is identified by the UID of its pod (or a generation number for a static address): a new pod on an
old address is a stranger and inherits nothing.

    ready      gets requests
    not ready  gets none; its running ones go on
    draining   gets none; about to leave; its running ones go on

Observers hear of every lease taken, prefilled and released: the broadcast to other router replicas is one.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from operator import attrgetter
from typing import Any, NewType

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_router.choose import Snapshot
from forebay_router.health.breaker import Health
from forebay_router.leases import Lease, LeaseEvent
from forebay_router.metrics import PoolStats, ServiceStats
from forebay_router.peer import Peer
from forebay_router.predicting import Candidate, Load
from forebay_router.speed import ASSUMED, PoolSpeed, Seed, Speed

WorkerUid = NewType("WorkerUid", str)


class WorkerState(StrEnum):
    """Whether a worker gets requests."""

    READY = "ready"
    NOT_READY = "not_ready"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, order=True)
class ServiceKey:
    """Identity of a model service."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits of one service's requests, seconds."""

    hold_s: float
    first_byte_s: float
    idle_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What discovery knows of a model service."""

    key: ServiceKey
    models: tuple[str, ...]
    """Names that clients may send: the model's own and its adapters'."""
    objective: Objective
    timeouts: Timeouts
    created_s: int = 0
    """Unix time; of two services with one model name the older wins."""
    pools: tuple[tuple[str, Role], ...] = ()
    """Pools that exist even while they have no worker."""
    seeds: tuple[tuple[str, Seed], ...] = ()
    """How fast workers should be by the capacity model, by pool, where it knows."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What discovery knows of a worker."""

    uid: WorkerUid
    name: str
    host: str
    port: int
    service: ServiceKey
    pool: str
    role: Role
    state: WorkerState
    revision: str = ""
    kv_events_port: int | None = None
    """Where it publishes KV events; None where it does not."""
    kv_replay_port: int | None = None


class Worker:
    """A worker and what is going on with it."""

    __slots__ = ("back_s", "candidate", "cards", "fillers", "health", "peer", "pool_stats", "spec")

    def __init__(self, spec: WorkerSpec, *, pool_stats: PoolStats, speed: Speed, limit: int | None) -> None:
        self.spec = spec
        self.candidate = Candidate(
            uid=spec.uid,
            role=spec.role,
            name=spec.name,
            pool=spec.pool,
            revision=spec.revision,
            speed=speed,
            limit=limit,
        )
        self.pool_stats = pool_stats
        self.peer = Peer(spec.name, spec.host, spec.port)
        self.cards: tuple[Mapping[str, Any], ...] | None = None
        """What its /v1/models said; None until asked."""
        self.health = Health()
        """Whether it is left alone although it is ready."""
        self.fillers = 0
        """Requests of low priority among those in flight."""
        self.back_s = -inf
        """Monotonic time at which it was found ready after it had not been; minus infinity when it never was away."""

    @property
    def load(self) -> Load:
        """Live load."""
        return self.candidate.load


class Service:
    """A model service with its workers."""

    __slots__ = ("mixes", "snapshot", "spec", "speeds", "splits", "stats", "workers")

    def __init__(self, spec: ServiceSpec) -> None:
        self.spec = spec
        self.stats = ServiceStats(namespace=spec.key.namespace, model_service=spec.key.name)
        self.workers: dict[str, Worker] = {}
        self.speeds: dict[str, PoolSpeed] = {}
        """By pool; kept while a pool has no worker, for the next one."""
        self.snapshot = Snapshot()
        self.splits = False
        """It has prefill workers or a pool of such, whatever state they are in."""
        self.mixes = False
        """The same of workers that compute prompts and answer."""
        self.adopt_pools(spec)

    def adopt_pools(self, spec: ServiceSpec) -> None:
        """Export the spec's pools from now on."""
        for name, role in spec.pools:
            self.stats.pools.setdefault(name, PoolStats(role=role.value))
        self._note_roles()

    def _note_roles(self) -> None:
        roles = {role for _, role in self.spec.pools} | {worker.spec.role for worker in self.workers.values()}
        self.splits, self.mixes = Role.PREFILL in roles, Role.MIXED in roles

    def adapter_of(self, model: str | None) -> str | None:
        """The model's name where its workers say that it is an adapter of another."""
        for worker in self.workers.values():
            for card in worker.cards or ():
                if card.get("id") == model:
                    return model if card.get("parent") else None
        return None

    def one_sided(self) -> frozenset[str]:
        """Workers that do not do both: compute prompts and answer."""
        return frozenset(uid for uid, worker in self.workers.items() if worker.spec.role is not Role.MIXED)

    def take_over(self, spec: ServiceSpec, now_s: float) -> None:
        """A changed spec."""
        self.spec = spec
        self.adopt_pools(spec)
        for pool, speed in self.speeds.items():
            speed.plan(self.seed_of(pool))
        self.regroup(now_s)

    def seed_of(self, pool: str) -> Seed:
        """What may be expected of a pool's workers before any has been measured."""
        return dict(self.spec.seeds).get(pool, ASSUMED)

    def regroup(self, now_s: float) -> None:
        """Make the snapshot anew."""
        self._note_roles()
        self.snapshot = Snapshot.of(
            [
                worker.candidate
                for worker in self.workers.values()
                if worker.spec.state is WorkerState.READY and worker.health.offered(now_s)
            ]
        )


@dataclass(slots=True)
class WorkerTable:
    """Services, workers and leases; every change is one synchronous method."""

    clock: Callable[[], float] = time.monotonic
    worker_limit: int | None = None
    """Most requests in flight on one worker."""
    services: dict[ServiceKey, Service] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    leases: dict[int, Lease[Worker]] = field(default_factory=dict)
    by_model: dict[str, Service] = field(default_factory=dict)
    on_change: list[Callable[[Service], None]] = field(default_factory=list)
    """Told when a service may have room that it had not: held requests look again."""
    on_lease: list[Callable[[Lease[Worker], LeaseEvent], None]] = field(default_factory=list)
    on_added: list[Callable[[Worker], None]] = field(default_factory=list)
    on_gone: list[Callable[[Worker], None]] = field(default_factory=list)
    on_dropped: list[Callable[[ServiceKey], None]] = field(default_factory=list)
    """Told of a service that is no more, after its workers."""
    on_complete: list[Callable[[], None]] = field(default_factory=list)
    waiting: int = 0
    """Requests that wait for room, in all services: while there are any, every change that may make some is told."""
    complete: bool = False
    """Discovery has told all it knows: a model that is not here does not exist."""
    _next_lease: int = 1

    # -- membership ---------------------------------------------------------------------------------------------------

    def put_service(self, spec: ServiceSpec, now_s: float = 0.0) -> None:
        """Add a service or take over its changed spec."""
        service = self.services.get(spec.key)
        if service is None:
            self.services[spec.key] = Service(spec)
        elif service.spec == spec:
            return
        else:
            service.take_over(spec, now_s)
        self._index_models()
        self._changed(self.services[spec.key])

    def drop_service(self, key: ServiceKey) -> None:
        """Forget a service and its workers."""
        service = self.services.get(key)
        if service is None:
            return
        for uid in tuple(service.workers):
            self.drop_worker(uid)
        del self.services[key]
        for hook in self.on_dropped:
            hook(key)
        self._index_models()
        self._changed(service)

    def put_worker(self, spec: WorkerSpec, now_s: float) -> None:
        """Add a worker or take over its changed spec. Its service must be known."""
        known = self.workers.get(spec.uid)
        if known is not None and known.spec == spec:
            return
        service = self.services[spec.service]
        if known is not None and _place(known.spec) == _place(spec):
            if known.spec.state is WorkerState.NOT_READY and spec.state is WorkerState.READY:
                known.back_s = now_s
                known.health.renew(now_s)
            known.spec = spec
        else:
            if known is not None:
                self.drop_worker(spec.uid)
            self._add_worker(service, spec)
        service.regroup(now_s)
        self._changed(service)

    def _add_worker(self, service: Service, spec: WorkerSpec) -> None:
        pool_stats = service.stats.pools.setdefault(spec.pool, PoolStats(role=spec.role.value))
        pool_speed = service.speeds.get(spec.pool)
        if pool_speed is None:
            pool_speed = service.speeds[spec.pool] = PoolSpeed(service.seed_of(spec.pool))
        worker = Worker(spec, pool_stats=pool_stats, speed=Speed(pool_speed), limit=self.worker_limit)
        self.workers[spec.uid] = worker
        service.workers[spec.uid] = worker
        for hook in self.on_added:
            hook(worker)

    def drop_worker(self, uid: str, now_s: float = 0.0) -> None:
        """Forget a worker. Requests that run on it keep their leases until they end."""
        worker = self.workers.pop(uid, None)
        if worker is None:
            return
        worker.peer.gone = True
        service = self.services[worker.spec.service]
        del service.workers[uid]
        service.regroup(now_s)
        for hook in self.on_gone:
            hook(worker)
        self._changed(service)

    def regroup(self, service: Service, now_s: float) -> None:
        """Workers are offered, or not, that were not, or were."""
        service.regroup(now_s)
        self._changed(service)

    def _index_models(self) -> None:
        """Model name to service; of several services with one name the oldest wins, then the first by name."""
        made: dict[str, Service] = {}
        for service in sorted(self.services.values(), key=lambda one: (one.spec.created_s, one.spec.key)):
            for model in service.spec.models:
                made.setdefault(model, service)
        self.by_model = made

    def complete_now(self) -> None:
        """Discovery has told all it knows."""
        if not self.complete:
            self.complete = True
            for service in self.services.values():
                self._changed(service)
            for hook in self.on_complete:
                hook()

    def freed(self, worker: Worker) -> None:
        """A worker may take more than a moment ago, and somebody waits."""
        if not worker.peer.gone:
            self._changed(self.services[worker.spec.service])

    def room_made(self) -> None:
        """Workers may take more than a moment ago, for a reason outside of this table."""
        if self.waiting:
            for service in self.services.values():
                self._changed(service)

    def _changed(self, service: Service) -> None:
        for hook in self.on_change:
            hook(service)

    # -- reading ------------------------------------------------------------------------------------------------------

    def shadowed(self) -> list[tuple[str, ServiceKey, ServiceKey]]:
        """(model, service that gets its requests, service reachable by header only)."""
        return [
            (model, self.by_model[model].spec.key, service.spec.key)
            for service in self.services.values()
            for model in service.spec.models
            if self.by_model[model] is not service
        ]

    def service_stats(self) -> Iterable[ServiceStats]:
        """Counts of every known service."""
        return [service.stats for service in self.services.values()]

    # -- leases -------------------------------------------------------------------------------------------------------

    def take(self, worker: Worker, *, prompt_tokens: int, output_tokens: int, visible: bool = True) -> Lease[Worker]:
        """Claim a worker for a request, with the prompt tokens it has to compute. `visible`: its first token will be seen."""
        number = self._next_lease
        lease = Lease(self, number, worker, prompt_tokens=prompt_tokens, output_tokens=output_tokens, visible=visible)
        self._next_lease += 1
        self.leases[lease.number] = lease
        load = worker.candidate.load
        load.requests += 1
        load.prompt_tokens += prompt_tokens
        load.output_tokens += output_tokens
        if prompt_tokens:
            load.backlog.add(lease.number, prompt_tokens, self.clock(), visible=visible)
        worker.pool_stats.in_flight += 1
        for hook in self.on_lease:
            hook(lease, LeaseEvent.TAKEN)
        return lease

    def prefilled(self, lease: Lease[Worker]) -> None:
        """The first token came: its prompt is no longer work to do."""
        load = lease.worker.candidate.load
        load.backlog.computed(lease.number, self.clock())
        load.prompt_tokens -= lease.prompt_tokens
        lease.prompt_tokens = 0
        for hook in self.on_lease:
            hook(lease, LeaseEvent.PREFILLED)
        if self.waiting:
            self.freed(lease.worker)

    def release(self, lease: Lease[Worker]) -> None:
        """End a claim."""
        assert lease.held, f"lease {lease.number} released twice"
        lease.held = False
        del self.leases[lease.number]
        worker = lease.worker
        load = worker.candidate.load
        load.requests -= 1
        load.prompt_tokens -= lease.prompt_tokens
        load.output_tokens -= lease.output_tokens
        if lease.prompt_tokens:
            load.backlog.drop(lease.number, self.clock())
        worker.pool_stats.in_flight -= 1
        for hook in self.on_lease:
            hook(lease, LeaseEvent.RELEASED)
        if self.waiting:
            self.freed(worker)


_place = attrgetter("host", "port", "service", "pool", "role", "revision")
"""All that a worker's candidate and connections stand for."""
