"""Workers that failed on one request: when they may be asked again, and how often it may fail. Pure.

Another worker is preferred, always. When none can take the request, one that failed on it is asked again as soon as it can be
expected to do better:

    back      it was not ready and is ready again since it was sent the request: its process is a new one, though a pod's uid is
              the old
    rested    what failed was the connection, and the breaker's first rest for that is over: 0.25 s where none could be made,
              2 s where one ended, which is time for a dying worker to be known as such

The breaker leaves a worker that cannot be reached alone for everybody, longer each time, so a rest here is the least there is.
One that answered with an error, or not in time, is not asked again by time alone: the same request would go the same way.

It ends. `attempts` is bounded by `--attempts`, `down` by DOWN_MAX. A connection that could not be made is no attempt: the worker
has nothing of the request (save where a kept connection had ended under it first), each of many workers is left alone by
everybody from then on, and rests that double keep tries of the same one few. As they do not move `since_s` either, the hold
time that counts from there ends them; a worker that is new to the request costs an attempt after that.

A request may be what takes workers down. What a worker that goes down under one looks like: its connection ends; its engine's
core dies, which its API process tells as an error of its own before it follows; the core hangs, and nothing comes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from forebay_router.errors import FailureReason, WorkerFailure
from forebay_router.health.breaker import RESTS, Cause

DOWN_MAX: Final = 2
"""Workers that may go down under one request, for all that is seen: it may be what takes them down."""
_ENDED: Final = frozenset({FailureReason.RESET, FailureReason.CUT_OFF})
_SILENT: Final = frozenset({FailureReason.FIRST_BYTE_TIMEOUT, FailureReason.FROZEN})


class Failed(NamedTuple):
    """One worker's last failure on the request. Monotonic seconds."""

    sent_s: float
    """When it was sent the request."""
    rested_s: float
    """When it may be asked again though nothing is known to have changed; infinite for never."""


@dataclass(slots=True)
class Tried:
    """What became of a request's attempts; made when the first has failed."""

    hold_s: float
    """How long the request is held for a worker after an attempt that counts."""
    failed: dict[str, Failed] = field(default_factory=dict)
    """By worker uid."""
    attempts: int = 0
    """Those that count."""
    down: int = 0
    """Workers that may have gone down under it."""
    since_s: float = 0.0
    """When the last attempt that counts failed; where none does, the first of the others."""

    @property
    def workers(self) -> frozenset[str]:
        """All that failed on it."""
        return frozenset(self.failed)

    def note(self, uid: str, failure: WorkerFailure, *, lost: bool, sent_s: float, now_s: float) -> None:
        """An attempt has failed on a worker; `lost`: it was sent there, and the connection ended."""
        reason = failure.reason
        unreached = reason is FailureReason.CONNECT
        sent = lost or not unreached
        if sent or not self.failed:
            self.since_s = now_s
        if sent or (uid not in self.failed and self.held_out(now_s)):
            self.attempts += 1
        self.down += lost or failure.died or reason in _SILENT
        rest_s = inf
        if unreached:
            rest_s = RESTS[Cause.UNREACHABLE].first_s
        elif failure.died or (lost and reason in _ENDED):
            rest_s = RESTS[Cause.FAILING].first_s
        self.failed[uid] = Failed(sent_s, now_s + rest_s)

    def held_out(self, now_s: float) -> bool:
        """It has been held for as long as it may."""
        return now_s >= self.since_s + self.hold_s

    def excluded(self, back_s: Mapping[str, float], now_s: float) -> frozenset[str]:
        """Workers that cannot be expected to do better yet. `back_s`: when those that are known became ready again last."""
        return frozenset(
            uid
            for uid, failed in self.failed.items()
            if now_s < failed.rested_s and back_s.get(uid, -inf) <= failed.sent_s
        )

    def again_s(self, now_s: float) -> float:
        """Seconds until the next one has rested; infinite when none will."""
        return min((one.rested_s - now_s for one in self.failed.values() if one.rested_s > now_s), default=inf)
