"""Parts for scheduler tests: a timer of constant steps, requests with made-up block identities."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from forebay_simulator.engine.request import Request
from forebay_simulator.engine.scheduler import Scheduler
from forebay_simulator.engine.scheduling import SchedulerConfig

STEP_S = 0.01
_numbers = count()


class ConstantTimer:
    """Every step takes ten milliseconds; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, int]] = []

    def step_seconds(
        self, *, decode_sequences: int, decode_context_tokens: int, prefill_tokens: int, prefill_attention: int
    ) -> float:
        self.asked.append(
            {
                "decodes": decode_sequences,
                "context": decode_context_tokens,
                "prefill": prefill_tokens,
                "attention": prefill_attention,
            }
        )
        return STEP_S


@dataclass(frozen=True)
class Blocks:
    """Blocks named by a prefix shared with others and the request's own name after it."""

    own: str
    shared: str = ""
    shared_blocks: int = 0

    def block_hash(self, index: int) -> tuple[str, int]:
        return (self.shared if index < self.shared_blocks else self.own, index)


def a_request(prompt: int, output: int, **fields: object) -> Request:
    name = f"r{next(_numbers)}"
    fields.setdefault("blocks", Blocks(own=name))
    fields.setdefault("arrival_s", 0.0)
    return Request(request_id=name, prompt_tokens=prompt, output_tokens_max=output, **fields)


def a_scheduler(**fields: object) -> Scheduler:
    defaults = {"block_size": 16, "usable_blocks": 100, "max_sequences": 8, "max_batched_tokens": 64}
    return Scheduler(SchedulerConfig(**{**defaults, **fields}), ConstantTimer())


def run_step(scheduler: Scheduler, now_s: float = 0.0) -> tuple[list[tuple[str, int]], list[str]]:
    """Run one step; returns (work by request id, ids that produced a token)."""
    step = scheduler.schedule(now_s)
    work = [(request.request_id, tokens) for request, tokens in step.work]
    return work, [request.request_id for request in scheduler.complete(step, now_s + step.duration_s)]


def run_to_end(scheduler: Scheduler, steps_max: int = 10_000) -> float:
    """Run until nothing is left; returns the virtual time."""
    now_s = 0.0
    for _ in range(steps_max):
        step = scheduler.schedule(now_s)
        if not step.work:
            return now_s
        now_s += step.duration_s
        scheduler.complete(step, now_s)
    raise AssertionError(f"still {scheduler.unfinished} unfinished after {steps_max} steps")
