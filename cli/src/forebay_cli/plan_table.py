"""A capacity plan for people: the six numbers of each worker, the options by cost, or the refusal."""

import math
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from forebay_api.durations import format_duration
from forebay_capacity.accelerators import GIB
from forebay_capacity.fits import Verdict
from forebay_capacity.layouts import Layout, MixedLayout
from forebay_capacity.options import Option
from forebay_capacity.planning import Demand, Limit, Plan, WorkerPlan
from forebay_cli.plan_manifest import ReadService

_LIMITS = {
    Limit.WEIGHTS: "weights",
    Limit.MEMORY: "memory",
    Limit.TPOT: "TPOT",
    Limit.ENGINE: "--max-num-seqs",
}


def print_plan(console: Console, plan: Plan) -> None:
    """Print the whole plan."""
    _print_demand(console, plan.demand)
    for name in dict.fromkeys(one.worker.accelerator.name for one in plan.workers):
        console.print(_workers_table([one for one in plan.workers if one.worker.accelerator.name == name]))
    if plan.options:
        console.print(_options_table(plan))
        _print_notes(console, plan.demand)
        return
    text = "\n\n".join(one.message for one in plan.refusals)
    console.print(Panel(Text(text), title="No layout meets the objective", border_style="red", padding=(1, 2)))


def print_service(console: Console, plan: Plan, service: ReadService) -> None:
    """Print what the manifest's own pools hold."""
    table = _table(f"{service.name} as written")
    table.add_column("pool")
    table.add_column("worker")
    table.add_column("fits")
    for pool in service.pools():
        mark = {Verdict.FITS: "[green]yes[/]", Verdict.TOO_SMALL: "[red]no[/]", Verdict.UNKNOWN: "[yellow]unknown[/]"}
        table.add_row(pool.title, pool.worker_title, f"{mark[pool.fit.verdict]}  [dim]{escape(pool.fit.message)}[/]")
    console.print(table)
    for line in service.capacity_lines(plan.demand):
        console.print(f"  {escape(line)}", highlight=False)


def _print_demand(console: Console, demand: Demand) -> None:
    shape, workload, objective = demand.shape, demand.workload, demand.objective
    weights = str(demand.weights or shape.native).upper()
    active = "" if shape.experts is None else f", {shape.active_parameters / 1e9:.1f} B active"
    console.print()
    console.print(
        f"[bold]{escape(shape.name)}[/]  {shape.parameters / 1e9:.2f} B parameters{active}, {weights} weights "
        f"{shape.weight_bytes(demand.weights) / 1e9:.2f} GB, {_kib(shape.kv_bytes_per_token(demand.kv))} of "
        f"{str(demand.kv).upper()} KV per token",
        highlight=False,
    )
    cached = f", {workload.cached_share:.0%} cached" if workload.cached_share else ""
    console.print(
        f"{workload.input_tokens:,} tokens in{cached}, {workload.output_tokens:,} out, {workload.rate_per_s:g} requests/s; "
        f"TTFT ≤ {format_duration(objective.ttft_s)} and TPOT ≤ {format_duration(objective.tpot_s)} for "
        f"{objective.target * 100:.4g} % of them",
        highlight=False,
    )
    if demand.serving.calibration.ideal:
        console.print("[yellow]Roofline: the hardware's lower bound. No engine is this fast.[/]")
    console.print()


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)


def _workers_table(workers: list[WorkerPlan]) -> Table:
    accelerator = workers[0].worker.accelerator
    table = _table(f"One worker on {accelerator.title} at ${accelerator.price_usd_per_hour:.2f} a GPU-hour")
    table.add_column("")
    for one in workers:
        gpus = one.worker.parallelism.gpus
        table.add_column(f"{one.worker.parallelism}\n[dim]{gpus} GPU{'s' if gpus > 1 else ''}[/]", justify="right")
    rows: list[tuple[str, Iterable[str]]] = [
        ("1  weights on each GPU", (f"{one.weight_bytes_per_gpu / GIB:.1f} GiB" for one in workers)),
        ("2  tokens of KV cache", (_count(one.kv_tokens) for one in workers)),
        ("3  sequences memory holds", (_bound(one, Limit.MEMORY, one.sequences_by_memory) for one in workers)),
        ("4  sequences within TPOT", (_bound(one, Limit.TPOT, one.sequences_by_tpot) for one in workers)),
        ("5  output tokens per second", (_count(round(one.output_tokens_per_s)) for one in workers)),
        ("6  $ per million of them", (_usd(one.usd_per_million_output_tokens) for one in workers)),
    ]
    for label, cells in rows:
        table.add_row(label, *cells)
    table.add_row("[bold]   what binds[/]", *(_limit(one) for one in workers), end_section=True)
    table.add_row("   one prompt, idle worker", *(_milliseconds(one.prefill_s) for one in workers), style="dim")
    table.add_row("   one sequence, per token", *(_milliseconds(one.decode_step_s) for one in workers), style="dim")
    table.add_row("   its floor on the hardware", *(_milliseconds(one.decode_floor_s) for one in workers), style="dim")
    return table


def _bound(one: WorkerPlan, limit: Limit, value: int) -> str:
    return f"[bold yellow]{_count(value)}[/]" if one.limit is limit else _count(value)


def _limit(one: WorkerPlan) -> str:
    colour = "red" if one.limit is Limit.WEIGHTS else "yellow"
    return f"[bold {colour}]{_LIMITS[one.limit]}[/]"


def _options_table(plan: Plan) -> Table:
    many = len({one.name for one in plan.demand.accelerators}) > 1
    percent = f"{plan.demand.objective.target * 100:.4g} %"
    table = _table("Layouts that meet the objective, cheapest first")
    table.add_column("#", justify="right")
    table.add_column("workers")
    for heading in ("GPUs", "$/hour", "$/M tokens\nout", "good", f"TTFT\n{percent}", f"TPOT\n{percent}"):
        table.add_column(heading, justify="right")
    table.add_column("batch\nmean/max", justify="right")
    table.add_column("holds up to\nrequests/s", justify="right")
    for number, option in enumerate(plan.options, start=1):
        table.add_row(*_option_cells(number, option, many=many), style="bold green" if number == 1 else "")
    return table


def _option_cells(number: int, option: Option, *, many: bool) -> list[str]:
    performance = option.performance
    return [
        str(number),
        layout_title(option.layout, accelerator=many),
        str(option.gpus),
        f"{option.price_usd_per_hour:.2f}",
        _usd(option.usd_per_million_output_tokens),
        f"{math.floor(performance.attainment * 1e4) / 100:.2f} %",
        _milliseconds(performance.ttft_s),
        _milliseconds(performance.tpot_s),
        f"{performance.batch:.{0 if performance.batch >= 10 else 1}f}/{_count(performance.batch_max)}",
        f"{option.rate_max_per_s:.3g}",
    ]


def layout_title(layout: Layout, *, accelerator: bool = False) -> str:
    """A layout in a line, such as `2 TP1 prefill + 1 TP1 decode`."""
    roles = ["mixed"] if isinstance(layout, MixedLayout) else ["prefill", "decode"]
    text = " + ".join(
        f"{pool.replicas} {pool.worker.parallelism} {role}" for role, pool in zip(roles, layout.pools, strict=True)
    )
    return f"{text} on {layout.pools[0].worker.accelerator.name}" if accelerator else text


def _print_notes(console: Console, demand: Demand) -> None:
    name = demand.serving.calibration.name.capitalize()
    console.print(
        f"[dim]Requests all of this length, Poisson arrivals, each sent where it starts first. {name} step times "
        "(docs/capacity-model.md); prices are planning figures, give your own with --price.[/]",
        highlight=False,
    )


def _count(value: int) -> str:
    return f"{value:,}" if value else "-"


def _usd(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "-"


def _kib(size_bytes: float) -> str:
    return f"{size_bytes / 1024:.4g} KiB"


def _milliseconds(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "-"
    if seconds >= 10:
        return f"{seconds:.0f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
