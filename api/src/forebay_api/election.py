"""Leader election by a Lease, without its I/O: which of several replicas may act.

Every replica runs an `Elector` over one `coordination.k8s.io/v1` Lease. Time is taken from each replica's own monotonic
clock, never from the Lease: a candidate notes when it last *saw the Lease change* and takes over once `duration_s` has
passed without a change. The holder rewrites the Lease every `retry_s`, and regards itself as leader only until
`renew_deadline_s` after the start of its last successful write. Since renew_deadline_s < duration_s, a holder that is cut
off, hung or suspended stops before another starts, as far as clocks run at one speed: `leading` compares with the clock at
the moment of asking, so that a process that wakes up from a suspension is no longer leader before it has run any code.

Writes are guarded by resourceVersion: of two candidates that take over at once, one gets a conflict and goes on waiting. A
holder that is told to stop gives the Lease back, so that a rollout hands over within `retry_s`. At worst a takeover takes
duration_s + retry_s + one call.

kubernetes.aio.leaderelection is not used: an exception other than ApiException (a refused connection while the API server
restarts) ends its loop and leaves the leader's work running; a call that hangs is not cut at the renew deadline; it goes by
the wall clock, in local time marked as UTC; it does not give the lease back.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

_log = logging.getLogger(__name__)

RELEASE_TIMEOUT_S: Final = 2.0
"""How long giving the Lease back may delay the end of the process."""


class LeaseConflictError(Exception):
    """Another replica wrote the Lease first."""


class LeaseStore(Protocol):
    """The three calls an elector needs, bound to one Lease. Any exception counts as a failed attempt."""

    async def read(self) -> dict[str, Any] | None:
        """The Lease as an API object; None when there is none."""
        ...

    async def create(self, spec: dict[str, Any]) -> None:
        """Create the Lease; LeaseConflictError when it exists."""
        ...

    async def replace(self, lease: dict[str, Any]) -> None:
        """Replace the Lease at its resourceVersion; LeaseConflictError when that has passed."""
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """The times of an election, seconds."""

    duration_s: float = 10.0
    """How long a Lease that does not change is respected."""
    renew_deadline_s: float = 7.0
    """How long after its last renewal a holder still leads."""
    retry_s: float = 1.5
    """Time between two attempts of one replica."""

    def __post_init__(self) -> None:
        """Two leaders at once are possible when these do not hold."""
        if not 0 < 1.2 * self.retry_s < self.renew_deadline_s < self.duration_s:
            raise ValueError(
                f"election times must satisfy 1.2 * retry < renew deadline < duration, got {self.retry_s} s, "
                f"{self.renew_deadline_s} s, {self.duration_s} s"
            )


@dataclass(frozen=True, slots=True)
class Sighting:
    """The Lease as a replica last saw it change."""

    version: str
    """Tells what it was like from what it was before; empty where there is none."""
    seen_s: float
    """When this version was first seen, monotonic seconds."""


def sight(version: str, before: Sighting | None, now_s: float) -> Sighting:
    """The sighting after one more look: the one before, if the Lease is still as it was then."""
    return before if before is not None and before.version == version else Sighting(version, now_s)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a replica should do now: write `spec`, or, when it is None, wait for `holder`."""

    sighting: Sighting | None
    holder: str
    spec: dict[str, Any] | None


def micro_time(moment: datetime) -> str:
    """UTC time as a Lease wants it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def plan_attempt(
    lease: dict[str, Any] | None,
    sighting: Sighting | None,
    *,
    identity: str,
    terms: Terms,
    now_s: float,
    moment: datetime,
) -> Attempt:
    """The next step of the replica `identity`; `now_s` is monotonic, `moment` only fills the Lease's times."""
    if lease is None:
        return Attempt(None, identity, _held({}, identity=identity, terms=terms, moment=moment))
    spec = dict(lease.get("spec") or {})
    holder = str(spec.get("holderIdentity") or "")
    sighting = sight(str(lease["metadata"]["resourceVersion"]), sighting, now_s)
    # The holder's own promise counts when it is longer than ours: the replicas may be of different releases.
    duration_s = max(terms.duration_s, float(spec.get("leaseDurationSeconds") or 0.0)) if holder else 0.0
    if holder != identity and now_s < sighting.seen_s + duration_s:
        return Attempt(sighting, holder, None)
    return Attempt(sighting, identity, _held(spec, identity=identity, terms=terms, moment=moment))


def _held(spec: dict[str, Any], *, identity: str, terms: Terms, moment: datetime) -> dict[str, Any]:
    """The Lease's spec as renewed or taken over by `identity`."""
    renewed = {
        **spec,
        "holderIdentity": identity,
        "leaseDurationSeconds": round(terms.duration_s),
        "renewTime": micro_time(moment),
    }
    if spec.get("holderIdentity") != identity:
        renewed["acquireTime"] = micro_time(moment)
        renewed["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if spec else 0)
    return renewed


@dataclass(slots=True)
class Elector:
    """One replica's part in the election. Run `run` as a task; ask `leading` before each act."""

    store: LeaseStore
    identity: str
    """Unique name of this replica; the pod's name."""
    terms: Terms = field(default_factory=Terms)
    clock: Callable[[], float] = time.monotonic
    _sighting: Sighting | None = None
    _leads_until_s: float = float("-inf")
    _holder: str = ""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def leading(self) -> bool:
        """Whether this replica may act now."""
        return self.clock() < self._leads_until_s

    @property
    def holder(self) -> str:
        """Identity of the holder as last seen; empty when unknown."""
        return self._holder

    async def until_leading(self) -> None:
        """Return once this replica leads."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.leading)

    async def until_lost(self) -> None:
        """Return once this replica does not lead (any more), at most `retry_s` late."""
        while self.leading:  # noqa: ASYNC110 (leadership ends by the passing of time, which sets no event)
            await asyncio.sleep(min(self.terms.retry_s, max(0.0, self._leads_until_s - self.clock())))

    async def run(self) -> None:
        """Take part until cancelled; then give the Lease back if it is held. Never ends by a failed call."""
        try:
            while True:
                await self._attempt()
                # Jitter keeps two waiting replicas from colliding on each attempt.
                await asyncio.sleep(self.terms.retry_s * random.uniform(0.9, 1.1))  # noqa: S311 (no secret)
        finally:
            if self.leading:
                self._leads_until_s = float("-inf")
                await self._release()

    async def _attempt(self) -> None:
        started_s, led = self.clock(), self.leading
        try:
            async with asyncio.timeout(self.terms.renew_deadline_s - self.terms.retry_s):
                await self._write_or_wait(started_s)
        except LeaseConflictError:
            self._sighting = None
        except Exception as error:  # noqa: BLE001 a failed call must not end the election; it is logged and tried again
            _log.warning("lease could not be read or written: %s: %s", type(error).__name__, error)
        if led != self.leading:
            _log.info("%s leads" if self.leading else "%s no longer leads", self.identity)
        if self.leading:
            async with self._changed:
                self._changed.notify_all()

    async def _write_or_wait(self, started_s: float) -> None:
        lease = await self.store.read()
        attempt = plan_attempt(
            lease,
            self._sighting,
            identity=self.identity,
            terms=self.terms,
            now_s=self.clock(),
            moment=datetime.now(UTC),
        )
        self._sighting, self._holder = attempt.sighting, attempt.holder
        if attempt.spec is None:
            self._leads_until_s = float("-inf")
        elif lease is None:
            await self.store.create(attempt.spec)
            self._leads_until_s = started_s + self.terms.renew_deadline_s
        else:
            await self.store.replace({**lease, "spec": attempt.spec})
            self._leads_until_s = started_s + self.terms.renew_deadline_s

    async def _release(self) -> None:
        """Empty the holder, so that the next replica need not wait. A failure only costs time."""
        with suppress(Exception):
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                lease = await self.store.read()
                if lease and lease.get("spec", {}).get("holderIdentity") == self.identity:
                    spec = {**lease["spec"], "holderIdentity": "", "renewTime": micro_time(datetime.now(UTC))}
                    await self.store.replace({**lease, "spec": spec})
