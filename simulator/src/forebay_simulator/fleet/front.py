"""The router in virtual time: hold, choose, lease, send, retry, account. The choice itself is a policy's (routing.py).

    mixed      arrival -> choose -> one request on one worker
    split      arrival -> choose a pair -> prompt and one token on the prefill worker -> the same request on the decode
               worker, which fetches the KV -> answer

As in the router, both leases of a pair are taken when it is chosen; the prefill lease ends with its leg. Requests for which no
worker is ready, or which the policy holds back (the router's own does, by its `admission.room`), wait in the router's own queue
and order, in bounded number and time, and are then rejected. A request whose worker dies before its first
token is sent to another one; after it, it is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

from forebay_api.modelservice import Role
from forebay_api.objective import Outcome, Verdict
from forebay_router.admission import room
from forebay_router.admission.claim import Claim
from forebay_router.admission.fair_queue import FairQueue
from forebay_router.admission.lane import Entry
from forebay_router.admission.room import Held, Turn
from forebay_router.admission.turns import LOOK_AGAIN_MIN_S, give_out
from forebay_router.predicting import Demand
from forebay_simulator.engine.request import Request
from forebay_simulator.fleet.agenda import Agenda, Rank
from forebay_simulator.fleet.counts import RouterCounts
from forebay_simulator.fleet.jobs import Job
from forebay_simulator.fleet.members import Member, Members, State
from forebay_simulator.fleet.replicas import Replicas
from forebay_simulator.fleet.routing import Placement, Routing
from forebay_simulator.fleet.spec import FleetSpec, PoolSpec
from forebay_simulator.fleet.workers import Hooks

PREFILL_LEG = "p"
"""Marks the id of a request's leg on a prefill worker."""
_CLAIM = Claim()
"""All are of one tenant and priority."""


@dataclass(slots=True)
class _Leg:
    """A lease: one request's claim on one worker."""

    job: Job
    member: Member
    number: int
    """Of the lease."""
    prompt_tokens: int
    """To be computed before the first token; 0 once that has come."""
    output_tokens: int


def _room(pool: PoolSpec) -> int:
    """Tokens of one request that an engine of a pool takes."""
    served = pool.engine.served()
    return min(served.max_model_len, served.scheduler.usable_blocks * served.scheduler.block_size)


@dataclass(slots=True)
class Front:
    """One router, or several that the rest of the fleet sees as one."""

    spec: FleetSpec
    agenda: Agenda
    routers: Replicas = field(init=False)
    members: Members = field(init=False)
    counts: RouterCounts = field(default_factory=RouterCounts)
    pool_in_flight: dict[str, int] = field(default_factory=dict)
    queue: FairQueue[Job] = field(init=False)
    """Requests that wait."""
    _serving: bool = False
    _looks: int = 0
    """How often places were given out."""
    _leases: int = 0
    """Taken so far."""
    _legs: dict[str, _Leg] = field(default_factory=dict)
    """Leases by the id of the engine's request."""
    _answer_room: int = 0
    """Tokens of prompt and answer that the roomiest worker that answers takes."""
    _prompt_room: int = 0
    """Tokens of the longest prompt that a worker computes."""

    def __post_init__(self) -> None:
        """Nobody waits."""
        self.queue = FairQueue(self.spec.hold_max, 1)

    @property
    def hooks(self) -> Hooks:
        """What engines tell this router."""
        return Hooks(self._first_token, self._finished, self._fetch)

    def attach(self, members: Members, routings: Sequence[Routing]) -> None:
        """Learn of the workers and how each router chooses among them."""
        self.members = members
        self.routers = Replicas(self.spec, self.agenda, members, routings)
        members.changed = self._serve_held
        members.lost = self._lost
        self.pool_in_flight = dict.fromkeys(members.pools, 0)
        pools = self.spec.pools
        self._answer_room = max((_room(pool) for pool in pools if pool.role is not Role.PREFILL), default=0)
        self._prompt_room = max((_room(pool) for pool in pools if pool.role is not Role.DECODE), default=0)

    # ---- arrivals

    def arrive(self, job: Job) -> None:
        """A request has come."""
        self.counts.arrived += 1
        self.counts.in_flight += 1
        if self._too_long(job):
            self._end(job, Outcome.REJECTED)
        elif self.queue.requests or self._place(job, room.FIRST) is not None:
            self._hold(job)

    def _too_long(self, job: Job) -> bool:
        """No worker that answers could ever take it, or none that computes its prompt."""
        one = job.arrival
        return one.prompt_tokens + one.output_tokens > self._answer_room or one.prompt_tokens > self._prompt_room

    def _hold(self, job: Job) -> None:
        now_s = self.agenda.now_s
        any_worker = next(iter(self.members.snapshot.by_uid.values()), None)
        cost = room.cost_s(self._demand(job, splittable=False), any_worker)
        due_s = job.at_s + room.PACED_SHARE * self.spec.first_byte_s
        entry = self.queue.add(job, _CLAIM, cost=cost, size_bytes=0, due_s=due_s)
        if entry is None:
            self._end(job, Outcome.REJECTED)
            return
        self.counts.pending += 1
        self.agenda.at(now_s + self.spec.hold_s, lambda: self._give_up(entry))
        self._serve_held()

    def _give_up(self, entry: Entry[Job]) -> None:
        """It waited in vain: for a worker, or for room as long as a first byte may take."""
        if not entry.waiting:
            return
        limit_s = entry.item.at_s + self.spec.first_byte_s
        if self.agenda.now_s < limit_s and not self.members.snapshot.empty:
            self.agenda.at(limit_s, lambda: self._give_up(entry))
            return
        self.queue.remove(entry)
        self.counts.pending -= 1
        self._end(entry.item, Outcome.REJECTED)

    def _serve_held(self) -> None:
        if not self.queue.requests or self._serving:
            return
        now_s = self.agenda.now_s

        def take(entry: Entry[Job]) -> Held | None:
            why = self._place(entry.item, Turn(entry.late, now_s >= entry.due_s))
            if why is None:
                self.counts.pending -= 1
            return why

        self._serving = True
        held = give_out(self.queue, take, now_s)
        self._serving = False
        self._looks += 1
        again_s = min((why.again_s for why in held.values()), default=inf)
        if isfinite(again_s):
            looks = self._looks
            self.agenda.at(now_s + max(LOOK_AGAIN_MIN_S, again_s), lambda: self._look_again(looks))

    def _look_again(self, looks: int) -> None:
        if looks == self._looks:  # nobody looked since
            self._serve_held()

    # ---- placing

    def _demand(self, job: Job, *, splittable: bool) -> Demand:
        return Demand(
            prompt_tokens=job.arrival.prompt_tokens,
            output_tokens=self.spec.expected_output_tokens,
            splittable=splittable,
            excluded=job.tried,
            objective=self.spec.objective,
        )

    def _place(self, job: Job, turn: Turn) -> Held | None:
        """Send a request where the policy says; or why it is not sent yet."""
        snapshot = self.routers.snapshot(job)
        if snapshot.empty:
            return room.NO_WORKER
        demand = self._demand(job, splittable=bool(snapshot.prefill))
        job.turn = turn
        placement = self.routers.routing(job).choose(job, demand, snapshot, self.agenda.now_s)
        if isinstance(placement, Placement):
            self._send(job, placement)
            return None
        return placement or room.NO_WORKER

    def _send(self, job: Job, placement: Placement) -> None:
        one, number = job.arrival, str(job.number)
        to_compute = one.prompt_tokens if placement.prompt_tokens is None else placement.prompt_tokens
        worker = self.members.by_uid[placement.worker.uid]
        job.worker, job.prefill_worker = worker.uid, ""
        if placement.prefill is None:
            job.answer = Request(number, one.prompt_tokens, one.output_tokens, job.blocks, self.agenda.now_s)
            worker.served_prompt_tokens += one.prompt_tokens
            self._lease(job, worker, number, to_compute, self.spec.expected_output_tokens)
            worker.engine.add(job.answer)
            return
        prefill = self.members.by_uid[placement.prefill.uid]
        job.prefill_worker = prefill.uid
        prefill.served_prompt_tokens += one.prompt_tokens
        self._lease(job, prefill, number + PREFILL_LEG, to_compute, 1)
        self._lease(job, worker, number, 0, self.spec.expected_output_tokens)
        job.prefill = Request(
            number + PREFILL_LEG, one.prompt_tokens, 1, job.blocks, self.agenda.now_s, hold_after_finish=True
        )
        prefill.engine.add(job.prefill)

    def _lease(self, job: Job, member: Member, request_id: str, prompt_tokens: int, output_tokens: int) -> None:
        self._leases += 1
        self._legs[request_id] = _Leg(job, member, self._leases, prompt_tokens, output_tokens)
        load = member.candidate.load
        if prompt_tokens:
            load.backlog.add(self._leases, prompt_tokens, self.agenda.now_s, visible=True)
        load.requests += 1
        load.prompt_tokens += prompt_tokens
        load.output_tokens += output_tokens
        self.pool_in_flight[member.pool.name] += 1
        self.routers.taken(job, self._leases, member.uid, prompt_tokens, output_tokens)

    def _release(self, request_id: str) -> None:
        leg = self._legs.pop(request_id, None)
        if leg is None:
            return
        load = leg.member.candidate.load
        load.requests -= 1
        load.prompt_tokens -= leg.prompt_tokens
        load.output_tokens -= leg.output_tokens
        if leg.prompt_tokens:
            load.backlog.drop(leg.number, self.agenda.now_s)
        self.pool_in_flight[leg.member.pool.name] -= 1
        self.routers.released(leg.job, leg.number)
        if not load.requests:
            self.members.idle(leg.member)
        self._serve_held()

    # ---- what engines tell

    def _first_token(self, request: Request, now_s: float) -> None:
        leg = self._legs.get(request.request_id)
        if leg is None:
            return
        load = leg.member.candidate.load
        load.prompt_tokens -= leg.prompt_tokens
        load.backlog.computed(leg.number, now_s)
        leg.prompt_tokens = 0
        self.routers.computed(leg.job, leg.number)
        if request is leg.job.answer:
            leg.job.first_token_s = now_s
            self.counts.ttft.observe(now_s - leg.job.at_s)
        self._serve_held()

    def _finished(self, request: Request, now_s: float) -> None:
        leg = self._legs.get(request.request_id)
        if leg is None:
            return
        job, member = leg.job, leg.member
        member.ended += 1
        if request.first_scheduled_s is not None:
            member.work_s += now_s - request.first_scheduled_s
        job.preemptions += request.preemptions
        self._release(request.request_id)
        if request is job.prefill:
            self._second_leg(job, request)
            return
        if not job.prefill_worker:
            job.cached_tokens = request.cached_tokens
        self._end(job, Outcome.FINISHED)

    def _second_leg(self, job: Job, prefilled: Request) -> None:
        one = job.arrival
        job.cached_tokens = prefilled.cached_tokens
        job.prefilled_s = self.agenda.now_s
        leg = self._legs.get(str(job.number))
        if leg is None:
            return
        job.answer = Request(
            str(job.number), one.prompt_tokens, one.output_tokens, job.blocks, self.agenda.now_s, remote_prefill=True
        )
        leg.member.engine.add(job.answer)

    def _fetch(self, request: Request, now_s: float) -> None:
        """A decode worker has room for a request: its KV starts to move."""
        leg = self._legs[request.request_id]
        source = self.members.by_uid[leg.job.prefill_worker]
        prefilled = leg.job.prefill
        assert prefilled is not None, "only a request with a prefill leg is fetched"
        if source.state is State.GONE:
            self.agenda.at(now_s, lambda: leg.member.engine.fetch_failed(request), Rank.STEP)
            return
        served = leg.member.pool.engine.served()
        tokens = request.prompt_tokens - request.computed_tokens
        self.agenda.at(now_s + served.transfer_seconds(tokens), lambda: self._fetched(leg, request, prefilled))

    def _fetched(self, leg: _Leg, request: Request, prefilled: Request) -> None:
        source = self.members.by_uid[leg.job.prefill_worker]
        if source.state is State.GONE:
            leg.member.engine.fetch_failed(request)
            return
        leg.member.engine.arrived(request)
        source.engine.release(prefilled)

    def _lost(self, member: Member, requests: list[str]) -> None:
        """A worker died with these requests in it. A pair's other leg ends with it."""
        self.routers.gone(member.uid)
        jobs = {leg.job.number: leg.job for leg in self._legs.values() if leg.member is member}
        for name in requests:
            if name in self._legs:
                jobs[self._legs[name].job.number] = self._legs[name].job
        for number in sorted(jobs):
            self._retry(jobs[number], member)

    def _retry(self, job: Job, member: Member) -> None:
        for request_id, request in ((f"{job.number}{PREFILL_LEG}", job.prefill), (str(job.number), job.answer)):
            leg = self._legs.get(request_id)
            if leg is not None and request is not None and not leg.member.engine.stopped:
                leg.member.engine.abort(request)
            self._release(request_id)
        if job.first_token_s is not None:
            self._end(job, Outcome.CUT_OFF)
            return
        job.tried |= {member.uid}
        job.prefill = job.answer = None
        if len(job.tried) >= self.spec.attempts_max:
            self._end(job, Outcome.FAILED)
            return
        self.counts.retries += 1
        if self._place(job, room.ANYHOW) is not None:
            self._hold(job)

    def _end(self, job: Job, outcome: Outcome) -> None:
        job.end(outcome, self.agenda.now_s, self.spec.objective)
        counts = self.counts
        counts.in_flight -= 1
        if job.verdict is not None:
            counts.verdicts[job.verdict] += 1
        tpot_s = job.tpot_s
        if tpot_s is not None:
            counts.tpot.observe(tpot_s)
        if outcome is Outcome.FINISHED:
            counts.prompt_tokens += job.arrival.prompt_tokens
            counts.cached_tokens += job.cached_tokens
            counts.output_tokens += job.arrival.output_tokens
        self.routers.routing(job).ended(job)

    def good(self) -> int:
        """Good requests so far."""
        return self.counts.verdicts[Verdict.GOOD]
