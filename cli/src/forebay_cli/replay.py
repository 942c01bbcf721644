"""`forebay replay`: a fleet under a trace or a scenario in virtual time, policies side by side.

Thin: reads flags and files into scenarios, has them run, and prints a table or JSON. Runs repeat exactly: a seed decides
arrivals, jitter, start-up times and ties.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from forebay_api.durations import parse_duration_s
from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_cli.errors import CliError
from forebay_cli.replay_history import replay_history
from forebay_cli.replay_standing import begins_s, with_standing
from forebay_simulator.engine.errors import StartupError
from forebay_simulator.fleet.autoscaling import AutoscalerSpec
from forebay_simulator.fleet.comparing import Policy, compare
from forebay_simulator.fleet.policies import ROUTING, SCALING
from forebay_simulator.fleet.report import Line, document, table
from forebay_simulator.fleet.scenarios import SCENARIOS, Scenario
from forebay_simulator.fleet.spec import EngineSpec, FleetSpec, PoolSpec
from forebay_simulator.fleet.traces.files import read_azure, read_lmcache, read_mooncake
from forebay_simulator.fleet.traces.scaling import jittered, overlaid
from forebay_simulator.fleet.traces.trace import Trace, TraceError

REQUESTS = "Requests"
FLEET = "Fleet"
POLICIES = "Policies"
OUTPUT = "Output"

ScenarioName = Annotated[
    str | None, typer.Option("--scenario", help="A built-in scenario; `list` shows them.", rich_help_panel=REQUESTS)
]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="A trace, plain or gzipped.", rich_help_panel=REQUESTS, metavar="FILE")
]
Form = Annotated[str, typer.Option("--format", help="mooncake, azure or lmcache.", rich_help_panel=REQUESTS)]
Factor = Annotated[
    float,
    typer.Option("--rate", help="Times the trace's rate, by shifted copies.", min=0.001, rich_help_panel=REQUESTS),
]
Tick = Annotated[
    str | None,
    typer.Option(help="Spread arrivals over the recorder's tick; 3s suits Mooncake.", rich_help_panel=REQUESTS),
]
First = Annotated[str | None, typer.Option(help="Only the first part of the trace.", rich_help_panel=REQUESTS)]
Model = Annotated[str, typer.Option(help="A preset such as llama-3.1-8b.", rich_help_panel=FLEET)]
Accelerator = Annotated[str, typer.Option("--accelerator", "-a", help="h100-sxm, ...", rich_help_panel=FLEET)]
Tensor = Annotated[int, typer.Option(help="GPUs of a worker.", min=1, rich_help_panel=FLEET)]
Workers = Annotated[int, typer.Option(help="Mixed workers at the beginning.", min=1, rich_help_panel=FLEET)]
Prefill = Annotated[
    int, typer.Option(help="Prefill workers; with --decode instead of mixed.", min=0, rich_help_panel=FLEET)
]
Decode = Annotated[int, typer.Option(help="Decode workers.", min=0, rich_help_panel=FLEET)]
Routers = Annotated[int, typer.Option(help="Replicas of the router.", min=1, rich_help_panel=FLEET)]
Startup = Annotated[str, typer.Option(help="Start-up time of a worker, or FROM-TO.", rich_help_panel=FLEET)]
Budget = Annotated[int | None, typer.Option(help="GPUs that scaling may use.", min=1, rich_help_panel=FLEET)]
Spare = Annotated[
    list[str] | None,
    typer.Option(help="Warm spares of each pool, or POOL=N; repeatable.", rich_help_panel=FLEET, metavar="N"),
]
Schedules = Annotated[
    list[str] | None,
    typer.Option(
        "--schedule",
        help="So many workers of each pool, or POOL=..., between times of day; repeatable.",
        rich_help_panel=FLEET,
        metavar="N@FROM-TO",
    ),
]
Begins = Annotated[
    str, typer.Option(help="Time of day at which the trace begins, for --schedule.", rich_help_panel=FLEET)
]
Price = Annotated[
    list[str] | None,
    typer.Option(help="USD per GPU-hour of each pool, or POOL=USD; repeatable.", rich_help_panel=FLEET, metavar="USD"),
]
BlockTokens = Annotated[
    int, typer.Option("--block-size", help="Tokens of a KV block; larger is faster.", min=1, rich_help_panel=FLEET)
]
Ttft = Annotated[str, typer.Option(help="Largest time to first token.", rich_help_panel=FLEET)]
Tpot = Annotated[str, typer.Option(help="Largest mean time per output token.", rich_help_panel=FLEET)]
Target = Annotated[float, typer.Option(help="Share of requests to meet both.", rich_help_panel=FLEET)]
Routings = Annotated[
    list[str] | None,
    typer.Option("--routing", "-r", help=f"Repeat to compare: {', '.join(ROUTING)}.", rich_help_panel=POLICIES),
]
Scalings = Annotated[
    list[str] | None,
    typer.Option("--scaling", "-s", help=f"Repeat to compare: {', '.join(SCALING)}.", rich_help_panel=POLICIES),
]
Seeds = Annotated[int, typer.Option(help="Runs of each policy.", min=1, rich_help_panel=POLICIES)]
FromHistory = Annotated[
    Path | None,
    typer.Option(
        help="Make the autoscaler's recorded decisions (its --history-file, or /decisions) again; status 1 if one differs.",
        rich_help_panel=REQUESTS,
        metavar="FILE",
    ),
]
Output = Annotated[str, typer.Option("--output", "-o", help="table or json.", rich_help_panel=OUTPUT)]
Html = Annotated[
    Path | None, typer.Option(help="Write a page with tables and drawings.", rich_help_panel=OUTPUT, metavar="FILE")
]
Jobs = Annotated[int, typer.Option(help="Processes that share the runs.", min=1, max=64, rich_help_panel=POLICIES)]
Write = Annotated[Path | None, typer.Option(help="Write the JSON to a file as well.", rich_help_panel=OUTPUT)]

EXAMPLES = """
[bold]Examples[/]

  [cyan]forebay replay --scenario list[/]
  [cyan]forebay replay --scenario step --scaling forebay --scaling hpa-queue --scaling kpa[/]
  [cyan]forebay replay --trace conversation.jsonl --tick 3s --workers 16 -r round-robin -r forebay --ttft 2s[/]
  [cyan]forebay replay --trace conv.csv --format azure --rate 30 --prefill 5 --decode 4 -s forebay --write run.json[/]
  [cyan]forebay replay --trace day.jsonl --begins 06:00 --schedule 8@08:00-18:00 --spare 1 --price 3.2 -s forebay[/]
  [cyan]forebay replay --from-history decisions.jsonl[/]
"""


OWN = (
    "trace", "form", "rate", "tick", "first", "model", "accelerator", "tensor", "workers", "prefill", "decode", "startup",
    "budget", "spare", "schedule", "begins", "price", "block_size", "ttft", "tpot", "target",
)  # fmt: skip
"""Parameters that a scenario has by itself."""


def replay(  # noqa: PLR0913  # the command line: each option is a parameter
    context: typer.Context,
    *,
    scenario: ScenarioName = None,
    trace: TraceFile = None,
    from_history: FromHistory = None,
    form: Form = "mooncake",
    rate: Factor = 1.0,
    tick: Tick = None,
    first: First = None,
    model: Model = "llama-3.1-8b",
    accelerator: Accelerator = "h100-sxm",
    tensor: Tensor = 1,
    workers: Workers = 8,
    prefill: Prefill = 0,
    decode: Decode = 0,
    routers: Routers = 1,
    startup: Startup = "60s",
    budget: Budget = None,
    spare: Spare = None,
    schedule: Schedules = None,
    begins: Begins = "00:00",
    price: Price = None,
    block_size: BlockTokens = 16,
    ttft: Ttft = "500ms",
    tpot: Tpot = "25ms",
    target: Target = 0.95,
    routing: Routings = None,
    scaling: Scalings = None,
    seeds: Seeds = 5,
    jobs: Jobs = 1,
    output: Output = "table",
    write: Write = None,
    html: Html = None,
) -> None:
    """Replay requests against a simulated fleet, in virtual time, and compare policies."""
    if output not in ("table", "json"):
        raise CliError(f"--output is table or json, not {output!r}")
    if from_history is not None:
        raise typer.Exit(0 if replay_history(from_history, Console(soft_wrap=True)) else 1)
    policies = _policies(routing or ["forebay"], scaling or ["static"])
    if scenario == "list":
        _print_scenarios()
        return
    _refuse_what_is_ignored(context, scenario, prefill, scaling or [])
    try:
        if scenario is not None:
            chosen = _scenario(scenario)
        elif trace is not None:
            engine = EngineSpec(model=model, accelerator=accelerator, tensor=tensor, block_tokens=block_size)
            engine.served()
            sizes = {"mixed": workers, "prefill": prefill, "decode": decode}
            fleet = _fleet(engine, sizes, startup, _parsed(Objective, _duration_s(ttft), _duration_s(tpot), target))
            fleet = with_standing(fleet, spares=spare or (), schedules=schedule or (), prices=price or ())
            fleet = replace(fleet, budget_gpus=budget)
            requests = _requests(_reader(trace, form), _preparing(rate, tick, first))
            about = "as recorded" if rate == 1 else f"at {rate:g} times its rate"
            told = AutoscalerSpec(begins_s=begins_s(begins))
            chosen = Scenario(name=trace.name, about=about, fleet=fleet, trace=requests, autoscaler=told)
        else:
            raise CliError("name what to replay: --scenario NAME (or `list`), or --trace FILE")
        chosen = replace(chosen, fleet=replace(chosen.fleet, routers=routers))
        _check_writable(write, html)
        lines = _run(chosen, policies, list(range(1, seeds + 1)), jobs)
    except (TraceError, StartupError) as error:
        raise CliError(str(error)) from error
    _write_page(html, chosen, lines)
    _hand_out(chosen, lines, output, write)


def _refuse_what_is_ignored(
    context: typer.Context, scenario: str | None, prefill: int, scalings: Sequence[str]
) -> None:
    """A flag that would change nothing would give figures for another question than the one asked."""

    def given(*names: str) -> list[str]:
        sources = ((name, context.get_parameter_source(name)) for name in names)
        flags = {one.name: one.opts[0] for one in context.command.params}
        return [flags[name] for name, source in sources if source is not None and source.name == "COMMANDLINE"]

    if scenario is not None and (ignored := given(*OWN)):
        raise CliError(f"{', '.join(ignored)}: a scenario has its own requests, fleet and objective; use --trace FILE")
    if prefill and (ignored := given("workers")):
        raise CliError("--workers are mixed ones: leave it out beside --prefill and --decode")
    if "forebay" not in scalings and (ignored := given("spare", "schedule")):
        raise CliError(f"{', '.join(ignored)}: no other policy knows of these; add --scaling forebay")
    if given("begins") and not given("schedule"):
        raise CliError("--begins: nothing but a --schedule goes by the clock")


Parsed = TypeVar("Parsed")


def _parsed(parse: Callable[..., Parsed], *given: object) -> Parsed:
    """What flags say; CliError when they say nothing that can be."""
    try:
        return parse(*given)
    except ValueError as error:
        raise CliError(str(error)) from error


def _duration_s(text: str) -> float:
    return _parsed(parse_duration_s, text)


def _check_writable(*paths: Path | None) -> None:
    """Before minutes of running: there will be somewhere to put what comes out."""
    for path in paths:
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = not path.exists()
            path.open("a").close()
            if new:
                path.unlink()  # a run that fails leaves nothing behind
        except OSError as error:
            raise CliError(f"{path} cannot be written: {error.strerror}") from error


def _hand_out(scenario: Scenario, lines: list[Line], output: str, write: Path | None) -> None:
    """The document into its file, and the table or the document to the terminal."""
    about = {"scenario": scenario.name, "about": scenario.about, "objective": _objective(scenario)}
    found = json.dumps(document(lines, about), indent=2)
    if write is not None:
        write.write_text(found + "\n", encoding="utf-8")
    if output == "json":
        print(found)
    else:
        _print(scenario, lines)


def _write_page(path: Path | None, scenario: Scenario, lines: list[Line]) -> None:
    if path is None:
        return
    from forebay_cli.replay_html import Section, write_page  # noqa: PLC0415  # drawing is slow to load

    section = Section(scenario.name, scenario.about, scenario.fleet.objective, lines)
    write_page(path, "Policies side by side", "Simulated in virtual time by `forebay replay`.", [section])


def _policies(routings: list[str], scalings: list[str]) -> list[Policy]:
    for kind, names, known in (("--routing", routings, list(ROUTING)), ("--scaling", scalings, list(SCALING))):
        for name in names:
            if name not in known:
                raise CliError(f"{kind} {name!r} is none of {', '.join(known)}")
    return [Policy(one, other) for other in scalings for one in routings]


def _scenario(name: str) -> Scenario:
    if name not in SCENARIOS:
        raise CliError(f"--scenario {name!r} is none of {', '.join(SCENARIOS)}")
    return SCENARIOS[name]


def _fleet(engine: EngineSpec, sizes: dict[str, int], startup: str, objective: Objective) -> FleetSpec:
    low, _, high = startup.partition("-")
    startup_s = (_duration_s(low), _duration_s(high or low))
    if (sizes["prefill"] > 0) != (sizes["decode"] > 0):
        raise CliError("--prefill and --decode go together: a prompt computed on one is answered on the other")
    roles = {"prefill": Role.PREFILL, "decode": Role.DECODE} if sizes["prefill"] else {"mixed": Role.MIXED}
    pools = tuple(
        PoolSpec(name=name, role=role, replicas=sizes[name], engine=engine, startup_s=startup_s)
        for name, role in roles.items()
    )
    return FleetSpec(pools=pools, objective=objective)


def _reader(path: Path, form: str) -> Callable[[int], Trace]:
    if form == "mooncake":
        whole = read_mooncake(path)
        return lambda _seed: whole
    if form == "azure":
        hour = read_azure(path)
        return lambda _seed: hour
    if form == "lmcache":
        return lambda seed: read_lmcache(path, sessions_per_s=0.05, seed=seed)
    raise CliError(f"--format is mooncake, azure or lmcache, not {form!r}")


def _requests(read: Callable[[int], Trace], prepare: Callable[[Trace, int], Trace]) -> Callable[[int], Trace]:
    return lambda seed: prepare(read(seed), seed)


def _preparing(rate: float, tick: str | None, first: str | None) -> Callable[[Trace, int], Trace]:
    """What is done to a trace, by seed."""
    tick_s, first_s = (None if text is None else _duration_s(text) for text in (tick, first))

    def prepare(trace: Trace, seed: int) -> Trace:
        if tick_s is not None:
            trace = jittered(trace, tick_s=tick_s, seed=seed)
        if rate != 1:
            trace = overlaid(trace, rate, seed=seed)
        if first_s is not None:
            trace = trace.first(first_s)
        if not trace.arrivals:
            raise TraceError(f"the trace {trace.name} has no request{'' if first is None else f' within {first}'}")
        return trace

    return prepare


def _run(scenario: Scenario, policies: list[Policy], seeds: list[int], jobs: int) -> list[Line]:
    """Run everything, with a bar on a terminal."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        tasks: dict[Policy, TaskID] = {one: bar.add_task(str(one), total=len(seeds)) for one in policies}

        def told(policy: Policy, seed: int, share: float) -> None:
            bar.update(tasks[policy], completed=seeds.index(seed) + share)

        return compare(scenario, policies, seeds, told, processes=jobs)


def _objective(scenario: Scenario) -> dict[str, float]:
    one = scenario.fleet.objective
    return {"ttft_s": one.ttft_s, "tpot_s": one.tpot_s, "target": one.target}


def _print_scenarios() -> None:
    for one in SCENARIOS.values():
        print(f"{one.name:18} {one.about}")


def _print(scenario: Scenario, lines: list[Line]) -> None:
    console = Console()
    one = scenario.fleet.objective
    seeds = len(lines[0].runs) if lines else 0
    console.print(f"[bold]{escape(scenario.name)}[/]: {scenario.about}", highlight=False, soft_wrap=True)
    console.print(
        f"{lines[0].runs[0].requests} requests; good: TTFT ≤ {one.ttft_s:g} s and TPOT ≤ {one.tpot_s * 1000:g} ms; "
        f"target {one.target:.0%}; {seeds} seed{'s' if seeds != 1 else ''}, ± is the 95 % interval of the mean",
        highlight=False,
        soft_wrap=True,
    )
    headings, *rows = table(lines)
    shown = Table(box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        shown.add_column(heading, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    # A table that is cut off hides its last columns, so it may be wider than the terminal.
    Console(width=max(console.width, 190)).print(shown, highlight=False)
