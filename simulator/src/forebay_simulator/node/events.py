"""Events about pods and the node, recorded in the background.

The same event again raises the count of the first instead of making another, as `kubectl describe` expects. The queue is
bounded: while the API server is away the oldest events are dropped, pods are not held up.
"""

import asyncio
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from forebay_simulator.node.api import MERGE, Api
from forebay_simulator.node.errors import ApiError, ApiNotFoundError, ApiUnavailableError
from forebay_simulator.node.status import timestamp

_WAITING_MAX = 500
_REMEMBERED_MAX = 1000
_RETRY_S = 2.0
_ATTEMPTS_MAX = 5
_MESSAGE_CHARACTERS_MAX = 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Note:
    """One thing to record."""

    subject: Mapping[str, Any]  # an ObjectReference
    reason: str
    message: str
    warning: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two notes the same event."""
        return (self.subject["uid"], self.subject.get("fieldPath", ""), self.reason, self.message)


@dataclass(slots=True)
class _Recorded:
    path: str
    count: int


class Recorder:
    """Records events under the node's identity."""

    def __init__(self, api: Api, node_name: str) -> None:
        self._api = api
        self._node_name = node_name
        self._waiting: asyncio.Queue[Note] = asyncio.Queue(_WAITING_MAX)
        self._recorded: OrderedDict[tuple[str, ...], _Recorded] = OrderedDict()
        # Names must differ from those of an earlier agent: they start from the time.
        self._numbers = itertools.count(time.time_ns())

    def note(self, note: Note) -> None:
        """Record soon; never blocks."""
        if self._waiting.full():
            self._waiting.get_nowait()
            self._waiting.task_done()
        self._waiting.put_nowait(note)

    async def run(self) -> None:
        """Write what is noted until cancelled."""
        while True:
            note = await self._waiting.get()
            await self._write_persistently(note)
            self._waiting.task_done()

    async def _write_persistently(self, note: Note) -> None:
        for _ in range(_ATTEMPTS_MAX):
            try:
                await self._write(note)
            except ApiUnavailableError:
                await asyncio.sleep(_RETRY_S)
            except ApiError as error:
                log.info("event %s on %s not recorded: %s", note.reason, note.subject.get("name"), error)
                return
            else:
                return

    async def flush(self, *, timeout_s: float) -> None:
        """Wait until everything is written, or the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._waiting.join()

    async def _write(self, note: Note) -> None:
        recorded = self._recorded.get(note.key)
        if recorded is not None:
            recorded.count += 1
            body = {"count": recorded.count, "lastTimestamp": timestamp(time.time())}
            try:
                await self._api.patch(recorded.path, body, kind=MERGE)
            except ApiNotFoundError:
                del self._recorded[note.key]  # it has expired
            else:
                return
        await self._create(note)

    async def _create(self, note: Note) -> None:
        namespace = note.subject.get("namespace", "default")
        name = f"{note.subject['name']}.{next(self._numbers):x}"
        now = timestamp(time.time())
        path = f"/api/v1/namespaces/{namespace}/events"
        await self._api.create(
            path,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": dict(note.subject),
                "reason": note.reason,
                "message": note.message[:_MESSAGE_CHARACTERS_MAX],
                "type": "Warning" if note.warning else "Normal",
                "source": {"component": "kubelet", "host": self._node_name},
                "reportingComponent": "kubelet",
                "reportingInstance": self._node_name,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            },
        )
        self._recorded[note.key] = _Recorded(f"{path}/{name}", 1)
        while len(self._recorded) > _REMEMBERED_MAX:
            self._recorded.popitem(last=False)
