"""Writes pod statuses and removes pods whose processes have ended, in the background.

Per pod only the latest status counts; while the API server is away nothing is lost but what was outdated anyway.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from forebay_simulator.node.api import Api
from forebay_simulator.node.errors import ApiConflictError, ApiError, ApiNotFoundError, ApiUnavailableError
from forebay_simulator.node.pods import Pod
from forebay_simulator.node.status import status_patch

_BATCH_MAX = 16
_FIRST_RETRY_S = 0.2
_LONGEST_RETRY_S = 5.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Work:
    pod: Pod
    status: Mapping[str, Any] | None = None
    remove: bool = False


class StatusWriter:
    """The only writer of this node's pods."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._work: dict[str, _Work] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def write(self, pod: Pod, status: Mapping[str, Any]) -> None:
        """Write a status soon."""
        work = self._work.setdefault(pod.uid, _Work(pod))
        work.status = status
        self._awake()

    def remove(self, pod: Pod) -> None:
        """Delete the API object, after the status that waits to be written."""
        self._work.setdefault(pod.uid, _Work(pod)).remove = True
        self._awake()

    def _awake(self) -> None:
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled."""
        pause_s = _FIRST_RETRY_S
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._work:
                batch = [self._work.pop(uid) for uid in list(self._work)[:_BATCH_MAX]]
                reached = await asyncio.gather(*(self._process(work) for work in batch))
                if all(reached):
                    pause_s = _FIRST_RETRY_S
                    continue
                await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_RETRY_S, pause_s * 2)
            self._idle.set()

    async def flush(self, *, timeout_s: float) -> None:
        """Wait until everything is written, or the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    async def _process(self, work: _Work) -> bool:
        """Do what is asked; False when the server can't be reached, and the work is kept."""
        pod = work.pod
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        try:
            if work.status is not None:
                await self._api.patch(f"{path}/status", status_patch(pod, work.status))
                work.status = None
            if work.remove:
                await self._api.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}})
        except ApiUnavailableError as error:
            log.warning("status of %s waits for the API server: %s", pod.key, error)
            self._keep(work)
            return False
        except (ApiNotFoundError, ApiConflictError):
            log.debug("%s is gone", pod.key)
        except ApiError as error:
            log.error("status of %s was refused: %s", pod.key, error)
        return True

    def _keep(self, work: _Work) -> None:
        newer = self._work.get(work.pod.uid)
        if newer is None:
            self._work[work.pod.uid] = work
            return
        newer.status = newer.status if newer.status is not None else work.status
        newer.remove = newer.remove or work.remove
