"""The WorkerPool resource: interchangeable workers of one role; what `kubectl scale` and an autoscaler resize."""

from typing import Annotated

from pydantic import Field

from forebay_api.engine import Engine, Model
from forebay_api.fields import Resource, Rule, list_map
from forebay_api.modelservice import Pool, Rollout
from forebay_api.scalars import ObjectName
from forebay_api.status import StatusCondition


class WorkerPoolSpec(Resource):
    """What is wanted. Everything but `replicas` is written by the ModelService that owns the pool."""

    replicas: int = Field(default=1, ge=0, le=1000)
    """Number of workers. Its one owner is the autoscaler in mode Auto, else whoever scales the pool."""
    model_service: Annotated[
        ObjectName,
        Field(max_length=40),
        Rule("self == oldSelf", "modelService cannot change: a worker pool belongs to one service for its life"),
    ]
    """Name of the ModelService that owns the pool."""
    model: Model
    """The model, as in the ModelService."""
    engine: Engine
    """The engine, as in the ModelService."""
    pool: Pool
    """The pool, as in the ModelService."""
    rollout: Rollout = Field(default={}, validate_default=True)
    """How workers are replaced and removed, as in the ModelService."""


class WorkerPoolStatus(Resource):
    """What is."""

    observed_generation: int | None = None
    """metadata.generation that the operator last acted on."""
    replicas: int = 0
    """Worker pods that exist, draining ones included."""
    ready: int = 0
    """Workers that answer and are not draining."""
    draining: int = 0
    """Workers that finish their requests and then leave."""
    selector: str | None = None
    """Label selector of the workers, for /scale."""
    revision: str | None = None
    """Hash of what makes KV caches of two workers interchangeable."""
    reason: str | None = Field(default=None, max_length=1024)
    """Root cause when not every worker is ready, in a few words."""
    conditions: list[StatusCondition] = Field(default=[], json_schema_extra=list_map("type"))
    """Ready, Progressing."""


class WorkerPool(Resource):
    """Interchangeable workers of one role on one accelerator, owned by a ModelService and resized through /scale."""

    spec: WorkerPoolSpec
    """What is wanted."""
    status: WorkerPoolStatus | None = None
    """What is."""
