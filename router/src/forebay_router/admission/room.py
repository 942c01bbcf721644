"""When a request waits here rather than in an engine. Pure.

An engine queues well by itself: first come, first served, and it batches. What waits there cannot be put in another order,
cannot go to another worker that is free sooner, and is work for an engine even when its client has given up. So the router
keeps a request back exactly while waiting here costs it nothing:

    a worker is full      the prompts queued there are, by its measured speed, more work than the objective's time to first token
    a request waits       while every worker it could go to is full

Then the request would miss its objective wherever it went, and would wait as long in the engine; that has a whole objective's
worth of prompts ahead of it, so it does not run dry before the next one is sent. Whatever could still meet the objective is
never kept back: predicted TTFT is at least the predicted wait.

What is not known keeps nobody back. A speed that was not measured (`Origin.MEASURED`) makes no worker full, fewer than
`QUEUED_MIN` prompts do not either, and an overdue prompt counts for the work it is, not for the time it is overdue: a worker
that hangs is a matter for `health`. Decoding makes no worker full: one more sequence slows the others down a little, and what
an objective loses by that is the choice's to weigh (an operator who wants a bound sets --worker-limit).

Requests of low priority are there to fill what others leave. They wait also while they would push a worker's time per output
token over the objective, as long as that can be met there at all and anybody else is being served.
"""

from collections.abc import Iterable
from typing import Final

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_router.choose import Choice
from forebay_router.fitting import work_of
from forebay_router.predicting import Candidate, Demand, Prediction
from forebay_router.speed import ASSUMED, Origin

QUEUED_MIN: Final = 2
"""Prompts that an engine may always have, one being computed and one to go on with."""


def queued_work_s(candidate: Candidate, wait_s: float) -> float:
    """Seconds of work in the prompts queued at a worker, of which `wait_s` were predicted; 0 where its speed is not measured."""
    backlog, speed = candidate.load.backlog, candidate.speed
    prompts = len(backlog.prompts)
    if speed.pool.origin is not Origin.MEASURED or prompts < QUEUED_MIN:
        return 0.0
    line = speed.pool.first_token
    return min(wait_s, (backlog.tokens * line.slope + prompts * line.second) * speed.first_token.value)


def excess_s(choice: Choice, objective: Objective) -> float:
    """For how long every worker considered will stay full; 0 when one has room, and the request can go."""
    if choice.prediction.wait_s <= objective.ttft_s:
        return 0.0
    return max(0.0, least_work_s(choice) - objective.ttft_s)


def least_work_s(choice: Choice) -> float:
    """Seconds of queued work at the worker that has the least, of those that were considered."""
    return min((queued_work_s(choice.field[one.uid], one.wait_s) for one in _prompt_side(choice)), default=0.0)


def _prompt_side(choice: Choice) -> Iterable[Prediction]:
    """Predictions of workers that would compute the prompt."""
    if choice.prefill is None:
        return choice.considered
    return (one for one in choice.considered if choice.field[one.uid].role is not Role.DECODE)


def disturbs(choice: Choice, objective: Objective) -> bool:
    """One more sequence would push the worker's time per output token over an objective that it can meet."""
    worker = choice.worker
    line = worker.speed.pool.output_token
    if worker.speed.pool.origin is not Origin.MEASURED or not worker.load.requests:
        return False
    alone_s = line.at(1) * worker.speed.output_token.value
    return alone_s <= objective.tpot_s < choice.prediction.tpot_s


def cost_s(demand: Demand, candidate: Candidate | None) -> float:
    """Predicted seconds of a worker's time that a request takes: its prompt's, and what its output adds to everybody's steps."""
    best = max(demand.cached.values(), default=0) if demand.cached else 0
    uncached = max(0, demand.prompt_tokens - max(best, demand.common_tokens))
    if candidate is None:
        return uncached * ASSUMED.prefill_token_s + demand.output_tokens * ASSUMED.step_growth_s
    work = work_of(demand.prompt_tokens, uncached, candidate.speed.pool.bend.value)
    return work * candidate.token_s + demand.output_tokens * candidate.speed.pool.output_token.slope
