"""From a parsed request to a leased worker, or pair of workers.

`Placing` joins the pure choice with the table: it finds the service, chooses and takes the leases in one synchronous step (two
requests can never both see the same last free slot), and holds a request for which there is no worker yet.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Self

from forebay_router import errors
from forebay_router.choose import Candidate, Choice, Demand, choose
from forebay_router.headers import SERVICE_HEADER
from forebay_router.metrics import PoolStats
from forebay_router.parsing import ParsedRequest
from forebay_router.pending import Pending
from forebay_router.rewriting import needs_one_worker
from forebay_router.table import Lease, Service, ServiceKey, Worker, WorkerTable

FIRST_REST_S = 0.25
"""How long a worker that refused a connection is left alone; doubles with each further refusal."""
LONGEST_REST_S = 8.0


@dataclass(slots=True)
class Place:
    """The leases of one attempt. A context manager: every lease is released once, on any exit."""

    lease: Lease
    """On the worker that answers the client."""
    prefill: Lease | None
    """On the worker that computes the prompt, when that is another one."""
    choice: Choice

    @property
    def pools(self) -> tuple[PoolStats, ...]:
        """Pools that take part."""
        if self.prefill is None:
            return (self.lease.worker.pool_stats,)
        return (self.prefill.worker.pool_stats, self.lease.worker.pool_stats)

    def prefilled(self) -> None:
        """The prefill leg has ended."""
        if self.prefill is not None and self.prefill.held:
            self.prefill.release()

    def release(self) -> None:
        """Give everything back."""
        self.prefilled()
        self.lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@dataclass(slots=True)
class Placing:
    """Finds services and places."""

    table: WorkerTable
    rng: Random
    hold_limit: int
    hold_s: float
    """How long a request for an unknown model is held while the list of workers is incomplete."""
    pending: Pending[Place] = field(init=False)
    _unknown: set["asyncio.Future[None]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Listen to the table."""
        self.pending = Pending(limit=self.hold_limit, release=Place.release)
        self.table.on_change.append(self._on_change)
        self.table.on_complete.append(self._look_again)

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
        service = self._service(model, headers)
        if service is not None:
            return service
        try:
            async with asyncio.timeout(self.hold_s):
                while service is None and not self.table.complete:
                    await self._table_change()
                    service = self._service(model, headers)
        except TimeoutError as error:
            raise errors.no_worker(model or "", retry_after_s=max(1, round(self.hold_s / 2))) from error
        if service is not None:
            return service
        if model is None:
            raise errors.bad_body("The field `model` is required; GET /v1/models lists the models.", "model")
        raise errors.unknown_model(model)

    async def _table_change(self) -> None:
        if len(self._unknown) >= self.hold_limit:
            raise errors.queue_full("", retry_after_s=1)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unknown.add(future)
        try:
            await future
        finally:
            self._unknown.discard(future)

    def _service(self, model: str | None, headers: Mapping[bytes, bytes]) -> Service | None:
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

    async def place(self, service: Service, parsed: ParsedRequest, tried: frozenset[str]) -> Place:
        """Leases for one attempt; raises RequestRefused when there is no worker within the hold time."""
        demand = self._demand(service, parsed, tried)
        if not self.pending.waiting(service.spec.key):
            place = self._take(service, demand)
            if place is not None:
                return place
        return await self.pending.wait(
            service,
            lambda: self._take(service, demand),
            timeout_s=service.spec.timeouts.hold_s,
            picky=bool(tried),
        )

    def possible(self, service: Service, parsed: ParsedRequest, tried: frozenset[str]) -> bool:
        """Some worker could take another attempt now."""
        demand = self._demand(service, parsed, tried)
        return choose(demand, service.snapshot, self.rng, time.monotonic()) is not None

    def _demand(self, service: Service, parsed: ParsedRequest, tried: frozenset[str]) -> Demand:
        splittable = parsed.endpoint.splittable and parsed.fields is not None
        if splittable and service.snapshot.prefill and parsed.fields and needs_one_worker(parsed.fields):
            if not service.snapshot.mixed:
                raise errors.bad_body(
                    "prompt_logprobs and echo are not supported for this model, whose prefill and decode run on "
                    "different workers; leave them out."
                )
            splittable = False
        return Demand(parsed.prompt_tokens, parsed.output_tokens, splittable, tried)

    def _take(self, service: Service, demand: Demand) -> Place | None:
        """Choose and lease in one step."""
        choice = choose(demand, service.snapshot, self.rng, time.monotonic())
        if choice is None:
            return None
        if choice.prefill is None:
            lease = self._lease(choice.worker, prompt_tokens=demand.prompt_tokens, output_tokens=demand.output_tokens)
            return Place(lease, None, choice)
        prefill = self._lease(choice.prefill, prompt_tokens=demand.prompt_tokens, output_tokens=1)
        return Place(self._lease(choice.worker, prompt_tokens=0, output_tokens=demand.output_tokens), prefill, choice)

    def _lease(self, candidate: Candidate, *, prompt_tokens: int, output_tokens: int) -> Lease:
        worker = self.table.workers[candidate.uid]
        return self.table.take(worker, prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    def unreachable(self, worker: Worker) -> None:
        """A worker refused a connection: leave it alone for a while, longer each time."""
        now_s = time.monotonic()
        rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2**worker.strikes)
        worker.strikes = min(worker.strikes + 1, 16)
        self.table.rest(worker, now_s + rest_s, now_s)
