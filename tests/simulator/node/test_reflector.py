"""List and watch against a scripted API, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from forebay_simulator.node.errors import ApiGoneError, ApiUnavailableError
from forebay_simulator.node.reflector import Reflector


def item(uid: str, version: int) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}}


class ScriptedApi:
    """Answers lists and watches from two queues; an exception in place of an answer is raised."""

    def __init__(self, lists: list[Any], watches: list[list[Any]]) -> None:
        self.lists, self.watches = lists, watches
        self.asked: list[str] = []

    async def get(self, _path: str, **parameters: Any) -> dict[str, Any]:
        assert parameters == {"fieldSelector": "spec.nodeName=node-0"}
        await asyncio.sleep(0)
        self.asked.append("list")
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"items": answer, "metadata": {"resourceVersion": "100"}}

    async def watch(self, _path: str, **parameters: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(f"watch {parameters['resourceVersion']}")
        if not self.watches:
            await asyncio.sleep(10_000)
        for event in self.watches.pop(0):
            if isinstance(event, Exception):
                raise event
            yield {"type": event[0], "object": event[1]}


async def follow(api: ScriptedApi, *, for_s: float = 60) -> tuple[Reflector, list[tuple[str, bool]]]:
    changes: list[tuple[str, bool]] = []
    reflector = Reflector(
        api,  # type: ignore[arg-type]
        "/api/v1/pods",
        lambda thing, gone: changes.append((thing["metadata"]["uid"], gone)),
        fieldSelector="spec.nodeName=node-0",
    )
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(for_s):
            await reflector.run()
    return reflector, changes


pytestmark = pytest.mark.looptime


async def test_a_list_then_events():
    api = ScriptedApi(
        lists=[[item("a", 1), item("b", 2)]],
        watches=[[("MODIFIED", item("a", 101)), ("DELETED", item("b", 102)), ("BOOKMARK", item("", 110))]],
    )
    reflector, changes = await follow(api)
    assert changes == [("a", False), ("b", False), ("a", False), ("b", True)]
    assert set(reflector.objects) == {"a"}
    assert api.asked == ["list", "watch 100", "watch 110"], "a bookmark moves the version on"


async def test_an_expired_version_leads_to_a_list_that_tells_only_differences():
    api = ScriptedApi(
        lists=[[item("a", 1), item("b", 2)], [item("a", 1), item("c", 3)]], watches=[[ApiGoneError(410, "old")]]
    )
    _, changes = await follow(api)
    assert changes == [("a", False), ("b", False), ("b", True), ("c", False)]


async def test_an_outage_keeps_what_is_known_and_is_retried_with_growing_pauses():
    down = [ApiUnavailableError(0, "down") for _ in range(6)]
    api = ScriptedApi(lists=[[item("a", 1)], *down, [item("a", 1)]], watches=[[ApiUnavailableError(0, "down")]])
    reflector, changes = await follow(api)
    assert changes == [("a", False)]
    assert set(reflector.objects) == {"a"}
    assert api.asked.count("list") == 8
    assert api.asked[-1] == "watch 100"
