"""Keeps a copy of a collection by list and watch.

    list -> on_change for every difference -> watch from the list's version -> on_change for each event -> (410) list again

What fails is tried again after a pause that doubles from `FIRST_PAUSE_S` to `LONGEST_PAUSE_S`; meanwhile the copy stays as it
is. A watch that ends normally goes on from the last version, which bookmarks keep fresh.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from forebay_simulator.node.api import Api, Object
from forebay_simulator.node.errors import ApiError, ApiGoneError

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0

log = logging.getLogger(__name__)

OnChange = Callable[[Object, bool], None]
"""Called with an object and whether it is gone."""


class Reflector:
    """One collection; `objects` holds it by UID."""

    def __init__(self, api: Api, path: str, on_change: OnChange, **parameters: Any) -> None:
        self._api = api
        self._path = path
        self._on_change = on_change
        self._parameters = parameters
        self._version = ""
        self.objects: dict[str, Object] = {}
        self.listed = asyncio.Event()

    async def run(self) -> None:
        """Follow the collection until cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                if not self._version:
                    await self._list()
                    pause_s = FIRST_PAUSE_S
                await self._watch()
            except ApiGoneError:
                self._version = ""
            except ApiError as error:
                log.warning("can't follow %s, next try in %.1f s: %s", self._path, pause_s, error)
                await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311 - spreads retries
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
                # The server may have been restored from an older state: only a list tells.
                self._version = ""

    async def _list(self) -> None:
        answer = await self._api.get(self._path, **self._parameters)
        found = {item["metadata"]["uid"]: item for item in answer["items"]}
        for uid in [uid for uid in self.objects if uid not in found]:
            self._on_change(self.objects.pop(uid), True)
        for uid, item in found.items():
            known = self.objects.get(uid)
            self.objects[uid] = item
            if known is None or known["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
                self._on_change(item, False)
        self._version = answer["metadata"]["resourceVersion"]
        self.listed.set()

    async def _watch(self) -> None:
        async for event in self._api.watch(self._path, resourceVersion=self._version, **self._parameters):
            item = event["object"]
            self._version = item["metadata"]["resourceVersion"]
            uid = item["metadata"].get("uid", "")
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    self.objects[uid] = item
                    self._on_change(item, False)
                case "DELETED":
                    self.objects.pop(uid, None)
                    self._on_change(item, True)
                case _:
                    pass  # a bookmark: the version is all it brings
