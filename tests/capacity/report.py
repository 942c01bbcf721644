"""The capacity model beside what was measured, as Markdown: `python -m tests.capacity.report`.

docs/capacity-model.md shows its output; the tests hold the same comparisons to their bounds.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from forebay_capacity.accelerators import accelerator_of
from forebay_capacity.batch import decode_seconds, prefill_seconds
from forebay_capacity.shapes import shape_of
from forebay_capacity.steptime import CALIBRATED, StepTimer, step_timer
from tests.capacity.kernels import KernelTable, Stage, measured_stages
from tests.capacity.stepsim import Load, StepSimulation

H100 = accelerator_of("h100-sxm")
LLAMA_8B = shape_of("llama-3.1-8b")
LLAMA_70B = shape_of("llama-3.1-70b")
KERNELS = replace(CALIBRATED, name="kernels", slowdown=1.0, overhead_s=0.0)
"""The calibration without what a running engine adds: K = 1, no overhead."""
PROMPTS = (256, 512, 1024, 2048, 4096, 8192, 16_384)


@dataclass(frozen=True)
class Comparison:
    """One measured time and the model's."""

    name: str
    measured_s: float
    model_s: float

    @property
    def error(self) -> float:
        return self.model_s / self.measured_s - 1


def worst(comparisons: Iterable[Comparison]) -> Comparison:
    return max(comparisons, key=lambda one: abs(one.error))


def rms(comparisons: Iterable[Comparison]) -> float:
    errors = [one.error for one in comparisons]
    return math.sqrt(sum(error**2 for error in errors) / len(errors))


def table_8b(weights: str = "bf16") -> KernelTable:
    return KernelTable(model="llama3.1-8b", layers=32, tensor=1, heads=(32, 8), weights=weights)


def table_70b(tensor: int) -> KernelTable:
    return KernelTable(model="llama3.1-70b", layers=80, tensor=tensor, heads=(64, 8))


def decode_comparisons(table: KernelTable, timer: StepTimer, tokens_max: int) -> list[Comparison]:
    """Decode steps of all measured batches up to 256 whose contexts fit into memory."""
    return [
        Comparison(
            f"decode {point.batch} x {point.context}",
            point.seconds,
            decode_seconds(timer, point.batch, point.context),
        )
        for point in table.decode_points(batch_max=256, tokens_max=tokens_max)
    ]


def prefill_comparisons(table: KernelTable, timer: StepTimer) -> list[Comparison]:
    """Prompts of 256 to 16k tokens in one step each."""
    return [
        Comparison(f"prefill {point.context}", point.seconds, prefill_seconds(timer, point.context, chunk_tokens=None))
        for point in table.prefill_points(PROMPTS)
    ]


def load_comparison(stage: Stage, timer: StepTimer) -> Comparison:
    """The step of the mean load that was measured: mean concurrency, and the prompts that arrive in a mean step."""
    prompts = stage.rate * stage.tpot_s
    sequences = max(1.0, stage.concurrency)
    seconds = timer.step_seconds(
        decode_sequences=sequences,
        decode_context_tokens=sequences * (stage.input_tokens + stage.output_tokens / 2),
        prefill_tokens=prompts * (stage.input_tokens - stage.cached_tokens),
        prefill_attention=prompts * (stage.input_tokens**2 - stage.cached_tokens**2),
    )
    return Comparison(stage.name, stage.tpot_s, seconds)


def simulated_comparison(stage: Stage, timer: StepTimer, *, seconds: float = 30.0) -> Comparison:
    """The stage step by step, at the rate that was offered."""
    load = Load(
        input_tokens=round(stage.input_tokens),
        output_tokens=round(stage.output_tokens),
        cached_tokens=stage.cached_tokens,
        rate_per_s=stage.offered,
    )
    simulation = StepSimulation(load, mixed=[timer], prefill=[], decode=[], slots=stage.slots)
    times = [tpot for _, tpot in simulation.run(max(60, int(stage.offered * seconds)))]
    return Comparison(stage.name, stage.tpot_s, sum(times) / len(times))


def saturation(stage: Stage, timer: StepTimer, *, requests: int = 6000) -> float:
    """Requests per second that one worker finishes when far more are offered."""
    load = Load(round(stage.input_tokens), round(stage.output_tokens), stage.cached_tokens, stage.offered)
    simulation = StepSimulation(load, mixed=[timer], prefill=[], decode=[], slots=stage.slots)
    simulation.run(requests)
    early, late = requests // 4, requests * 3 // 4
    return (late - early) / (simulation.finished_s[late] - simulation.finished_s[early])


def _print_table(title: str, comparisons: list[Comparison], endings: tuple[str, ...] = ("",)) -> None:
    print(f"\n### {title}\n\n| point | measured, ms | model, ms | error |\n|---|---|---|---|")
    for one in comparisons:
        if one.name.endswith(endings):
            print(f"| {one.name} | {one.measured_s * 1e3:.2f} | {one.model_s * 1e3:.2f} | {one.error:+.1%} |")
    far = worst(comparisons)
    print(f"\n{len(comparisons)} points, rms {rms(comparisons):.1%}, worst {far.error:+.1%} ({far.name})")


def main() -> None:
    kernels = step_timer(LLAMA_8B, H100, calibration=KERNELS)
    running = step_timer(LLAMA_8B, H100)
    decode = decode_comparisons(table_8b(), kernels, 445_000)
    _print_table("Kernels, 8B BF16, K = 1: decode", decode, (" x 1024", " x 4096", " x 16384"))
    _print_table("Kernels, 8B BF16, K = 1: prefill", prefill_comparisons(table_8b(), kernels))
    for tensor in (2, 4, 8):
        timer = step_timer(LLAMA_70B, H100, tensor=tensor, calibration=KERNELS)
        both = [
            *decode_comparisons(table_70b(tensor), timer, 1_000_000),
            *prefill_comparisons(table_70b(tensor), timer),
        ]
        far = worst(both)
        print(f"\n70B BF16 TP{tensor}: {len(both)} points, rms {rms(both):.1%}, worst {far.error:+.1%} ({far.name})")
    fp8 = step_timer(LLAMA_8B, H100, weights="fp8", calibration=KERNELS)
    both = [*decode_comparisons(table_8b("fp8"), fp8, 445_000), *prefill_comparisons(table_8b("fp8"), fp8)]
    far = worst(both)
    print(f"\n8B FP8 TP1: {len(both)} points, rms {rms(both):.1%}, worst {far.error:+.1%} ({far.name})")
    stages = measured_stages()
    _print_table("Measured run, step of the mean load", [load_comparison(s, running) for s in stages])
    for title, variant in (
        ("chunked prefill and prefix cache", "chunking_and_prefix_caching"),
        ("neither", "plain"),
        ("neither, 192 slots", "batch_size"),
    ):
        mine = [stage for stage in stages if stage.variant == variant]
        simulated = [simulated_comparison(stage, running) for stage in mine if stage.number <= 4]
        _print_table(f"Measured run, step by step: {title}", simulated)
        served = max(stage.rate for stage in mine)
        print(f"\nsaturation {saturation(mine[5], running):.0f} requests/s, measured {served:.0f}")


if __name__ == "__main__":
    main()
