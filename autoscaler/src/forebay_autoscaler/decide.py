"""decide(policy, state, observation, now) -> Decision: how many workers each pool of a model service gets, and why. Pure.

    observe -> learn (what a worker can do) -> need (what the demand asks) -> constrain (when, how far, on what proof)
            -> share the budget -> say it

The decision carries everything a person or a replay needs: the numbers used, the reason, the options that were rejected and
by which constraint. It never reads a clock and never acts.

Both windows are absolute needs, not changes, so nothing accumulates: ordered workers that have not started are part of the
current number, and the same load gives the same need however long they take. While nothing is known, the current number
counts as needed, so that an outage is followed by a full shrink window of known needs before anything shrinks; so does the
first look after a start, and the number that a person has just set.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forebay_api.modelservice import AutoscalingMode
from forebay_api.objective import attainment
from forebay_autoscaler.budget import Wish, share_budget
from forebay_autoscaler.constraints import Constraint, Proposal, Rejected, Situation, constrain
from forebay_autoscaler.learn import Evidence, Facts, Learnt, capacity_of, is_idle, latency_of, learn, load_per_worker
from forebay_autoscaler.model import (
    Capacity,
    Demand,
    Need,
    backlog_to_order,
    demand_rate,
    need_of,
    running_in_workers,
    waiting_in_workers,
)
from forebay_autoscaler.observation import PoolCounts, PoolObservation, ServiceKey, ServiceObservation, Writer
from forebay_autoscaler.policy import PoolPolicy, ServicePolicy
from forebay_autoscaler.reasons import explain
from forebay_autoscaler.seed import expect, mix_of
from forebay_autoscaler.shares import share_of_role
from forebay_autoscaler.state import Action, PoolState, ServiceState


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


def decide(policy: ServicePolicy, state: ServiceState, observation: ServiceObservation, now_s: float) -> Decision:
    """Decide on every pool of one model service. `now_s` is seconds of a clock that does not go back."""
    seen = {pool.name: (pool, pool.counts) for pool in observation.pools if pool.counts is not None}
    pools = [pool for pool in policy.pools if pool.name in seen]
    state = _note(policy, state, observation, now_s)
    evidence = Evidence(
        latency_of(observation.signals, policy.objective, policy.tuning),
        queued_lately=now_s - state.queued_s < policy.tuning.rate_window_s,
        objective=policy.objective,
        tuning=policy.tuning,
    )
    views = [_look(policy, pool, state, seen[pool.name], evidence=evidence, now_s=now_s) for pool in pools]
    sized = [_size(policy, view, views, observation, evidence=evidence, now_s=now_s) for view in views]
    proposals = _within_budget(policy, sized, [constrain(one.situation, one.proposal) for one in sized])
    decisions = [_conclude(policy, one, proposal) for one, proposal in zip(sized, proposals, strict=True)]
    good, bad = observation.signals.good_per_s.known, observation.signals.bad_per_s.known
    return Decision(
        key=policy.key,
        mode=policy.mode,
        at_s=now_s,
        pools=tuple(decision for decision, _ in decisions),
        state=replace(state, pools={decision.name: memory for decision, memory in decisions}),
        attainment=None if good is None or bad is None else attainment(good, bad),
        goodput_per_s=good,
        unknown=_all_unknown(sized),
        unknown_lasts=any(_is_unknown_for_long(policy, one.view.memory, now_s) for one in sized),
        trouble=observation.trouble,
    )


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


@dataclass(frozen=True, slots=True)
class Sized:
    """A pool with its need, ready for the constraints."""

    view: View
    demand: Demand | None
    situation: Situation
    proposal: Proposal


def _note(policy: ServicePolicy, state: ServiceState, observation: ServiceObservation, now_s: float) -> ServiceState:
    """The state with what concerns the service as a whole: when requests last waited, and the mean request."""
    tuning = policy.tuning
    mix = mix_of(observation.signals, window_s=tuning.rate_window_s, samples_min=tuning.samples_min)
    waiting = sum(waiting_in_workers(pool.signals) or 0.0 for pool in observation.pools)
    queued = waiting + (observation.signals.pending.known or 0.0) >= 1
    state = replace(state, mix=mix or state.mix, queued_s=now_s if queued else state.queued_s)
    if state.generation == policy.generation:
        return state
    # Another engine, model or objective: what a worker could do under the old spec is no limit under the new one.
    forgotten = {name: replace(pool, learnt=replace(pool.learnt, limit=None)) for name, pool in state.pools.items()}
    return replace(state, generation=policy.generation, pools=forgotten)


def _look(
    policy: ServicePolicy,
    pool: PoolPolicy,
    state: ServiceState,
    seen: tuple[PoolObservation, PoolCounts],
    *,
    evidence: Evidence,
    now_s: float,
) -> View:
    observed, counts = seen
    first = pool.name not in state.pools
    memory = state.pools.get(pool.name) or PoolState(writer=counts.writer)
    foreign = None
    if first or counts.writer != memory.writer:
        foreign = None if first else counts.writer
        memory = replace(memory, writer=counts.writer)
        if first or foreign:
            memory = _record(policy, memory, need=counts.wanted, to_keep=counts.wanted, now_s=now_s)
    seed = None
    if pool.worker is not None and state.mix is not None:
        seed = expect(pool.worker, pool.role, state.mix, policy.objective, pool.concurrency_max)
    learnt = learn(pool, memory.learnt, Facts(counts, observed.signals, seed, now_s), evidence)
    capacity = capacity_of(pool, learnt, policy.objective, seed)
    return View(pool, observed, counts, replace(memory, learnt=learnt), learnt, capacity, foreign)


def _record(policy: ServicePolicy, memory: PoolState, *, need: int, to_keep: int, now_s: float) -> PoolState:
    return replace(
        memory,
        needs=memory.needs.add(now_s, to_keep, length_s=policy.scale_down_window_s),
        shortfalls=memory.shortfalls.add(now_s, -need, length_s=policy.scale_up_window_s),
    )


def _size(
    policy: ServicePolicy,
    view: View,
    views: Sequence[View],
    observation: ServiceObservation,
    *,
    evidence: Evidence,
    now_s: float,
) -> Sized:
    """The pool's demand and need, recorded in its windows."""
    demand = _demand(policy, view, views, observation)
    need = None
    if demand is not None:
        to_order = backlog_to_order(
            demand.backlog,
            rate_per_s=demand.rate_per_s,
            ready=view.counts.ready,
            capacity=view.capacity,
            startup_s=view.learnt.startup_s,
        )
        need = need_of(
            view.pool.role,
            replace(demand, backlog=to_order),
            view.capacity,
            objective=policy.objective,
            tuning=policy.tuning,
        )
    unknown = _unknown_inputs(view, observation)
    memory = _remember(policy, view, need, unknown, now_s=now_s)
    load = load_per_worker(view.pool.role, view.learnt, view.counts, view.observed.signals)
    situation = Situation(
        policy=policy,
        pool=view.pool,
        counts=view.counts,
        need=need,
        unknown=unknown,
        missing_objective=evidence.latency.missed_by(view.pool.role) and not is_idle(view.pool.role, load),
        needs=memory.needs,
        shortfalls=memory.shortfalls,
        now_s=now_s,
    )
    # Fewer than the pool's least number is no option, so it is none that could be rejected.
    wanted = view.counts.wanted if need is None else max(need.with_backlog, view.pool.replicas_min)
    return Sized(replace(view, memory=memory), demand, situation, Proposal(wanted))


def _remember(
    policy: ServicePolicy, view: View, need: Need | None, unknown: tuple[str, ...], *, now_s: float
) -> PoolState:
    """The pool's memory with this need. While inputs are missing, the present number counts as needed."""
    current, since_s = view.counts.wanted, view.memory.unknown_since_s
    memory = replace(view.memory, unknown_since_s=(now_s if since_s is None else since_s) if unknown else None)
    if need is None:
        return _record(policy, memory, need=current, to_keep=current, now_s=now_s)
    to_keep = max(need.to_keep, current) if unknown else need.to_keep
    return _record(policy, memory, need=need.with_backlog, to_keep=to_keep, now_s=now_s)


def _demand(policy: ServicePolicy, view: View, views: Sequence[View], observation: ServiceObservation) -> Demand | None:
    """What is asked of this pool; None when neither rate nor requests in work are known."""
    signals = observation.signals
    rate = demand_rate(signals, policy.tuning)
    running = 0.0 if view.counts.ready == 0 else running_in_workers(view.observed.signals)
    waiting = 0.0 if view.counts.ready == 0 else waiting_in_workers(view.observed.signals)
    pending = signals.pending.known
    if rate is None and running is None and waiting is None and pending is None:
        return None
    peers = [other for other in views if other.pool.role is view.pool.role]
    share = share_of_role(
        [other.observed.signals.finished_per_s.known for other in peers], [other.counts.wanted for other in peers]
    )[peers.index(view)]
    return Demand(
        rate_per_s=None if rate is None else rate * share,
        backlog=(pending or 0.0) * share + (waiting or 0.0),
        running=running or 0.0,
    )


def _unknown_inputs(view: View, observation: ServiceObservation) -> tuple[str, ...]:
    """Inputs without which the pool must not shrink. Engines are only asked when there are some."""
    signals, own = observation.signals, view.observed.signals
    inputs = {"arrivals": signals.arrived_per_s, "pending": signals.pending}
    if view.counts.ready > 0:
        inputs |= {"running": own.running, "waiting": own.waiting}
        if signals.arrived_per_s.known:
            inputs |= {"finished": own.finished_per_s}
    return tuple(name for name, reading in inputs.items() if reading.known is None)


def _within_budget(policy: ServicePolicy, sized: Sequence[Sized], proposals: Sequence[Proposal]) -> list[Proposal]:
    owned = [
        one.proposal.instead(one.situation.current, Constraint.RIVAL, f"{one.view.counts.rival} owns the number")
        if one.view.counts.rival
        else proposal
        for one, proposal in zip(sized, proposals, strict=True)
    ]
    if policy.budget_gpus is None:
        return owned
    wishes = [
        Wish(
            proposal.replicas,
            one.situation.current,
            proposal.replicas if one.view.counts.rival else one.view.pool.replicas_min,
            one.view.pool.gpus,
        )
        for one, proposal in zip(sized, owned, strict=True)
    ]
    shared = share_budget(wishes, policy.budget_gpus)
    why = f"the budget is {policy.budget_gpus} GPUs"
    return [proposal.instead(count, Constraint.BUDGET, why) for proposal, count in zip(owned, shared, strict=True)]


def _conclude(policy: ServicePolicy, one: Sized, proposal: Proposal) -> tuple[PoolDecision, PoolState]:
    view, memory = one.view, one.view.memory
    action = _action(one, proposal)
    told = memory.desired if policy.mode is AutoscalingMode.ADVISE else view.counts.wanted
    news = _is_news(memory, action, told=told, desired=proposal.replicas)
    if action is Action.HOLD and not _is_unknown_for_long(policy, memory, one.situation.now_s):
        # A new service or worker has no rates in its first window: nothing is said, and nothing shrinks.
        action, news = Action.KEEP, False
    reason, now_s = memory.reason, one.situation.now_s
    cause = proposal.rejected[-1].constraint if action is Action.WAIT else None
    flickers = _flickers(policy, memory, action, cause, now_s)
    news = news and not flickers
    if news or not reason or (cause not in (None, memory.cause) and not flickers):
        reason = explain(
            action, current=view.counts.wanted, proposal=proposal, demand=one.demand, capacity=view.capacity
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


def _is_unknown_for_long(policy: ServicePolicy, memory: PoolState, now_s: float) -> bool:
    since_s = memory.unknown_since_s
    return since_s is not None and now_s - since_s >= policy.tuning.rate_window_s


def _all_unknown(sized: Sequence[Sized]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for one in sized:
        for name in one.situation.unknown:
            shared = name in ("arrivals", "pending")
            names[name if shared else f"{name} of {one.view.pool.name}"] = None
    return tuple(names)
