"""What a ModelService asks of the autoscaler, in numbers. Pure: spec in, `ServicePolicy` out."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_api.durations import parse_duration_s
from forebay_api.modelservice import AutoscalingMode, ModelServiceSpec, Pool, Role
from forebay_api.objective import Objective
from forebay_autoscaler.fitted import Fitted
from forebay_autoscaler.observation import ServiceKey
from forebay_autoscaler.schedules import Schedule, schedule_of
from forebay_capacity.accelerators import MAX_SEQUENCES_SMALL
from forebay_capacity.errors import CapacityError
from forebay_capacity.fits import engine_sequences, worker_of_pool
from forebay_capacity.worker import Worker


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings of the autoscaler that are the same for every model service. Times in seconds."""

    rate_window_s: float = 60.0
    """Window of rates and means."""
    burst_window_s: float = 35.0
    """Short window that sees a step early: two scrapes of 15 s and a little."""
    drain_horizon_s: float = 15.0
    """Time in which a backlog should be worked off."""
    headroom: float = 0.1
    """Least share of capacity above the mean load that is kept free."""
    samples_min: float = 10.0
    """Finished requests in a window below which nothing is learnt from them."""
    growth_max: int = 8
    """Workers a pool may gain in one decision; a larger pool may double."""
    startup_s: float = 120.0
    """Time that a worker is taken to need before one was seen to start."""


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """One pool's share of the policy."""

    name: str
    role: Role
    replicas_min: int
    replicas_max: int
    gpus: int
    """Accelerators of one worker."""
    concurrency_max: float
    """Requests one worker can run at once, by the engine's limits."""
    worker: Worker | Fitted | None = None
    """The worker as the capacity model sees it; None when model or accelerator are not known to it."""
    spare: int = 0
    """Workers beyond what demand needs."""
    schedules: tuple[Schedule, ...] = ()
    """Times with a larger least number."""
    price_per_hour: float | None = None
    """Of one worker; None when its accelerator has no price."""


@dataclass(frozen=True, slots=True)
class ServicePolicy:
    """What the spec of one model service asks for."""

    key: ServiceKey
    uid: str
    generation: int
    mode: AutoscalingMode
    objective: Objective
    budget_gpus: int | None
    scale_up_window_s: float
    scale_down_window_s: float
    pools: tuple[PoolPolicy, ...]
    tuning: Tuning = Tuning()
    scale_down_limit: int | None = None
    """Most workers of a pool that leave at the same time."""


def policy_of(
    model_service: Mapping[str, Any], tuning: Tuning, accelerators: Mapping[str, AcceleratorClassSpec]
) -> ServicePolicy:
    """The policy of a ModelService object; pydantic.ValidationError or ValueError when the spec cannot be read."""
    metadata = model_service["metadata"]
    spec = ModelServiceSpec.model_validate(model_service["spec"])
    scaling = spec.autoscaling
    return ServicePolicy(
        key=(str(metadata["namespace"]), str(metadata["name"])),
        uid=str(metadata.get("uid", "")),
        generation=int(metadata.get("generation", 0)),
        mode=scaling.mode,
        objective=spec.objective.to_objective(),
        budget_gpus=scaling.budget.gpus if scaling.budget else None,
        scale_up_window_s=parse_duration_s(scaling.scale_up_stabilization),
        scale_down_window_s=parse_duration_s(scaling.scale_down_stabilization),
        pools=tuple(_pool_policy(spec, pool, accelerators.get(pool.accelerator)) for pool in spec.pools),
        tuning=tuning,
        scale_down_limit=scaling.scale_down_limit,
    )


def _pool_policy(spec: ModelServiceSpec, pool: Pool, accelerator: AcceleratorClassSpec | None) -> PoolPolicy:
    worker, price_per_hour = None, None
    if accelerator is not None:
        if accelerator.price_per_hour is not None:
            price_per_hour = float(accelerator.price_per_hour) * pool.parallelism.accelerators
        with suppress(CapacityError):  # a model or hardware without a known shape is sized by measurement alone
            worker = worker_of_pool(spec, pool, accelerator)
    default = MAX_SEQUENCES_SMALL if worker is None else worker.accelerator.sequences_default
    return PoolPolicy(
        name=pool.name,
        role=pool.role,
        replicas_min=pool.replicas.min,
        replicas_max=pool.replicas.max,
        gpus=pool.parallelism.accelerators,
        concurrency_max=float((engine_sequences(spec.engine.args) or default) * pool.parallelism.data),
        spare=pool.replicas.spare,
        schedules=tuple(schedule_of(one) for one in pool.replicas.schedules),
        price_per_hour=price_per_hour,
        worker=worker,
    )
