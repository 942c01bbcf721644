"""A capacity plan: what one worker can do in six numbers, the layouts that meet an objective, or why none does.

The six numbers follow the usual pipeline: weights, then the KV cache that is left, then how many sequences memory holds
and how many the TPOT bound allows, then tokens per second at the smaller of both, and what a million of them costs. The
smallest of the limits *binds*, and knowing which one tells what to buy: memory, speed, or neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from forebay_capacity.batch import decode_seconds, largest_batch, prefill_seconds
from forebay_capacity.errors import ImpossibleError
from forebay_capacity.fits import Fit, Verdict, check_worker
from forebay_capacity.memory import kv_tokens_of, sequences_at
from forebay_capacity.options import Option, find_options, tensor_sizes
from forebay_capacity.performance import Serving
from forebay_capacity.refusals import Refusal, refusals
from forebay_capacity.steptime import ROOFLINE, timer_of
from forebay_capacity.worker import UTILIZATION, Parallelism, Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forebay_api.objective import Objective
    from forebay_capacity.accelerators import Accelerator
    from forebay_capacity.architecture import ModelShape
    from forebay_capacity.dtypes import Dtype
    from forebay_capacity.workload import Workload

PIPELINE_SIZES = (2, 4)
"""Pipeline stages that are tried when no worker of one node holds the model."""


class Limit(StrEnum):
    """What bounds the batch of a worker."""

    WEIGHTS = "weights"
    """They do not fit."""
    MEMORY = "memory"
    """KV cache."""
    TPOT = "tpot"
    """The objective's time per output token."""
    ENGINE = "engine"
    """--max-num-seqs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a plan is for. Empty `tensor` means every size that a node has room for."""

    shape: ModelShape
    accelerators: tuple[Accelerator, ...]
    workload: Workload
    objective: Objective
    serving: Serving = field(default_factory=Serving)
    tensor: tuple[int, ...] = ()
    pipeline: int | None = None
    """Pipeline stages; None means one, or more where one node is too small."""
    data: int = 1
    expert: bool = False
    weights: Dtype | str | None = None
    kv: Dtype | str = "bf16"
    utilization: float = UTILIZATION
    gpus_max: int | None = None
    """Most GPUs of a layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """What one worker can do: the six numbers, the limit that binds, and the times behind them."""

    worker: Worker
    fit: Fit
    weight_bytes_per_gpu: float
    """1: weights on the fullest GPU."""
    kv_tokens: int
    """2: tokens of KV cache."""
    sequences_by_memory: int
    """3: finished-length sequences that the cache holds."""
    sequences_by_tpot: int
    """4: sequences that decode within the TPOT bound."""
    output_tokens_per_s: float
    """5: answer tokens per second at the smallest limit, with prefill elsewhere."""
    usd_per_million_output_tokens: float
    """6: what a million of these cost; infinite when there are none."""
    limit: Limit
    decode_floor_s: float
    """Step of one short sequence at the hardware's peak."""
    decode_step_s: float
    """Step of one sequence of the workload."""
    prefill_s: float
    """Prefill of one prompt of the workload on an idle worker."""

    @property
    def sequences(self) -> int:
        """Sequences at the smallest limit."""
        return min(self.sequences_by_memory, self.sequences_by_tpot)


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer to a demand: options, or refusals when there are none."""

    demand: Demand
    workers: tuple[WorkerPlan, ...]
    options: tuple[Option, ...]
    refusals: tuple[Refusal, ...]


def make_plan(demand: Demand) -> Plan:
    """Size layouts for the demand; `CapacityError` when the demand itself makes no sense."""
    if not demand.accelerators:
        raise ImpossibleError("accelerator", "none given", "name at least one, such as h100-sxm")
    if demand.gpus_max is not None and demand.gpus_max < 1:
        raise ImpossibleError("gpus", f"{demand.gpus_max!r} GPUs serve nothing", "use 1 or more")
    workload = demand.workload
    if workload.final_tokens > demand.shape.max_context_tokens:
        raise ImpossibleError(
            "input_tokens",
            f"{workload.input_tokens:,} in and {workload.output_tokens:,} out exceed the context of "
            f"{demand.shape.max_context_tokens:,} tokens that {demand.shape.name} is made for",
            "shorten the requests or take another model",
        )
    candidates = candidate_workers(demand)
    fitting = [worker for worker in candidates if holds(worker, workload)]
    found = find_options(fitting, workload, demand.objective, serving=demand.serving)
    options = [one for one in found if demand.gpus_max is None or one.gpus <= demand.gpus_max]
    reasons = (
        ()
        if options
        else refusals(
            candidates,
            workload,
            demand.objective,
            serving=demand.serving,
            beyond_budget=found,
            gpus_max=demand.gpus_max,
        )
    )
    return Plan(
        demand=demand,
        workers=tuple(worker_plan(worker, workload, demand.objective, demand.serving) for worker in candidates),
        options=tuple(options),
        refusals=tuple(reasons),
    )


def candidate_workers(demand: Demand) -> list[Worker]:
    """The workers that a plan considers, those too small for the model included."""
    workers: list[Worker] = []
    for accelerator in demand.accelerators:
        sizes: Sequence[int] = demand.tensor or tensor_sizes(demand.shape.heads, accelerator.gpus_per_node)
        stages = 1 if demand.pipeline is None else demand.pipeline
        mine = [_worker(demand, accelerator, tensor, stages) for tensor in sizes]
        if demand.pipeline is None and not any(holds(worker, demand.workload) for worker in mine):
            mine += _pipelined(demand, accelerator, max(sizes))
        workers += mine
    return workers


def holds(worker: Worker, workload: Workload) -> bool:
    """Whether a worker holds its weights and one request of the workload."""
    return check_worker(worker, workload.final_tokens).verdict is Verdict.FITS


def worker_plan(worker: Worker, workload: Workload, objective: Objective, serving: Serving) -> WorkerPlan:
    """The six numbers of one worker."""
    timer = timer_of(worker, serving.calibration)
    context = workload.decode_context_tokens
    by_memory = sequences_at(worker, workload.final_tokens)
    by_tpot = worker.lanes * largest_batch(timer, context, objective.tpot_s)
    engine = worker.lanes * serving.sequences_of_lane(worker.accelerator)
    sequences = min(by_memory, by_tpot, engine)
    step_s = decode_seconds(timer, max(1.0, sequences / worker.lanes), context)
    tokens_per_s = sequences / step_s
    price_per_s = worker.parallelism.gpus * worker.accelerator.price_usd_per_hour / 3600
    return WorkerPlan(
        worker=worker,
        fit=check_worker(worker, workload.final_tokens),
        weight_bytes_per_gpu=worker.weight_bytes_per_gpu,
        kv_tokens=kv_tokens_of(worker),
        sequences_by_memory=by_memory,
        sequences_by_tpot=by_tpot,
        output_tokens_per_s=tokens_per_s,
        usd_per_million_output_tokens=price_per_s / tokens_per_s * 1e6 if tokens_per_s else math.inf,
        limit=_limit(worker, by_memory, by_tpot, engine),
        decode_floor_s=decode_seconds(timer_of(worker, ROOFLINE), 1, 0),
        decode_step_s=decode_seconds(timer, 1, context),
        prefill_s=prefill_seconds(
            timer,
            workload.input_tokens,
            cached_tokens=workload.cached_tokens,
            chunk_tokens=serving.tokens_of_step(worker),
        ),
    )


def _limit(worker: Worker, by_memory: int, by_tpot: int, engine: int) -> Limit:
    if worker.kv_room_bytes <= 0:
        return Limit.WEIGHTS
    smallest = min(by_memory, by_tpot, engine)
    if smallest == by_memory:
        return Limit.MEMORY
    return Limit.TPOT if smallest == by_tpot else Limit.ENGINE


def _worker(demand: Demand, accelerator: Accelerator, tensor: int, pipeline: int) -> Worker:
    return Worker(
        demand.shape,
        accelerator,
        Parallelism(tensor=tensor, pipeline=pipeline, data=demand.data, expert=demand.expert),
        demand.weights,
        demand.kv,
        demand.utilization,
    )


def _pipelined(demand: Demand, accelerator: Accelerator, tensor: int) -> Iterable[Worker]:
    """The smallest number of pipeline stages over nodes that holds the model, if any."""
    for stages in PIPELINE_SIZES:
        worker = replace(
            _worker(demand, accelerator, tensor, 1),
            parallelism=Parallelism(tensor=tensor, pipeline=stages, data=demand.data, expert=demand.expert),
        )
        if holds(worker, demand.workload):
            return [worker]
    return []
