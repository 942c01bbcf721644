"""Where peers are found, and what the flags for it accept."""

import asyncio
import json

import pytest

from forebay_router.mesh.directory import ListedPeers, PodPeers, address_of
from forebay_router.options import HostPort
from forebay_router.settings import parse_settings
from tests.router.harness import until


def pod(name: str, host: str | None = "10.0.0.1", *, port: int | None = 9091, phase: str = "Running") -> dict:
    ports = [{"name": "mesh", "containerPort": port}] if port else [{"name": "http", "containerPort": 8080}]
    return {
        "metadata": {"uid": f"uid-{name}", "name": name, "resourceVersion": "2"},
        "spec": {"containers": [{"ports": ports}]},
        "status": {"podIP": host, "phase": phase},
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pod("a"), "tcp://10.0.0.1:9091"),
        (pod("a", "fd00::1"), "tcp://[fd00::1]:9091"),
        (pod("a", None), None),
        (pod("a", port=None), None),
        (pod("a", phase="Failed"), None),
    ],
)
def test_a_pod_is_heard_once_it_has_an_address_and_takes_part(given, expected):
    assert address_of(given) == expected


class ScriptedApi:
    """A list, then events as they are put."""

    def __init__(self, *items: dict) -> None:
        self.items = items
        self.events: asyncio.Queue[bytes] = asyncio.Queue()
        self.asked: list[tuple[str, str]] = []

    async def list(self, path: str, selector: str):
        self.asked.append((path, selector))
        return self.items, "1"

    async def watch(self, _path: str, _selector: str, _version: str):
        while True:
            yield await self.events.get()

    def put(self, kind: str, item: dict) -> None:
        self.events.put_nowait(json.dumps({"type": kind, "object": item}).encode() + b"\n")


async def test_pods_are_followed_without_the_own_one():
    api = ScriptedApi(pod("me"), pod("a", "10.0.0.2"), pod("starting", None))
    told: list[frozenset[str]] = []
    task = asyncio.create_task(PodPeers("ns", "app=router", "me", api).run(told.append))
    try:
        await until(lambda: told, "the list is told")
        assert told[-1] == {"tcp://10.0.0.2:9091"}
        assert api.asked == [("/api/v1/namespaces/ns/pods", "app=router")]
        api.put("MODIFIED", pod("starting", "10.0.0.3"))
        await until(lambda: told[-1] == {"tcp://10.0.0.2:9091", "tcp://10.0.0.3:9091"}, "the new one is told")
        api.put("DELETED", pod("a", "10.0.0.2"))
        await until(lambda: told[-1] == {"tcp://10.0.0.3:9091"}, "the deleted one is left out")
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_listed_peers_are_told_once():
    told: list[frozenset[str]] = []
    task = asyncio.create_task(ListedPeers(("tcp://a:1", "tcp://b:1")).run(told.append))
    await until(lambda: told, "told")
    assert told == [{"tcp://a:1", "tcp://b:1"}]
    task.cancel()


WORKERS = ("--workers", "http://10.0.0.9:8000")


def test_flags_of_replicas_are_read():
    flags = ("--mesh", "0.0.0.0:9091", "--peers", "10.0.0.1:9091", "tcp://[fd00::1]:9091", "--replica-name", "r1")
    found = parse_settings([*WORKERS, *flags], {}).replica
    assert (found.mesh, found.name) == (HostPort("0.0.0.0", 9091), "r1")
    assert found.peers == ("tcp://10.0.0.1:9091", "tcp://[fd00::1]:9091")
    assert parse_settings(WORKERS, {}).replica.mesh is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([*WORKERS, "--peers", "10.0.0.1:9091"], "--peers and --peer-pods need --mesh"),
        ([*WORKERS, "--mesh", "a:1", "--peers", "http://a:1"], "--peers: 'http://a:1' is not a peer's address"),
        ([*WORKERS, "--mesh", "a:1", "--peers", "a"], "--peers: 'a' is not a peer's address"),
        ([*WORKERS, "--mesh", "a:1", "--peer-pods", "x=y", "--peer-namespace", "n"], "works with --kubernetes only"),
        (["--kubernetes", "--mesh", "a:1", "--peer-pods", "x=y"], "go together"),
        (["--kubernetes", "--mesh", "a:1", "--peer-pods", "x=y", "--peers", "a:1"], "give one of"),
    ],
)
def test_wrong_flags_of_replicas_are_told_with_the_fix(flags, message, capsys):
    with pytest.raises(SystemExit):
        parse_settings(flags, {})
    assert message in " ".join(capsys.readouterr().err.split())
