"""The `forebay` command: one typer application, a sub-command a file.

An expected failure is a sentence on standard error and exit code 1; a stack trace means a fault of Forebay's.
"""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from forebay_cli import cluster, explain, keys
from forebay_cli.errors import CliError
from forebay_cli.explain_scaling import EXAMPLES as SCALING_EXAMPLES
from forebay_cli.explain_scaling import scaling
from forebay_cli.plan import EXAMPLES as PLAN_EXAMPLES
from forebay_cli.plan import plan
from forebay_cli.replay import EXAMPLES as REPLAY_EXAMPLES
from forebay_cli.replay import replay
from forebay_cli.scenario import EngineChoice
from forebay_localcluster.errors import LocalClusterError

app = typer.Typer(
    name="forebay",
    help="Serve large language models on Kubernetes, and try it all on this machine without a GPU.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cluster.app, name="cluster")
app.add_typer(keys.app, name="keys")
app.add_typer(explain.app, name="explain")
explain.app.command(epilog=SCALING_EXAMPLES)(scaling)
app.command(epilog=PLAN_EXAMPLES)(plan)
app.command(epilog=REPLAY_EXAMPLES)(replay)


@app.callback()
def forebay() -> None:
    """Take options of the whole command; there are none yet, and sub-commands stay sub-commands."""


@app.command()
def demo(
    *,
    sample: Annotated[
        Path | None,
        typer.Option(
            help="ModelService to serve. [default: deploy/local/demo.yaml]", exists=True, dir_okay=False, metavar="FILE"
        ),
    ] = None,
    engine: Annotated[
        EngineChoice, typer.Option(help="A simulated engine, or a real vLLM on this CPU (`make real-engine`).")
    ] = EngineChoice.SIMULATED,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster up afterwards.")] = False,
) -> None:
    """Show the whole system at work on a local cluster, under a load that steps up and down.

    Takes less than three minutes once the programs are built. Writes build/demo/summary.json.
    """
    from forebay_cli import scenario  # noqa: PLC0415  # the other commands start faster without these
    from forebay_cli.demo import demo as run  # noqa: PLC0415

    if engine is EngineChoice.REAL and sample is not None:
        raise CliError("--sample and --engine real exclude one another: the real engine has a sample of its own")
    chosen = scenario.real() if engine is EngineChoice.REAL else scenario.simulated(sample or scenario.SAMPLE)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an end by SIGTERM cleans up as Ctrl-C does
    console = Console(width=None if sys.stdout.isatty() else 160)
    raise typer.Exit(run(console, chosen, keep=keep))


def main() -> None:
    """Run the command."""
    try:
        app()
    except (LocalClusterError, CliError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {cluster.plain(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
