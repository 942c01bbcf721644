"""How well a layout serves a workload: attainment, TTFT and TPOT at the target percentile, concurrency.

Each worker has one or more lanes, each lane runs one batch, and the router sends each request to the lane that will
serve it first. A request that meets n sequences in the pool

- meets the TPOT bound if the step time at n does (`lanes`), with n distributed as in processor sharing. Over its life
  a request sees an average of n, so this errs to the pessimistic side;
- meets the TTFT bound if its wait does: for a slot when all are taken, then for prefill (`queueing`), its own chunks,
  the prompts that share its last chunk's step, and for a split layout the KV transfer and the decode step that makes
  the first token. A mixed worker first ends the step it is in.

Attainment is the mean over n of the product. A layout whose queues would grow without end has attainment 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay_capacity.batch import decode_seconds, prefill_seconds
from forebay_capacity.lanes import DecodeLane, Lane, mixed_lane, step_with_prompts_s
from forebay_capacity.layouts import Layout, MixedLayout, PoolSize, SplitLayout
from forebay_capacity.memory import sequences_at
from forebay_capacity.queueing import Concurrency, PromptQueue, concurrency
from forebay_capacity.steptime import CALIBRATED, Calibration, StepTimer, timer_of
from forebay_capacity.transfer import TRANSFER_LATENCY_S, transfer_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_api.objective import Objective
    from forebay_capacity.accelerators import Accelerator
    from forebay_capacity.worker import Worker
    from forebay_capacity.workload import Workload

TIME_MAX_S = 1e5
"""Longest time that is told from infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Settings of the engines."""

    batched_tokens: int | None = None
    """Token budget of a step; None for the worker's own."""
    max_sequences: int | None = None
    """Largest batch of a lane, whatever memory allows; None for vLLM's default on the accelerator."""
    calibration: Calibration = CALIBRATED
    transfer_latency_s: float = TRANSFER_LATENCY_S
    """Fixed cost of a KV transfer."""

    def tokens_of_step(self, worker: Worker) -> int:
        """The budget of a step: no less than a token for each sequence."""
        if self.batched_tokens is not None:
            return self.batched_tokens
        return max(worker.step_tokens, self.sequences_of_lane(worker.accelerator))

    def sequences_of_lane(self, accelerator: Accelerator) -> int:
        """The limit of a lane."""
        return accelerator.sequences_default if self.max_sequences is None else self.max_sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """What clients see. Times are those that the target share of requests does not exceed; infinite when overloaded."""

    attainment: float
    """Share of requests that meet both bounds."""
    ttft_attainment: float
    tpot_attainment: float
    ttft_s: float
    tpot_s: float
    batch: float
    """Mean sequences in a lane."""
    batch_max: int
    """Most sequences a lane holds: memory or the engine's limit."""
    prefill_utilization: float
    """Share of its capacity that the pool which prefills needs for it."""


OVERLOADED = Performance(
    attainment=0.0,
    ttft_attainment=0.0,
    tpot_attainment=0.0,
    ttft_s=math.inf,
    tpot_s=math.inf,
    batch=math.inf,
    batch_max=0,
    prefill_utilization=1.0,
)


def evaluate(layout: Layout, workload: Workload, objective: Objective, serving: Serving | None = None) -> Performance:
    """How the layout serves the workload."""
    sides = _sides(layout, workload, serving or Serving())
    return OVERLOADED if sides is None else _performance(*sides, workload, objective)


def attainment(layout: Layout, workload: Workload, objective: Objective, serving: Serving | None = None) -> float:
    """`evaluate(...).attainment` alone, for searches: a good part cheaper."""
    sides = _sides(layout, workload, serving or Serving())
    return 0.0 if sides is None else _attainment(*sides, workload, objective)


def fewest_replicas(worker: Worker, workload: Workload, serving: Serving, *, prefill: bool, decode: bool) -> int | None:
    """Workers below which a queue grows without end, for a pool that does either or both; None when none suffice."""
    timer = timer_of(worker, serving.calibration)
    lanes = 1.0
    if prefill:
        lanes = max(
            lanes, workload.rate_per_s * _marginal_prefill_s(timer, workload, serving.tokens_of_step(worker), 0)
        )
    if decode:
        cap = lane_cap(worker, workload, serving)
        if cap < 1:
            return None
        step_s = decode_seconds(timer, cap, workload.decode_context_tokens)
        lanes = max(lanes, workload.rate_per_s * max(1, workload.output_tokens - 1) * step_s / cap)
    return math.ceil(lanes / worker.lanes)


def lane_cap(worker: Worker, workload: Workload, serving: Serving) -> int:
    """Most finished-length sequences a lane holds."""
    return min(
        serving.sequences_of_lane(worker.accelerator), sequences_at(worker, workload.final_tokens) // worker.lanes
    )


@dataclass(frozen=True, slots=True)
class _DecodeSide:
    """All lanes that decode, and how many sequences they hold."""

    lane: Lane
    lanes: int
    cap: int
    served: Concurrency
    slot_s: float
    """Time between two sequences that leave when all slots are taken."""

    def per_lane(self, sequences: int) -> float:
        """Sequences in the lane of a request that finds so many in the pool, itself included."""
        return min(float(self.cap), max(1.0, (sequences + 1) / self.lanes))

    def slot_wait_s(self, sequences: int) -> float:
        """Wait for a slot of a request that finds so many in the pool."""
        return max(0, sequences + 1 - self.lanes * self.cap) * self.slot_s


@dataclass(frozen=True, slots=True)
class _PrefillSide:
    """The way to the first token, once a slot is free."""

    queue: PromptQueue
    fixed_s: float
    """Without any wait."""
    shared_s: float
    """Delay when another prompt shares the step of the last chunk."""
    shared: float
    """Chance of that."""

    def exceeds(self, seconds: float) -> float:
        """Chance that the first token takes longer than this."""
        slack_s = seconds - self.fixed_s
        alone = self.queue.exceeds(slack_s)
        if self.shared_s <= 0:
            return alone
        return (1 - self.shared) * alone + self.shared * self.queue.exceeds(slack_s - self.shared_s)


def _decode_side(lane: Lane, lanes: int, cap: int, workload: Workload) -> _DecodeSide | None:
    """The decode side in equilibrium; None when overloaded or when nothing fits."""
    if cap < 1:
        return None
    steps = max(1, workload.output_tokens - 1)
    # Fewer sequences than lanes sit one in a lane, and the rest of the lanes idle.
    served = concurrency(lambda n: workload.rate_per_s * steps * lane.step_s(max(1.0, n / lanes)), lanes * cap)
    if served is None:
        return None
    return _DecodeSide(lane, lanes, cap, served, slot_s=steps * lane.step_s(cap) / (lanes * cap))


def _sides(layout: Layout, workload: Workload, serving: Serving) -> tuple[_DecodeSide, _PrefillSide] | None:
    """Both halves of the layout in equilibrium; None when either is overloaded or nothing fits."""
    if isinstance(layout, MixedLayout):
        sides = _mixed_sides(layout, workload, serving)
    else:
        sides = _split_sides(layout, workload, serving)
    return None if sides is None or sides[1].queue.utilization >= 1 else sides


def _split_sides(layout: SplitLayout, workload: Workload, serving: Serving) -> tuple[_DecodeSide, _PrefillSide] | None:
    worker = layout.decode.worker
    lane = DecodeLane(timer_of(worker, serving.calibration), workload.decode_context_tokens)
    decode = _decode_side(lane, layout.decode.lanes, lane_cap(worker, workload, serving), workload)
    if decode is None:
        return None
    first_step_s = lane.step_s(decode.served.mean / decode.lanes + 1)
    handover_s = _transfer_s(layout, workload, serving) + first_step_s
    return decode, _prefill_side(layout.prefill, workload, serving, sequences=0.0, extra_s=handover_s)


def _mixed_sides(layout: MixedLayout, workload: Workload, serving: Serving) -> tuple[_DecodeSide, _PrefillSide] | None:
    pool = layout.mixed
    cap = lane_cap(pool.worker, workload, serving)
    if cap < 1:
        return None
    lane = mixed_lane(
        timer_of(pool.worker, serving.calibration),
        workload,
        arrivals_per_s=workload.rate_per_s / pool.lanes,
        cap=cap,
        budget=serving.tokens_of_step(pool.worker),
    )
    decode = _decode_side(lane, pool.lanes, cap, workload)
    if decode is None:
        return None
    batch = min(cap, decode.served.mean / pool.lanes)
    # The step under way when the prompt arrives; an idle lane has none.
    current_s = lane.step_s(max(1.0, batch)) * min(1.0, batch)
    return decode, _prefill_side(pool, workload, serving, sequences=batch, extra_s=current_s)


def _prefill_side(
    pool: PoolSize, workload: Workload, serving: Serving, *, sequences: float, extra_s: float
) -> _PrefillSide:
    """The prefill of a pool whose lanes also decode so many sequences."""
    timer = timer_of(pool.worker, serving.calibration)
    step_tokens = serving.tokens_of_step(pool.worker)
    budget = max(1, int(step_tokens - sequences))
    alone_s = prefill_seconds(
        timer,
        workload.input_tokens,
        cached_tokens=workload.cached_tokens,
        chunk_tokens=step_tokens,
        decode_sequences=sequences,
        context_tokens=workload.decode_context_tokens,
    )
    marginal_s = min(alone_s, _marginal_prefill_s(timer, workload, budget, sequences))
    queue = PromptQueue(pool.lanes, workload.rate_per_s, alone_s, marginal_s)
    last = workload.uncached_tokens % budget
    if workload.uncached_tokens <= budget or last == 0:
        return _PrefillSide(queue, alone_s + extra_s, shared_s=0.0, shared=0.0)
    share = min(budget - last, workload.uncached_tokens) / workload.uncached_tokens
    earlier_s = alone_s * (1 - last / workload.uncached_tokens)
    # Prompts join a busy lane only while all lanes are busy.
    joining_per_s = workload.rate_per_s / pool.lanes * min(1.0, queue.busy / max(queue.utilization, 1e-9))
    return _PrefillSide(
        queue, alone_s + extra_s, shared_s=share * marginal_s, shared=-math.expm1(-joining_per_s * earlier_s)
    )


def _marginal_prefill_s(timer: StepTimer, workload: Workload, room: int, sequences: float) -> float:
    """Time that one more prompt adds where steps are full."""
    prompts = room / workload.uncached_tokens
    return step_with_prompts_s(timer, workload, sequences, prompts) / prompts


def _transfer_s(layout: SplitLayout, workload: Workload, serving: Serving) -> float:
    """KV transfer of one prompt; the worker with fewer NICs, and the slower ones, bound it."""
    worker = layout.prefill.worker
    return transfer_seconds(
        worker.shape,
        workload.input_tokens,
        bandwidth_bytes_per_s=min(pool.worker.accelerator.network_bytes_per_s for pool in layout.pools),
        tensor=min(pool.worker.parallelism.tensor for pool in layout.pools),
        kv=worker.kv,
        latency_s=serving.transfer_latency_s,
    )


def _performance(decode: _DecodeSide, prefill: _PrefillSide, workload: Workload, objective: Objective) -> Performance:
    return Performance(
        attainment=_attainment(decode, prefill, workload, objective),
        ttft_attainment=_ttft_chance(decode, prefill, objective.ttft_s),
        tpot_attainment=_tpot_chance(decode, workload, objective.tpot_s),
        ttft_s=_quantile(lambda seconds: _ttft_chance(decode, prefill, seconds), objective.target),
        tpot_s=_quantile(lambda seconds: _tpot_chance(decode, workload, seconds), objective.target)
        if workload.output_tokens > 1
        else 0.0,
        batch=decode.served.mean / decode.lanes,
        batch_max=decode.cap,
        prefill_utilization=prefill.queue.utilization,
    )


def _attainment(decode: _DecodeSide, prefill: _PrefillSide, workload: Workload, objective: Objective) -> float:
    return _mean(
        decode.served,
        lambda n: (
            _ttft_chance_at(decode, prefill, n, objective.ttft_s)
            * _tpot_chance_at(decode, workload, n, objective.tpot_s)
        ),
    )


def _ttft_chance(decode: _DecodeSide, prefill: _PrefillSide, seconds: float) -> float:
    return _mean(decode.served, lambda n: _ttft_chance_at(decode, prefill, n, seconds))


def _tpot_chance(decode: _DecodeSide, workload: Workload, seconds: float) -> float:
    return _mean(decode.served, lambda n: _tpot_chance_at(decode, workload, n, seconds))


def _ttft_chance_at(decode: _DecodeSide, prefill: _PrefillSide, sequences: int, seconds: float) -> float:
    return 1 - prefill.exceeds(seconds - decode.slot_wait_s(sequences))


def _tpot_chance_at(decode: _DecodeSide, workload: Workload, sequences: int, seconds: float) -> float:
    return decode.lane.meets(decode.per_lane(sequences), seconds) if workload.output_tokens > 1 else 1.0


def _mean(served: Concurrency, value: Callable[[int], float]) -> float:
    return math.fsum(share * value(n) for n, share in zip(served.states, served.shares, strict=True))


def _quantile(chance: Callable[[float], float], target: float) -> float:
    """The time within which this share stays, to 1 %; infinite beyond `TIME_MAX_S`."""
    goal = min(target, 1 - 1e-6)
    if chance(TIME_MAX_S) < goal:
        return math.inf
    low, high = 1e-5, TIME_MAX_S
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if chance(middle) < goal else (low, middle)
    return high
