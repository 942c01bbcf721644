"""Telling a worker that hangs from one that is slow. Pure.

An engine's core can stop while its API process goes on to accept requests and to call itself healthy. What gives it away is
that nothing moves: requests are in flight and not one byte of content has come of any of them, nor do the engine's own counters
change.

    quiet      no content on any stream, and no request finished, for `quiet_s` with any in flight
    frozen     quiet, and all its `vllm:` series stand still for `still_s` while it is looked at
    frozen     quiet for `blind_s`, where there are no such series, and another worker of its service has moved meanwhile

A prompt that takes a minute to compute moves the counters (tokens, cache use) and is left alone. An answer without a response
to the look is one that has not moved. A client that does not read makes its worker silent; that is not held against it.
"""

from dataclasses import dataclass
from typing import Final

_ENGINE: Final = b"vllm:"
_NOT_THE_CORES: Final = (b"vllm:admission", b"vllm:cache_config_info")
"""Counted by the API process."""


@dataclass(frozen=True, slots=True)
class Limits:
    """After how long silence means what."""

    quiet_s: float = 10.0
    still_s: float = 15.0
    blind_s: float = 60.0


LIMITS: Final = Limits()


@dataclass(slots=True)
class Pulse:
    """What was seen of one worker's progress. Times are monotonic seconds."""

    moved_s: float
    """When content came, a request finished, or nothing was in flight."""
    worked_s: float = 0.0
    """When content came or a request finished."""
    finished: int = 0
    """Requests it had finished when that was looked at last."""
    looked: bool = False
    """Its counters have been asked for since it fell quiet."""
    counters: int | None = None
    """What they were; None where it has shown none."""
    changed_s: float = 0.0
    """When they were first asked for, or found changed."""
    limits: Limits = LIMITS

    def move(self, now_s: float) -> None:
        """It makes progress."""
        self.moved_s = now_s
        self.looked = False
        self.counters = None

    def quiet(self, now_s: float) -> bool:
        """It is time to look at its counters."""
        return now_s - self.moved_s >= self.limits.quiet_s

    def look(self, counters: int | None, now_s: float) -> None:
        """Its counters as they are now; None where it gave none, or no answer."""
        if not self.looked or (counters is not None and counters != self.counters):
            self.changed_s = now_s
        self.looked = True
        if counters is not None:
            self.counters = counters

    def frozen(self, now_s: float, *, others_worked_s: float) -> str | None:
        """What shows that it hangs; None when nothing does. `others_worked_s`: when its service's others last made progress."""
        if not self.looked or not self.quiet(now_s):
            return None
        silent_s = now_s - self.moved_s
        if self.counters is not None:
            still_s = now_s - self.changed_s
            if still_s < self.limits.still_s:
                return None
            return f"no content for {silent_s:.0f} s, and its counters have stood still for {still_s:.0f} s"
        if silent_s >= self.limits.blind_s and others_worked_s > self.moved_s:
            return f"no content for {silent_s:.0f} s, while other workers went on"
        return None


def read_counters(exposition: bytes) -> int | None:
    """A number that changes when the engine's series do; None where there are none."""
    lines = [
        line for line in exposition.splitlines() if line.startswith(_ENGINE) and not line.startswith(_NOT_THE_CORES)
    ]
    return hash(tuple(lines)) if lines else None
