"""What a request comes to: times, tokens, verdict. One call at the end of each request.

    TTFT   arrival to first content, of streamed answers
    TPOT   (last content - first content) / (output tokens of one choice - 1), of streamed answers whose token count is known

An answer that is not streamed shows neither. It is judged by a bound: had it met both limits, it would have ended within
ttft + (tokens - 1) x tpot; a later end proves that it missed one. Client errors (4xx) and helper calls are not judged:
neither is a matter of how well the service is doing.
"""

from forebay_api.objective import Objective, Outcome, Verdict, judge, time_per_output_token_s
from forebay_router.errors import FailureReason
from forebay_router.metrics import PoolStats, ServiceStats
from forebay_router.usage import Usage


class Record:
    """What is known of a request when it has ended.

    Defaults stand in the class: setting sixteen fields on every request costs more than looking up the few that stay.
    """

    ended_s = 0.0
    status = 0
    """Status sent, 499 when the client left before one was."""
    outcome: Outcome | None = None
    """None for client errors."""
    reason: FailureReason | None = None
    model: str | None = None
    """Name that the client sent."""
    streamed = False
    chosen_s: float | None = None
    """When the worker of the last attempt was chosen."""
    prefilled_s: float | None = None
    """When the prefill worker had done its part, where there was one."""
    opened_s: float | None = None
    """When the answer could begin: its first event, or all of it for JSON."""
    first_content_s: float | None = None
    last_content_s: float | None = None
    usage: Usage | None = None
    pools: tuple[PoolStats, ...] = ()
    """Pools that took part in the last attempt."""
    worker: str | None = None
    """Name of the worker of the last attempt."""
    prefill_worker: str | None = None
    attempts = 0
    choices = 1
    """Answers in one: the token count is their sum, and they come side by side."""

    def __init__(self, arrived_s: float, *, judged: bool = True) -> None:
        self.arrived_s = arrived_s
        """Monotonic time at which the request was complete."""
        self.judged = judged

    def note_status(self, status: int) -> None:
        """Outcome of a complete answer by its status; a client error has none."""
        if status < 400:
            self.outcome = Outcome.FINISHED
        elif status >= 500 or status == 429:
            self.outcome = Outcome.REJECTED if status in {429, 503} else Outcome.FAILED
            self.reason = FailureReason.WORKER_ERROR

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, where it was seen."""
        return None if self.first_content_s is None else self.first_content_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first, where it is known."""
        if self.first_content_s is None or self.last_content_s is None or self.usage is None:
            return None
        return time_per_output_token_s(self.first_content_s, self.last_content_s, self.tokens_of_one)

    @property
    def tokens_of_one(self) -> int:
        """Output tokens of one choice, on average; 0 when unknown."""
        return round(self.usage.output_tokens / self.choices) if self.usage else 0


def verdict_of(record: Record, objective: Objective) -> Verdict | None:
    """The verdict, or None when the request is not judged."""
    if not record.judged or record.outcome is None:
        return None
    if record.streamed or record.outcome is not Outcome.FINISHED:
        return judge(record.outcome, record.ttft_s, record.tpot_s, objective)
    further_tokens = max(0, record.tokens_of_one - 1)
    least_ttft_s = record.ended_s - record.arrived_s - further_tokens * objective.tpot_s
    return judge(record.outcome, least_ttft_s, None, objective)


def account(record: Record, stats: ServiceStats, objective: Objective) -> Verdict | None:
    """Add an ended request to the counts; returns its verdict."""
    stats.count_response(record.status)
    stats.duration.observe(record.ended_s - record.arrived_s)
    if record.reason is not None:
        stats.failures[record.reason] += 1
    if record.first_content_s is not None:
        stats.ttft.observe(record.first_content_s - record.arrived_s)
        tpot_s = record.tpot_s
        if tpot_s is not None:
            stats.tpot.observe(tpot_s)
    usage = record.usage
    if usage is not None:
        stats.prompt_tokens += usage.prompt_tokens
        stats.output_tokens += usage.output_tokens
        stats.cached_tokens += usage.cached_tokens or 0
    verdict = verdict_of(record, objective)
    if verdict is not None:
        stats.verdicts[verdict] += 1
        for pool in record.pools:
            pool.finished[verdict] += 1
    return verdict
