"""From the numbers of a pool to what is said of it: the action, the reason, and whether it is news. Pure."""

from dataclasses import dataclass, replace

from forebay_api.modelservice import AutoscalingMode
from forebay_api.objective import Objective
from forebay_autoscaler.constraints import Constraint, Proposal, Situation
from forebay_autoscaler.decision import PoolDecision
from forebay_autoscaler.demand import Demand
from forebay_autoscaler.learn import Learnt
from forebay_autoscaler.model import Capacity, within_law
from forebay_autoscaler.observation import PoolCounts, PoolObservation, Writer
from forebay_autoscaler.policy import PoolPolicy, ServicePolicy
from forebay_autoscaler.reasons import explain
from forebay_autoscaler.seed import Seed
from forebay_autoscaler.state import Action, PoolState


@dataclass(frozen=True, slots=True)
class View:
    """A pool with what is known of its workers."""

    pool: PoolPolicy
    observed: PoolObservation
    counts: PoolCounts
    memory: PoolState
    learnt: Learnt
    capacity: Capacity
    foreign: Writer | None
    seed: Seed | None
    """What the capacity model expects of a worker."""
    lead_s: float
    """How long a worker takes that is ordered now."""
    coming: tuple[tuple[float, int], ...]
    """(in how many seconds, how many) of the workers on their way that may still be counted on."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A pool with its need, ready for the constraints."""

    view: View
    demand: Demand | None
    situation: Situation
    proposal: Proposal
    aside: str
    """What else is told with the numbers."""
    objective: Objective
    """With the target to plan for."""


def conclude(policy: ServicePolicy, one: Sized, proposal: Proposal) -> tuple[PoolDecision, PoolState]:
    """The decision on a pool, and its memory afterwards."""
    view, memory = one.view, one.view.memory
    action = _action(one, proposal)
    last = memory.desired if policy.mode is AutoscalingMode.ADVISE else view.counts.wanted
    news = _is_news(memory, action, told=last, desired=proposal.replicas)
    if action is Action.HOLD and not is_unknown_for_long(policy, memory, one.situation.now_s):
        # A new service or worker has no rates in its first window: nothing is said, and nothing shrinks.
        action, news = Action.KEEP, False
    reason, now_s = memory.reason, one.situation.now_s
    cause = proposal.rejected[-1].constraint if action is Action.WAIT else None
    flickers = _flickers(policy, memory, action, cause, now_s)
    news = news and not flickers
    told = within_law(view.pool.role, one.demand, view.capacity, one.objective)
    if news or not reason or (cause not in (None, memory.cause) and not flickers):
        reason = explain(
            action,
            current=view.counts.wanted,
            proposal=proposal,
            demand=one.demand,
            capacity=told,
            aside=one.aside,
        )
    decision = PoolDecision(
        name=view.pool.name,
        current=view.counts.wanted,
        desired=proposal.replicas,
        action=action,
        reason=reason,
        news=news,
        demand=one.demand,
        capacity=view.capacity,
        need=one.situation.need,
        unknown=one.situation.unknown,
        rejected=proposal.rejected,
        rival=view.counts.rival,
        foreign=view.foreign,
        good_rate_per_s=told.good_rate_per_s,
    )
    memory = replace(memory, desired=proposal.replicas, reason=reason)
    if not flickers:
        memory = replace(memory, action=action, cause=cause, told_s=now_s if news else memory.told_s)
    return decision, memory


def _flickers(policy: ServicePolicy, memory: PoolState, action: Action, cause: Constraint | None, now_s: float) -> bool:
    """Whether a need that varies about a whole number only begins or ceases, again, to wait.

    It does so at every other look, for the shrink window or at the maximum. Told once a rate window, it does not fill status
    and history.
    """
    quiet = (Action.KEEP, Action.WAIT)
    if action not in quiet or memory.action not in quiet or now_s - memory.told_s >= policy.tuning.rate_window_s:
        return False
    return {cause, memory.cause} in ({None, Constraint.SHRINK_WINDOW}, {None, Constraint.MAXIMUM})


def _action(one: Sized, proposal: Proposal) -> Action:
    current = one.situation.current
    if one.view.counts.rival:
        return Action.STAND_BACK
    if proposal.replicas != current:
        return Action.GROW if proposal.replicas > current else Action.SHRINK
    if one.situation.unknown:
        return Action.HOLD
    return Action.WAIT if proposal.rejected else Action.KEEP


def _is_news(memory: PoolState, action: Action, *, told: int | None, desired: int) -> bool:
    """A change is news, and so is each other action that differs from the last; keeping what was just set is none."""
    if action in (Action.GROW, Action.SHRINK):
        return desired != told
    settled = action is Action.KEEP and memory.action in (Action.GROW, Action.SHRINK)
    return action is not memory.action and not settled


def is_unknown_for_long(policy: ServicePolicy, memory: PoolState, now_s: float) -> bool:
    """Whether an input has been missing for a whole rate window."""
    since_s = memory.unknown_since_s
    return since_s is not None and now_s - since_s >= policy.tuning.rate_window_s
