"""Show how the programs are being built: a live line on a terminal, plain lines elsewhere."""

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.status import Status

from forebay_localcluster.build import BuildProgress, Report, ensure_programs
from forebay_localcluster.locate import Programs
from forebay_localcluster.progress import PlainProgress, progress_line


class LiveProgress:
    """A spinner with what is being built, and a line for each program that is done."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status
        self._told: set[str] = set()

    def __call__(self, progress: BuildProgress) -> None:
        """Show a step of the build."""
        for program in progress.done:
            if program not in self._told:
                self._told.add(program)
                self._console.print(f"  [green]✓[/] {program}", highlight=False)
        self._status.update(progress_line(progress).replace("[", r"\["))


def build_programs(console: Console) -> Programs:
    """Return every program of the local cluster, building what is missing while telling how far that is."""
    with _reporting(console) as report:
        return ensure_programs(report)


@contextlib.contextmanager
def _reporting(console: Console) -> Iterator[Report]:
    if not console.is_terminal:
        yield PlainProgress(write=lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        return
    with console.status("looking for the programs") as status:
        yield LiveProgress(console, status)
