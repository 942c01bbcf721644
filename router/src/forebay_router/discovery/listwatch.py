"""Follow one kind of object in Kubernetes: list, then watch, for ever.

    list -> on_list(all)    what is not in it is gone
    watch from the list's version -> on_event(type, object)

- An expired version (410, as a status or as an ERROR event) leads to a new list.
- A watch that ends by the server's timeout goes on from the last version seen (bookmarks keep it fresh).
- A watch that ends at once without an event, an unreachable server or any other error leads to a new list after a pause that
  doubles from `FIRST_PAUSE_S` to `LONGEST_PAUSE_S`, with jitter, and starts anew only after a watch that has lived.
- Meanwhile what was known stays known: an API server that is down takes no worker out of routing.

Lines are cut out of the response by ourselves, since a reader with a line limit is blinded by one large object.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
LIVED_S = 5.0
"""A watch that lasted this long, or brought an event, is a sign that the server is well."""
WATCH_S = 240
"""After this long the server is asked to end a watch."""

Object = Mapping[str, Any]


@dataclass(slots=True)
class ApiFailure(Exception):  # noqa: N818 - reads as what happened
    """The API server refused or could not be reached."""

    detail: str
    status: int | None = None


class Api(Protocol):
    """What is needed of the API server."""

    async def list(self, path: str, selector: str) -> tuple[Sequence[Object], str]:
        """All objects and the version of the list; raises ApiFailure."""
        ...

    def watch(self, path: str, selector: str, version: str) -> AsyncIterator[bytes]:
        """The bytes of a watch; raises ApiFailure."""
        ...


class Backoff:
    """Growing pauses with jitter."""

    __slots__ = ("_next_s", "_rng")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next_s = FIRST_PAUSE_S

    def pause_s(self) -> float:
        """The next pause: between half of it and all of it, at least the first one."""
        pause_s, self._next_s = self._next_s, min(LONGEST_PAUSE_S, self._next_s * 2)
        return max(FIRST_PAUSE_S, pause_s * (0.5 + self._rng.random() / 2))

    def reset(self) -> None:
        """Things went well."""
        self._next_s = FIRST_PAUSE_S


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines of any length."""
    held: list[bytes] = []
    async for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        held.append(first)
        for part in rest:
            line = b"".join(held)
            held = [part]
            if line:
                yield line


def _raise_status(status: Object) -> None:
    """Raise what an ERROR event says."""
    raise ApiFailure(str(status.get("message", status)), status.get("code"))


@dataclass(slots=True)
class Follower:
    """Follows one kind of object."""

    api: Api
    path: str
    """Of the collection, such as /api/v1/pods."""
    selector: str
    """Label selector; empty selects all."""
    on_list: Callable[[Sequence[Object]], None]
    on_event: Callable[[str, Object], None]
    rng: random.Random
    needed: bool = True
    """Failing to follow it is worth a warning each time."""
    failures: int = 0
    """Failed lists and watches so far."""
    fresh: bool = False
    """The last list succeeded and the watch after it is not known to be broken."""
    _version: str = field(default="", init=False)

    async def run(self) -> None:
        """Follow for ever; ends by cancellation only."""
        backoff = Backoff(self.rng)
        while True:
            try:
                await self._list_and_watch(backoff)
            except ApiFailure as failure:
                self.failures += 1
                self.fresh = False
                level = logging.WARNING if self.needed else logging.DEBUG
                log.log(level, "following %s failed: %s", self.path, failure.detail, extra={"status": failure.status})
            except Exception:
                self.failures += 1
                self.fresh = False
                log.exception("following %s failed", self.path)
            await asyncio.sleep(backoff.pause_s())

    async def _list_and_watch(self, backoff: Backoff) -> None:
        """One list and the watches that go on from it; returns when a new list is needed."""
        items, self._version = await self.api.list(self.path, self.selector)
        self.on_list(items)
        self.fresh = True
        while True:
            started_s = time.monotonic()
            events = await self._watch()
            if events is None:
                return
            if events == 0 and time.monotonic() - started_s < LIVED_S:
                return
            backoff.reset()

    async def _watch(self) -> int | None:
        """One watch; how many events it brought, or None when the version has expired."""
        events = 0
        try:
            async for line in lines(self.api.watch(self.path, self.selector, self._version)):
                event = orjson.loads(line)
                kind, seen = event["type"], event["object"]
                if kind == "ERROR":
                    _raise_status(seen)
                events += 1
                self._version = seen["metadata"]["resourceVersion"]
                if kind != "BOOKMARK":
                    self.on_event(kind, seen)
        except ApiFailure as failure:
            if failure.status == 410:
                return None
            raise
        return events
