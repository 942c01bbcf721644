"""Why no layout meets an objective, in sentences with the numbers that would.

More workers shorten queues and nothing else. So a bound that one idle worker misses is missed by any number of them, and
the refusal names the worker that comes closest and the value that it could meet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from forebay_capacity.batch import decode_seconds, prefill_seconds
from forebay_capacity.fits import Verdict, check_worker
from forebay_capacity.options import REPLICAS_MAX, START_MAX, Option
from forebay_capacity.performance import fewest_replicas
from forebay_capacity.steptime import timer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay_api.objective import Objective
    from forebay_capacity.performance import Serving
    from forebay_capacity.worker import Worker
    from forebay_capacity.workload import Workload


class Cause(StrEnum):
    """What stands in the way."""

    MEMORY = "memory"
    TTFT = "ttft"
    TPOT = "tpot"
    BUDGET = "budget"
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason why nothing meets the objective."""

    cause: Cause
    message: str


def refusals(
    workers: Sequence[Worker],
    workload: Workload,
    objective: Objective,
    *,
    serving: Serving,
    beyond_budget: Sequence[Option] = (),
    gpus_max: int | None = None,
) -> list[Refusal]:
    """The reasons, at least one."""
    fitting = [worker for worker in workers if check_worker(worker, workload.final_tokens).verdict is Verdict.FITS]
    if not fitting:
        largest = max(workers, key=lambda worker: worker.kv_room_bytes)
        return [Refusal(Cause.MEMORY, check_worker(largest, workload.final_tokens).message)]
    if beyond_budget:
        least = min(beyond_budget, key=lambda option: option.gpus)
        return [
            Refusal(
                Cause.BUDGET,
                f"{workload.rate_per_s:g} requests/s within the objective need {least.gpus} GPUs or more, "
                f"and the budget is {gpus_max}: raise --gpus to {least.gpus}, or lower the rate",
            )
        ]
    reasons = [
        *_ttft_refusal(fitting, workload, objective, serving),
        *_tpot_refusal(fitting, workload, objective, serving),
    ]
    return reasons or [_target_refusal(fitting, workload, objective, serving)]


def idle_ttft_s(worker: Worker, workload: Workload, serving: Serving) -> float:
    """Time to first token on an idle mixed worker: no layout is faster."""
    return prefill_seconds(
        timer_of(worker, serving.calibration),
        workload.input_tokens,
        cached_tokens=workload.cached_tokens,
        chunk_tokens=serving.tokens_of_step(worker),
    )


def longest_uncached_tokens(worker: Worker, workload: Workload, ttft_s: float, serving: Serving) -> int:
    """Uncached tokens of the longest prompt, with the workload's cached share, that an idle worker serves in time."""
    low, high = 0, 1 << 24
    while high - low > 1:
        middle = (low + high) // 2
        fits = idle_ttft_s(worker, replace(workload, input_tokens=middle), serving) <= ttft_s
        low, high = (middle, high) if fits else (low, middle)
    return replace(workload, input_tokens=low).uncached_tokens if low else 0


def _ttft_refusal(
    workers: Sequence[Worker], workload: Workload, objective: Objective, serving: Serving
) -> list[Refusal]:
    best = min(workers, key=lambda worker: idle_ttft_s(worker, workload, serving))
    best_s = idle_ttft_s(best, workload, serving)
    if best_s <= objective.ttft_s:
        return []
    smallest = min(workers, key=lambda worker: worker.parallelism.gpus)
    named = [smallest] if smallest is best else [smallest, best]
    limits = ", ".join(
        f"{_thousands(longest_uncached_tokens(worker, workload, objective.ttft_s, serving))} uncached tokens on "
        f"{_place(worker)}"
        for worker in named
    )
    return [
        Refusal(
            Cause.TTFT,
            f"TTFT {objective.ttft_s:g} s is impossible above {limits}; this workload has "
            f"{_thousands(workload.uncached_tokens)}, which take {_seconds(best_s)} on {_place(best)}: "
            f"allow --ttft {_seconds_up(best_s)}, serve more of the prompt from cache, or take faster GPUs",
        )
    ]


def _tpot_refusal(
    workers: Sequence[Worker], workload: Workload, objective: Objective, serving: Serving
) -> list[Refusal]:
    def alone_s(worker: Worker) -> float:
        return decode_seconds(timer_of(worker, serving.calibration), 1, workload.decode_context_tokens)

    best = min(workers, key=alone_s)
    if workload.output_tokens == 1 or alone_s(best) <= objective.tpot_s:
        return []
    return [
        Refusal(
            Cause.TPOT,
            f"TPOT {objective.tpot_s * 1e3:g} ms is impossible: one sequence alone takes "
            f"{alone_s(best) * 1e3:.1f} ms per token on {_place(best)}, the fastest tried: allow --tpot "
            f"{_milliseconds_up(alone_s(best))}, use quantised weights, more tensor parallelism or faster GPUs",
        )
    ]


def _target_refusal(workers: Sequence[Worker], workload: Workload, objective: Objective, serving: Serving) -> Refusal:
    rate = f"{workload.rate_per_s:g} requests/s"
    starts = [fewest_replicas(worker, workload, serving, prefill=True, decode=True) for worker in workers]
    if min((start for start in starts if start is not None), default=0) > START_MAX:
        return Refusal(
            Cause.BUDGET, f"{rate} need more than {START_MAX:,} workers of any kind tried: lower --rate, plan in parts"
        )
    return Refusal(
        Cause.TARGET,
        f"{objective.target:.4g} of {rate} within both bounds is out of reach of any number of workers tried "
        f"({REPLICAS_MAX} beyond the least, or twice the least): the bounds leave too little room above an idle worker; "
        f"allow more --ttft or --tpot, or lower --target",
    )


def _place(worker: Worker) -> str:
    gpus = worker.parallelism.gpus
    return (
        f"one {worker.accelerator.name}" if gpus == 1 else f"{gpus} x {worker.accelerator.name} ({worker.parallelism})"
    )


def _thousands(tokens: int) -> str:
    return f"{tokens:,}" if tokens < 10_000 else f"{tokens / 1000:.1f}k"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _seconds_up(seconds: float) -> str:
    """A duration somewhat above, as the command takes it: room for the queue."""
    rounded = seconds * 1.2
    return f"{-(-rounded * 1e3 // 10) * 10:.0f}ms" if rounded < 1 else f"{-(-rounded * 10 // 1) / 10:g}s"


def _milliseconds_up(seconds: float) -> str:
    return f"{-(-seconds * 1.1e3 // 1):.0f}ms"
