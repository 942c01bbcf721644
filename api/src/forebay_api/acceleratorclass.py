"""The AcceleratorClass resource: a GPU type, how the scheduler finds it, what it costs."""

from pydantic import Field

from forebay_api.fields import PRICE_PATTERN, Labels, Quantity, Resource


class Toleration(Resource):
    """A toleration that workers on this accelerator carry."""

    key: str | None = Field(default=None, max_length=253)
    """Taint key; empty with operator Exists matches every taint."""
    operator: str = Field(default="Exists", json_schema_extra={"enum": ["Exists", "Equal"]})
    """Exists or Equal."""
    value: str | None = Field(default=None, max_length=253)
    """Taint value, for operator Equal."""
    effect: str | None = Field(
        default=None, json_schema_extra={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]}
    )
    """Taint effect; every effect when absent."""


class AcceleratorClassSpec(Resource):
    """A GPU type: what the capacity model needs to know, and how the scheduler finds nodes that have it."""

    hardware: str = Field(min_length=1, max_length=63)
    """Name of the hardware in the capacity model, such as h100-sxm, h200, a100-80gb or l40s; its memory, bandwidth
    and FLOP/s come from there."""
    memory: Quantity | None = None
    """Memory of one accelerator where it differs from the hardware's usual size, such as 94Gi."""
    resource_name: str = Field(default="nvidia.com/gpu", pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$", max_length=128)
    """Extended resource that a worker requests, one for each accelerator."""
    node_selector: Labels = Field(default={})
    """Labels of the nodes that have this accelerator."""
    tolerations: list[Toleration] = Field(default=[], max_length=16)
    """Tolerations for tainted GPU nodes."""
    price_per_hour: str | None = Field(default=None, pattern=PRICE_PATTERN, max_length=16)
    """Price of one accelerator for one hour, in any one currency; used to compare pools by cost."""


class AcceleratorClass(Resource):
    """A GPU type that pools can name; cluster-scoped: a platform team makes one for each kind of GPU node it runs."""

    spec: AcceleratorClassSpec
    """What the accelerator is and where its nodes are."""
