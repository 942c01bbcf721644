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
from forebay_router.choose import Choice
from forebay_router.fitting import work_of
from forebay_router.index.prefix_index import Dispatch, LookUp, PrefixIndex
from forebay_router.predicting import Prediction
from forebay_router.speed import Speed

_PACE_TOKENS_MIN: Final = 8
"""Output tokens below which an answer's pace is mostly chance."""


@dataclass(slots=True)
class Trip:
    """One attempt, as it was promised."""

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
    in_flight: int
    """Requests on the worker that answers, this one included."""
    computed_tokens: int
    """Work that the worker that answers will have done on prompts, ever, when this request's first token comes."""
    loads_adapter: bool = False
    """The worker that computes the prompt has to load the adapter first, as far as is known."""
    prefilled_s: float | None = None
    """When prefill elsewhere ended."""

    @classmethod
    def begin(cls, choice: Choice, look_up: LookUp | None, dispatch: Dispatch | None, now_s: float) -> "Trip":
        """An attempt that begins now: to be made before its leases are taken."""
        worker, prefill = choice.worker, choice.prefill
        prefiller = worker if prefill is None else prefill
        prefiller.speed.sent(now_s, choice.prediction.work_tokens, choice.relief_s)
        prefiller.speed.last_start = choice.demand.start
        adapter = choice.demand.adapter
        loads_adapter = adapter is not None and adapter not in prefiller.adapters
        if adapter is not None:
            prefiller.adapters.use(adapter)
            worker.adapters.use(adapter)
        backlog = worker.load.backlog
        own_tokens = round(choice.prediction.work_tokens) if prefill is None else 0
        return cls(
            choice.prediction,
            look_up,
            prefiller.speed,
            worker.speed,
            dispatch,
            now_s,
            worker.load.requests + 1,
            backlog.computed_tokens + backlog.tokens + own_tokens,
            loads_adapter,
        )

    @property
    def split(self) -> bool:
        """Prefill runs on another worker."""
        return self.prefiller is not self.writer


def learn(trip: Trip, record: Record, index: PrefixIndex, *, in_flight: int, computed_tokens: int) -> None:
    """Compare an attempt with what happened.

    Of the answering worker at the end: the requests in flight, this one included, and the prompt tokens computed there, ever.
    """
    finished = record.outcome is Outcome.FINISHED
    if finished:
        trip.writer.finished += 1
        if trip.split:
            trip.prefiller.finished += 1
    usage = record.usage
    if usage is not None and usage.prompt_tokens and trip.dispatch is not None:
        index.answered(trip.dispatch, prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens)
    _learn_first_token(trip, record)
    tpot_s = record.tpot_s
    if finished and tpot_s and usage is not None and usage.output_tokens >= _PACE_TOKENS_MIN:
        beside = max(0, computed_tokens - trip.computed_tokens)
        sequences = (trip.in_flight + in_flight) / 2
        trip.writer.saw_output(sequences, tpot_s, tokens=usage.output_tokens, beside=beside, prompt=usage.prompt_tokens)


def _learn_first_token(trip: Trip, record: Record) -> None:
    work, bent = trip.prediction.work_tokens, 0.0
    usage = record.usage
    if usage is not None and usage.prompt_tokens and usage.cached_tokens is not None:
        uncached = max(0.0, usage.prompt_tokens - usage.cached_tokens)
        work = work_of(usage.prompt_tokens, uncached, trip.prefiller.pool.bend.value)
        bent = uncached * (usage.prompt_tokens + usage.cached_tokens)
    if trip.loads_adapter:
        _learn_adapter(trip, record)
        return
    tokens = trip.prediction.ahead_tokens + work
    prompts = trip.prediction.ahead_prompts
    if trip.split:
        if trip.prefilled_s is None:
            return
        trip.prefiller.saw_first_token(tokens, trip.prefilled_s - trip.sent_s, prompts, bent=bent)
        if record.first_content_s is not None and usage is not None:
            trip.writer.pool.transfer.observe(usage.prompt_tokens, record.first_content_s - trip.prefilled_s)
    elif record.first_content_s is not None:
        trip.writer.saw_first_token(tokens, record.first_content_s - trip.sent_s, prompts, bent=bent)


def _learn_adapter(trip: Trip, record: Record) -> None:
    """What a first token took longer than with the adapter loaded. Of a pair it cannot be told whose load it was."""
    if record.first_content_s is not None and not trip.split:
        pool = trip.prefiller.pool
        without_s = trip.prediction.ttft_s - pool.adapter_s
        pool.saw_adapter(record.first_content_s - trip.sent_s - without_s)
