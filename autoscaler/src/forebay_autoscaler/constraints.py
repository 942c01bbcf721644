"""What stands between the workers a pool needs and the workers it gets: small functions, applied in a listed order.

Each takes a proposal and returns it, or a changed one with a line that says which number it replaced and why. Those lines
are the rejected options of the decision. The order matters: first time (stabilisation, steps), then trust in the data, then
what can be placed, and last what the spec allows, so that nothing after a bound can break it. The budget joins all pools of
a service and comes after these (budget.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from forebay_autoscaler.model import Need
from forebay_autoscaler.observation import PoolCounts
from forebay_autoscaler.policy import PoolPolicy, ServicePolicy
from forebay_autoscaler.schedules import Schedule
from forebay_autoscaler.window import Window


class Constraint(StrEnum):
    """Which constraint changed a proposal."""

    GROWTH_WINDOW = "growth_window"
    SHRINK_WINDOW = "shrink_window"
    OBJECTIVE = "objective"
    STEP = "step"
    LEAVING = "leaving"
    UNTESTED = "untested"
    UNKNOWN = "unknown"
    UNSCHEDULABLE = "unschedulable"
    SCHEDULE = "schedule"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"
    BUDGET = "budget"
    RIVAL = "rival"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A number of workers that was not taken."""

    replicas: int
    constraint: Constraint
    why: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """A number of workers on its way to a decision."""

    replicas: int
    rejected: tuple[Rejected, ...] = ()

    def instead(self, replicas: int, constraint: Constraint, why: str) -> "Proposal":
        """The proposal with another number; unchanged when it is the same."""
        if replicas == self.replicas:
            return self
        return Proposal(replicas, (*self.rejected, Rejected(self.replicas, constraint, why)))


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a constraint may look at."""

    policy: ServicePolicy
    pool: PoolPolicy
    counts: PoolCounts
    need: Need | None
    """None when nothing at all is known of the demand."""
    unknown: tuple[str, ...]
    """Inputs without which the pool must not shrink, by name, that are unknown or stale."""
    missing_objective: bool
    """Whether the present workers, having work to do, miss the objective."""
    untested: bool
    """Whether no forecast of the demand has come to pass yet."""
    needs: Window
    """Needs over time, for the shrink window."""
    shortfalls: Window
    """Negated needs over time, for the growth window."""
    now_s: float
    schedule: Schedule | None = None
    """The one that asks for most workers now."""

    @property
    def may_leave(self) -> int | None:
        """Workers that may still be taken away now; None when there is no limit."""
        limit = self.policy.scale_down_limit
        return None if limit is None else max(0, limit - self.counts.draining)

    @property
    def current(self) -> int:
        """Workers wanted now."""
        return self.counts.wanted


def wait_for_growth(situation: Situation, proposal: Proposal) -> Proposal:
    """Grow only to what was needed all through the growth window."""
    length_s = situation.policy.scale_up_window_s
    lowest = situation.shortfalls.maximum(situation.now_s, length_s=length_s)
    if length_s == 0 or lowest is None or proposal.replicas <= situation.current:
        return proposal
    lasting = max(situation.current, min(proposal.replicas, -lowest))
    return proposal.instead(lasting, Constraint.GROWTH_WINDOW, f"not needed all through the last {length_s:g} s")


def wait_for_shrinking(situation: Situation, proposal: Proposal) -> Proposal:
    """Shrink only to the most that was needed within the shrink window.

    A fall that is sure is no reason to cut it short: demand that falls in one half of a wave comes back in the other.
    """
    length_s = situation.policy.scale_down_window_s
    highest = situation.needs.maximum(situation.now_s, length_s=length_s)
    if proposal.replicas >= situation.current or highest is None:
        return proposal
    kept = min(situation.current, max(proposal.replicas, highest))
    why = f"{highest} may have been needed within the last {length_s:g} s"
    return proposal.instead(kept, Constraint.SHRINK_WINDOW, why)


def require_objective(situation: Situation, proposal: Proposal) -> Proposal:
    """Let no ready worker go while they miss the objective under their load.

    Those that start have missed nothing: orders beyond both the need and the ready ones are taken back. So whatever is
    proposed, more is never less.
    """
    if proposal.replicas >= situation.current or not situation.missing_objective:
        return proposal
    kept = min(situation.current, max(proposal.replicas, situation.counts.ready))
    return proposal.instead(kept, Constraint.OBJECTIVE, "requests miss the objective now")


def wait_for_forecasts(situation: Situation, proposal: Proposal) -> Proposal:
    """Never shrink on forecasts that nothing is known of: how demand varies within a start-up has to be seen first."""
    if proposal.replicas >= situation.current or not situation.untested:
        return proposal
    return proposal.instead(
        situation.current, Constraint.UNTESTED, "how demand varies has not been seen for long enough"
    )


def limit_step(situation: Situation, proposal: Proposal) -> Proposal:
    """At most double (or gain `growth_max`) and at most halve in one decision: one wrong number cannot do all."""
    current = situation.current
    highest = current + max(situation.policy.tuning.growth_max, current)
    lowest = current // 2
    return proposal.instead(
        min(highest, max(lowest, proposal.replicas)),
        Constraint.STEP,
        f"one step goes from {current} to {lowest}-{highest}",
    )


def limit_leaving(situation: Situation, proposal: Proposal) -> Proposal:
    """No more than the limit leave at the same time: those that drain still count."""
    allowed, draining = situation.may_leave, situation.counts.draining
    if allowed is None or proposal.replicas >= situation.current - allowed:
        return proposal
    why = f"at most {situation.policy.scale_down_limit} leave at a time" + (
        f", {draining} drain now" if draining else ""
    )
    return proposal.instead(situation.current - allowed, Constraint.LEAVING, why)


def hold_on_unknown(situation: Situation, proposal: Proposal) -> Proposal:
    """Never shrink on missing data. What is known may still ask for more."""
    if proposal.replicas >= situation.current or not situation.unknown:
        return proposal
    return proposal.instead(situation.current, Constraint.UNKNOWN, "unknown: " + ", ".join(situation.unknown))


def hold_unplaceable(situation: Situation, proposal: Proposal) -> Proposal:
    """Order no more while workers that were ordered find no node."""
    if proposal.replicas <= situation.current or not situation.counts.unschedulable:
        return proposal
    return proposal.instead(situation.current, Constraint.UNSCHEDULABLE, "ordered workers find no node")


def keep_schedule(situation: Situation, proposal: Proposal) -> Proposal:
    """Not below what a schedule asks for now, whatever is known of the demand."""
    schedule = situation.schedule
    if schedule is None or proposal.replicas >= schedule.replicas_min:
        return proposal
    why = f"schedule {schedule.name} keeps {schedule.replicas_min}"
    return proposal.instead(schedule.replicas_min, Constraint.SCHEDULE, why)


def stay_in_bounds(situation: Situation, proposal: Proposal) -> Proposal:
    """Within replicas.min and replicas.max of the pool, always."""
    pool = situation.pool
    proposal = proposal.instead(
        min(proposal.replicas, pool.replicas_max), Constraint.MAXIMUM, f"replicas.max is {pool.replicas_max}"
    )
    return proposal.instead(
        max(proposal.replicas, pool.replicas_min), Constraint.MINIMUM, f"replicas.min is {pool.replicas_min}"
    )


CONSTRAINTS: tuple[Callable[[Situation, Proposal], Proposal], ...] = (
    wait_for_growth,
    wait_for_shrinking,
    require_objective,
    wait_for_forecasts,
    limit_step,
    limit_leaving,
    hold_on_unknown,
    hold_unplaceable,
    keep_schedule,
    stay_in_bounds,
)


def constrain(situation: Situation, proposal: Proposal) -> Proposal:
    """The proposal after every constraint, in order."""
    for constraint in CONSTRAINTS:
        proposal = constraint(situation, proposal)
    return replace(proposal)
