"""The `forebay` command: one typer application, a sub-command a file.

An expected failure is a sentence on standard error and exit code 1; a stack trace means a fault of Forebay's.
"""

import sys

import typer
from rich.console import Console

from forebay_cli import cluster
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


@app.callback()
def forebay() -> None:
    """Take options of the whole command; there are none yet, and sub-commands stay sub-commands."""


def main() -> None:
    """Run the command."""
    try:
        app()
    except LocalClusterError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {cluster.plain(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
