"""A queue of keys: coalescing, one worker a key, back-off for failures, slow resync.

The rules, after client-go's work queue:

- A key is *due* at most once. Putting a due key again changes nothing (or brings it forward), so a burst of a thousand
  events on one object costs one reconciliation.
- A key that is *taken* is not handed out again until `done`. If it was put meanwhile it becomes due `again_s` later: the
  worker may have read the object before that event, so it must look again; the pause gathers the rest of a burst.
- A failed key comes back after `backoff_first_s * 2 ** (failures - 1)`, at most `backoff_max_s`, with a jitter of up to a
  fifth, so that keys which failed together (an API server restart) do not come back together. Success resets the count.
- A successful key comes back after `resync_s`, jittered as well, whatever happens: what no event told (a missed watch event,
  a clock that runs out) is seen then. `forget` ends that for a key whose object is gone.

An event shortens a back-off (it may be the fix), but only down to `backoff_event_s`: an object that fails and is edited all
the time must not turn the back-off into a hot loop.

All changes of state are plain functions; `get` is the only await.
"""

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Pace:
    """The times of a queue, in seconds."""

    backoff_first_s: float = 0.5
    """Pause after the first failure of a key."""
    backoff_max_s: float = 60.0
    """Longest pause after failures."""
    backoff_event_s: float = 2.0
    """What an event shortens a pause after failures to."""
    again_s: float = 0.1
    """Pause between two reconciliations of a key while events keep coming."""
    resync_s: float = 300.0
    """Pause after success when nothing happens."""


class KeyedQueue(Generic[Key]):
    """See the module's docstring. `now` is a monotonic clock in seconds; `rng` makes the jitter."""

    def __init__(self, pace: Pace, *, now: Callable[[], float], rng: random.Random) -> None:
        self._pace = pace
        self._now = now
        self._rng = rng
        self._due_at: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = itertools.count()
        self._taken: set[Key] = set()
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Keys that are due now and wait for a worker."""
        now = self._now()
        due_at = list(self._due_at.values())  # a copy in one step: a scrape asks from another thread
        return sum(1 for one in due_at if one <= now)

    def put(self, key: Key, *, delay_s: float = 0.0) -> None:
        """Make a key due after a delay at the latest."""
        if key in self._taken:
            self._again.add(key)
            return
        if self._failures.get(key):
            delay_s = max(delay_s, self._pace.backoff_event_s)
        self._schedule(key, self._now() + delay_s)

    async def get(self) -> Key:
        """The key that is due longest; waits until there is one. The caller must call `done` or `fail` on it."""
        while True:
            self._changed.clear()
            key, wait_s = self._take()
            if key is not None:
                return key
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: Key, *, retry_after_s: float | None = None) -> None:
        """Give a key back after success; it is due again after `retry_after_s`, at the latest after the resync."""
        self._failures.pop(key, None)
        resync_s = self._jittered(self._pace.resync_s)
        self._give_back(key, min(resync_s, retry_after_s) if retry_after_s is not None else resync_s)

    def fail(self, key: Key, *, pause_max_s: float | None = None) -> float:
        """Give a key back after a failure; the pause until it is due again, in seconds, at most `pause_max_s`."""
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        exponent = min(failures - 1, 30)
        pause_s = self._jittered(min(self._pace.backoff_first_s * 2**exponent, self._pace.backoff_max_s))
        if pause_max_s is not None:
            pause_s = min(pause_s, pause_max_s)
        if key in self._again:
            pause_s = min(pause_s, self._pace.backoff_event_s)
            self._again.discard(key)
        self._give_back(key, pause_s)
        return pause_s

    def forget(self, key: Key) -> None:
        """Give a key back whose object is gone; only a new event brings it back."""
        self._failures.pop(key, None)
        self._taken.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._schedule(key, self._now() + self._pace.again_s)

    def _give_back(self, key: Key, delay_s: float) -> None:
        self._taken.discard(key)
        if key in self._again:
            self._again.discard(key)
            delay_s = min(delay_s, self._pace.again_s)
        self._schedule(key, self._now() + delay_s)

    def _schedule(self, key: Key, due_at: float) -> None:
        """Make a key due at a time, unless it is due earlier; the heap may keep stale entries, which `_take` skips."""
        known = self._due_at.get(key)
        if known is not None and known <= due_at:
            return
        self._due_at[key] = due_at
        heapq.heappush(self._heap, (due_at, next(self._order), key))
        self._changed.set()

    def _take(self) -> tuple[Key | None, float | None]:
        """A due key, or None and the seconds until the next is due (None for ever)."""
        while self._heap:
            due_at, _, key = self._heap[0]
            if self._due_at.get(key) != due_at:
                heapq.heappop(self._heap)
                continue
            wait_s = due_at - self._now()
            if wait_s > 0:
                return None, wait_s
            heapq.heappop(self._heap)
            del self._due_at[key]
            self._taken.add(key)
            return key, None
        return None, None

    def _jittered(self, delay_s: float) -> float:
        return delay_s * (1 + self._rng.random() / 5)
