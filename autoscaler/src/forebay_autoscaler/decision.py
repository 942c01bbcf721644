"""What `decide` gives: the number of each pool, with all that a person or a replay needs. Data only."""

from dataclasses import dataclass

from forebay_api.modelservice import AutoscalingMode
from forebay_autoscaler.constraints import Rejected
from forebay_autoscaler.demand import Demand
from forebay_autoscaler.model import Capacity, Need
from forebay_autoscaler.observation import ServiceKey, Writer
from forebay_autoscaler.state import Action, ServiceState


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """What one pool gets."""

    name: str
    current: int
    desired: int
    action: Action
    reason: str
    """For people; the text of the last decision that said something new."""
    news: bool
    """Whether this decision says something that the last one did not: worth an Event and a log line."""
    demand: Demand | None
    """None when it is unknown."""
    capacity: Capacity
    need: Need | None
    unknown: tuple[str, ...]
    """Inputs that are unknown or stale."""
    rejected: tuple[Rejected, ...]
    rival: str | None
    foreign: Writer | None
    """Somebody who set the number of workers since the last decision."""
    good_rate_per_s: float | None = None
    """Requests a second that one worker carries within the objective, of this demand; None when never measured."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a model service gets."""

    key: ServiceKey
    mode: AutoscalingMode
    at_s: float
    pools: tuple[PoolDecision, ...]
    state: ServiceState
    attainment: float | None
    goodput_per_s: float | None
    unknown: tuple[str, ...]
    """All inputs that are unknown or stale, with the pool's name where they belong to one."""
    unknown_lasts: bool
    """Whether an input has been unknown for a whole rate window: longer than a new series takes to have a rate."""
    trouble: str
    """What the observer says of the cause."""
