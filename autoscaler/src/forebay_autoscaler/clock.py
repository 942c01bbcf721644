"""Seconds since 1970 that never go back while the process lives.

Times in a state outlive the process: the next replica, on another node, reads them by its own clock. So they are those of the
wall clock at the start of the process, from where the monotonic clock counts on; a clock that is set meanwhile moves nothing.
"""

import time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EpochClock:
    """A clock to be called."""

    wall_s: float = field(default_factory=time.time)
    monotonic_s: float = field(default_factory=time.monotonic)

    def __call__(self) -> float:
        """Seconds now."""
        return self.wall_s + time.monotonic() - self.monotonic_s
