"""What the pools of one role could do, and so for what part of its demand each is sized. Pure.

A pool plans for the demand until a worker of its own would be ready, so one that starts slowly looks further ahead. Each is told
its part of the demand that it sees itself: what the others do of that, as they are now.
"""

from collections.abc import Sequence

from forebay_autoscaler.conclude import View
from forebay_autoscaler.costs import ALL, Offer, Portion, portions_of
from forebay_autoscaler.demand import planned_rate, rate_to_keep
from forebay_autoscaler.learn import Learnt, capacity_of
from forebay_autoscaler.model import Capacity, carried_per_s, carried_with_margin_per_s
from forebay_autoscaler.schedules import schedule_in_force
from forebay_autoscaler.sight import Sight


def portions_for(sight: Sight, views: Sequence[View]) -> dict[str, Portion]:
    """What part of its role's demand each pool is sized for."""
    headroom = sight.policy.tuning.headroom
    portions: dict[str, Portion] = {}
    for role in {view.pool.role for view in views}:
        peers = [view for view in views if view.pool.role is role]
        if len(peers) == 1:
            portions[peers[0].pool.name] = ALL
            continue
        offers = [_offer(sight, view) for view in peers]
        for view in peers:  # each by the demand until a worker of its own is ready
            planned, keep = rates_to_plan(sight, view)
            portions[view.pool.name] = portions_of(offers, planned, keep_per_s=keep, headroom=headroom)[view.pool.name]
    return portions


def rates_to_plan(sight: Sight, view: View) -> tuple[float, float] | tuple[None, None]:
    """Requests a second of the whole service to have workers for, and to keep them for, at this pool's lead."""
    tuning, forecast, rate = sight.policy.tuning, sight.state.forecast, sight.evidence.rate_per_s
    if rate is None:
        return None, None
    planned = planned_rate(forecast, rate, tuning, now_s=sight.now_s, lead_s=view.lead_s)
    return planned, rate_to_keep(rate, planned, tuning, caution=sight.state.credit.caution(sight.policy.objective))


def _offer(sight: Sight, view: View) -> Offer:
    pool, counts, coming = view.pool, view.counts, sum(count for _, count in view.coming)
    overdue = sum(count for _, count in view.learnt.orders.waiting) > coming
    there = counts.ready if counts.unschedulable else counts.ready + coming if overdue else counts.wanted
    stuck = counts.unschedulable or counts.rival is not None or overdue

    def carried(workers: int, capacity: Capacity) -> float:
        return carried_per_s(pool.role, workers, capacity, sight.evidence.objective) or 0.0

    def in_need(workers: int) -> float:
        sufficient = carried_with_margin_per_s(
            pool.role,
            workers,
            view.capacity,
            sight.evidence.objective,
            dispersion=sight.state.forecast.dispersion,
            tuning=sight.policy.tuning,
        )
        return sufficient or 0.0

    least = min(_least(view, sight.now_s), counts.ready if stuck else pool.replicas_max)
    many = max(1, pool.replicas_max)  # what one does where it shares with as many as there can be
    expected = capacity_of(pool, Learnt(), view.seed)
    return Offer(
        name=pool.name,
        share=sight.shares[pool.name],
        price_per_hour=pool.price_per_hour,
        rate_per_s=(carried(many, expected) or carried(many, view.capacity)) / many,
        most_per_s=carried(there if stuck else pool.replicas_max, view.capacity),
        ready_per_s=carried(counts.ready, view.capacity),
        least_per_s=in_need(least),
        least_ready_per_s=in_need(min(least, counts.ready)),
    )


def _least(view: View, now_s: float) -> int:
    """Workers that a pool has whatever is asked."""
    schedule = schedule_in_force(view.pool.schedules, now_s, lead_s=view.lead_s)
    return max(view.pool.replicas_min, schedule.replicas_min if schedule else 0)
