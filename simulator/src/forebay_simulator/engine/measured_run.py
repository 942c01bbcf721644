"""Replays a measured run of a real vLLM on an H100 against the scheduler, in virtual time, and compares.

The run: vLLM 0.11.0, Llama 3.1 8B in BF16 on one H100, 203 tokens in (128 of them shared within 10 groups), about 63 out,
seven stages of 60 s at rising rates, with and without prefix cache and chunked prefill (kubernetes-sigs/inference-perf,
demos/kubecon-na-2025). Arrivals are Poisson with a fixed seed. TPOT is (last token - first token) / (tokens - 1), averaged
over the requests that arrived in the stage; the rate is that of requests that ended.

    python -m forebay_simulator.engine.measured_run MEASURED.csv.gz      prints the table of docs/simulated-engine.md
"""

from __future__ import annotations

import csv
import gzip
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from forebay_simulator.engine.model import load_model
from forebay_simulator.engine.request import Request
from forebay_simulator.engine.scheduler import Scheduler
from forebay_simulator.engine.scheduling import SchedulerConfig
from forebay_simulator.engine.settings import EngineSettings

STAGE_S = 60.0
GROUPS = 10
SHARED_TOKENS = 128
PROMPT_TOKENS = 203
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One configuration of the measured engine."""

    name: str
    sequences: int
    cached: bool
    """Prefix caching and chunked prefill are on."""


VARIANTS = (
    Variant(name="vllm+chunking_and_prefix_caching", sequences=128, cached=True),
    Variant(name="vllm", sequences=128, cached=False),
    Variant(name="vllm+batch_size", sequences=192, cached=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage: what was asked for, and what came of it. Times in seconds."""

    variant: str
    stage: int
    requested_per_s: float
    completed_per_s: float
    tpot_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class _Prompt:
    """Names blocks by group for the shared start and by request after it."""

    group: int
    number: int

    def block_hash(self, index: int) -> tuple[int, int]:
        shared = index < SHARED_TOKENS // BLOCK_SIZE
        return (-1 - self.group if shared else self.number, index)


def read_measured(path: Path) -> dict[str, list[Stage]]:
    """Read the measured stages by variant."""
    stages: dict[str, list[Stage]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            stage = Stage(
                variant=row["variant"],
                stage=int(row["stage"].removeprefix("stage_")),
                requested_per_s=float(row["requested_rps"]),
                completed_per_s=float(row["completed_rps"]),
                tpot_s=float(row["tpot_from_e2e_mean_s"]),
                ttft_p50_s=float(row["ttft_p50_s"]),
                ttft_p99_s=float(row["ttft_p99_s"]),
                output_tokens=float(row["out_tokens_mean"]),
            )
            stages.setdefault(stage.variant, []).append(stage)
    return stages


def replay(variant: Variant, measured: Stage, *, seed: int = 0) -> Stage:
    """Run one stage in virtual time."""
    model = load_model(EngineSettings(model="llama-3.1-8b", served_names=("m",), gpu_memory_utilization=0.9))
    config = SchedulerConfig(
        block_size=BLOCK_SIZE,
        usable_blocks=model.scheduler.usable_blocks,
        max_sequences=variant.sequences,
        max_batched_tokens=8192,
        chunked_prefill=variant.cached,
        prefix_caching=variant.cached,
    )
    requests = list(_arrivals(measured, random.Random(seed)))  # noqa: S311  (arrivals, not secrets)
    end_s = _run(Scheduler(config, model.timer), requests)
    first_tokens = sorted(request.first_token_s - request.arrival_s for request in requests if request.first_token_s)
    return Stage(
        variant=variant.name,
        stage=measured.stage,
        requested_per_s=measured.requested_per_s,
        completed_per_s=len(requests) / end_s,
        tpot_s=statistics.fmean(_tpot_s(request) for request in requests),
        ttft_p50_s=first_tokens[len(first_tokens) // 2],
        ttft_p99_s=first_tokens[len(first_tokens) * 99 // 100],
        output_tokens=statistics.fmean(request.output_tokens for request in requests),
    )


def _arrivals(measured: Stage, chance: random.Random) -> Iterator[Request]:
    now_s = 0.0
    for number in range(round(measured.requested_per_s * STAGE_S)):
        now_s += chance.expovariate(measured.requested_per_s)
        whole = int(measured.output_tokens)
        yield Request(
            request_id=str(number),
            prompt_tokens=PROMPT_TOKENS,
            output_tokens_max=whole + (chance.random() < measured.output_tokens - whole),
            blocks=_Prompt(chance.randrange(GROUPS), number),
            arrival_s=now_s,
        )


def _run(scheduler: Scheduler, requests: Sequence[Request]) -> float:
    """Run until every request has ended and return the time of the last token."""
    now_s, arrived = 0.0, 0
    while arrived < len(requests) or scheduler.unfinished:
        while arrived < len(requests) and requests[arrived].arrival_s <= now_s:
            scheduler.add(requests[arrived])
            arrived += 1
        step = scheduler.schedule(now_s)
        if not step.work:
            now_s = requests[arrived].arrival_s
            continue
        now_s += step.duration_s
        for request in scheduler.complete(step, now_s):
            request.last_token_s = now_s
    return now_s


def _tpot_s(request: Request) -> float:
    first, last = request.first_token_s, request.last_token_s
    assert first is not None, "a finished request had a first token"
    assert last is not None, "and a last one"
    return (last - first) / (request.output_tokens - 1)


def table(measured: dict[str, list[Stage]]) -> Iterator[str]:
    """Return the lines of a Markdown table of measured against simulated."""
    yield "| configuration | asked, req/s | ended, req/s: measured | simulated | TPOT, ms: measured | simulated | off |"
    yield "|---|---|---|---|---|---|---|"
    for variant in VARIANTS:
        for real in measured[variant.name]:
            simulated = replay(variant, real)
            off = simulated.tpot_s / real.tpot_s - 1
            yield (
                f"| {variant.name} | {real.requested_per_s:.0f} | {real.completed_per_s:.1f} "
                f"| {simulated.completed_per_s:.1f} | {real.tpot_s * 1000:.2f} | {simulated.tpot_s * 1000:.2f} "
                f"| {off:+.1%} |"
            )


def main() -> None:
    """Print the table for the file named on the command line."""
    for line in table(read_measured(Path(sys.argv[1]))):
        print(line, flush=True)  # noqa: T201  (the command's output)


if __name__ == "__main__":
    main()
