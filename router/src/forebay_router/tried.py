"""Workers that failed on one request: when they may be asked again, and how often it may fail. Pure.

Another worker is preferred, always. When none can take the request, one that failed on it is asked again as soon as it can be
expected to do better:

    back      it was not ready and is ready again since it failed: its process is a new one, though a pod's uid is the old
    rested    what failed was the connection, and the breaker's first rest for that is over: 0.25 s where none could be made,
              2 s where one ended, which is time for a dying worker to be known as such

The breaker leaves a worker that cannot be reached alone for everybody, longer each time, so a rest here is the least there is.
One that answered with an error, or not in time, is not asked again by time alone: the same request would go the same way.

It ends. `attempts` is bounded by `--attempts`, `lost` by LOST_MAX. A connection that could not be made to a worker that is
known to have failed is no further attempt: the worker has nothing of it (save where a kept connection had ended under it first,
which `lost` counts), and rests that double keep such tries few. As they do not move `since_s` either, the hold time that counts
from there ends them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from forebay_router.errors import FailureReason
from forebay_router.health.breaker import RESTS, Cause

LOST_MAX: Final = 2
"""Connections that may end under one request: it may be what kills workers."""
_ENDED: Final = frozenset({FailureReason.RESET, FailureReason.CUT_OFF})


class Failed(NamedTuple):
    """One worker's last failure on the request. Monotonic seconds."""

    at_s: float
    rested_s: float
    """When it may be asked again though nothing is known to have changed; infinite for never."""


@dataclass(slots=True)
class Tried:
    """What became of a request's attempts; made when the first has failed."""

    failed: dict[str, Failed] = field(default_factory=dict)
    """By worker uid."""
    attempts: int = 0
    """Those that count."""
    lost: int = 0
    """Connections that ended under it."""
    since_s: float = 0.0
    """When the last attempt that counts failed."""

    @property
    def workers(self) -> frozenset[str]:
        """All that failed on it."""
        return frozenset(self.failed)

    def note(self, uid: str, reason: FailureReason, *, lost: bool, now_s: float) -> None:
        """An attempt has failed on a worker; `lost`: it was sent there, and the connection ended."""
        unreached = reason is FailureReason.CONNECT
        if not unreached or uid not in self.failed:
            self.attempts += 1
            self.since_s = now_s
        self.lost += lost
        rest_s = inf
        if unreached:
            rest_s = RESTS[Cause.UNREACHABLE].first_s
        elif lost and reason in _ENDED:
            rest_s = RESTS[Cause.FAILING].first_s
        self.failed[uid] = Failed(now_s, now_s + rest_s)

    def excluded(self, back_s: Mapping[str, float], now_s: float) -> frozenset[str]:
        """Workers that cannot be expected to do better yet. `back_s`: when those that are known became ready again last."""
        return frozenset(
            uid
            for uid, failed in self.failed.items()
            if now_s < failed.rested_s and back_s.get(uid, -inf) <= failed.at_s
        )

    def again_s(self, now_s: float) -> float:
        """Seconds until the next one has rested; infinite when none will."""
        return min((one.rested_s - now_s for one in self.failed.values() if one.rested_s > now_s), default=inf)
