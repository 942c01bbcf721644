"""The status of the resources: written in parts, by the operator and by the autoscaler (decision 0006)."""

from typing import Literal

from pydantic import Field

from forebay_api.fields import Resource, list_map


class StatusCondition(Resource):
    """One observed property of the resource."""

    type: str = Field(min_length=1, max_length=316)
    """Which property."""
    status: Literal["True", "False", "Unknown"]
    """True, False, or Unknown where it could not be observed."""
    reason: str = Field(min_length=1, max_length=1024)
    """A word for programs."""
    message: str = Field(max_length=32768)
    """A sentence for people: what is wrong and what to do."""
    observed_generation: int | None = None
    """metadata.generation that this was computed from."""
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})
    """When the status last changed."""


class PoolStatus(Resource):
    """Where one pool stands. The operator counts, the autoscaler adds what it wants."""

    name: str
    """Name of the pool."""
    role: str | None = None
    """Its role."""
    replicas: int | None = None
    """Worker pods that exist."""
    ready: int | None = None
    """Workers that answer and are not draining."""
    draining: int | None = None
    """Workers that finish their requests and then leave."""
    desired: int | None = None
    """What the autoscaler last decided, or would set in Advise mode."""
    reason: str | None = Field(default=None, max_length=1024)
    """Why the autoscaler decided so."""


class ModelServiceStatus(Resource):
    """What is."""

    observed_generation: int | None = None
    """metadata.generation that the operator last acted on."""
    conditions: list[StatusCondition] = Field(default=[], json_schema_extra=list_map("type"))
    """Accepted, Fits, Ready, Routable, Progressing, MetricsFresh, ScalingActive, CacheIndexHealthy, WorkersHealthy."""
    pools: list[PoolStatus] = Field(default=[], json_schema_extra=list_map("name"))
    """The pools, one by one."""
    workers: str | None = None
    """Ready and wanted workers of all pools, such as 3/4."""
    attainment: str | None = None
    """Share of recent requests that met the objective, such as 99.3%; absent while unknown."""
    goodput_per_second: str | None = None
    """Good requests per second, recently; absent while unknown."""
