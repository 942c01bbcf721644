"""`forebay keys`: API keys for the router.

A key is made here and nowhere kept: standard output gets the entry for the key file, which holds the key's digest only; standard
error gets the key, once. So `forebay keys new ... >> keys.yaml` stores no key; a file that it begins gets the line `keys:` first.
"""

import os
import stat
import sys
from hashlib import sha256
from secrets import token_urlsafe
from typing import Annotated, Any, Final

import typer
import yaml

from forebay_cli.errors import CliError
from forebay_router.followed import BadFileError
from forebay_router.tenancy.keys import check_entry

app = typer.Typer(help="API keys for the router.", no_args_is_help=True)

PREFIX: Final = "fb-"
"""Lets scanners for leaked secrets know a key of ours."""
RANDOM_BYTES: Final = 32
"""256 random bits: nobody guesses them, so a fast hash protects them."""


def new_key() -> str:
    """A key that nobody has had before."""
    return PREFIX + token_urlsafe(RANDOM_BYTES)


def _is_empty_file() -> bool:
    """Standard output is the beginning of a file."""
    try:
        found = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == 0


@app.callback()
def keys() -> None:
    """Keep `new` a sub-command."""


@app.command(
    epilog="The entry goes under `keys:` of the file that the router's --api-keys names, such as a mounted Secret."
)
def new(  # noqa: PLR0913  # one a flag
    *,
    tenant: Annotated[str, typer.Option(help="Whose key it is.", metavar="NAME")],
    name: Annotated[
        str | None, typer.Option(help="What logs call it. [default: the tenant and some digits]", metavar="NAME")
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option("--model", help="A model it may use; repeat it. [default: all]", metavar="NAME")
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="Requests a minute.", metavar="N")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(help="Tokens a minute, of prompts and answers.", metavar="N")
    ] = None,
    max_in_flight: Annotated[int | None, typer.Option(help="Requests at once.", metavar="N")] = None,
    priority: Annotated[str | None, typer.Option(help="Highest priority: high, normal or low.", metavar="WORD")] = None,
) -> None:
    """Make a key: its entry for the key file on standard output, the key itself on standard error, this once."""
    key = new_key()
    digest = sha256(key.encode()).hexdigest()
    limits = {
        "models": models or None,
        "requestsPerMinute": requests_per_minute,
        "tokensPerMinute": tokens_per_minute,
        "maxInFlight": max_in_flight,
        "priority": priority,
    }
    entry: dict[str, Any] = {"name": name or f"{tenant}-{digest[:6]}", "tenant": tenant, "sha256": digest}
    entry.update({field: value for field, value in limits.items() if value is not None})
    try:
        check_entry(entry)
    except BadFileError as error:
        raise CliError(str(error)) from None
    if _is_empty_file():
        sys.stdout.write("keys:\n")
    sys.stdout.write(yaml.safe_dump([entry], sort_keys=False))
    sys.stderr.write(f"The key, shown this once: {key}\n")
