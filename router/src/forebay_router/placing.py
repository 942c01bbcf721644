"""From a parsed request to a leased worker, or pair of workers.

`Placing` joins the pure choice with the table: it finds the service, chooses and takes the leases in one synchronous step (two
requests can never both see the same last free slot), and lets a request wait for which there is no worker, or no room on one
(`admission.room`). What the choice knows of workers' caches comes from the prefix index, which hears here of every prompt that
is sent and of what became of it; what becomes of each attempt is told to the guard (`health`).
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import TYPE_CHECKING, Final

from forebay_api.objective import Outcome
from forebay_router import errors
from forebay_router.accounting import Record
from forebay_router.admission import room
from forebay_router.admission.claim import Claim, Priority, claim_of, priority_of
from forebay_router.admission.room import Held, Turn
from forebay_router.choose import Choice, choose
from forebay_router.headers import SERVICE_HEADER
from forebay_router.health.guard import Guard
from forebay_router.index.prefix_index import NOWHERE, LookUp, PrefixIndex
from forebay_router.learning import Trip, learn
from forebay_router.parsing import ParsedRequest
from forebay_router.pending import Pending, Refusal, Wait
from forebay_router.place import Place
from forebay_router.predicting import Demand
from forebay_router.reading import Received
from forebay_router.rewriting import needs_one_worker
from forebay_router.table import Service, ServiceKey, Worker, WorkerTable
from forebay_router.tried import Tried

if TYPE_CHECKING:  # loaded where tokenizers are given only: it brings 20 MB
    from forebay_router.tokens.tokenizers import Tokenizers

_LOW: Final = Priority.LOW
_NOBODY: Final[frozenset[str]] = frozenset()
ATTENTION_S: Final = 0.1
"""A shorter predicted wait is nothing that a client's time limit or a queue could be about."""


@dataclass(slots=True)
class Leaning:
    """How a request takes its place."""

    visible: bool
    """Its first token will be seen."""
    filler: bool
    """It is of low priority."""


@dataclass(slots=True)
class Placing:
    """Finds services and places."""

    table: WorkerTable
    index: PrefixIndex
    rng: Random
    hold_limit: int
    hold_s: float
    """How long a request for an unknown model is held while the list of workers is incomplete."""
    hold_bytes: int
    """Most bytes of bodies that wait for one service, at one priority."""
    tokenizers: "Tokenizers | None" = None
    """Turn prompts into tokens, for models whose tokenizer is known."""
    guard: Guard = field(init=False)
    pending: Pending[Place] = field(init=False)
    _unknown: set["asyncio.Future[None]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Listen to the table."""
        self.guard = Guard(self.table)
        self.pending = Pending(self.table, Place.release, self.hold_limit, self.hold_bytes)
        self.table.on_change.append(self._on_change)
        self.table.on_complete.append(self._look_again)
        self.table.on_added.append(self._meet)
        self.table.on_gone.append(lambda worker: self.index.drop_worker(worker.spec.uid))
        self.table.on_dropped.append(lambda key: self.index.drop_service(str(key)))

    def _meet(self, worker: Worker) -> None:
        spec = worker.spec
        kv_tokens = worker.candidate.speed.pool.seed.kv_tokens
        self.index.add_worker(spec.uid, f"{spec.service}/{spec.pool}", kv_tokens)

    def _on_change(self, service: Service) -> None:
        self.pending.wake(service)
        self._look_again()

    def _look_again(self) -> None:
        for future in self._unknown:
            if not future.done():
                future.set_result(None)

    # -- services -----------------------------------------------------------------------------------------------------

    async def find_service(self, model: str | None, headers: Mapping[bytes, bytes]) -> Service:
        """The service that a request is for; raises RequestRefused. Waits while not all workers are known yet."""
        service = None
        try:
            async with asyncio.timeout(self.hold_s):
                while (service := self.known_service(model, headers)) is None and not self.table.complete:
                    await self._table_change()
        except TimeoutError as error:
            raise errors.no_worker(model or "", retry_after_s=max(1, round(self.hold_s / 2))) from error
        if service is not None:
            return service
        raise errors.no_service(model)

    async def _table_change(self) -> None:
        if len(self._unknown) >= self.hold_limit:
            raise errors.queue_full("", retry_after_s=1)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unknown.add(future)
        try:
            await future
        finally:
            self._unknown.discard(future)

    def known_service(self, model: str | None, headers: Mapping[bytes, bytes]) -> Service | None:
        """The service that a request is for, if it is known now."""
        table = self.table
        named = headers.get(SERVICE_HEADER)
        if named is not None:
            namespace, _, name = named.decode(errors="replace").partition("/")
            service = table.services.get(ServiceKey(namespace, name))
            return service if service is not None and (model is None or model in service.spec.models) else None
        if model is None:
            return next(iter(table.services.values())) if len(table.services) == 1 else None
        return table.by_model.get(model)

    # -- places -------------------------------------------------------------------------------------------------------

    def place_now(
        self, service: Service, parsed: ParsedRequest, received: Received, tried: Tried | None
    ) -> Place | None:
        """Leases, if a worker has room, nobody waits for one and the prompt's tokens are known; raises RequestRefused."""
        if self._wants_tokens(service, parsed):
            return None
        look_up = self._look_up(service, parsed)
        if look_up is not None and tried is None:
            self.index.arrived(look_up)
        if self.table.waiting and tried is None and self.pending.waiting(service):
            return None
        demand = self._demand(service, parsed, tried, look_up)
        now_s = time.monotonic()
        choice = choose(demand, service.snapshot, self.rng, now_s)
        if choice is None and tried is not None:
            choice = self._choose_tried(service, demand, tried, now_s)
        if choice is None:
            return None
        filler = priority_of(received, parsed.outline) is _LOW
        expected = choice.prediction
        worker = choice.worker
        crowded = room.is_full(worker)
        if tried is None and (filler or crowded or expected.wait_s > ATTENTION_S or not expected.comfortable):
            self._check_patience(service, claim_of(received, parsed), choice, now_s)
            settled = self._settle(service, choice, received, room.FIRST, filler=filler)
            if isinstance(settled, Held):
                return None
            choice = settled
        return self._take(choice, look_up, Leaning(visible=parsed.stream, filler=filler))

    async def place(self, service: Service, parsed: ParsedRequest, received: Received, tried: Tried | None) -> Place:
        """Leases for one attempt; raises RequestRefused when it cannot wait for them, or waited in vain."""
        if self.tokenizers is not None and self._wants_tokens(service, parsed):
            await self.tokenizers.tell(parsed, service.spec.models)
            place = self.place_now(service, parsed, received, tried)
            if place is not None:
                return place
        look_up = self._look_up(service, parsed)
        demand = self._demand(service, parsed, tried, look_up)
        claim = claim_of(received, parsed)
        leaning = Leaning(visible=parsed.stream, filler=claim.priority is Priority.LOW)
        key = service.spec.key
        undivided = _undivided(service, parsed)

        def find(turn: Turn) -> Place | Held:
            current = self.table.services.get(key)  # deleted and made again, it is another object with other workers
            if current is None:
                return room.NO_WORKER
            now_s = time.monotonic()
            wanted = demand
            if undivided:  # workers may have come since
                wanted = replace(demand, excluded=demand.excluded | current.one_sided())
            choice = choose(wanted, current.snapshot, self.rng, now_s)
            if tried is not None:
                choice = choice or self._choose_tried(current, wanted, tried, now_s)
                settled: Choice | Held = choice or room.NO_WORKER._replace(again_s=tried.again_s(now_s))
            elif choice is None:
                return room.NOT_HERE if undivided and not current.snapshot.mixed else room.NO_WORKER
            else:
                settled = self._settle(current, choice, received, turn, filler=leaning.filler)
            return settled if isinstance(settled, Held) else self._take(settled, look_up, leaning)

        limits = service.spec.timeouts
        patience_s = limits.first_byte_s if parsed.stream else limits.total_s
        any_worker = next(iter(service.snapshot.by_uid.values()), None)
        wait = Wait(
            find=find,
            claim=claim,
            cost=room.cost_s(demand, any_worker),
            size_bytes=len(parsed.body),
            until_s=received.received_s + patience_s,
            due_s=received.received_s + room.PACED_SHARE * min(limits.first_byte_s, patience_s),
            failed_s=None if tried is None else tried.since_s,
        )
        return await self.pending.wait(service, wait)

    def _check_patience(self, service: Service, claim: Claim, choice: Choice, now_s: float) -> None:
        """Refuse a request whose client gives up before the prompts that are queued ahead of it are computed."""
        if claim.until_s < inf and now_s + room.least_work_s(choice) >= claim.until_s:
            raise self.pending.refuse(service, claim, Refusal.DEADLINE)

    def _settle(
        self, service: Service, choice: Choice, received: Received, turn: Turn, *, filler: bool
    ) -> Choice | Held:
        """Where it goes, or why it has to wait although there is a worker for it."""
        if filler:
            worker = self.table.workers[choice.worker.uid]
            if worker.load.requests > worker.fillers and room.disturbs(choice, service.spec.objective):
                return room.FILLER
        return room.settle(choice, service.snapshot, self.rng, received.received_s, turn)

    def _wants_tokens(self, service: Service, parsed: ParsedRequest) -> bool:
        return self.tokenizers is not None and self.tokenizers.wants(parsed, service.spec.models)

    def possible(self, service: Service, parsed: ParsedRequest, tried: Tried) -> bool:
        """Some worker could take another attempt now."""
        demand, now_s = self._demand(service, parsed, tried, None), time.monotonic()
        found = choose(demand, service.snapshot, self.rng, now_s)
        return (found or self._choose_tried(service, demand, tried, now_s)) is not None

    def _choose_tried(self, service: Service, demand: Demand, tried: Tried, now_s: float) -> Choice | None:
        """One of those that failed on a request, when no other can take it; none when it has been held for as long as it may.

        Connections that are not accepted take their time: while one is waited for, another worker's rest ends. So a request
        may go from one to the next without ever standing in the queue.
        """
        if tried.held_out(now_s):
            return None
        workers = self.table.workers
        back_s = {uid: workers[uid].back_s for uid in tried.failed if uid in workers}
        excluded = tried.excluded(back_s, now_s) | (demand.excluded - tried.workers)
        return choose(replace(demand, excluded=excluded), service.snapshot, self.rng, now_s)

    def consider(self, service: Service, parsed: ParsedRequest) -> tuple[Demand, LookUp | None, Choice | None]:
        """What would be chosen now. Nothing is leased, and nothing is remembered of the prompt."""
        look_up = self._look_up(service, parsed)
        demand = self._demand(service, parsed, None, look_up)
        return demand, look_up, choose(demand, service.snapshot, self.rng, time.monotonic())

    def held_because(self, service: Service, choice: Choice) -> str | None:
        """Why a request that came now would wait although this was chosen for it; None when it would go at once."""
        if self.pending.waiting(service):
            return "others wait"
        settled = room.settle(choice, service.snapshot, self.rng, choice.now_s, room.FIRST)
        return settled.cause.value if isinstance(settled, Held) else None

    def _look_up(self, service: Service, parsed: ParsedRequest) -> LookUp | None:
        if parsed.content is None:
            return None
        lora = None
        if parsed.content.token_ids is not None and self.index.precise.ranks:
            lora = service.adapter_of(parsed.model)
        return self.index.look_up(str(service.spec.key), parsed.content, lora=lora, session=parsed.session)

    def _demand(self, service: Service, parsed: ParsedRequest, tried: Tried | None, look_up: LookUp | None) -> Demand:
        splittable = parsed.endpoint.splittable and parsed.outline is not None
        excluded = _NOBODY if tried is None else tried.workers
        if _undivided(service, parsed):
            if not service.mixes:
                raise errors.not_split()
            splittable = False
            excluded |= service.one_sided()
        return Demand(
            prompt_tokens=parsed.prompt_tokens if look_up is None else look_up.prompt_tokens,
            output_tokens=parsed.output_tokens,
            splittable=splittable,
            excluded=excluded,
            cached=NOWHERE if look_up is None else look_up.cached,
            common_tokens=0 if look_up is None else look_up.common_tokens,
            objective=service.spec.objective,
            displacement=None if look_up is None else look_up.displacement,
            adapter=None if parsed.model in {None, service.spec.models[0]} else service.adapter_of(parsed.model),
            start=0 if look_up is None else look_up.start,
        )

    def _take(self, choice: Choice, look_up: LookUp | None, leaning: Leaning) -> Place:
        """Lease what was chosen."""
        now_s, output_tokens = time.monotonic(), choice.demand.output_tokens
        work = max(1, round(choice.prediction.work_tokens))
        workers = self.table.workers
        worker = workers[choice.worker.uid]
        prefiller = worker if choice.prefill is None else workers[choice.prefill.uid]
        dispatch = None if look_up is None else self.index.sent(prefiller.spec.uid, look_up)
        trip = Trip.begin(choice, look_up, dispatch, now_s)
        take = self.table.take
        if choice.prefill is None:
            lease = take(worker, prompt_tokens=work, output_tokens=output_tokens, visible=leaning.visible)
            place = Place(lease, None, choice, trip, self.guard)
        else:
            if look_up is not None:
                self.index.passed_on(worker.spec.uid, look_up.content)
            prefill = take(prefiller, prompt_tokens=work, output_tokens=1)
            lease = take(worker, prompt_tokens=0, output_tokens=output_tokens)
            place = Place(lease, prefill, choice, trip, self.guard)
        if leaning.filler:
            place.filler = True
            worker.fillers += 1
        if not (worker.health.sound and prefiller.health.sound):
            tried_out = [one for one in {worker, prefiller} if not one.health.sound]
            self.guard.try_out(*tried_out)
            place.trials = tuple((one, one.health.trial) for one in tried_out)
        return place

    # -- what becomes of them -----------------------------------------------------------------------------------------

    def learn(self, place: Place | None, record: Record) -> None:
        """The request has ended, its last attempt on this place; None when there was none."""
        if place is None:
            return
        load = place.lease.worker.load
        in_flight = load.requests + 1
        learn(place.trip, record, self.index, in_flight=in_flight, computed_tokens=load.backlog.computed_tokens)
        if not place.failed:
            self._judge(place, record)

    def _judge(self, place: Place, record: Record) -> None:
        """Tell the guard what the end says of the workers."""
        worker = place.lease.worker
        if record.outcome is Outcome.FINISHED:
            worker.health.succeeded()
            if place.prefill is not None:
                place.prefill.worker.health.succeeded()
        elif record.reason is not None and not 400 <= record.status < 500:
            self.guard.failed(worker, record.reason, "the answer was not whole", place.trip.sent_s)


def _undivided(service: Service, parsed: ParsedRequest) -> bool:
    """A request of a kind that is split here, though this one cannot be."""
    fields = parsed.outline
    return service.splits and parsed.endpoint.splittable and fields is not None and needs_one_worker(fields)
