"""The capacity model beside what was measured, as Markdown: `python -m tests.capacity.report`.

docs/capacity-model.md shows its output; the tests hold the same comparisons to their bounds.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from forebay_api.objective import Objective
from forebay_capacity.accelerators import accelerator_of
from forebay_capacity.batch import decode_seconds, prefill_seconds
from forebay_capacity.layouts import Layout, MixedLayout, PoolSize, SplitLayout
from forebay_capacity.performance import Serving, evaluate, lane_cap
from forebay_capacity.shapes import shape_of
from forebay_capacity.steptime import CALIBRATED, StepTimer, step_timer
from forebay_capacity.transfer import TRANSFER_LATENCY_S, transfer_seconds
from forebay_capacity.worker import Worker
from forebay_capacity.workload import Workload
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


WORKER = Worker(LLAMA_8B, H100)
OBJECTIVE = Objective(ttft_s=0.5, tpot_s=0.025, target=0.99)


def _mixed(replicas: int, tokens: int, answer: int, cached: float, rate: float) -> tuple[Layout, Workload]:
    workload = Workload(input_tokens=tokens, output_tokens=answer, cached_share=cached, rate_per_s=rate)
    return MixedLayout(PoolSize(WORKER, replicas)), workload


def _split(sizes: tuple[int, int], tokens: int, answer: int, cached: float, rate: float) -> tuple[Layout, Workload]:
    workload = Workload(input_tokens=tokens, output_tokens=answer, cached_share=cached, rate_per_s=rate)
    return SplitLayout(PoolSize(WORKER, sizes[0]), PoolSize(WORKER, sizes[1])), workload


CASES = [
    _mixed(1, 2048, 256, 0.0, 3.0),
    _mixed(1, 2048, 256, 0.0, 6.0),
    _mixed(3, 2048, 256, 0.0, 20.0),
    _mixed(2, 2048, 28, 0.0, 10.0),
    _mixed(1, 1155, 211, 0.0, 10.0),
    _mixed(2, 12_035, 64, 0.374, 2.0),
    _split((2, 1), 2048, 256, 0.0, 20.0),
    _split((2, 1), 2048, 28, 0.0, 20.0),
    _split((1, 1), 1155, 211, 0.0, 20.0),
    _split((2, 1), 12_035, 343, 0.3, 2.0),
    _split((4, 2), 8192, 256, 0.0, 8.0),
]


NEAR_CAPACITY = _mixed(1, 1155, 211, 0.0, 15.0)
"""Where the closed form is at its worst; shown, and not held to the bounds of the others."""


@dataclass(frozen=True)
class Served:
    """What a simulated layout did at the target percentile."""

    attainment: float
    ttft_s: float
    tpot_s: float


def layout_name(layout: Layout, workload: Workload) -> str:
    kind = "mixed" if isinstance(layout, MixedLayout) else "P + D"
    sizes = " + ".join(str(pool.replicas) for pool in layout.pools)
    cached = f" ({workload.cached_share:.0%} cached)" if workload.cached_share else ""
    return f"{sizes} {kind}, {workload.input_tokens}{cached} in {workload.output_tokens} out, {workload.rate_per_s:g}/s"


def simulate_layout(layout: Layout, workload: Workload) -> Served:
    """The layout step by step, with the queue discipline of the router and the engine."""
    timer = step_timer(LLAMA_8B, H100)
    split = isinstance(layout, SplitLayout)
    simulation = StepSimulation(
        Load(workload.input_tokens, workload.output_tokens, workload.cached_tokens, workload.rate_per_s),
        mixed=[] if split else [timer] * layout.mixed.replicas,
        prefill=[timer] * layout.prefill.replicas if split else [],
        decode=[timer] * layout.decode.replicas if split else [],
        slots=lane_cap(WORKER, workload, Serving()),
        transfer_s=transfer_seconds(
            LLAMA_8B,
            workload.input_tokens,
            bandwidth_bytes_per_s=H100.network_bytes_per_s,
            latency_s=TRANSFER_LATENCY_S,
        ),
    )
    times = simulation.run(max(700, min(2500, 300_000 // workload.output_tokens)))
    good = sum(ttft <= OBJECTIVE.ttft_s and tpot <= OBJECTIVE.tpot_s for ttft, tpot in times)
    place = int(OBJECTIVE.target * len(times))
    return Served(good / len(times), sorted(ttft for ttft, _ in times)[place], sorted(tpot for _, tpot in times)[place])


def _print_layouts() -> None:
    print("\n### Layouts: closed form against simulation, TTFT 500 ms, TPOT 25 ms\n")
    print("| layout and load | good: model, simulated | TTFT 99 %, ms | TPOT 99 %, ms |\n|---|---|---|---|")
    for layout, workload in (*CASES, NEAR_CAPACITY):
        model, simulated = evaluate(layout, workload, OBJECTIVE), simulate_layout(layout, workload)
        print(
            f"| {layout_name(layout, workload)} | {model.attainment:.3f}, {simulated.attainment:.3f} "
            f"| {model.ttft_s * 1e3:.0f}, {simulated.ttft_s * 1e3:.0f} "
            f"| {model.tpot_s * 1e3:.1f}, {simulated.tpot_s * 1e3:.1f} |"
        )


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
    _print_layouts()


if __name__ == "__main__":
    main()
