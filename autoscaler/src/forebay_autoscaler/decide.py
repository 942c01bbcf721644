"""decide(policy, state, observation, now) -> Decision: how many workers each pool of a model service gets, and why. Pure.

    observe -> forecast (what will be asked) -> learn (what a worker can do) -> need (how many that takes)
            -> constrain (when, how far, on what proof) -> share the budget -> conclude (what is said of it)

The decision carries everything a person or a replay needs: the numbers used, the reason, the options that were rejected and
by which constraint. It never reads a clock and never acts.

Both windows are absolute needs, not changes, so nothing accumulates: ordered workers that have not started are part of the
current number, and the same load gives the same need however long they take. While nothing is known, the current number
counts as needed, so that an outage is followed by a full shrink window of known needs before anything shrinks; so does the
first look after a start, and the number that a person has just set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from forebay_api.objective import attainment
from forebay_autoscaler.budget import Wish, share_budget
from forebay_autoscaler.conclude import Sized, View, conclude, is_unknown_for_long
from forebay_autoscaler.constraints import Constraint, Proposal, Situation, constrain
from forebay_autoscaler.costs import Portion
from forebay_autoscaler.credit import Credit
from forebay_autoscaler.decision import Decision
from forebay_autoscaler.demand import (
    Demand,
    backlog_ahead,
    demand_rate,
    falling_to,
    look_ahead,
    running_in_workers,
    waiting_in_workers,
)
from forebay_autoscaler.learn import Evidence, Facts, capacity_of, is_idle, latency_of, learn, load_per_worker
from forebay_autoscaler.model import Need, need_of
from forebay_autoscaler.observation import PoolCounts, PoolObservation, ServiceObservation
from forebay_autoscaler.offers import portions_for, rates_to_plan
from forebay_autoscaler.policy import PoolPolicy, ServicePolicy
from forebay_autoscaler.reserves import at_least_one, with_spare
from forebay_autoscaler.schedules import schedule_in_force
from forebay_autoscaler.seed import expect, mix_of
from forebay_autoscaler.shares import share_of_role
from forebay_autoscaler.sight import Sight
from forebay_autoscaler.state import PoolState, ServiceState
from forebay_autoscaler.waking import to_wake, with_held


def decide(policy: ServicePolicy, state: ServiceState, observation: ServiceObservation, now_s: float) -> Decision:
    """Decide on every pool of one model service. `now_s` is seconds of a clock that does not go back."""
    seen = {pool.name: (pool, pool.counts) for pool in observation.pools if pool.counts is not None}
    pools = [pool for pool in policy.pools if pool.name in seen]
    state = _note(policy, state, observation, now_s)
    sight = _sight(policy, state, observation, {pool.name: seen[pool.name] for pool in pools}, now_s)
    views = [_look(sight, pool, *seen[pool.name]) for pool in pools]
    portions = portions_for(sight, views)
    sized = [_size(sight, view, portions[view.pool.name]) for view in views]
    proposals = _within_budget(policy, sized, [constrain(one.situation, one.proposal) for one in sized])
    decisions = [conclude(policy, one, proposal) for one, proposal in zip(sized, proposals, strict=True)]
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
        unknown_lasts=any(is_unknown_for_long(policy, one.view.memory, now_s) for one in sized),
        trouble=observation.trouble,
    )


def _note(policy: ServicePolicy, state: ServiceState, observation: ServiceObservation, now_s: float) -> ServiceState:
    """The state with what concerns the service as a whole: past demand, when requests last waited, the mean request."""
    tuning = policy.tuning
    mix = mix_of(observation.signals, window_s=tuning.rate_window_s, samples_min=tuning.samples_min)
    waiting = sum(waiting_in_workers(pool.signals) or 0.0 for pool in observation.pools)
    queued = waiting + (observation.signals.pending.known or 0.0) >= 1
    unmeasured_s = _unmeasured_s(policy, state)
    leads = [pool.learnt.orders.lead_s(now_s, unmeasured_s) for pool in state.pools.values()]
    lead_s = max(leads, default=unmeasured_s)
    forecast = look_ahead(state.forecast, observation.signals, policy, now_s=now_s, lead_s=lead_s)
    queued_s = now_s if queued else state.queued_s
    delay_s = max(unmeasured_s, policy.scale_down_window_s) + tuning.rate_window_s
    credit = state.credit.paced(delay_s).take(
        observation.signals.good_lately_per_s.known,
        observation.signals.bad_lately_per_s.known,
        target=policy.objective.target,
        now_s=now_s,
        longest_s=tuning.rate_window_s,
    )
    state = replace(state, mix=mix or state.mix, queued_s=queued_s, forecast=forecast, credit=credit)
    if state.generation == policy.generation:
        return state
    # Another engine, model or objective: what a worker could do under the old spec is no limit under the new one.
    forgotten = {
        name: replace(pool, learnt=replace(pool.learnt, limit=None, share=1.0, speed=None))
        for name, pool in state.pools.items()
    }
    return replace(state, generation=policy.generation, pools=forgotten, credit=Credit())


def _unmeasured_s(policy: ServicePolicy, state: ServiceState) -> float:
    """Start-up time where a pool has started no worker yet: the longest of the service's others, which load the same model.

    A decode pool that one worker suffices for may never start another; its default would have the whole service look further
    ahead, and keep room for larger rises, than any order takes.
    """
    return max((pool.learnt.orders.startup_s for pool in state.pools.values()), default=0.0) or policy.tuning.startup_s


def _sight(
    policy: ServicePolicy,
    state: ServiceState,
    observation: ServiceObservation,
    seen: Mapping[str, tuple[PoolObservation, PoolCounts]],
    now_s: float,
) -> Sight:
    tuning, signals = policy.tuning, observation.signals
    shares: dict[str, float] = {}
    for role in {pool.role for pool in policy.pools}:
        peers = [pool.name for pool in policy.pools if pool.role is role and pool.name in seen]
        if not peers:
            continue
        finished = [seen[name][0].signals.finished_per_s.known for name in peers]
        shares |= zip(peers, share_of_role(finished, [seen[name][1].wanted for name in peers]), strict=True)
    rate = demand_rate(signals, tuning, falling_to(state.forecast, tuning, now_s))
    objective = state.credit.planned(policy.objective)
    evidence = Evidence(
        latency_of(signals, objective, tuning),
        queued_lately=now_s - state.queued_s < tuning.rate_window_s,
        rate_per_s=rate,
        objective=objective,
        tuning=tuning,
    )
    held = (signals.held.known or 0.0) >= 1
    woken = to_wake(policy, {name: counts for name, (_, counts) in seen.items()}) if held else frozenset[str]()
    return Sight(policy, state, observation, evidence, shares, woken, now_s)


def _look(sight: Sight, pool: PoolPolicy, observed: PoolObservation, counts: PoolCounts) -> View:
    policy, state, now_s = sight.policy, sight.state, sight.now_s
    memory = state.pools.get(pool.name) or PoolState(writer=counts.writer)
    first = not memory.needs.points  # nothing was seen of it, or not lately
    foreign = None
    if first or counts.writer != memory.writer:
        foreign = None if first else counts.writer
        memory = replace(memory, writer=counts.writer)
        if first or foreign:
            memory = _record(policy, memory, need=counts.wanted, to_keep=counts.wanted, now_s=now_s)
    seed = None
    if pool.worker is not None and state.mix is not None:
        seed = expect(pool.worker, pool.role, state.mix, policy.objective, pool.concurrency_max)
    facts = Facts(counts, observed.signals, seed, sight.shares[pool.name], now_s)
    learnt = learn(pool, memory.learnt, facts, sight.evidence)
    orders, unmeasured_s = learnt.orders, _unmeasured_s(policy, state)
    return View(
        pool,
        observed,
        counts,
        replace(memory, learnt=learnt),
        learnt,
        capacity_of(pool, learnt, seed),
        foreign,
        seed,
        lead_s=orders.lead_s(now_s, unmeasured_s),
        coming=orders.coming(now_s, unmeasured_s),
    )


def _record(policy: ServicePolicy, memory: PoolState, *, need: int, to_keep: int, now_s: float) -> PoolState:
    return replace(
        memory,
        needs=memory.needs.add(now_s, to_keep, length_s=policy.scale_down_window_s),
        shortfalls=memory.shortfalls.add(now_s, -need, length_s=policy.scale_up_window_s),
    )


def _size(sight: Sight, view: View, portion: Portion) -> Sized:
    """The pool's demand and need, recorded in its windows."""
    policy, now_s = sight.policy, sight.now_s
    demand = _demand(sight, view, portion)
    need, crowded_since_s = (None, None) if demand is None else _need(sight, view, demand)
    view = replace(view, memory=replace(view.memory, crowded_since_s=crowded_since_s))
    if need is not None:
        need = with_spare(need, view.pool.spare)
    if view.pool.name in sight.woken:
        need, demand = at_least_one(need), with_held(demand, sight.observation.signals.held.known or 0.0)
    unknown = _unknown_inputs(view, sight.observation)
    memory = _remember(policy, view, need, unknown, now_s=now_s)
    load = load_per_worker(view.pool.role, view.capacity.work_s, view.counts, view.observed.signals)
    situation = Situation(
        policy=policy,
        pool=view.pool,
        counts=view.counts,
        need=need,
        unknown=unknown,
        missing_objective=sight.evidence.latency.missed_by(view.pool.role) and not is_idle(view.pool.role, load),
        untested=sight.state.forecast.untested and demand is not None and bool(demand.rate_per_s),
        needs=memory.needs,
        shortfalls=memory.shortfalls,
        now_s=now_s,
        schedule=schedule_in_force(view.pool.schedules, now_s, lead_s=view.lead_s),
    )
    # Fewer than the pool's least number is no option, so it is none that could be rejected.
    wanted = view.counts.wanted if need is None else max(need.with_backlog, view.pool.replicas_min)
    asides = (f"{view.pool.spare} kept as warm spares" if view.pool.spare else "", portion.told)
    aside = ", ".join(one for one in asides if one)
    return Sized(replace(view, memory=memory), demand, situation, Proposal(wanted), aside, sight.evidence.objective)


def _need(sight: Sight, view: View, demand: Demand) -> tuple[Need, float | None]:
    """The need, and since when running requests beyond it have been left to ordered workers."""
    policy = sight.policy
    to_work_off = backlog_ahead(
        demand, ready=view.counts.ready, coming=view.coming, good_rate_per_s=view.capacity.good_rate_per_s
    )
    running, crowded_since_s = _running_ahead(sight, view, demand)
    need = need_of(
        view.pool.role,
        replace(demand, running=running),
        view.capacity,
        to_work_off=to_work_off,
        objective=sight.evidence.objective,
        tuning=policy.tuning,
    )
    return need, crowded_since_s


def _running_ahead(sight: Sight, view: View, demand: Demand) -> tuple[float, float | None]:
    """What runs, as far as it asks for workers beside those ordered, and since when some of it does not.

    Overfull workers are what the others were ordered for. Once these have been there for a window, or do not come, whatever
    still runs counts; so it does when it has not for a start-up time and a window, whatever came and went meanwhile.
    """
    policy, orders, now_s = sight.policy, view.learnt.orders, sight.now_s
    tuning = policy.tuning
    coming = sum(count for _, count in view.coming)
    begun = now_s - orders.fulfilled_s < tuning.rate_window_s
    hold = (view.counts.ready + coming) * view.capacity.limit
    if demand.rate_per_s is None or not (coming or begun) or demand.running <= hold:
        return demand.running, None
    since_s = now_s if view.memory.crowded_since_s is None else view.memory.crowded_since_s
    startup_s = orders.startup_s or _unmeasured_s(policy, sight.state)
    lasts = now_s - since_s >= startup_s + tuning.rate_window_s
    return (demand.running if lasts else hold), since_s


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


def _demand(sight: Sight, view: View, portion: Portion) -> Demand | None:
    """What is asked of this pool; None when neither rate nor requests in work are known."""
    forecast, rate = sight.state.forecast, sight.evidence.rate_per_s
    running = 0.0 if view.counts.ready == 0 else running_in_workers(view.observed.signals)
    waiting = 0.0 if view.counts.ready == 0 else waiting_in_workers(view.observed.signals)
    pending = sight.observation.signals.pending.known
    if rate is None and running is None and waiting is None and pending is None:
        return None
    demand = Demand(
        rate_per_s=None if rate is None else rate * portion.to_grow,
        backlog=(pending or 0.0) * portion.backlog + (waiting or 0.0),
        running=(running or 0.0) * portion.running,
        lead_s=view.lead_s,
        dispersion=forecast.dispersion,
        method=forecast.method.value,
    )
    planned, keep = rates_to_plan(sight, view)
    if planned is None or keep is None:
        return demand
    return replace(demand, planned_per_s=planned * portion.to_grow, keep_per_s=keep * portion.to_keep)


def _unknown_inputs(view: View, observation: ServiceObservation) -> tuple[str, ...]:
    """Inputs without which the pool must not shrink. Engines are only asked when there are some."""
    signals, own = observation.signals, view.observed.signals
    inputs = {"arrivals": signals.arrived_per_s, "pending": signals.pending}
    if view.counts.ready > 0:
        inputs |= {"running": own.running, "waiting": own.waiting}
        if signals.arrived_per_s.known:
            inputs |= {"finished": own.finished_per_s}
    missing = tuple(name for name, reading in inputs.items() if reading.known is None)
    return (*missing, "routers") if signals.routers_gone.known else missing


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
            _not_to_be_taken(one),
        )
        for one, proposal in zip(sized, owned, strict=True)
    ]
    shared = share_budget(wishes, policy.budget_gpus)
    why = f"the budget is {policy.budget_gpus} GPUs"
    return [proposal.instead(count, Constraint.BUDGET, why) for proposal, count in zip(owned, shared, strict=True)]


def _not_to_be_taken(one: Sized) -> int:
    """Workers that the budget must not move to another pool."""
    allowed, current = one.situation.may_leave, one.situation.current
    if one.situation.unknown:
        return current
    return 0 if allowed is None else max(0, current - allowed)


def _all_unknown(sized: Sequence[Sized]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for one in sized:
        for name in one.situation.unknown:
            shared = name in ("arrivals", "pending", "routers")
            names[name if shared else f"{name} of {one.view.pool.name}"] = None
    return tuple(names)
