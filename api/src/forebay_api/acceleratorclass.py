"""The AcceleratorClass resource: a GPU type, how the scheduler finds it, what it costs."""

from typing import Annotated, Literal

from pydantic import Field

from forebay_api.fields import Resource, Rule, text
from forebay_api.scalars import Labels, Price, Quantity


class Toleration(Resource):
    """A toleration that workers on this accelerator carry."""

    RULES = (
        Rule(
            "has(self.key) || self.operator == 'Exists'",
            "a toleration with operator Equal must have a key: set key, or use operator Exists",
            holds=lambda self: self.key is not None or self.operator == "Exists",
        ),
        Rule(
            "!has(self.value) || self.operator == 'Equal'",
            "a toleration with operator Exists must not have a value: remove value, or use operator Equal",
            holds=lambda self: self.value is None or self.operator == "Equal",
        ),
    )
    key: str | None = Field(default=None, max_length=253)
    """Taint key; without one, operator Exists matches every taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """Exists or Equal."""
    value: str | None = Field(default=None, max_length=253)
    """Taint value, for operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Taint effect; every effect when absent."""


class AcceleratorClassSpec(Resource):
    """A GPU type: what the capacity model needs to know, and how the scheduler finds nodes that have it."""

    hardware: Annotated[
        str,
        Field(max_length=63),
        text(
            r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
            "must be a name that the capacity model knows, such as h100-sxm: lower-case letters, digits, '-' and '.'",
        ),
    ]
    """Name of the hardware in the capacity model, such as h100-sxm, h200, a100-80gb or l40s; its memory, bandwidth
    and FLOP/s come from there."""
    memory: Quantity | None = None
    """Memory of one accelerator where it differs from the hardware's usual size, such as 94Gi."""
    resource_name: Annotated[
        str,
        Field(max_length=128),
        text(
            r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$",
            "must be the name of an extended resource: a domain, a slash and a name, such as nvidia.com/gpu",
        ),
    ] = "nvidia.com/gpu"
    """Extended resource that a worker requests, one for each accelerator."""
    node_selector: Labels = Field(default={})
    """Labels of the nodes that have this accelerator."""
    tolerations: list[Toleration] = Field(default=[], max_length=16)
    """Tolerations for tainted GPU nodes."""
    price_per_hour: Price | None = None
    """Price of one accelerator for one hour, in any one currency; used to compare pools by cost."""


class AcceleratorClass(Resource):
    """A GPU type that pools can name; cluster-scoped: a platform team makes one for each kind of GPU node it runs."""

    spec: AcceleratorClassSpec
    """What the accelerator is and where its nodes are."""
