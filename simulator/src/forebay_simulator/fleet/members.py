"""Workers of the pools: ordered, starting, ready, draining, gone; and the GPU time they take.

    order      the pool's number rises: a worker waits for GPUs (unschedulable while there are none), starts, is ready
    remove     the number falls: those not ready go first, then the ones with the least in flight, which drain; of equals the
               youngest, as the operator and Kubernetes have it

A worker takes its GPUs from the moment it is placed until it is gone, whether it works, starts or drains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from forebay_router.choose import Snapshot
from forebay_router.predicting import Candidate
from forebay_router.speed import PoolSpeed, Speed
from forebay_simulator.fleet.agenda import Agenda
from forebay_simulator.fleet.spec import FleetSpec, PoolSpec
from forebay_simulator.fleet.strides import StridingScheduler
from forebay_simulator.fleet.workers import Engine, Hooks, SlowTimer


class State(Enum):
    """Where a worker stands."""

    UNPLACED = "unplaced"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Member:
    """One worker."""

    uid: str
    pool: PoolSpec
    engine: Engine
    candidate: Candidate
    state: State = State.UNPLACED
    placed_s: float | None = None
    gone_s: float | None = None
    work_s: float = 0.0
    """Sum over its ended requests of the time from first schedule to last token."""
    ended: int = 0
    """Requests that ended in it by themselves."""
    served_prompt_tokens: int = 0
    """Prompt tokens that it was sent, cached or not."""

    def placed_for_s(self, now_s: float) -> float:
        """How long it has had its GPUs, or had when it went."""
        if self.placed_s is None:
            return 0.0
        return (now_s if self.gone_s is None else self.gone_s) - self.placed_s


@dataclass(slots=True)
class Pool:
    """One pool's workers; the gone ones are kept for the report."""

    spec: PoolSpec
    wanted: int = 0
    members: list[Member] = field(default_factory=list)
    gone: list[Member] = field(default_factory=list)
    numbers: list[tuple[float, int]] = field(default_factory=list)
    """(time, wanted) at each change."""
    number_of_next: int = 0
    speed: PoolSpeed = field(default_factory=PoolSpeed)
    """What the router has learnt of how fast its workers are."""

    def count(self, *states: State) -> int:
        """Members in any of these states."""
        return sum(1 for member in self.members if member.state in states)


class Members:
    """All pools. `changed` is called when the set of workers that take requests changes."""

    def __init__(
        self,
        spec: FleetSpec,
        agenda: Agenda,
        hooks: Hooks,
        chance: Random,
        *,
        strides: bool = True,
    ) -> None:
        self.spec = spec
        self.pools = {pool.name: Pool(pool) for pool in spec.pools}
        if spec.seeds_known:
            for pool in self.pools.values():
                pool.speed.plan(pool.spec.engine.seed())
        self.by_uid: dict[str, Member] = {}
        self.snapshot = Snapshot()
        self.changed: Callable[[], None] = lambda: None
        self.lost: Callable[[Member, list[str]], None] = lambda _member, _requests: None
        """Told of a worker that died and the ids of the requests in it."""
        self.gpus_out = 0
        """Accelerators that do not work at present."""
        self._agenda = agenda
        self._hooks = hooks
        self._chance = chance
        self._strides = strides
        for pool in self.pools.values():
            self._resize(pool, pool.spec.replicas)
            for member in pool.members:
                self._ready(member)
        self._regroup()

    # ---- what autoscalers and faults do

    def scale(self, name: str, wanted: int) -> None:
        """Set a pool's number."""
        pool = self.pools[name]
        if wanted != pool.wanted:
            self._resize(pool, wanted)

    def kill(self, uid: str) -> None:
        """A worker dies; its pool orders another one."""
        member = self.by_uid[uid]
        pool = self.pools[member.pool.name]
        lost = [request.request_id for request in member.engine.stop()]
        self._leave(member)
        self._regroup()
        self.lost(member, lost)
        self._resize(pool, pool.wanted)

    def slow_down(self, uid: str, factor: float) -> None:
        """A worker's further steps take `factor` times as long as they should; 1 ends that."""
        member = self.by_uid.get(uid)
        if member is not None and member.state is not State.GONE:
            timer = member.pool.engine.served().timer
            member.engine.change_timer(timer if factor == 1 else SlowTimer(timer, factor))

    def set_gpus_out(self, gpus: int) -> None:
        """So many accelerators cannot be used by new workers."""
        self.gpus_out = gpus
        self._place()

    def idle(self, member: Member) -> None:
        """A draining worker has nothing left to do."""
        if member.state is State.DRAINING:
            self._leave(member)

    # ---- reading

    @property
    def gpus_used(self) -> int:
        """Accelerators taken now."""
        placed = (State.STARTING, State.READY, State.DRAINING)
        return sum(pool.spec.gpus * pool.count(*placed) for pool in self.pools.values())

    def all_members(self) -> Iterable[Member]:
        """Every worker there ever was."""
        for pool in self.pools.values():
            yield from pool.gone
            yield from pool.members

    def gpu_seconds(self, now_s: float) -> float:
        """GPU time taken so far."""
        return sum(member.pool.gpus * member.placed_for_s(now_s) for member in self.all_members())

    def cost(self, now_s: float) -> float | None:
        """What the GPU time taken so far costs; None where some pool has no price."""
        cost = 0.0
        for pool in self.pools.values():
            price = pool.spec.price_of_worker
            if price is None:
                return None
            cost += price * sum(member.placed_for_s(now_s) for member in (*pool.gone, *pool.members)) / 3600
        return cost

    # ---- members

    def _resize(self, pool: Pool, wanted: int) -> None:
        if wanted != pool.wanted:
            pool.numbers.append((self._agenda.now_s, wanted))
        pool.wanted = wanted
        missing = wanted - pool.count(State.UNPLACED, State.STARTING, State.READY)
        for _ in range(missing):
            self._order(pool)
        if missing < 0:
            self._remove(pool, -missing)
        self._place()
        self._regroup()

    def _order(self, pool: Pool) -> None:
        uid = f"{pool.spec.name}-{pool.number_of_next}"
        pool.number_of_next += 1
        served = pool.spec.engine.served()
        scheduler = StridingScheduler(served.scheduler, served.timer)
        engine = Engine(scheduler, self._agenda, self._hooks, strides=self._strides)
        candidate = Candidate(uid=uid, role=pool.spec.role, name=uid, pool=pool.spec.name, speed=Speed(pool.speed))
        member = Member(uid, pool.spec, engine, candidate)
        pool.members.append(member)
        self.by_uid[uid] = member

    def _place(self) -> None:
        """Give free accelerators to workers that wait for them, in order."""
        for pool in self.pools.values():
            for member in pool.members:
                if member.state is not State.UNPLACED:
                    continue
                limit = self.spec.gpus
                if limit is not None and self.gpus_used + pool.spec.gpus > limit - self.gpus_out:
                    return
                member.state, member.placed_s = State.STARTING, self._agenda.now_s
                delay_s = self._chance.uniform(*pool.spec.startup_s)
                if self._agenda.now_s > 0:
                    self._agenda.at(self._agenda.now_s + delay_s, lambda one=member: self._start(one))  # type: ignore[misc]

    def _start(self, member: Member) -> None:
        if member.state is State.STARTING:
            self._ready(member)
            self._regroup()

    def _ready(self, member: Member) -> None:
        if member.state is State.STARTING:
            member.state = State.READY

    def _remove(self, pool: Pool, number: int) -> None:
        order = {State.UNPLACED: 0, State.STARTING: 1, State.READY: 2}
        leaving = sorted(
            (member for member in reversed(pool.members) if member.state in order),
            key=lambda member: (order[member.state], member.candidate.load.requests),
        )[:number]
        for member in leaving:
            if member.state is State.READY and member.candidate.load.requests:
                member.state = State.DRAINING
                when_s = self._agenda.now_s + self.spec.drain_max_s
                self._agenda.at(when_s, lambda one=member: self._cut_off(one))  # type: ignore[misc]
            else:
                self._leave(member)

    def _cut_off(self, member: Member) -> None:
        if member.state is State.DRAINING:
            lost = [request.request_id for request in member.engine.stop()]
            self._leave(member)
            self.lost(member, lost)

    def _leave(self, member: Member) -> None:
        member.state, member.gone_s = State.GONE, self._agenda.now_s
        member.engine.stopped = True
        pool = self.pools[member.pool.name]
        pool.members.remove(member)
        pool.gone.append(member)
        self._place()

    def _regroup(self) -> None:
        self.snapshot = Snapshot.of(
            [member.candidate for pool in self.pools.values() for member in pool.members if member.state is State.READY]
        )
        self.changed()
