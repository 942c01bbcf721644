"""A request on its way through the fleet, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay_api.objective import Objective, Outcome, Verdict, judge, time_per_output_token_s
from forebay_router.admission import room
from forebay_router.admission.room import Turn
from forebay_simulator.engine.request import Request
from forebay_simulator.fleet.traces.trace import Arrival, Trace, TraceError


class PromptBlocks:
    """Names an engine's blocks of one request by the ids of its trace.

    Engine blocks are parts of a trace's block, or several of them; as an id covers all that comes before, the last one of
    several is enough. Blocks that reach into the answer, and prompts without ids, are the request's own.
    """

    __slots__ = ("_ids", "_merged", "_own", "_parts", "_shared", "trace_block")

    def __init__(self, arrival: Arrival, number: int, *, trace_block: int, engine_block: int) -> None:
        self.trace_block = trace_block
        """Tokens of a trace's block; 0 without ids."""
        self._ids = arrival.block_ids
        self._own = -1 - (number << 24)
        self._parts, self._merged = _ratio(trace_block, engine_block)
        known = len(arrival.block_ids) * trace_block // engine_block if trace_block else 0
        self._shared = min(known, arrival.prompt_tokens // engine_block)

    def block_hash(self, index: int) -> int:
        """The name of a full block."""
        if index >= self._shared:
            return self._own - index
        if self._merged:
            return self._ids[(index + 1) * self._merged - 1]
        return self._ids[index // self._parts] * self._parts + index % self._parts


def _ratio(trace_block: int, engine_block: int) -> tuple[int, int]:
    """(engine blocks in one of the trace, trace blocks in one of the engine): one of them is 0 unless both are 1."""
    if not trace_block or trace_block % engine_block == 0:
        return max(1, trace_block // engine_block), 0
    if engine_block % trace_block == 0:
        return 0, engine_block // trace_block
    raise TraceError(
        f"engine blocks of {engine_block} tokens cannot be named by a trace's blocks of {trace_block}: one must divide "
        "the other"
    )


@dataclass(slots=True, eq=False)
class Job:
    """One request. The router fills in the rest."""

    number: int
    arrival: Arrival
    at_s: float
    blocks: PromptBlocks
    prefill: Request | None = None
    """Its leg on a prefill worker."""
    answer: Request | None = None
    """Its leg on the worker that answers."""
    worker: str = ""
    """Uid of the worker that answers."""
    prefill_worker: str = ""
    tried: frozenset[str] = frozenset()
    """Workers that failed on it."""
    turn: Turn = room.FIRST
    """How it comes to be placed."""
    prefilled_s: float | None = None
    """When its leg on a prefill worker ended."""
    first_token_s: float | None = None
    ended_s: float | None = None
    outcome: Outcome | None = None
    """None while it is under way."""
    cached_tokens: int = 0
    """Prompt tokens that the worker which computed the prompt had."""
    preemptions: int = 0
    verdict: Verdict | None = field(default=None)

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token; None without one."""
        return None if self.first_token_s is None else self.first_token_s - self.at_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None where undefined."""
        if self.first_token_s is None or self.ended_s is None or self.outcome is not Outcome.FINISHED:
            return None
        return time_per_output_token_s(self.first_token_s, self.ended_s, self.arrival.output_tokens)

    def end(self, outcome: Outcome, now_s: float, objective: Objective) -> None:
        """Conclude; once."""
        assert self.outcome is None, f"request {self.number} ends twice"
        self.outcome, self.ended_s = outcome, now_s
        self.verdict = judge(outcome, self.ttft_s, self.tpot_s, objective)


def jobs_of(trace: Trace, *, engine_block: int) -> list[Job]:
    """The requests of a trace, numbered from 0."""
    return [
        Job(
            number,
            one,
            one.at_s,
            PromptBlocks(one, number, trace_block=trace.block_tokens, engine_block=engine_block),
        )
        for number, one in enumerate(trace.arrivals)
    ]
