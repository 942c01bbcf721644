"""`forebay explain request`: what a router would do with a request, and why. Nothing is sent to a worker.

Thin: reads a request's body, asks the control port of a router, and prints its answer as a table or as JSON.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from forebay_cli.errors import CliError

TIMEOUT_S = 10.0
app = typer.Typer(no_args_is_help=True, help="Why Forebay does what it does.")


@app.callback()
def explain() -> None:
    """Take options of the group; there are none yet, and `request` stays a sub-command."""


@app.command()
def request(
    *,
    body: Annotated[
        Path | None,
        typer.Argument(help="File with the JSON body of a request; - reads standard input.", metavar="FILE"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Instead of a file: a chat with this model.")] = None,
    prompt: Annotated[str, typer.Option(help="What is said in it.")] = "Hello.",
    router: Annotated[
        str, typer.Option(help="Control port of a router.", metavar="URL", envvar="FOREBAY_ROUTER_CONTROL_URL")
    ] = "http://127.0.0.1:9090",
    path: Annotated[str, typer.Option(help="Path that the request would go to.")] = "/v1/chat/completions",
    as_json: Annotated[bool, typer.Option("--json", help="Print the router's answer as it came.")] = False,
) -> None:
    """Show the workers that a request could go to, what is predicted of each, and which one is chosen.

    The request is not sent. In a cluster: kubectl port-forward -n forebay-system deployment/forebay-router 9090
    """
    told = asyncio.run(ask(router, path, _body(body, model, prompt)))
    if as_json:
        print(json.dumps(told, indent=2))
    else:
        show(told, Console(width=None if sys.stdout.isatty() else 160))


def _body(file: Path | None, model: str | None, prompt: str) -> bytes:
    """The request's body from where the flags say."""
    if (file is None) == (model is None):
        raise CliError("name a FILE with the body of a request (- is standard input), or a --model")
    if file is None:
        return json.dumps({"model": model, "messages": [{"role": "user", "content": prompt}]}).encode()
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise CliError(f"{file} cannot be read: {error.strerror}") from error


async def ask(router: str, path: str, body: bytes) -> dict[str, Any]:
    """A router's explanation; CliError when it has none."""
    url = f"{router.rstrip('/')}/explain"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
            session.post(url, params={"path": path}, data=body) as answer,
        ):
            told = await answer.json(content_type=None)
            status = answer.status
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise CliError(
            f"{url} does not answer as a router's control port does: {error or 'no answer in time'}; "
            "give the port's address with --router"
        ) from error
    if not isinstance(told, dict) or status != 200:
        reason = told.get("error") if isinstance(told, dict) else told
        raise CliError(f"the router refuses the request ({status}): {reason}")
    return told


def show(told: dict[str, Any], console: Console) -> None:
    """Print an explanation for people."""
    objective = told["objective"]
    console.print(
        f"[bold]{escape(told['model_service'])}[/]: about {told['prompt_tokens']} prompt tokens, "
        f"{told['output_tokens']} output tokens; "
        f"objective TTFT {objective['ttft_ms']:g} ms, TPOT {objective['tpot_ms']:g} ms, {objective['target']:.0%}",
        highlight=False,
        soft_wrap=True,
    )
    if told["worker"] is None:
        console.print(f"[yellow]{escape(told['reason'])}[/]; {told['waiting']} wait already", highlight=False)
        return
    console.print(_candidates(told), highlight=False)
    if told["considered"] > len(told["candidates"]):
        console.print(f"and {told['considered'] - len(told['candidates'])} more", highlight=False)
    for one in told.get("kept_out", ()):
        console.print(
            f"{escape(one['worker'])} does not compute it: its prompt takes {one['prompt_ms']:g} ms, and the "
            f"{one['requests']} that decode there wait {one['tpot_ms']:g} ms at most",
            highlight=False,
            soft_wrap=True,
        )
    if told.get("kept_out_count", 0) > len(told.get("kept_out", ())):
        console.print(f"nor do {told['kept_out_count'] - len(told['kept_out'])} more", highlight=False)
    prefill = f", prompt computed by [bold green]{escape(told['prefill'])}[/]" if told.get("prefill") else ""
    if told.get("held"):
        console.print(f"[yellow]would wait here first[/]: {escape(told['held'])}; {told['waiting']} wait already")
    console.print(
        f"goes to [bold green]{escape(told['worker'])}[/]{prefill}: {escape(told['reason'])}; predicted TTFT "
        f"{told['predicted']['ttft_ms']:g} ms, TPOT {told['predicted']['tpot_ms']:g} ms",
        highlight=False,
        soft_wrap=True,
    )


COLUMNS = (
    ("in flight", "requests", "d"),
    ("wait ms", "wait_ms", ".1f"),
    ("uncached tokens", "uncached_tokens", "d"),
    ("TTFT ms", "ttft_ms", ".1f"),
    ("TPOT ms", "tpot_ms", ".2f"),
    ("cost", "cost", ".4f"),
    ("chance", "chance", ".1%"),
)


def _candidates(told: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("worker")
    for heading, _, _ in COLUMNS:
        table.add_column(heading, justify="right")
    table.add_column("in time", justify="center")
    chosen = {told["worker"], told.get("prefill")}
    for one in told["candidates"]:
        cells = [format(one[key], form) for _, key, form in COLUMNS]
        in_time = "yes" if one["meets_objective"] else "no"
        table.add_row(escape(one["worker"]), *cells, in_time, style="bold green" if one["worker"] in chosen else None)
    return table
