"""`forebay replay --from-history`: make an autoscaler's recorded decisions again, and tell what came out otherwise.

A record holds all that a decision was made from, so one that comes out otherwise was made by other code: of another version, or
with a fault. The comparison is of every number, to its last bit.
"""

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from forebay_autoscaler.codec import Stored
from forebay_autoscaler.errors import HistoryError
from forebay_autoscaler.history_file import read_history
from forebay_autoscaler.reproduce import Difference, reproduce
from forebay_cli.errors import CliError

DIFFERENCES_SHOWN = 20
"""Of one decision."""
DECISIONS_SHOWN = 10


def replay_history(path: Path, console: Console) -> bool:
    """Whether every decision came out again; prints a summary, and the differences of the first that did not."""
    services: Counter[str] = Counter()
    differing = 0
    try:
        for stored in read_history(path):
            services["/".join(stored.record.decision.key)] += 1
            found = reproduce(stored)
            differing += bool(found)
            if found and differing <= DECISIONS_SHOWN:
                _tell(stored, found, console)
    except HistoryError as error:
        raise CliError(str(error)) from error
    if not services:
        raise CliError(f"{path} has no decisions")
    total = sum(services.values())
    of = f"{total} decision{'s' if total != 1 else ''} on {', '.join(sorted(services)[:5])}"
    of += f" and {len(services) - 5} more" if len(services) > 5 else ""
    if differing:
        console.print(f"[bold red]{differing} of {escape(of)} came out otherwise[/]", highlight=False)
    else:
        console.print(f"[green]{escape(of)}: each came out again, to the last bit[/]", highlight=False)
    return not differing


def _tell(stored: Stored, found: list[Difference], console: Console) -> None:
    decision = stored.record.decision
    console.print(
        f"[bold]{escape('/'.join(decision.key))}[/] at {stored.record.at.isoformat()} ({decision.at_s:.3f} s)",
        highlight=False,
    )
    for one in found[:DIFFERENCES_SHOWN]:
        console.print(f"  [red]-[/] {escape(one.field)}: {escape(repr(one.recorded))}", highlight=False, soft_wrap=True)
        console.print(f"  [green]+[/] {escape(one.field)}: {escape(repr(one.made))}", highlight=False, soft_wrap=True)
    if len(found) > DIFFERENCES_SHOWN:
        console.print(f"  and {len(found) - DIFFERENCES_SHOWN} more")
