"""Several routers before one fleet, each with its own view of it, joined by the real mesh in virtual time.

A request comes to one of them, by a hash of its number, as from a load balancer that does not care. Each has loads, speeds and a
prefix index of its own. What it does goes into the router's own outbox, is told after the outbox's pause and arrives
`mesh_delay_s` later, where the router's own `peers` applies it. Without a mesh each knows nothing of the others.

One router uses the fleet's own candidates. Held requests wait in one queue whatever their router: they are rare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forebay_router.choose import Snapshot
from forebay_router.index.content import Content
from forebay_router.mesh.claims import Claims
from forebay_router.mesh.messages import Event, Message, Prefilled, Released, Sent, Taken
from forebay_router.mesh.outbox import FLUSH_S, Outbox
from forebay_router.mesh.peers import Peers
from forebay_router.predicting import Candidate, Load
from forebay_router.speed import PoolSpeed, Speed
from forebay_simulator.fleet.agenda import Agenda
from forebay_simulator.fleet.choosing import Forebay
from forebay_simulator.fleet.jobs import Job
from forebay_simulator.fleet.members import Members
from forebay_simulator.fleet.routing import Routing
from forebay_simulator.fleet.spec import FleetSpec

_SPREAD = 2654435761


@dataclass(slots=True)
class Replica:
    """One of several routers."""

    spec: FleetSpec
    name: str
    routing: Routing
    outbox: Outbox = field(init=False)
    peers: Peers = field(init=False)
    leases: dict[int, Taken] = field(default_factory=dict)
    """Its own, by number."""
    flush_due: bool = False
    _candidates: dict[str, Candidate] = field(default_factory=dict)
    _speeds: dict[str, PoolSpeed] = field(default_factory=dict)
    _seen: Snapshot | None = None
    _snapshot: Snapshot = field(default_factory=Snapshot)

    def __post_init__(self) -> None:
        """Know nothing of the others yet."""
        self.outbox = Outbox(self.name, 1)
        self.peers = Peers(self.name, Claims(), self._on_foreign_prompt, self._on_ask, self.outbox.welcome)
        for pool in self.spec.pools:
            speed = self._speeds[pool.name] = PoolSpeed()
            if self.spec.seeds_known:
                speed.plan(pool.engine.seed())

    def _on_foreign_prompt(self, sent: Sent) -> None:
        if isinstance(self.routing, Forebay):
            self.routing.heard(sent.worker, sent.content())

    def _on_ask(self) -> None:
        self.outbox.asked = True

    def snapshot(self, fleet: Snapshot, now_s: float) -> Snapshot:
        """The fleet's ready workers as this router sees them."""
        if fleet is not self._seen:
            self._seen = fleet
            self._snapshot = Snapshot.of([self.candidate(one, now_s) for one in fleet.by_uid.values()])
        return self._snapshot

    def candidate(self, one: Candidate, now_s: float) -> Candidate:
        """Its own view of a worker."""
        own = self._candidates.get(one.uid)
        if own is None:
            own = self._candidates[one.uid] = Candidate(
                uid=one.uid, role=one.role, name=one.name, pool=one.pool, speed=Speed(self._speeds[one.pool])
            )
            self.peers.claims.add_worker(one.uid, own.load, now_s)
        return own

    def load(self, uid: str) -> Load:
        """What it knows of a worker's load."""
        return self._candidates[uid].load


class Replicas:
    """All routers of a fleet."""

    def __init__(self, spec: FleetSpec, agenda: Agenda, members: Members, routings: Sequence[Routing]) -> None:
        self._agenda = agenda
        self._members = members
        self._delay_s = spec.mesh_delay_s
        self._routings = routings
        several = len(routings) > 1
        self._replicas = [Replica(spec, f"router-{at}", one) for at, one in enumerate(routings)] if several else []
        for one in self._replicas:
            self._share_prompts(one)

    def _share_prompts(self, replica: Replica) -> None:
        def on_sent(uid: str, content: Content) -> None:
            self._tell(replica, Sent.of(uid, content))

        if isinstance(replica.routing, Forebay):
            replica.routing.share(on_sent)

    # ---- choosing

    def routing(self, job: Job) -> Routing:
        """The policy of the router that a request comes to."""
        return self._routings[self._at(job)]

    def snapshot(self, job: Job) -> Snapshot:
        """The ready workers as that router sees them."""
        fleet = self._members.snapshot
        return self._replicas[self._at(job)].snapshot(fleet, self._agenda.now_s) if self._replicas else fleet

    def _at(self, job: Job) -> int:
        return (((job.number + 1) * _SPREAD) >> 7) % len(self._routings)

    def gone(self, uid: str) -> None:
        """A worker is no more."""
        for one in self._routings:
            one.gone(uid)

    # ---- leases, which the fleet's own candidates count too

    def taken(self, job: Job, number: int, uid: str, prompt_tokens: int, output_tokens: int) -> None:
        """A request's router leased a worker."""
        if not self._replicas:
            return
        replica = self._replicas[self._at(job)]
        load = replica.load(uid)
        load.requests += 1
        load.prompt_tokens += prompt_tokens
        load.output_tokens += output_tokens
        if prompt_tokens:
            load.backlog.add(number, prompt_tokens, self._agenda.now_s, visible=True)
        taken = replica.leases[number] = Taken(number, uid, prompt_tokens, output_tokens)
        self._tell(replica, taken)

    def computed(self, job: Job, number: int) -> None:
        """A lease's first token came."""
        if not self._replicas:
            return
        replica = self._replicas[self._at(job)]
        lease = replica.leases[number]
        if lease.prompt_tokens:
            load = replica.load(lease.worker)
            load.backlog.computed(number, self._agenda.now_s)
            load.prompt_tokens -= lease.prompt_tokens
            replica.leases[number] = Taken(number, lease.worker, 0, lease.output_tokens)
            self._tell(replica, Prefilled(number))

    def released(self, job: Job, number: int) -> None:
        """A lease ended."""
        if not self._replicas:
            return
        replica = self._replicas[self._at(job)]
        lease = replica.leases.pop(number)
        load = replica.load(lease.worker)
        load.requests -= 1
        load.prompt_tokens -= lease.prompt_tokens
        load.output_tokens -= lease.output_tokens
        if lease.prompt_tokens:
            load.backlog.drop(number, self._agenda.now_s)
        self._tell(replica, Released(number))

    # ---- the mesh

    def _tell(self, replica: Replica, event: Event) -> None:
        if self._delay_s is None:
            return
        replica.outbox.note(event)
        if not replica.flush_due:
            replica.flush_due = True
            self._agenda.at(self._agenda.now_s + FLUSH_S, lambda: self._flush(replica))

    def _flush(self, replica: Replica) -> None:
        replica.flush_due = False
        assert self._delay_s is not None, "there is a mesh"
        when_s = self._agenda.now_s + self._delay_s
        for message in replica.outbox.due(self._agenda.now_s, lambda: tuple(replica.leases.values())):
            self._agenda.at(when_s, lambda one=message: self._hear(replica, one))  # type: ignore[misc]

    def _hear(self, sender: Replica, message: Message) -> None:
        for replica in self._replicas:
            if replica is not sender:
                replica.peers.apply(message, self._agenda.now_s)
