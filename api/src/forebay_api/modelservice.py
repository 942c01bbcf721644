"""The ModelService resource: one model offered to clients under one name."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from forebay_api.durations import DURATION_PATTERN, parse_duration_s
from forebay_api.engine import Engine, Model
from forebay_api.fields import Resource, Rule, list_map, matches
from forebay_api.objective import Objective
from forebay_api.scalars import Duration, Labels, ObjectName, PoolName, PositiveDuration, Quantity, Share
from forebay_api.schedules import Schedule
from forebay_api.status import ModelServiceStatus


class Role(StrEnum):
    """What a worker does of a request."""

    PREFILL = "Prefill"
    DECODE = "Decode"
    MIXED = "Mixed"


class AutoscalingMode(StrEnum):
    """Who sets the number of workers."""

    OFF = "Off"
    ADVISE = "Advise"
    AUTO = "Auto"


class ObjectiveSpec(Resource):
    """What a request is promised. A request that misses either bound, or fails, is bad; goodput counts the good ones."""

    ttft: PositiveDuration = Field(default="500ms")
    """Largest time to first token."""
    tpot: PositiveDuration = Field(default="25ms")
    """Largest mean time per output token."""
    target: Share = "0.99"
    """Share of requests that must meet both, such as "0.99"."""

    def to_objective(self) -> Objective:
        """The objective in numbers."""
        return Objective(
            ttft_s=parse_duration_s(self.ttft), tpot_s=parse_duration_s(self.tpot), target=float(self.target)
        )


class Replicas(Resource):
    """Bounds of a pool's number of workers."""

    RULES = (
        Rule(
            "self.min <= self.max",
            "replicas.min must not be above replicas.max: lower min or raise max",
            holds=lambda self: self.min <= self.max,
            field_path=".min",
        ),
        Rule(
            "self.spare <= self.max",
            "replicas.spare must not be above replicas.max: lower spare or raise max",
            holds=lambda self: self.spare <= self.max,
            field_path=".spare",
        ),
        Rule(
            "self.schedules.all(s, s.min <= self.max)",
            "replicas.schedules must not have a min above replicas.max: lower it or raise max",
            holds=lambda self: all(one.min <= self.max for one in self.schedules),
            field_path=".schedules",
        ),
    )
    min: int = Field(default=1, ge=0, le=1000)
    """Fewest workers in mode Auto; 0 lets the pool sleep while nobody asks. In every mode the number a new pool starts with."""
    max: int = Field(default=1, ge=1, le=1000)
    """Most workers in mode Auto."""
    spare: int = Field(default=0, ge=0, le=1000)
    """Warm spares: workers beyond what demand needs, in mode Auto. A pool with spares never sleeps."""
    schedules: list[Schedule] = Field(default=[], max_length=16, json_schema_extra=list_map("name"))
    """Times at which the pool has a larger least number of workers, in mode Auto."""


class Parallelism(Resource):
    """How one worker spreads the model over accelerators."""

    tensor: Literal[1, 2, 4, 8, 16] = 1
    """Tensor parallelism: accelerators that share each layer."""
    pipeline: int = Field(default=1, ge=1, le=16)
    """Pipeline parallelism: stages of layers."""
    data: int = Field(default=1, ge=1, le=16)
    """Data parallelism: engine copies behind one port."""

    @property
    def accelerators(self) -> int:
        """Accelerators of one worker."""
        return self.tensor * self.pipeline * self.data


class ContainerResources(Resource):
    """CPU and memory of a worker beside its accelerators."""

    cpu: Quantity = Field(default="4")
    """CPU request."""
    memory: Quantity = Field(default="16Gi")
    """Memory request and limit."""


class Pool(Resource):
    """Interchangeable workers of one role on one accelerator."""

    name: PoolName
    """Name of the pool within the service, such as prefill."""
    role: Annotated[
        Role, Rule("self == oldSelf", "a pool's role cannot change: remove the pool and add one under a new name")
    ] = Role.MIXED
    """Prefill, Decode, or Mixed (both in one worker)."""
    accelerator: Annotated[ObjectName, Field(max_length=63)]
    """Name of an AcceleratorClass."""
    replicas: Replicas = Field(default={}, validate_default=True)
    """Bounds of the number of workers."""
    parallelism: Parallelism = Field(default={}, validate_default=True)
    """How one worker spreads the model over accelerators."""
    resources: ContainerResources = Field(default={}, validate_default=True)
    """CPU and memory of one worker."""
    node_selector: Labels = Field(default={})
    """Further labels a node must have, beside the accelerator's."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the workers."""


class Budget(Resource):
    """What all pools of the service may use together."""

    gpus: int = Field(ge=1, le=100_000)
    """Most accelerators of all workers of the service together."""


class Autoscaling(Resource):
    """How the number of workers follows demand."""

    mode: AutoscalingMode = AutoscalingMode.AUTO
    """Auto sets the number of workers; Advise computes and records it without acting; Off does neither. In Advise and
    Off the number is what kubectl scale, or whatever else writes a WorkerPool's /scale, makes it."""
    budget: Budget | None = None
    """Upper bound over all pools; without it the pools' own bounds hold."""
    scale_up_stabilization: Duration = Field(default="0s")
    """A pool grows only after the need has lasted this long."""
    scale_down_stabilization: Duration = Field(default="5m")
    """A pool shrinks only to the largest need seen in this window."""
    scale_down_limit: int | None = Field(default=None, ge=1, le=1000)
    """Most workers of a pool that leave at the same time; the next ones go when these have drained. Half of the pool when
    absent. A lowered replicas.max or budget is followed at once all the same."""


class Rollout(Resource):
    """How workers are replaced and removed."""

    RULES = (
        Rule(
            "self.maxUnavailable > 0 || self.maxSurge > 0",
            "rollout.maxUnavailable and rollout.maxSurge must not both be 0, or nothing could be replaced: raise one",
            holds=lambda self: self.max_unavailable > 0 or self.max_surge > 0,
        ),
    )
    max_unavailable: int = Field(default=0, ge=0, le=1000)
    """Workers of a pool that may be missing during a rollout."""
    max_surge: int = Field(default=1, ge=0, le=1000)
    """Workers of a pool that may exist beyond its size during a rollout; each needs free accelerators."""
    drain_timeout: PositiveDuration = Field(default="2m")
    """How long a worker that leaves may take to finish its requests; afterwards they are cut off with an error event."""


def _not_shorter(longer: str, shorter: str) -> str:
    """CEL: one duration is at least as long as another; malformed ones are their own rules' concern."""
    both = " && ".join(matches(one, DURATION_PATTERN) for one in (longer, shorter))
    return f"!({both}) || duration({longer}) >= duration({shorter})"


class Routing(Resource):
    """Time limits of the request path."""

    RULES = (
        Rule(
            _not_shorter("self.requestTimeout", "self.firstTokenTimeout"),
            "routing.requestTimeout must not be below routing.firstTokenTimeout: raise it or lower the other",
            holds=lambda self: parse_duration_s(self.request_timeout) >= parse_duration_s(self.first_token_timeout),
        ),
    )
    queue_timeout: PositiveDuration = Field(default="30s")
    """How long a request may wait for a worker before 503 with Retry-After."""
    first_token_timeout: PositiveDuration = Field(default="120s")
    """How long a worker may take to its first byte before the request goes to another."""
    idle_timeout: PositiveDuration = Field(default="60s")
    """Longest silence between two pieces of an answer."""
    request_timeout: PositiveDuration = Field(default="1h")
    """Longest time of a whole request."""


def _count(spec: "ModelServiceSpec", role: Role) -> int:
    return sum(pool.role is role for pool in spec.pools)


def _accelerators_at_minimum(spec: "ModelServiceSpec") -> int:
    return sum(pool.replicas.min * pool.parallelism.accelerators for pool in spec.pools)


class ModelServiceSpec(Resource):
    """What is wanted: a model, an objective, and the pools that serve it."""

    RULES = (
        Rule(
            "self.pools.exists(p, p.role == 'Prefill') == self.pools.exists(p, p.role == 'Decode')",
            "pools must have Prefill and Decode together: add a pool of the missing role, or make the pool Mixed",
            holds=lambda self: bool(_count(self, Role.PREFILL)) == bool(_count(self, Role.DECODE)),
            field_path=".pools",
        ),
        Rule(
            "!(self.pools.exists(p, p.role == 'Mixed') && self.pools.exists(p, p.role != 'Mixed'))",
            "pools must be all Mixed, or Prefill and Decode: change the role of the odd ones",
            holds=lambda self: _count(self, Role.MIXED) in {0, len(self.pools)},
            field_path=".pools",
        ),
        Rule(
            "!has(self.autoscaling.budget) || self.pools.map(p, p.replicas.min * p.parallelism.tensor"
            " * p.parallelism.pipeline * p.parallelism.data).sum() <= self.autoscaling.budget.gpus",
            "autoscaling.budget.gpus is below what the pools need at replicas.min: "
            "raise the budget or lower replicas.min",
            holds=lambda self: (
                self.autoscaling.budget is None or _accelerators_at_minimum(self) <= self.autoscaling.budget.gpus
            ),
            field_path=".autoscaling",
        ),
        Rule(
            "!self.engine.loraAdapters.exists(adapter, adapter.name == self.model.name)",
            "engine.loraAdapters must not use the name in model.name: "
            "clients tell them apart by it; rename the adapter",
            holds=lambda self: self.model.name not in {adapter.name for adapter in self.engine.lora_adapters},
            field_path=".engine",
        ),
        Rule(
            _not_shorter("self.routing.firstTokenTimeout", "self.objective.ttft"),
            "routing.firstTokenTimeout must not be below objective.ttft, or good requests would be retried: "
            "raise the timeout or lower the objective",
            holds=lambda self: (
                parse_duration_s(self.routing.first_token_timeout) >= parse_duration_s(self.objective.ttft)
            ),
        ),
    )
    model: Model
    """The model and where its weights come from."""
    engine: Engine = Field(default={}, validate_default=True)
    """The inference engine."""
    objective: ObjectiveSpec = Field(default={}, validate_default=True)
    """What a request is promised."""
    pools: list[Pool] = Field(min_length=1, max_length=8, json_schema_extra=list_map("name"))
    """The worker pools: one or more Mixed ones, or Prefill with Decode."""
    autoscaling: Autoscaling = Field(default={}, validate_default=True)
    """How the number of workers follows demand."""
    rollout: Rollout = Field(default={}, validate_default=True)
    """How workers are replaced and removed."""
    routing: Routing = Field(default={}, validate_default=True)
    """Time limits of the request path."""


class ModelService(Resource):
    """One model offered to clients under one name, by pools of workers that are sized to meet an objective."""

    RULES = (
        Rule(
            f"size(self.metadata.name) <= 40 && {matches('self.metadata.name', r'^[a-z]([-a-z0-9]*[a-z0-9])?$')}",
            "metadata.name must be at most 40 characters of a-z, 0-9 and -, starting with a letter: "
            "it becomes part of the names and labels of the workers; choose another name",
        ),
    )
    spec: ModelServiceSpec
    """What is wanted."""
    status: ModelServiceStatus | None = None
    """What is."""
