"""Tell the progress of a build where there is no terminal: a line at each change, and one every 30 seconds."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from forebay_localcluster.build import BuildProgress

QUIET_S = 30
"""The longest a build says nothing."""


def progress_line(progress: BuildProgress) -> str:
    """Return one line on a build: n of m, what is being built, what is done for it, and the time so far."""
    count = f"[{len(progress.done)}/{progress.total}]"
    minutes, seconds = divmod(int(progress.elapsed_s), 60)
    names = ", ".join(progress.building)
    what = f"building {names}: {progress.detail}" if names else progress.detail
    return f"{count} {what or 'done'} ({minutes}:{seconds:02d})"


@dataclass(slots=True)
class PlainProgress:
    """A `Report` that prints lines."""

    write: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    _stage: object = None
    _spoken: float = field(default=float("-inf"))

    def __call__(self, progress: BuildProgress) -> None:
        """Print a line when the programs under way have changed, or nothing was printed for a while."""
        stage = (progress.done, progress.building) if progress.building else (progress.done, progress.detail)
        now = self.clock()
        if stage == self._stage and now - self._spoken < QUIET_S:
            return
        self._stage, self._spoken = stage, now
        self.write(progress_line(progress))
