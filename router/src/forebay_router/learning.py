"""What is learnt from each request: speeds of workers, and what their caches really held.

A `Trip` is one attempt as it was promised; when the request has ended, `learn` compares it with what happened:

    first token seen           seconds for so many prompt tokens, the queue ahead included  -> the worker's speed
    output tokens known        seconds per token at so many in flight                      -> the worker's speed
    prefill elsewhere          prefill's end to first token                                -> transfer
    prompt and cached tokens   predicted against delivered                                 -> the prefix index

Only the last attempt counts, and only where the worker answered: a failure says nothing of speed.
"""

from dataclasses import dataclass
from typing import Final

from forebay_api.objective import Outcome
from forebay_router.accounting import Record
from forebay_router.index.prefix_index import Dispatch, LookUp, PrefixIndex
from forebay_router.predicting import Prediction
from forebay_router.speed import Speed

_PACE_TOKENS_MIN: Final = 8
"""Output tokens below which an answer's pace is mostly chance."""


@dataclass(slots=True)
class Trip:
    """One attempt, as it was promised."""

    service: str
    prediction: Prediction
    look_up: LookUp | None
    prefiller: Speed
    """Of the worker that computes the prompt."""
    writer: Speed
    """Of the worker that answers; the same one where the attempt is not split."""
    dispatch: Dispatch | None
    """The prompt on its way to the worker that computes it."""
    sent_s: float
    """Monotonic."""
    ahead_tokens: float
    """Prompt tokens queued ahead of it."""
    in_flight: int
    """Requests on the worker that answers, this one included."""
    prefilled_s: float | None = None
    """When prefill elsewhere ended."""

    @property
    def split(self) -> bool:
        """Prefill runs on another worker."""
        return self.prefiller is not self.writer


def learn(trip: Trip, record: Record, index: PrefixIndex, *, in_flight: int) -> None:
    """Compare an attempt with what happened. `in_flight` is the count on the answering worker at its end, this one included."""
    finished = record.outcome is Outcome.FINISHED
    if finished:
        trip.writer.finished += 1
        if trip.split:
            trip.prefiller.finished += 1
    usage = record.usage
    if usage is not None and usage.prompt_tokens and trip.dispatch is not None:
        index.answered(
            trip.service, trip.dispatch, prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens
        )
    _learn_first_token(trip, record)
    tpot_s = record.tpot_s
    if finished and tpot_s and usage is not None and usage.output_tokens >= _PACE_TOKENS_MIN:
        trip.writer.saw_output((trip.in_flight + in_flight) / 2, tpot_s)


def _learn_first_token(trip: Trip, record: Record) -> None:
    uncached = float(trip.prediction.uncached_tokens)
    usage = record.usage
    if usage is not None and usage.prompt_tokens and usage.cached_tokens is not None:
        uncached = max(0.0, usage.prompt_tokens - usage.cached_tokens)
    tokens = trip.ahead_tokens + uncached
    if trip.split:
        if trip.prefilled_s is None:
            return
        trip.prefiller.saw_first_token(tokens, trip.prefilled_s - trip.sent_s)
        if record.first_content_s is not None and usage is not None:
            trip.writer.pool.transfer.observe(usage.prompt_tokens, record.first_content_s - trip.prefilled_s)
    elif record.first_content_s is not None:
        trip.writer.saw_first_token(tokens, record.first_content_s - trip.sent_s)
