"""`forebay plan`: what a model can do on GPUs, and what serves a workload within an objective at the least cost.

Thin: reads flags and files into a `Demand`, asks the capacity model, and hands the answer to a table, a document, a
manifest or a plot. Exit code 0 with options, 1 when nothing meets the objective or a value makes no sense.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.markup import escape

from forebay_api.durations import parse_duration_s
from forebay_api.objective import Objective
from forebay_capacity.accelerators import Accelerator, accelerator_of
from forebay_capacity.architecture import ModelShape
from forebay_capacity.dtypes import Dtype, kv_dtype, weights_dtype
from forebay_capacity.errors import CapacityError, ConfigError, ImpossibleError, require_positive
from forebay_capacity.fits import engine_sequences, engine_tokens, engine_utilization
from forebay_capacity.performance import Serving
from forebay_capacity.planning import Demand, Plan, make_plan
from forebay_capacity.shapes import shape_from_config, shape_of
from forebay_capacity.steptime import CALIBRATED, ROOFLINE
from forebay_capacity.worker import UTILIZATION
from forebay_capacity.workload import Workload
from forebay_cli.plan_document import plan_document
from forebay_cli.plan_manifest import ReadService, manifest_text, read_service
from forebay_cli.plan_table import print_plan, print_service

MODEL = "Model"
WORKERS = "Workers"
WORKLOAD = "Workload and objective"
OUTPUT = "Output"

Model = Annotated[
    str | None,
    typer.Option(help="A preset (llama-3.1-8b) or its repository (meta-llama/Llama-3.1-8B).", rich_help_panel=MODEL),
]
Config = Annotated[
    Path | None, typer.Option(help="A Hugging Face config.json, for any other model.", rich_help_panel=MODEL)
]
File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        help="A ModelService manifest: model, formats, objective and pools come from it (and AcceleratorClasses beside it).",
        rich_help_panel=MODEL,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(help="bf16, fp8, int4 (awq, gptq) or mxfp4; as published when absent.", rich_help_panel=MODEL),
]
Kv = Annotated[str, typer.Option(help="Format of the KV cache: bf16 or fp8.", rich_help_panel=MODEL)]
Accelerators = Annotated[
    list[str] | None,
    typer.Option("--accelerator", "-a", help="h100-sxm, h200, ...; repeat to compare.", rich_help_panel=WORKERS),
]
Tensor = Annotated[
    list[int] | None,
    typer.Option(
        help="Tensor parallelism; repeat to compare; every size that fits when absent.", rich_help_panel=WORKERS
    ),
]
Pipeline = Annotated[
    int | None,
    typer.Option(
        help="Pipeline stages; more than one only where a node is too small when absent.", rich_help_panel=WORKERS
    ),
]
Data = Annotated[int, typer.Option(help="Data-parallel ranks of a worker, for experts.", rich_help_panel=WORKERS)]
ExpertParallel = Annotated[
    bool, typer.Option("--expert-parallel", help="Whole experts on each GPU.", rich_help_panel=WORKERS)
]
Gpus = Annotated[int | None, typer.Option(help="Most GPUs of a layout.", rich_help_panel=WORKERS)]
Price = Annotated[
    float | None, typer.Option(help="USD per GPU-hour, instead of the planning price.", rich_help_panel=WORKERS)
]
Utilization = Annotated[
    float | None,
    typer.Option(help="Share of GPU memory the engine takes; 0.9, or as the manifest has it.", rich_help_panel=WORKERS),
]
MaxSequences = Annotated[
    int | None,
    typer.Option(
        "--max-num-seqs", help="The engine's limit; vLLM's for the accelerator when absent.", rich_help_panel=WORKERS
    ),
]
BatchedTokens = Annotated[
    int | None,
    typer.Option(
        "--max-num-batched-tokens",
        help="Token budget of a step; vLLM's for the accelerator when absent.",
        rich_help_panel=WORKERS,
    ),
]
InputTokens = Annotated[int, typer.Option(help="Prompt tokens of a request.", rich_help_panel=WORKLOAD)]
OutputTokens = Annotated[int, typer.Option(help="Answer tokens of a request.", rich_help_panel=WORKLOAD)]
CachedShare = Annotated[float, typer.Option(help="Share of the prompt found in cache.", rich_help_panel=WORKLOAD)]
Rate = Annotated[float, typer.Option(help="Requests per second.", rich_help_panel=WORKLOAD)]
Ttft = Annotated[
    str | None, typer.Option(help="Largest time to first token; 500ms when absent.", rich_help_panel=WORKLOAD)
]
Tpot = Annotated[
    str | None, typer.Option(help="Largest mean time per output token; 25ms when absent.", rich_help_panel=WORKLOAD)
]
Target = Annotated[
    float | None, typer.Option(help="Share of requests to meet both; 0.99 when absent.", rich_help_panel=WORKLOAD)
]
Roofline = Annotated[
    bool,
    typer.Option(
        "--roofline", help="The hardware's lower bound instead of a running engine.", rich_help_panel=WORKLOAD
    ),
]
Output = Annotated[
    str, typer.Option("--output", "-o", help="table, json or yaml.", rich_help_panel=OUTPUT, metavar="FORMAT")
]
Write = Annotated[
    Path | None,
    typer.Option(help="Write a ModelService of the chosen option; - for standard output.", rich_help_panel=OUTPUT),
]
Choice = Annotated[int, typer.Option("--option", help="Which option to write, as numbered.", rich_help_panel=OUTPUT)]
Plot = Annotated[
    Path | None,
    typer.Option(help="Plot TPOT against batch and goodput against rate, as .png or .svg.", rich_help_panel=OUTPUT),
]

EXAMPLES = """
[bold]Examples[/]

  [cyan]forebay plan --model llama-3.1-8b -a h100-sxm --rate 20[/]
  [cyan]forebay plan --model llama-3.3-70b --weights fp8 -a h100-sxm -a h200 --rate 10 --plot plan.png[/]
  [cyan]forebay plan --config ./config.json -a l40s --tensor 1 --input-tokens 800 -o json[/]
  [cyan]forebay plan --model llama-3.1-8b --rate 50 --write service.yaml && kubectl apply -f service.yaml[/]
  [cyan]forebay plan -f service.yaml --rate 50[/]
"""


def plan(  # noqa: PLR0913  # the command line: each option is a parameter
    *,
    model: Model = None,
    config: Config = None,
    file: File = None,
    weights: Weights = None,
    kv: Kv = "bf16",
    accelerator: Accelerators = None,
    tensor: Tensor = None,
    pipeline: Pipeline = None,
    data: Data = 1,
    expert_parallel: ExpertParallel = False,
    gpus: Gpus = None,
    price: Price = None,
    utilization: Utilization = None,
    max_sequences: MaxSequences = None,
    batched_tokens: BatchedTokens = None,
    input_tokens: InputTokens = 2048,
    output_tokens: OutputTokens = 256,
    cached_share: CachedShare = 0.0,
    rate: Rate = 10.0,
    ttft: Ttft = None,
    tpot: Tpot = None,
    target: Target = None,
    roofline: Roofline = False,
    output: Output = "table",
    write: Write = None,
    option: Choice = 1,
    plot: Plot = None,
) -> None:
    """Size a model service: what one worker can do, the layouts that meet an objective, or why none does."""
    try:
        _check_outputs(output, plot)
        service = None if file is None else read_service(file)
        shape = _shape(model, config, service)
        demand = Demand(
            shape=shape,
            accelerators=_accelerators(accelerator, price, service),
            workload=Workload(
                input_tokens=input_tokens, output_tokens=output_tokens, rate_per_s=rate, cached_share=cached_share
            ),
            objective=_objective(ttft, tpot, target, service),
            serving=Serving(
                batched_tokens=_batched_tokens(batched_tokens, service),
                max_sequences=_max_sequences(max_sequences, service),
                calibration=ROOFLINE if roofline else CALIBRATED,
            ),
            tensor=tuple(tensor or ()),
            pipeline=pipeline,
            data=data,
            expert=expert_parallel,
            weights=_weights(weights, service),
            kv=kv_dtype(kv) if service is None else service.kv,
            utilization=_utilization(utilization, service),
            gpus_max=gpus,
        )
        made = make_plan(demand)
        _show(made, service, output)
        _write(made, service, write, option)
        _plot(made, plot)
    except CapacityError as error:
        _fail(f"--{error.field.replace('_', '-')}: {error.problem}; {error.fix}" if _is_flag(error) else str(error))
    if not made.options:
        raise typer.Exit(1)


def _fail(message: str) -> None:
    Console(stderr=True).print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(1)


_FLAGS = frozenset(
    {"model", "config", "file", "weights", "kv", "accelerator", "tensor", "pipeline", "data", "gpus", "price",
     "utilization", "input_tokens", "output_tokens", "cached_share", "ttft", "tpot", "target", "output", "plot",
     "write", "option", "max-num-seqs", "max-num-batched-tokens", "rate", "expert-parallel"}
)  # fmt: skip
_FLAG_OF_FIELD = {"rate_per_s": "rate", "expert": "expert-parallel"}


def _is_flag(error: CapacityError) -> bool:
    """Whether the field is a flag of this command; keys of a config.json keep their own spelling."""
    error.field = _FLAG_OF_FIELD.get(error.field, error.field)
    return error.field in _FLAGS and not isinstance(error, ConfigError)


def _check_outputs(output: str, plot: Path | None) -> None:
    if output not in {"table", "json", "yaml"}:
        raise ImpossibleError("output", f"{output!r} is not a format", "use table, json or yaml")
    if plot is not None and plot.suffix.lower() not in {".png", ".svg"}:
        raise ImpossibleError("plot", f"{plot.name!r} has no known ending", "use a name that ends in .png or .svg")


def _at_least_one(field: str, value: int) -> int:
    require_positive(field, value)
    return value


def _shape(model: str | None, config: Path | None, service: ReadService | None) -> ModelShape:
    if config is not None:
        return shape_from_config(_read_json(config), name=model or config.resolve().parent.name)
    if model is not None:
        return shape_of(model)
    if service is not None:
        return service.shape()
    raise ImpossibleError("model", "nothing to plan for", "give --model, --config or --file")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("config", f"{path} cannot be read ({error.strerror})", "check the path") from error
    except ValueError as error:
        raise ConfigError("config", f"{path} is not JSON ({error})", "give a Hugging Face config.json") from error


def _accelerators(names: list[str] | None, price: float | None, service: ReadService | None) -> tuple[Accelerator, ...]:
    if price is not None:
        require_positive("price", price, "USD per hour")
    if names:
        found = [accelerator_of(name) for name in names]
    elif service is not None:
        found = list(service.accelerators())
    else:
        found = [accelerator_of("h100-sxm")]
    unique = {one.name: one if price is None else one.at_price(price) for one in found}
    return tuple(unique.values())


def _weights(flag: str | None, service: ReadService | None) -> Dtype | None:
    if flag is not None:
        return weights_dtype(flag)
    return None if service is None else service.weights


def _utilization(flag: float | None, service: ReadService | None) -> float:
    if flag is not None:
        return flag
    return UTILIZATION if service is None else engine_utilization(service.spec.engine.args)


def _max_sequences(flag: int | None, service: ReadService | None) -> int | None:
    if flag is not None:
        return _at_least_one("max-num-seqs", flag)
    return None if service is None else engine_sequences(service.spec.engine.args)


def _batched_tokens(flag: int | None, service: ReadService | None) -> int | None:
    if flag is not None:
        return _at_least_one("max-num-batched-tokens", flag)
    return None if service is None else engine_tokens(service.spec.engine.args)


def _objective(ttft: str | None, tpot: str | None, target: float | None, service: ReadService | None) -> Objective:
    stated = Objective(0.5, 0.025, 0.99) if service is None else service.objective
    ttft_s = stated.ttft_s if ttft is None else _duration_s("ttft", ttft)
    tpot_s = stated.tpot_s if tpot is None else _duration_s("tpot", tpot)
    share = stated.target if target is None else target
    if not 0 < share <= 1:
        raise ImpossibleError("target", f"{share:g} is not a share of requests", "use a number above 0 and at most 1")
    return Objective(ttft_s, tpot_s, share)


def _duration_s(field: str, text: str) -> float:
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise ImpossibleError(field, f"{text!r} is not a duration", "write 500ms or 2s") from error
    require_positive(field, seconds, "seconds")
    return seconds


def _show(made: Plan, service: ReadService | None, output: str) -> None:
    if output == "table":
        console = Console(width=None if sys.stdout.isatty() else 120)
        print_plan(console, made)
        if service is not None:
            print_service(console, made, service)
        return
    document = plan_document(made)
    if output == "json":
        print(json.dumps(document, indent=2))
    else:
        print(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), end="")


def _write(made: Plan, service: ReadService | None, path: Path | None, number: int) -> None:
    if path is None or not made.options:
        return
    if not 1 <= number <= len(made.options):
        raise ImpossibleError("option", f"there is no option {number}", f"use 1 to {len(made.options)}")
    text = manifest_text(made, made.options[number - 1], service)
    if str(path) == "-":
        print(text, end="")
        return
    _save(path, "write", lambda: path.write_text(text, encoding="utf-8"))
    Console(stderr=True).print(f"wrote option {number} to {escape(str(path))}", highlight=False)


def _plot(made: Plan, path: Path | None) -> None:
    if path is None:
        return
    from forebay_cli.plan_plot import draw  # noqa: PLC0415  # half a second of imports that nothing else needs

    _save(path, "plot", lambda: draw(made, path))
    Console(stderr=True).print(f"plotted to {escape(str(path))}", highlight=False)


def _save(path: Path, field: str, action: Callable[[], object]) -> None:
    try:
        action()
    except OSError as error:
        raise ImpossibleError(field, f"{path} cannot be written ({error.strerror})", "check the path") from error
