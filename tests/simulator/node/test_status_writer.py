"""What reaches the API server, in which order, while it comes and goes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from forebay_simulator.node.errors import ApiUnavailableError
from forebay_simulator.node.pods import parse_pod
from forebay_simulator.node.registration import NodeDescription, node_status, settled
from forebay_simulator.node.status_writer import StatusWriter

from .manifests import pod

POD = parse_pod(pod())
PATH = "/api/v1/namespaces/default/pods/web-0"


class ApiThatIsAway:
    """Takes patches and deletions once it is back."""

    def __init__(self) -> None:
        self.away = True
        self.asked = 0
        self.done: list[tuple[str, str]] = []

    async def _take(self, what: str, detail: str) -> None:
        self.asked += 1
        await asyncio.sleep(0.01)
        if self.away:
            raise ApiUnavailableError(0, "away")
        self.done.append((what, detail))

    async def patch(self, path: str, body: Mapping[str, Any]) -> None:
        assert path == f"{PATH}/status"
        await self._take("status", body["status"]["phase"])

    async def delete(self, path: str, body: Mapping[str, Any]) -> None:
        assert (path, body["preconditions"]) == (PATH, {"uid": "uid-1"})
        await self._take("delete", "")


@asynccontextmanager
async def writing(api: ApiThatIsAway) -> AsyncIterator[StatusWriter]:
    writer = StatusWriter(api)  # type: ignore[arg-type]
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.looptime
async def test_the_newest_status_survives_an_outage_and_the_pod_goes_after_it():
    api = ApiThatIsAway()
    async with writing(api) as writer:
        writer.write(POD, {"phase": "Pending"})
        await asyncio.sleep(0.005)  # on its way, and about to fail
        writer.write(POD, {"phase": "Running"})
        writer.remove(POD)
        await asyncio.sleep(5)
        assert (api.done, api.asked > 1) == ([], True)
        api.away = False
        await writer.flush(timeout_s=30)
    assert api.done == [("status", "Running"), ("delete", "")]


NODE = NodeDescription(
    name="node-0",
    address="127.30.0.1",
    gpus=8,
    accelerator="h100-sxm",
    cpu="192",
    memory="2Ti",
    pods=110,
    zone="local-a",
    version="v1.37.2",
    log_port=10250,
    labels={},
)


def test_a_node_is_settled_only_while_it_says_what_it_should():
    status = node_status(NODE, {}, now_s=0.0)
    assert settled(node_status(NODE, status, now_s=10.0), status)
    lost = {**status, "conditions": [{**item, "status": "Unknown"} for item in status["conditions"]]}
    assert not settled(node_status(NODE, lost, now_s=10.0), lost)
    assert not settled(node_status(replace(NODE, gpus=4), status, now_s=10.0), status)
    assert not settled(node_status(NODE, status, now_s=10.0, shutting_down=True), status)
