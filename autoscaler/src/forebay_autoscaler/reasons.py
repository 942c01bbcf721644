"""Reasons that a person understands at 3 a.m. Pure text, from the numbers of a decision.

"3 → 5: 41 req/s asked, one worker does 8.9 good/s, 2.1 s of backlog"
"""

from typing import Final

from forebay_autoscaler.constraints import Constraint, Proposal
from forebay_autoscaler.demand import Demand
from forebay_autoscaler.model import Capacity
from forebay_autoscaler.state import Action

TOLD: Final = 1.15
"""Ratio of the planned to the present rate from which it is told."""


def number(value: float) -> str:
    """Two or three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 or value == 0 else f"{value:.2g}"


def explain(
    action: Action,
    *,
    current: int,
    proposal: Proposal,
    demand: Demand | None,
    capacity: Capacity,
    aside: str = "",
) -> str:
    """One line: the number, what was asked, what one worker does, and what stood in the way."""
    facts = ", ".join(part for part in (_facts(demand, capacity), aside) if part)
    last = proposal.rejected[-1] if proposal.rejected else None
    if action in (Action.GROW, Action.SHRINK):
        limited = f"; {proposal.rejected[0].replicas} needed, but {last.why}" if last else ""
        return f"{current} → {proposal.replicas}: {facts}{limited}"
    if action is Action.HOLD:
        unknown = next((one.why for one in proposal.rejected if one.constraint is Constraint.UNKNOWN), "")
        return f"{current} held: {unknown or 'not everything is known'}; {facts}"
    if action is Action.STAND_BACK:
        return f"{current} kept: {last.why if last else 'another autoscaler owns the number'}"
    if action is Action.WAIT and last is not None:
        return f"{current} kept, {proposal.rejected[0].replicas} needed: {last.why}; {facts}"
    return f"{current} kept: {facts}"


def _facts(demand: Demand | None, capacity: Capacity) -> str:
    if demand is None:
        return "demand unknown"
    rate_per_s, good_rate = demand.rate_per_s, capacity.good_rate_per_s
    if rate_per_s is None:
        facts = ["arrivals unknown"]
    else:
        facts = [f"{number(rate_per_s)} req/s asked" if rate_per_s > 0 else "nothing asked"]
    if rate_per_s is not None and demand.planned_per_s >= TOLD * max(rate_per_s, 0.1):
        facts.append(f"{number(demand.planned_per_s)} to plan for within {number(demand.lead_s)} s")
    if good_rate is None:
        facts.append("one worker's rate not measured yet")
        if demand.backlog >= 1:
            facts.append(f"{number(demand.backlog)} requests wait")
    else:
        does = "does" if capacity.measured else "should do"
        facts.append(f"one worker {does} {number(good_rate)} good/s")
        if demand.backlog >= 1:
            facts.append(f"{number(demand.backlog / max(good_rate, rate_per_s or 0.0))} s of backlog")
    return ", ".join(facts)
