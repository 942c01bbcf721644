"""One worker's record with requests, and when it is left alone because of it. Pure.

    SOUND     gets requests
    EJECTED   gets none until its rest is over
    PROBING   gets one request, to try
    TRIAL     that request runs; it gets no other

    SOUND --eject--> EJECTED --rest over--> PROBING --a request is sent--> TRIAL --it is answered--> SOUND
                        ^------------------------------------------------- TRIAL --it fails-------'
                                                                           TRIAL --its client leaves--> PROBING

A worker that was not ready and is again may well be another process: its rest is over at once.

Three causes. UNREACHABLE: a connection was refused or not accepted; one is enough, the rest is short. FAILING: requests fail
that others would have served. FROZEN: it makes no progress with anything (`frozen`). Each further ejection doubles the rest,
until `RECOVERED` requests in a row have gone well.

What counts as a failure. Broken connections, answers 5xx, answers that the engine aborted, cut off or let fall silent, first
bytes that never came. Never an answer 4xx: it is the client's. Never the total time limit: the request was long.

FAILING needs evidence against this worker, not against the requests or the moment. `FAILURES_IN_ROW`, or a share of failures
that chance does not explain (`DEVIATIONS` standard errors above the others' share, from `ATTEMPTS_MIN` attempts on); and in
both cases at least `TIMES_OTHERS` the share that the others of its role have. A request that breaks every worker it is sent to,
an overload in which all answer 503, a model that cannot do it: the others fail as well, and nobody is ejected. Shares forget
over `MEMORY` attempts.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf, sqrt
from typing import Final

FAILURES_IN_ROW: Final = 5
ATTEMPTS_MIN: Final = 20
DEVIATIONS: Final = 3.0
TIMES_OTHERS: Final = 2.0
SHARE_USUAL: Final = 0.05
"""Of failures, that nobody is ejected for: what others show may be nothing because they were asked for nothing."""
MEMORY: Final = 50
RECOVERED: Final = 5
_DOUBLINGS_MAX: Final = 10


class Condition(StrEnum):
    """What the router makes of a worker."""

    SOUND = "sound"
    EJECTED = "ejected"
    PROBING = "probing"
    TRIAL = "trial"


class Cause(StrEnum):
    """Why a worker is left alone. Values are metric labels."""

    UNREACHABLE = "unreachable"
    FAILING = "failing"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class Rest:
    """How long a worker is left alone: the first time, and at most."""

    first_s: float
    longest_s: float


RESTS: Final = {
    Cause.UNREACHABLE: Rest(0.25, 8.0),
    Cause.FAILING: Rest(2.0, 120.0),
    Cause.FROZEN: Rest(5.0, 60.0),
}


@dataclass(slots=True)
class Health:
    """Of one worker. Changed through `Guard` only, but for the counting of what goes well."""

    condition: Condition = Condition.SOUND
    cause: Cause | None = None
    """Of the last ejection."""
    ejected_s: float = -inf
    """Monotonic time of the last ejection."""
    until_s: float = 0.0
    """Monotonic end of the rest."""
    trial: int = 0
    """Trials so far."""
    detail: str = ""
    """What was last seen to go wrong, for people."""
    ejections: int = 0
    """In a row."""
    failures: int = 0
    """In a row."""
    successes: int = 0
    """In a row, up to RECOVERED."""
    attempts: int = 0
    """Up to MEMORY."""
    failing_share: float = 0.0
    """Of the last attempts."""

    @property
    def sound(self) -> bool:
        """It gets requests like any other."""
        return self.condition is Condition.SOUND

    def due(self, now_s: float) -> bool:
        """Its rest is over. A frozen worker's never is by time alone."""
        return self.condition is Condition.EJECTED and self.until_s <= now_s and self.cause is not Cause.FROZEN

    def offered(self, now_s: float) -> bool:
        """It may be sent a request."""
        return self.condition is Condition.SOUND or self.condition is Condition.PROBING or self.due(now_s)

    def succeeded(self) -> None:
        """A request on it has gone well to its end."""
        self.failures = 0
        if self.attempts < MEMORY:
            self.attempts += 1
        if self.failing_share:
            self.failing_share -= self.failing_share / self.attempts
        if self.successes < RECOVERED and self.condition is Condition.SOUND:
            self.successes += 1
            if self.successes == RECOVERED:
                self.ejections = 0

    def failed(self) -> None:
        """A request on it has failed, and it was the worker's doing."""
        self.successes = 0
        self.failures += 1
        if self.attempts < MEMORY:
            self.attempts += 1
        self.failing_share += (1 - self.failing_share) / self.attempts

    def failing(self, others_share: float) -> bool:
        """It fails where others would not. `others_share`: of failures, of the other workers of its role."""
        if self.failing_share < TIMES_OTHERS * others_share:
            return False
        if self.failures >= FAILURES_IN_ROW:
            return True
        if self.attempts < ATTEMPTS_MIN:
            return False
        likely = max(others_share, SHARE_USUAL)
        return self.failing_share > likely + DEVIATIONS * sqrt(likely * (1 - likely) / self.attempts)

    def eject(self, cause: Cause, now_s: float) -> None:
        """Leave it alone for a while, longer each time."""
        rest = RESTS[cause]
        self.condition = Condition.EJECTED
        self.cause = cause
        self.ejected_s = now_s
        self.until_s = now_s + min(rest.longest_s, rest.first_s * 2 ** min(self.ejections, _DOUBLINGS_MAX))
        self.ejections += 1
        self.successes = 0

    def renew(self, now_s: float) -> None:
        """It was not ready and is again, most likely as another process: its rest is over."""
        self.until_s = min(self.until_s, now_s)

    def probe(self) -> None:
        """Its rest is over: the next request is a trial."""
        self.condition = Condition.PROBING

    def try_out(self) -> None:
        """The trial begins."""
        self.trial += 1
        self.condition = Condition.TRIAL

    def restore(self) -> None:
        """The trial was answered. One more failure is enough to be ejected again, until a request has gone well to its end."""
        self.condition = Condition.SOUND
        self.failures = FAILURES_IN_ROW - 1
        self.attempts = 0
        self.failing_share = 0.0
