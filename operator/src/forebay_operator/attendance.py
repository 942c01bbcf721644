"""Whether the autoscaler is there, by the Lease that its leader renews.

Its conditions and numbers in a ModelService's status are its own word, and a dead writer takes none back: they would stand as
they were for ever. So the operator follows the Lease. As in the election, time is this process's own: it counts from when the
Lease was last *seen* to be renewed, whatever its times say, and anew after a look that failed, since an API server that is away
keeps the autoscaler from renewing as well. A new operator leader therefore waits `gone_after_s` before it says anything, and a
change of the autoscaler's leader (at most the Lease's duration, 10 s) is over before it is noticed.

The Lease is evidence of an autoscaler that uses it, and of no other: one that elects nobody, or holds another Lease, lives
while this one stands still. So nothing is said of a Lease that nobody has ever held, and one that was held once is no longer
followed when the word that was spoken for its holder is replaced: only a living writer does that.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from forebay_api.election import Sighting, sight
from forebay_operator.election import ClusterLease
from forebay_operator.errors import ApiError

_log = logging.getLogger(__name__)

DURATIONS_MIN: Final = 2.0
"""Durations of the Lease that are waited for in any case: within one and a bit another replica takes over."""
LOOK_S: Final = 5.0
"""Pause between two looks at the Lease."""


@dataclass(frozen=True, slots=True)
class Absence:
    """An autoscaler that is not there."""

    lease: str
    """NAMESPACE/NAME of its Lease."""
    version: str = ""
    """Of what the Lease says of its holder, empty where there is none. Not its resourceVersion: Helm writes its labels anew."""
    renewed: str | None = None
    """When the Lease was last renewed, by its own words; None when it never was."""

    @property
    def deployed(self) -> bool:
        """Whether there is a Lease at all: the chart makes it where it installs an autoscaler."""
        return bool(self.version)


@dataclass(slots=True)
class Attendance:
    """What is known of the autoscaler."""

    lease: str
    gone_after_s: float
    absence: Absence | None = None
    """None while it is there, or not known to be gone."""
    _sighting: Sighting | None = None
    """None before the first look and after one that failed."""
    _doubted: Absence | None = None
    """The one that was last found untrue."""

    def see(self, lease: dict[str, Any] | None, now_s: float) -> None:
        """Take in the Lease as it is now."""
        spec = (lease or {}).get("spec") or {}
        holder, renewed = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
        version = "" if lease is None else f"{renewed} by {holder}"
        sighting = self._sighting = sight(version, self._sighting, now_s)
        if self.absence is not None and self.absence.version != version:
            self.absence = None
        if lease is not None and not (renewed or holder):  # who never held it may live without it
            return
        absence = Absence(self.lease, version, renewed or None)
        least_s = DURATIONS_MIN * float(spec.get("leaseDurationSeconds") or 0)
        if now_s - sighting.seen_s >= max(self.gone_after_s, least_s) and absence != self._doubted:
            self.absence = absence

    def doubt(self) -> None:
        """The autoscaler lives, whatever its Lease says: nothing more is concluded from the Lease as it is now."""
        if self.absence is not None:
            self._doubted, self.absence = self.absence, None

    def miss(self) -> None:
        """A look failed: the time until now does not count."""
        self._sighting = None


@dataclass(slots=True)
class Follower:
    """Looks at the Lease for as long as this process leads."""

    attendance: Attendance
    reader: ClusterLease
    on_change: Callable[[], None]
    """The autoscaler went, or came back."""
    clock: Callable[[], float] = time.monotonic
    _failing: bool = False

    async def run(self) -> None:
        """Look until cancelled. A look that fails is logged at the first failure."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    def doubt(self) -> None:
        """Somebody has seen the autoscaler at work."""
        place = self.attendance.lease
        _log.warning("an autoscaler is at work that does not renew the Lease %s: whether it is gone is not told", place)
        self.attendance.doubt()
        self.on_change()

    async def look(self) -> bool:
        """Look once; whether the Lease could be read."""
        before = self.attendance.absence
        try:
            lease = await self.reader.read()
        except ApiError as error:
            if not self._failing:
                _log.warning("the autoscaler's Lease %s cannot be read: %s", self.attendance.lease, error)
            self._failing = True
            self.attendance.miss()
            return False
        self._failing = False
        self.attendance.see(lease, self.clock())
        if self.attendance.absence != before:
            if self.attendance.absence is None:
                _log.info("the autoscaler is there: its Lease %s has changed", self.attendance.lease)
            self.on_change()
        return True
