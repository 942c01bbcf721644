"""When a request waits here rather than in an engine. Pure.

An engine takes whatever it is sent, first come, first served, into one batch. What waits there cannot be put in another order,
cannot go to another worker that is free sooner, and is work for an engine even when its client has given up; and what runs there
makes all that runs beside it slower. So a worker can be full in two ways, and a request waits here while
every worker is full in the same way. (Where some are full in the one way and the rest in the other, it goes to one that has too
many prompts: no more of these than it can run in time.)

*Prompts.* What is queued there is, by its measured speed, more work than half (`QUEUED_SHARE`) of the objective's time to first
token. More would only make the queue longer: the request waits as long here, and here it can be overtaken by one that would
miss its objective behind it. An engine that has so much ahead does not run dry before the next one is sent.

*Pace.* It runs as many requests as it can in time. With n at once a token takes, in the long run,

    base + (slope + second x prompt tokens that requests bring for each of output) n        of the pool's line (`speed`)

and the most that keep to the objective's time per output token, less room for how uneven answers are, is where that line meets it
(`PoolSpeed.most`). One more makes all of them late, those that are nearly done as well. If it waits instead, the next one of n
answers ends after 1/n of the time that one takes: some hundredths of a second where many run. So short waits cost next to nothing
and keep everybody in time. Where so much is asked that waits are long, all would be late together; held back, most are not.
This is for workers that do both. The decode worker of a pair is sent nothing before the prompt is computed, elsewhere and later:
by then others have ended, and to hold the request would only leave prefill workers idle.

Whom to serve then is the queue's (`fair_queue`): those that can still be in time before those that are late, which get a tenth of
the places. Late is who is predicted to miss the objective's time to first token, sent now; it is found out when its turn comes.

Nobody waits for ever. For prompts, an engine has work while anybody waits, and comes down by itself. For pace a request waits
only a part (`PACED_SHARE`) of the time in which its first byte has to come: then it is due, goes before others, and makes them
slower. So an objective that cannot be kept costs waiting, but turns no answer into an error.

What is not known keeps nobody back. A speed that was not measured (`Origin.MEASURED`) makes no worker full, fewer than
`QUEUED_MIN` prompts do not either, nor does an objective that not even a request alone would meet, and an overdue prompt counts
for the work it is, not for the time it is overdue: a worker that hangs is a matter for `health`. Without the capacity model's
word, a line through few sequences is not believed for more than twice as many (`speed.BEYOND_SEEN`).

Requests of low priority are there to fill what others leave. They wait also while they would push a worker's time per output
token over the objective, as long as that can be met there at all and anybody else is being served.
"""

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from math import inf
from random import Random
from typing import Final, NamedTuple

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_router.choose import Choice, Snapshot, choose
from forebay_router.fitting import work_of
from forebay_router.predicting import Candidate, Demand, Prediction
from forebay_router.speed import ASSUMED, Origin

_MIXED: Final = Role.MIXED
QUEUED_MIN: Final = 2
"""Prompts that an engine may always have, one being computed and one to go on with."""
QUEUED_SHARE: Final = 0.5
"""Of the objective's time to first token: more queued work makes a worker full. What is left is for those that are held."""
PACED_SHARE: Final = 0.5
"""Of the time in which a first byte has to come: as long a request waits for the sake of the others' pace."""
HOPE: Final = 0.95
"""Part of the time left that a first token may be predicted to take; a request for which it takes more is late."""


def queued_work_s(candidate: Candidate, wait_s: float) -> float:
    """Seconds of work in the prompts queued at a worker, of which `wait_s` were predicted; 0 where its speed is not measured."""
    backlog, speed = candidate.load.backlog, candidate.speed
    prompts = len(backlog.prompts)
    if speed.pool.origin is not Origin.MEASURED or prompts < QUEUED_MIN:
        return 0.0
    line = speed.pool.first_token
    return min(wait_s, (backlog.tokens * line.slope + prompts * line.second) * speed.first_token.value)


class Cause(StrEnum):
    """Why a request is held although there are workers."""

    PROMPTS = "every worker has more prompts queued than it computes in time"
    PACE = "every worker runs as many requests as it can in time"
    FILLER = "it is of low priority and would slow the others down"
    NO_WORKER = "no worker can take it now"
    NOT_HERE = "it needs a worker of another role than those that are there"
    LATE = "it cannot be in time any more: those that can go first"


class Held(NamedTuple):
    """A request is not sent yet."""

    cause: Cause
    again_s: float = inf
    """After how many seconds there may be room; infinite when something has to end before."""


NO_WORKER: Final = Held(Cause.NO_WORKER)
NOT_HERE: Final = Held(Cause.NOT_HERE)
FILLER: Final = Held(Cause.FILLER)
_PACE: Final = Held(Cause.PACE)
_LATE: Final = Held(Cause.LATE, 0.0)


class Turn(NamedTuple):
    """How a request comes to be asked for."""

    late: bool = False
    """It is known to be late, or nobody else waits."""
    due: bool = False
    """It has waited for the sake of the others' pace as long as it has to."""


FIRST: Final = Turn(late=True)
"""Nobody waits, so it does not matter whether it is late."""
ANYHOW: Final = Turn(late=True, due=True)


def settle(choice: Choice, snapshot: Snapshot, rng: Random, arrived_s: float, turn: Turn) -> Choice | Held:
    """Where a request goes for which this was chosen: there, elsewhere because that worker is full, or nowhere yet."""
    objective = choice.demand.objective
    limit_s = QUEUED_SHARE * objective.ttft_s
    if choice.prediction.wait_s > limit_s:
        excess_s = least_work_s(choice) - limit_s
        if excess_s > 0:
            return Held(Cause.PROMPTS, excess_s)
    if not turn.due and is_full(choice.worker):
        other = _elsewhere(choice, snapshot, rng)
        if other is None or is_full(other.worker):
            return _PACE
        choice = other
    if not turn.late and choice.prediction.ttft_s > HOPE * (objective.ttft_s - (choice.now_s - arrived_s)):
        return _LATE
    return choice


def _elsewhere(choice: Choice, snapshot: Snapshot, rng: Random) -> Choice | None:
    """The next best choice where the worker of this one is full; None where all that there are were looked at and are full.

    It was passed over, being fresh or holding less of the prompt, or was not looked at, there being many.
    """
    seen = choice.looked_at[0]
    full = {one.uid for one in seen if is_full(one)}
    if len(full) == len(seen) and len(seen) >= len(snapshot.mixed):
        return None
    return choose(replace(choice.demand, excluded=choice.demand.excluded | full), snapshot, rng, choice.now_s)


def is_full(worker: Candidate) -> bool:
    """It runs as many requests as it can in time. Of a prefill or decode worker that is not asked (see above)."""
    return worker.role is _MIXED and worker.load.requests >= worker.speed.most


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
