"""`forebay explain scaling`: the autoscaler's last decision on a model service, with the numbers it had."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from forebay_cli.decision_table import explanation
from forebay_cli.decisions import fetch
from forebay_cli.errors import CliError

EXAMPLES = """
[bold]Examples[/]

  [cyan]forebay explain scaling llama-8b[/]
  [cyan]forebay explain scaling llama-8b -n chat --last 5[/]
  [cyan]forebay explain scaling llama-8b --autoscaler http://127.0.0.1:9090[/]
"""


def scaling(
    service: Annotated[str, typer.Argument(help="The ModelService.", metavar="SERVICE")],
    *,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    last: Annotated[int, typer.Option(min=1, max=1000, help="So many decisions, the newest first.")] = 1,
    autoscaler: Annotated[
        str | None,
        typer.Option(help="The autoscaler's control port; found through the API server by default.", metavar="URL"),
    ] = None,
    kubeconfig: Annotated[Path | None, typer.Option(envvar="KUBECONFIG", help="The cluster to ask.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
) -> None:
    """Explain the last decision on a model service: demand, capacity, need, bounds, and what was rejected and why."""
    if output not in ("table", "json"):
        raise CliError(f"--output is table or json, not {output!r}")
    query = {"namespace": namespace, "model_service": service, "limit": str(last)}
    found = fetch(autoscaler, kubeconfig, query)
    if not found:
        raise CliError(
            f"the autoscaler has decided nothing on {namespace}/{service}: is there such a ModelService "
            "(`kubectl get msvc -A`), and is its namespace watched?"
        )
    if output == "json":
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    for record in found:
        console.print(explanation(record), soft_wrap=False)
