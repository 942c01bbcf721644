"""The router's own choice in the fleet: its `choose`, its prefix index and what it learns, all of them the real ones.

Only the prompt's content is made up. A trace names blocks of tokens by ids that stand for all that comes before, so the hash of a
block of content is made of the id of the trace's block in which it ends; what is beyond the ids is the request's own. A token
counts four bytes, which is what the router assumes of text before it has learnt better.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from random import Random

from forebay_router.accounting import Record
from forebay_router.admission import room
from forebay_router.admission.room import Held
from forebay_router.choose import Snapshot, choose
from forebay_router.index.approximate import ApproximateIndex
from forebay_router.index.content import ENDS, Content
from forebay_router.index.prefix_index import LookUp, PrefixIndex
from forebay_router.learning import Trip, learn
from forebay_router.predicting import Demand, Load
from forebay_router.usage import Usage
from forebay_simulator.fleet.jobs import Job
from forebay_simulator.fleet.routing import Placement
from forebay_simulator.fleet.spec import FleetSpec

TOKEN_BYTES = 4
INDEX_BLOCKS = 4_000_000
"""As the router's own default."""
_SERVICE = "fleet"
_SPREAD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def content_of_job(job: Job) -> Content:
    """The prompt as the prefix index sees it: equal starts of ids give equal starts of hashes."""
    size = job.arrival.prompt_tokens * TOKEN_BYTES
    block = job.blocks.trace_block * TOKEN_BYTES
    ids = job.arrival.block_ids if block else ()
    own = (job.number + 1) * _SPREAD
    hashes = []
    for end in ENDS[: bisect_right(ENDS, size)]:
        at = (end - 1) // block if block else 0
        name = ids[at] * _SPREAD if at < len(ids) else own
        hashes.append(hash((name, end)) & _MASK)
    return Content(array("Q", hashes), size)


class Forebay:
    """One router: what it knows, and what it does with a request."""

    def __init__(self, chance: Random, fleet: FleetSpec) -> None:
        self._chance = chance
        self._objective = fleet.objective
        self._kv_tokens = {pool.name: pool.engine.seed().kv_tokens for pool in fleet.pools if fleet.seeds_known}
        self._index = PrefixIndex(ApproximateIndex(INDEX_BLOCKS))
        self._known: set[str] = set()
        self._look_ups: dict[int, LookUp] = {}
        self._trips: dict[int, Trip] = {}
        self._snapshot: Snapshot | None = None

    def choose(self, job: Job, demand: Demand, snapshot: Snapshot, now_s: float) -> Placement | Held | None:
        """As the router does, with the same knowledge."""
        self._meet(snapshot)
        look_up = self._look_up(job)
        demand = replace(
            demand,
            prompt_tokens=look_up.prompt_tokens,
            cached=look_up.cached,
            common_tokens=look_up.common_tokens,
            objective=self._objective,
            displacement=look_up.displacement,
            start=look_up.start,
        )
        choice = choose(demand, snapshot, self._chance, now_s)
        if choice is None:
            return None
        if not job.tried:
            settled = room.settle(choice, snapshot, self._chance, job.at_s, job.turn)
            if isinstance(settled, Held):
                return settled
            choice = settled
        computes = choice.prefill or choice.worker
        dispatch = self._index.sent(computes.uid, look_up)
        self._trips[job.number] = Trip.begin(choice, look_up, dispatch, now_s)
        if choice.prefill is not None:
            self._index.passed_on(choice.worker.uid, look_up.content)
        return Placement(choice.worker, choice.prefill, max(1, round(choice.prediction.work_tokens)))

    def _meet(self, snapshot: Snapshot) -> None:
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            for uid in self._known - snapshot.by_uid.keys():
                self.gone(uid)
            for uid in snapshot.by_uid.keys() - self._known:
                self._known.add(uid)
                pool = snapshot.by_uid[uid].pool
                self._index.add_worker(uid, pool, self._kv_tokens.get(pool))

    def _look_up(self, job: Job) -> LookUp:
        earlier = self._look_ups.get(job.number)
        content = content_of_job(job) if earlier is None else earlier.content
        look_up = self._look_ups[job.number] = self._index.look_up(_SERVICE, content)
        if earlier is None:
            self._index.arrived(look_up)
        return look_up

    def ended(self, job: Job) -> None:
        """Learn from it, as from an answer that tells its usage."""
        self._look_ups.pop(job.number, None)
        trip = self._trips.pop(job.number, None)
        if trip is None or self._snapshot is None:
            return
        trip.prefilled_s = job.prefilled_s
        record = Record(job.at_s)
        record.outcome = job.outcome
        record.streamed = True
        record.first_content_s, record.last_content_s = job.first_token_s, job.ended_s
        if job.first_token_s is not None:
            record.usage = Usage(job.arrival.prompt_tokens, job.arrival.output_tokens, job.cached_tokens)
        worker = self._snapshot.by_uid.get(job.worker)
        load = Load() if worker is None else worker.load
        learn(trip, record, self._index, in_flight=load.requests + 1, computed_tokens=load.backlog.computed_tokens)

    def share(self, on_sent: Callable[[str, Content], None]) -> None:
        """Tell of every prompt that goes to a worker."""
        self._index.on_sent.append(on_sent)

    def heard(self, uid: str, content: Content) -> None:
        """Another router sent a prompt to a worker."""
        self._index.approximate.record(uid, content)

    def gone(self, uid: str) -> None:
        """Forget a worker."""
        self._known.discard(uid)
        self._index.drop_worker(uid)
