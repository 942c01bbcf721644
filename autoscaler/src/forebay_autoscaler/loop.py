"""The loop: look, decide on every model service, act if leading, sleep. The only sleep of the autoscaler.

Every replica looks and decides, so that one that takes over has the windows and the knowledge of the last minutes; only the
leader acts. Leadership is asked for again before each write, since acting on a thousand services takes time. What the first look
of a replica begins with comes from `memory`, where the leader saves it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Protocol

from forebay_autoscaler.act import Actor
from forebay_autoscaler.clock import EpochClock
from forebay_autoscaler.decide import decide
from forebay_autoscaler.ejections import SILENCE, Answers
from forebay_autoscaler.errors import AutoscalerError
from forebay_autoscaler.history import History, Record
from forebay_autoscaler.memory import Memory
from forebay_autoscaler.metrics import Metrics
from forebay_autoscaler.observation import ServiceKey, ServiceObservation
from forebay_autoscaler.observe import Look, Observer, Subject
from forebay_autoscaler.policy import ServicePolicy
from forebay_autoscaler.reading import read
from forebay_autoscaler.state import ServiceState
from forebay_autoscaler.status import RoutersWord
from forebay_autoscaler.waking import observation_to_wake, roused, sleepers

_log = logging.getLogger(__name__)


PAUSE_SHARE_MIN: Final = 0.1
"""Least pause between two cycles, as a share of the interval: a slow API server must not be asked without a break."""


class Leadership(Protocol):
    """Whether this replica may act."""

    @property
    def leading(self) -> bool:
        """Asked before each write."""
        ...


@dataclass(frozen=True, slots=True)
class Alone:
    """A replica without rivals: it always leads."""

    leading: bool = True


class Guards(Protocol):
    """The routers, as those who leave workers alone."""

    async def ejected(self) -> Answers:
        """Whom they leave alone; AutoscalerError."""
        ...


@dataclass(slots=True)
class Loop:
    """One replica's work."""

    observer: Observer
    actor: Actor
    leadership: Leadership
    metrics: Metrics
    history: History
    interval_s: float
    routers: Guards | None = None
    """Who is asked for workers that are left alone; None where nobody is."""
    memory: Memory | None = None
    """Outlives the process; None when nothing is saved."""
    clock: Callable[[], float] = field(default_factory=EpochClock)
    cycled_s: float | None = None
    """When a cycle last succeeded, by `clock`; None before the first."""
    _states: dict[tuple[ServiceKey, str], ServiceState] = field(default_factory=dict)
    _unreadable: dict[ServiceKey, str] = field(default_factory=dict)
    _subjects: tuple[Subject, ...] = ()
    """Of the last look."""
    _woken: dict[tuple[ServiceKey, str], tuple[float, frozenset[str]]] = field(default_factory=dict)
    """Pools that woke, with when, until a look that began later sees their workers: nothing wakes twice."""

    async def run(self) -> None:
        """Cycle until cancelled. A cycle that fails is logged and counted, and the next one comes at its time."""
        while True:
            started_s = self.clock()
            try:
                await self.cycle()
                self.metrics.cycles.labels("ok").inc()
            except Exception as error:  # noqa: BLE001 the loop's boundary: whatever failed, the next cycle sees afresh
                self.metrics.cycles.labels("failed").inc()
                if not self.leadership.leading:  # the new leader's numbers must not stand beside these for an outage
                    self.metrics.record((), leading=False, now_s=0.0)
                _log.error(
                    "cycle failed: %s: %s", type(error).__name__, error, exc_info=not isinstance(error, AutoscalerError)
                )
            duration_s = self.clock() - started_s
            self.metrics.cycle_seconds.observe(duration_s)
            await asyncio.sleep(max(PAUSE_SHARE_MIN * self.interval_s, self.interval_s - duration_s))

    async def cycle(self) -> None:
        """Look, decide, act."""
        if self.memory is not None:
            await self.memory.recall()
        if not self.leadership.leading:  # what another one tells meanwhile is read from the status again
            self.actor.forget(set())
        looked_s = self.clock()
        asking = asyncio.create_task(self._ask_routers())
        try:
            look = await self.observer.look()
            said = await asking
        finally:
            asking.cancel()
            await asyncio.wait({asking})
        self._woken = {identity: woken for identity, woken in self._woken.items() if woken[0] >= looked_s}
        now_s, now = self.clock(), datetime.now(UTC)
        self._report(look)
        leading = self.leadership.leading
        decided = self._decide(look, now_s, now, leading=leading)
        records = [record for record, _ in decided]
        self.history.add(records)
        self.metrics.record([record.decision for record in records], leading=leading, now_s=now.timestamp())
        for record, subject in decided:
            if not self.leadership.leading:
                break
            await self._act(record, subject, said)
        self.actor.forget({record.decision.key for record in records})
        self.cycled_s = self.clock()
        if self.memory is not None and self.leadership.leading:
            await self.memory.save(self._states, self._policies(), look.unreadable, now_s=now_s)

    async def save(self) -> None:
        """Save all states if this replica leads, before it ends."""
        if self.memory is not None and self.leadership.leading and self.cycled_s is not None:
            await self.memory.save_all(self._states, self._policies(), now_s=self.clock())

    def asleep(self) -> frozenset[ServiceKey]:
        """Services that had a role without a worker at the last look, and were not woken since."""
        return sleepers((subject.policy, self._as_it_is(subject)) for subject in self._subjects)

    async def wake(self, held: Mapping[ServiceKey, float]) -> None:
        """Give services a worker for requests that routers hold. What else there is to decide is left to the cycle."""
        for subject in self._subjects:
            number = held.get(subject.policy.key)
            if number is None or not self.leadership.leading:
                continue
            try:
                await self._wake(subject, number)
            except Exception:  # noqa: BLE001 one service's boundary: counted and logged, the others wake
                self._woken[_identity(subject)] = (self.clock(), frozenset(pool.name for pool in subject.policy.pools))
                self.metrics.service_failures.inc()
                _log.exception("waking %s/%s failed, it is tried again after the next look", *subject.policy.key)

    async def _wake(self, subject: Subject, number: float) -> None:
        """Decide on one service as if nothing but held requests were known, and carry out what makes a pool wake."""
        identity, now_s = _identity(subject), self.clock()
        state = self._states.get(identity)
        if state is None:
            return
        reading = read(number, age_s=0.0, stale_after_s=self.interval_s)
        observation = observation_to_wake(self._as_it_is(subject), reading)
        decision = decide(subject.policy, state, observation, now_s)
        grown = {pool.name: pool for pool in decision.pools if pool.current == 0 < pool.desired}
        if not grown:
            return
        kept = {name: decision.state.pools[name] for name in grown}
        self._states[identity] = replace(state, pools={**state.pools, **kept})
        self.history.add_one(Record(datetime.now(UTC), True, subject.policy, state, observation, decision))
        done = {name for name, pool in grown.items() if await self.actor.grow(decision, pool, subject.stored)}
        self._woken[identity] = (now_s, self._woken_of(subject) | done)
        if done:
            self.metrics.wakes.inc()

    def _woken_of(self, subject: Subject) -> frozenset[str]:
        return self._woken.get(_identity(subject), (0.0, frozenset()))[1]

    def _as_it_is(self, subject: Subject) -> ServiceObservation:
        """What was seen of a service, with the pools that woke since."""
        return roused(subject.observation, self._woken_of(subject))

    def _policies(self) -> tuple[ServicePolicy, ...]:
        return tuple(subject.policy for subject in self._subjects)

    async def _ask_routers(self) -> Answers | None:
        """Whom routers leave alone; None where nobody is asked, since this replica would not tell."""
        if self.routers is None or not self.leadership.leading:
            return None
        try:
            said = await self.routers.ejected()
        except Exception as error:  # noqa: BLE001 what only informs is its own boundary: counted and logged, pools are scaled
            self.metrics.ejection_checks.labels("failed").inc()
            _log.warning(
                "routers cannot be asked for workers that they leave alone: %s: %s",
                type(error).__name__,
                error,
                exc_info=not isinstance(error, AutoscalerError),
            )
            return SILENCE
        self.metrics.ejection_checks.labels("ok").inc()
        return said

    async def _act(self, record: Record, subject: Subject, said: Answers | None) -> None:
        """Act on one service. What fails here is this service's alone."""
        word = RoutersWord(subject.caches, said.of(record.decision.key) if said is not None else None)
        try:
            await self.actor.act(record.decision, subject.stored, routers=word)
        except Exception:  # noqa: BLE001 one service's boundary: counted and logged, the others go on
            self.metrics.service_failures.inc()
            _log.exception("acting on %s/%s failed", *record.decision.key)

    def _decide(self, look: Look, now_s: float, now: datetime, *, leading: bool) -> list[tuple[Record, Subject]]:
        """Decide on each service. One that fails keeps its workers and its state, and takes no other with it."""
        decided = []
        states = {}
        for subject in look.subjects:
            identity = _identity(subject)
            known = self._states.get(identity)
            state = self._begun(subject.policy, known, now_s)
            try:
                decision = decide(subject.policy, state, subject.observation, now_s)
            except Exception:  # noqa: BLE001 one service's boundary: counted and logged, the others go on
                if known is not None:  # one that was read and makes it fail is dropped
                    states[identity] = known
                self.metrics.service_failures.inc()
                _log.exception("deciding on %s/%s failed, its workers are left alone", *subject.policy.key)
                continue
            states[identity] = decision.state
            record = Record(now, leading, subject.policy, state, subject.observation, decision)
            decided.append((record, subject))
        self._states = states
        self._subjects = look.subjects
        return decided

    def _begun(self, policy: ServicePolicy, known: ServiceState | None, now_s: float) -> ServiceState:
        """The state to decide with: what is known, or what was saved where that has not been asked for yet."""
        if self.memory is None:
            return known or ServiceState()
        if known is not None and not self.memory.owes(policy.key):
            return known
        return self.memory.state_of(policy, now_s) or known or ServiceState()

    def _report(self, look: Look) -> None:
        for signal in look.failed_queries:
            self.metrics.query_failures.labels(signal.value).inc()
        for key, why in look.unreadable.items():
            if self._unreadable.get(key) != why:
                _log.error("spec of %s/%s cannot be read, its workers are left alone: %s", *key, why)
        self._unreadable = dict(look.unreadable)


def _identity(subject: Subject) -> tuple[ServiceKey, str]:
    return subject.policy.key, subject.policy.uid
