"""A capacity plan as a document for programs: plain numbers in base units, null for what has no value."""

import math
from typing import Any

from forebay_capacity.layouts import Layout, MixedLayout
from forebay_capacity.options import Option
from forebay_capacity.planning import Demand, Plan, WorkerPlan
from forebay_capacity.worker import Worker


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as JSON-able data."""
    return {
        "model": _model(plan.demand),
        "workload": {
            "inputTokens": plan.demand.workload.input_tokens,
            "outputTokens": plan.demand.workload.output_tokens,
            "cachedShare": plan.demand.workload.cached_share,
            "ratePerSecond": plan.demand.workload.rate_per_s,
        },
        "objective": {
            "ttftSeconds": plan.demand.objective.ttft_s,
            "tpotSeconds": plan.demand.objective.tpot_s,
            "target": plan.demand.objective.target,
        },
        "calibration": plan.demand.serving.calibration.name,
        "workers": [_worker_plan(one) for one in plan.workers],
        "options": [_option(number, one) for number, one in enumerate(plan.options, start=1)],
        "refusals": [{"cause": one.cause.value, "message": one.message} for one in plan.refusals],
    }


def _model(demand: Demand) -> dict[str, Any]:
    shape = demand.shape
    weights = demand.weights or shape.native
    return {
        "name": shape.name,
        "parameters": shape.parameters,
        "activeParameters": shape.active_parameters,
        "weights": str(weights),
        "kvCache": str(demand.kv),
        "weightBytes": round(shape.weight_bytes(weights)),
        "kvBytesPerToken": round(shape.kv_bytes_per_token(demand.kv)),
    }


def _worker(worker: Worker) -> dict[str, Any]:
    parallelism = worker.parallelism
    return {
        "accelerator": worker.accelerator.name,
        "gpus": parallelism.gpus,
        "tensor": parallelism.tensor,
        "pipeline": parallelism.pipeline,
        "data": parallelism.data,
        "expert": parallelism.expert,
    }


def _worker_plan(one: WorkerPlan) -> dict[str, Any]:
    return {
        **_worker(one.worker),
        "fit": one.fit.verdict.value,
        "fitMessage": one.fit.message,
        "weightBytesPerGpu": round(one.weight_bytes_per_gpu),
        "kvTokens": one.kv_tokens,
        "sequencesByMemory": one.sequences_by_memory,
        "sequencesByTpot": one.sequences_by_tpot,
        "outputTokensPerSecond": _number(one.output_tokens_per_s),
        "usdPerMillionOutputTokens": _number(one.usd_per_million_output_tokens),
        "limit": one.limit.value,
        "decodeFloorSeconds": _number(one.decode_floor_s),
        "decodeStepSeconds": _number(one.decode_step_s),
        "prefillSeconds": _number(one.prefill_s),
    }


def _option(number: int, option: Option) -> dict[str, Any]:
    performance = option.performance
    return {
        "option": number,
        "pools": _pools(option.layout),
        "gpus": option.gpus,
        "usdPerHour": round(option.price_usd_per_hour, 4),
        "usdPerMillionOutputTokens": _number(option.usd_per_million_output_tokens),
        "attainment": _number(performance.attainment),
        "ttftSeconds": _number(performance.ttft_s),
        "tpotSeconds": _number(performance.tpot_s),
        "batchMean": _number(performance.batch),
        "batchMax": performance.batch_max,
        "prefillUtilization": _number(performance.prefill_utilization),
        "rateMaxPerSecond": _number(option.rate_max_per_s),
    }


def _pools(layout: Layout) -> list[dict[str, Any]]:
    roles = ["Mixed"] if isinstance(layout, MixedLayout) else ["Prefill", "Decode"]
    return [
        {"role": role, "replicas": pool.replicas, **_worker(pool.worker)}
        for role, pool in zip(roles, layout.pools, strict=True)
    ]


def _number(value: float) -> float | None:
    """Six significant digits; null for what is infinite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
