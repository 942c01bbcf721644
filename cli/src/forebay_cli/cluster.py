"""`forebay cluster`: the local cluster from a terminal. Thin: every command is one or two calls of `forebay_localcluster`."""

import json
import shlex
import sys
import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from forebay_cli.building import build_programs
from forebay_cli.system import NodeOptions, simulated_nodes
from forebay_localcluster.cluster import DEFAULT_NAME, Cluster, ProgramStatus, list_clusters
from forebay_localcluster.control_plane import Settings
from forebay_localcluster.errors import ClusterNotRunningError
from forebay_localcluster.logs import find_logs, follow, last_lines, list_logs

console = Console(width=None if sys.stdout.isatty() else 200)  # a pipe has no width to cut paths to
plain = escape

EXAMPLES = """
[bold]A session[/]

  [cyan]forebay cluster up[/]                       [dim]two simulated nodes of 8 H100 each[/]
  [cyan]eval "$(forebay cluster env)"[/]            [dim]kubectl and helm of this cluster[/]
  [cyan]kubectl get nodes[/]
  [cyan]forebay cluster logs kube-scheduler -f[/]
  [cyan]forebay cluster kill kube-apiserver[/]      [dim]see what your code makes of that[/]
  [cyan]forebay cluster start kube-apiserver[/]
  [cyan]forebay cluster down[/]
"""

app = typer.Typer(
    help="Run a [bold]real Kubernetes control plane[/] on this machine, with simulated GPU nodes.\n\n"
    "etcd, API server, controller manager, scheduler and Prometheus run as child processes on loopback. No container "
    "runtime, no root, no GPU.",
    epilog=EXAMPLES.strip(),
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

LIFE = "Life"
LOOK = "Look inside"
FAULTS = "Faults"

Name = Annotated[
    str,
    typer.Option(
        "--name", "-n", envvar="FOREBAY_CLUSTER", help="Which cluster; several run side by side.", metavar="NAME"
    ),
]
ProgramName = Annotated[str, typer.Argument(help="As `status` names it.", metavar="PROGRAM")]


@app.command(rich_help_panel=LIFE)
def up(
    name: Name = DEFAULT_NAME,
    nodes: Annotated[int, typer.Option(min=0, max=200, help="Simulated nodes.")] = 2,
    gpus: Annotated[int, typer.Option(min=0, max=64, help="GPUs of each node.")] = 8,
    scrape_interval: Annotated[float, typer.Option(min=0.1, help="Seconds between Prometheus' scrapes.")] = 2.0,
) -> None:
    """Start a cluster and leave it running; builds the programs first where this machine has none."""
    cluster = Cluster(name)
    if cluster.running:
        console.print(
            f"Cluster [bold]{name}[/] is up already; see: forebay cluster status --name {name}", highlight=False
        )
        return
    build_programs(console)
    has_data = cluster.layout.etcd.exists()  # of an earlier start, which an interrupted one must not remove
    started = time.monotonic()
    extras = simulated_nodes(NodeOptions(count=nodes, gpus=gpus)) if nodes else None
    with console.status(f"starting cluster {name}"):
        try:
            cluster.up(Settings(scrape_interval_s=scrape_interval), extras=extras, heard=_tell_start)
        except KeyboardInterrupt:
            cluster.down(keep=has_data)
            console.print("interrupted; nothing is left running")
            raise typer.Exit(130) from None
    console.print(f"Cluster [bold]{name}[/] is up ({time.monotonic() - started:.1f} s).", highlight=False)
    option = "" if name == DEFAULT_NAME else f" --name {name}"
    console.print(f'  use it    eval "$(forebay cluster env{option})"', highlight=False)
    console.print(f"  end it    forebay cluster down{option}", highlight=False)


@app.command(rich_help_panel=LIFE)
def down(
    name: Name = DEFAULT_NAME,
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep objects, measurements and logs for the next `up`.")
    ] = False,
) -> None:
    """End a cluster: every process, and its data."""
    cluster = Cluster(name)
    started = time.monotonic()
    with console.status(f"ending cluster {name}"):
        was_up = cluster.down(keep=keep)
    if was_up:
        console.print(f"Cluster [bold]{name}[/] is down ({time.monotonic() - started:.1f} s).", highlight=False)
    else:
        console.print(f"Cluster [bold]{name}[/] was not up.", highlight=False)


@app.command(rich_help_panel=LIFE)
def build() -> None:
    """Build the programs that this machine lacks, once, into the cache."""
    programs = build_programs(console)
    table = _table("program", "version", "from", "path")
    for located in programs.values():
        table.add_row(located.program, located.version, located.source, plain(str(located.path)))
    console.print(table)


@app.command(rich_help_panel=LOOK)
def status(
    name: Name = DEFAULT_NAME,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show what runs, since when, with which versions, ports and memory."""
    cluster = Cluster(name)
    programs = cluster.programs_status()
    if as_json:
        console.print_json(json.dumps([asdict(program) for program in programs]))
        return
    table = _table(
        "program", "state", "since", "pid", "version", "port", "memory", right=("since", "pid", "port", "memory")
    )
    for program in programs:
        table.add_row(*_row(program, now=time.time()))
    console.print(table)
    console.print(f"  data        {plain(str(cluster.data))}", highlight=False, soft_wrap=True)
    console.print(f"  kubeconfig  {plain(str(cluster.kubeconfig))}", highlight=False, soft_wrap=True)
    console.print(f"  API server  {cluster.server}", highlight=False)
    if any(program.name == "prometheus" for program in programs):
        console.print(f"  Prometheus  {cluster.prometheus_url}", highlight=False)


@app.command("list", rich_help_panel=LOOK)
def list_() -> None:
    """List this user's clusters."""
    table = _table("cluster", "state", "data")
    for cluster in list_clusters():
        table.add_row(cluster.name, "[green]up[/]" if cluster.running else "[dim]down[/]", plain(str(cluster.data)))
    console.print(table if table.row_count else "no clusters; start one: forebay cluster up")


@app.command(rich_help_panel=LOOK)
def logs(
    query: Annotated[
        str | None,
        typer.Argument(help="A program, a pod, NAMESPACE/POD, or the beginning of one.", metavar="[PROGRAM|POD]"),
    ] = None,
    name: Name = DEFAULT_NAME,
    *,
    following: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")] = False,
    tail: Annotated[int, typer.Option(min=0, help="How many lines to begin with.")] = 50,
) -> None:
    """Show the log of a program or of pods; without a name, list what there is."""
    layout = Cluster(name).layout
    if not layout.logs.is_dir():
        raise ClusterNotRunningError(name)
    if query is None:
        table = _table("log", "size", "path", right=("size",))
        for log in list_logs(layout):
            table.add_row(log.name, _size(log.path.stat().st_size), plain(str(log.path)))
        console.print(table)
        return
    found = find_logs(layout, query)
    several = len(found) > 1
    for log in found:
        for line in last_lines(log.path, tail):
            _print_line(log.name, line, several=several)
    if following:
        try:
            for source, line in follow(lambda: find_logs(layout, query)):
                _print_line(source, line, several=several)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


@app.command(rich_help_panel=LOOK)
def env(name: Name = DEFAULT_NAME) -> None:
    """Print shell lines for a cluster (kubectl, helm, PROMETHEUS_URL), to be read with [cyan]eval[/]."""
    cluster = Cluster(name)
    if not cluster.running:
        raise ClusterNotRunningError(name)
    print(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")
    print(f'export PATH={shlex.quote(str(cluster.layout.bin))}:"$PATH"')
    if any(program.name == "prometheus" for program in cluster.programs_status()):
        print(f"export PROMETHEUS_URL={shlex.quote(cluster.prometheus_url)}")


@app.command(rich_help_panel=FAULTS)
def kill(program: ProgramName, name: Name = DEFAULT_NAME) -> None:
    """SIGKILL a program; it stays down until [cyan]start[/]."""
    Cluster(name).kill(program)
    console.print(f"killed {program}", highlight=False)


@app.command(rich_help_panel=FAULTS)
def start(program: ProgramName, name: Name = DEFAULT_NAME) -> None:
    """Start a program again, on its old port and data, and wait until it is ready."""
    started = time.monotonic()
    Cluster(name).start_program(program)
    console.print(f"{program} is ready ({time.monotonic() - started:.1f} s)", highlight=False)


def _tell_start(program: str, state: str) -> None:
    if state in {"ready", "done"}:
        console.print(f"  [green]✓[/] {program}", highlight=False)


def _row(program: ProgramStatus, *, now: float) -> tuple[str, ...]:
    running = program.pid is not None
    colour = {"ready": "green", "done": "green", "starting": "yellow", "waiting": "yellow"}.get(program.state, "red")
    state = f"ended: {program.ended}" if program.state == "ended" else program.state
    return (
        f"[bold]{program.name}[/]",
        f"[{colour}]{state}[/]",
        _age(now - program.started_at) if running and program.started_at is not None else "",
        str(program.pid or ""),
        program.version,
        str(program.port or ""),
        _size(program.memory_bytes) if running else "",
    )


def _print_line(source: str, line: str, *, several: bool) -> None:
    print(f"{source}: {line}" if several else line)


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    for column in columns:
        table.add_column(column.upper(), justify="right" if column in right else "left", no_wrap=True, overflow="fold")
    return table


def _age(seconds: float) -> str:
    minutes, rest_s = divmod(int(seconds), 60)
    hours, rest_min = divmod(minutes, 60)
    days, rest_h = divmod(hours, 24)
    if days:
        return f"{days}d{rest_h}h"
    if hours:
        return f"{hours}h{rest_min}m"
    return f"{minutes}m{rest_s}s" if minutes else f"{rest_s}s"


def _size(count_bytes: int) -> str:
    if count_bytes >= 1 << 20:
        return f"{count_bytes / (1 << 20):.0f} MiB"
    return f"{count_bytes / (1 << 10):.0f} KiB"
