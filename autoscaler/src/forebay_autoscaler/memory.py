"""States that outlive both replicas: read once when a replica begins, saved by the one that leads.

Model services are spread over a fixed number of ConfigMaps by a checksum of their name. One that is due is written in a cycle, at
most each `interval_s`, so what is lost with both replicas is the last half minute. Neither reading nor saving is needed for a
decision: what fails is logged and counted, and work goes on. Only when the API server does not answer at all, the first cycle
fails with it, as it would without this.

A save replaces what was there, so nothing is saved before everything was read: a read that failed is tried again in each cycle.
Services that were decided on meanwhile began anew, and go on from what was saved when it is there.

With another number of ConfigMaps a service belongs to another one, and the one it belonged to keeps an old copy until it is
written again, or for ever if it is not used any more. Of several copies the one that was saved last is read.

An object of the API server has a bounded size. Where the states of one ConfigMap are larger together, the largest are left out,
and a metric says how many: more ConfigMaps make room.
"""

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Mapping
from time import monotonic
from typing import Final, Protocol
from zlib import crc32

from forebay_autoscaler.cluster import NO_ANSWER
from forebay_autoscaler.errors import ClusterError, UnusableStateError
from forebay_autoscaler.metrics import Metrics
from forebay_autoscaler.observation import ServiceKey
from forebay_autoscaler.policy import ServicePolicy
from forebay_autoscaler.savedstate import Saved, dump, load, resume, saved_at_s
from forebay_autoscaler.state import ServiceState

_log = logging.getLogger(__name__)

SIZE_MAX: Final = 900_000
"""Bytes of states in one ConfigMap; the API server refuses objects from 1 MiB on."""
LAST_SAVE_S: Final = 2.0
"""Longest time that saving may hold up the end of a process."""
TEXTS_SHARE: Final = 0.6
"""Share of it for making texts; the rest is left to the last writes."""

States = Mapping[tuple[ServiceKey, str], ServiceState]
"""By key and uid of the model service."""


class Store(Protocol):
    """Where texts are kept, in numbered parts."""

    async def read(self, number: int) -> dict[str, str]:
        """Texts of a part; ClusterError."""
        ...

    async def write(self, number: int, data: Mapping[str, str]) -> None:
        """Replace a part; ClusterError."""
        ...


class Memory:
    """What is saved, on one side; what was read and not asked for yet, on the other."""

    def __init__(self, store: Store, metrics: Metrics, *, parts: int, interval_s: float) -> None:
        self._store = store
        self._metrics = metrics
        self._interval_s = interval_s
        self._unread = set(range(parts))
        self._unreadable = False
        self._owed: set[str] = set()
        self._waiting: dict[str, str] = {}
        self._saved_s = [-math.inf] * parts
        self._saved: list[Mapping[str, str]] = [{} for _ in range(parts)]
        self._failing = False
        self._left_out = [0] * parts

    async def recall(self) -> None:
        """Read what was saved, until all of it is read. ClusterError only when the API server does not answer."""
        for number in sorted(self._unread):
            try:
                self._saved[number] = await self._store.read(number)
            except ClusterError as error:
                if error.status == NO_ANSWER:
                    raise
                if not self._unreadable:
                    self._metrics.recalls.labels("unreadable").inc()
                    _log.error("saved states cannot be read, nothing is saved before they are: %s", error)
                self._unreadable = True
                return
            self._unread.discard(number)
            if not self._unread:
                self._waiting = _newest(self._saved)

    def owes(self, key: ServiceKey) -> bool:
        """Whether a state was asked for before what is saved was read, which it is now."""
        return not self._unread and _name(key) in self._owed

    def state_of(self, policy: ServicePolicy, now_s: float) -> ServiceState | None:
        """The saved state of a model service, which is given once; None when there is none that can be used (yet)."""
        name = _name(policy.key)
        if self._unread:
            self._owed.add(name)
            return None
        self._owed.discard(name)
        text = self._waiting.pop(name, None)
        outcome, state = "absent", None
        if text is not None:
            try:
                saved = load(text)
                if saved.uid == policy.uid:
                    outcome, state = "used", resume(saved, policy, now_s)
                    _log.info("state of %s/%s recalled, saved %.0f s ago", *policy.key, now_s - saved.at_s)
            except UnusableStateError as error:
                outcome = error.cause
                _log.warning("saved state of %s/%s is not used, it is learnt anew: %s", *policy.key, error.why)
        self._metrics.recalls.labels(outcome).inc()
        return state

    async def save(
        self, states: States, policies: Iterable[ServicePolicy], unreadable: Collection[ServiceKey], *, now_s: float
    ) -> None:
        """Save the part that has waited longest, if it has waited long enough. Failures are logged and counted."""
        if self._unread:
            return
        self._forget(unreadable)
        number = min(range(len(self._saved_s)), key=self._saved_s.__getitem__)
        if now_s - self._saved_s[number] < self._interval_s:
            return
        await self._save(number, self._texts(number, states, policies, now_s), now_s)

    async def save_all(self, states: States, policies: Iterable[ServicePolicy], *, now_s: float) -> None:
        """Save every part before the process ends; not longer than LAST_SAVE_S.

        Each is written while the next one's texts are made. Those that have waited longest come first, and a service whose turn
        does not come keeps what was saved of it before: parts that are not begun are not written.
        """
        if self._unread:
            return
        policies = tuple(policies)
        until_s = monotonic() + LAST_SAVE_S * TEXTS_SHARE
        try:
            async with asyncio.timeout(LAST_SAVE_S), asyncio.TaskGroup() as group:
                for number in sorted(range(len(self._saved)), key=self._saved_s.__getitem__):
                    if monotonic() >= until_s:
                        _log.warning("not all states are saved: there is no time for more")
                        break
                    texts = self._texts(number, states, policies, now_s, until_s=until_s)
                    group.create_task(self._save(number, texts, now_s))
                    await asyncio.sleep(0)  # the write begins
        except TimeoutError:
            _log.warning("states not saved within %.0f s", LAST_SAVE_S)

    def _forget(self, unreadable: Collection[ServiceKey]) -> None:
        """Of what was read and not asked for, keep only what a service that cannot be read now may ask for later."""
        kept = {_name(key) for key in unreadable}
        self._waiting = {name: text for name, text in self._waiting.items() if name in kept}

    def _texts(
        self,
        number: int,
        states: States,
        policies: Iterable[ServicePolicy],
        now_s: float,
        *,
        until_s: float = math.inf,
    ) -> dict[str, str]:
        """Texts of a part. What is not made by `until_s`, of the monotonic clock, is the one that was saved before."""
        before = self._saved[number]
        texts = {name: text for name, text in self._waiting.items() if self._part(name) == number}
        for policy in policies:
            state, name = states.get((policy.key, policy.uid)), _name(policy.key)
            if state is None or self._part(name) != number:
                continue
            if monotonic() < until_s:
                texts[name] = dump(Saved(policy.uid, now_s, policy.tuning.rate_window_s, state))
            elif name in before:
                texts[name] = before[name]
        sizes = sorted((len(text.encode()) + len(name), name) for name, text in texts.items())
        total, fit = 0, 0
        for size, _ in sizes:
            total += size
            fit += total <= SIZE_MAX
        self._left_out[number] = len(sizes) - fit
        self._metrics.states_left_out.set(sum(self._left_out))
        return {name: texts[name] for _, name in sizes[:fit]}

    async def _save(self, number: int, texts: Mapping[str, str], now_s: float) -> None:
        self._saved_s[number] = now_s  # also when it fails: the next try comes at its time
        if not texts and not self._saved[number]:
            return
        try:
            await self._store.write(number, texts)
        except ClusterError as error:
            self._metrics.write_failures.labels("state").inc()
            if not self._failing:
                _log.error("what was learnt is not saved: %s", error)
            self._failing = True
        else:
            self._saved[number], self._failing = texts, False

    def _part(self, name: str) -> int:
        return crc32(name.encode()) % len(self._saved)


def _name(key: ServiceKey) -> str:
    """A key of a ConfigMap; neither half holds a dot."""
    return ".".join(key)


def _newest(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The texts of all parts; of those of one service the one that was saved last."""
    found: dict[str, str] = {}
    for part in parts:
        for name, text in part.items():
            if name not in found or saved_at_s(text) > saved_at_s(found[name]):
                found[name] = text
    return found
