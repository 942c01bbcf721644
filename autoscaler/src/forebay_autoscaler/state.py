"""What one decision hands to the next: frozen, explicit, of one model service."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from forebay_autoscaler.constraints import Constraint
from forebay_autoscaler.credit import Credit
from forebay_autoscaler.forecast import Forecast
from forebay_autoscaler.learn import Learnt
from forebay_autoscaler.observation import Writer
from forebay_autoscaler.seed import Mix
from forebay_autoscaler.window import Window


class Action(StrEnum):
    """What a decision does with a pool."""

    GROW = "grow"
    SHRINK = "shrink"
    KEEP = "keep"
    """The present number is right."""
    WAIT = "wait"
    """Another number is needed, and a constraint says not now."""
    HOLD = "hold"
    """The data does not suffice to decide."""
    STAND_BACK = "stand_back"
    """Another autoscaler owns the number."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """Memory of one pool."""

    learnt: Learnt = field(default_factory=Learnt)
    needs: Window = field(default_factory=Window)
    """What might have been needed (Need.to_keep), for shrinking."""
    shortfalls: Window = field(default_factory=Window)
    """What was needed, negated, for growing."""
    unknown_since_s: float | None = None
    """Since when inputs have been missing; None while none is."""
    crowded_since_s: float | None = None
    """Since when running requests beyond what ordered workers hold have not been ordered for; None while there are none."""
    writer: Writer | None = None
    """Foreign writer of spec.replicas that was last reported."""
    action: Action | None = None
    """What was last told."""
    cause: Constraint | None = None
    """What it waited for, if it was a WAIT."""
    told_s: float = float("-inf")
    """When something new was last told."""
    desired: int | None = None
    reason: str = ""
    """Text of the last decision that said something new."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """Memory of one model service; a new one holds what there is until it has seen a whole window."""

    pools: Mapping[str, PoolState] = field(default_factory=dict)
    generation: int | None = None
    """Generation of the spec that was last decided on."""
    queued_s: float = float("-inf")
    """When requests last waited anywhere."""
    mix: Mix | None = None
    """The mean request when there last were enough of them."""
    forecast: Forecast = field(default_factory=Forecast)
    """Past demand, and what it says of the next minutes."""
    credit: Credit = field(default_factory=Credit)
    """What the target leaves to be missed."""
