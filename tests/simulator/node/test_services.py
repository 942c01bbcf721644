"""Services: addresses, environment, host names, backends, and the relay itself."""

import asyncio
from contextlib import suppress

import pytest

from forebay_simulator.node.service_proxy import _Relay
from forebay_simulator.node.services import (
    Backend,
    address_annotations,
    api_server_environment,
    backends,
    hosts_file,
    is_proxied,
    read_service,
    service_environment,
)
from tests.support.bounds import NEVER_S


def service(name: str = "my-router", *, annotations: dict | None = None, **spec) -> dict:
    ports = [{"name": "http", "port": 80, "targetPort": "http"}, {"name": "metrics", "port": 9090}]
    return {
        "metadata": {"namespace": "default", "name": name, "uid": name, "annotations": annotations or {}},
        "spec": {"selector": {"app": "web"}, "clusterIP": "10.96.0.9", "ports": ports, **spec},
    }


def pod(name: str, address: str, *, ready: str = "True", **metadata) -> dict:
    return {
        "metadata": {"name": name, "labels": {"app": "web"}, **metadata},
        "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {"podIP": address, "conditions": [{"type": "Ready", "status": ready}]},
    }


def test_what_the_proxy_writes_is_what_nodes_read():
    annotations = address_annotations("127.1.255.2", {"http": 41000, "metrics": 9090})
    assert annotations["simulator.forebay.dev/address"] == "127.1.255.2:41000"
    found = read_service(service(annotations=annotations))
    assert found is not None
    environment = service_environment([found])
    assert environment["MY_ROUTER_SERVICE_HOST"] == "127.1.255.2"
    assert environment["MY_ROUTER_SERVICE_PORT"] == "41000"
    assert environment["MY_ROUTER_SERVICE_PORT_METRICS"] == "9090"
    assert environment["MY_ROUTER_PORT_80_TCP"] == "tcp://127.1.255.2:41000"


def test_a_service_without_an_address_is_not_reachable():
    assert read_service(service()) is None


@pytest.mark.parametrize(
    ("spec", "proxied"),
    [
        ({}, True),
        ({"clusterIP": "None"}, False),
        ({"selector": None}, False),
        ({"ports": [{"port": 53, "protocol": "UDP"}]}, False),
    ],
)
def test_services_with_pods_behind_them_are_proxied(spec: dict, proxied: bool):  # noqa: FBT001
    assert is_proxied(service(**spec)) is proxied


def test_the_api_server_is_found_by_in_cluster_clients():
    assert api_server_environment("127.0.0.1", 6443)["KUBERNETES_SERVICE_PORT"] == "6443"


def test_a_pod_resolves_itself_its_aliases_and_services():
    found = read_service(service(annotations=address_annotations("127.1.255.2", {"http": 80})))
    assert found is not None
    lines = hosts_file(
        machine="127.0.0.1 localhost\n",
        pod_address="127.1.0.2",
        pod_name="web-0",
        namespace="default",
        aliases=[{"ip": "127.9.9.9", "hostnames": ["a", "b"]}],
        services=[found],
    ).splitlines()
    assert lines[0] == "127.0.0.1 localhost"
    assert "127.1.0.2\tweb-0" in lines
    assert "127.9.9.9\ta b" in lines
    expected = "my-router.default.svc.cluster.local my-router.default.svc my-router.default my-router"
    assert lines[-1] == f"127.1.255.2\t{expected}"


def test_backends_are_the_ready_pods_that_the_selector_finds():
    pods = [
        pod("b", "127.1.0.3"),
        pod("a", "127.1.0.2"),
        pod("starting", "127.1.0.4", ready="False"),
        pod("leaving", "127.1.0.5", deletionTimestamp="now"),
        pod("other", "127.1.0.6", labels={"app": "other"}),
    ]
    assert backends(service(), "http", pods) == (Backend("127.1.0.2", 8000), Backend("127.1.0.3", 8000))
    assert backends(service(), 9090, pods) == (Backend("127.1.0.2", 9090), Backend("127.1.0.3", 9090))
    assert backends(service(), "absent", pods) == ()


class Echo:
    """A server that says its name, then echoes."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.accepted = 0

    async def start(self) -> Backend:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Backend("127.0.0.1", self.server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        writer.write(self.name)
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


async def settled() -> None:
    """Let closing connections close."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=NEVER_S)
    await asyncio.sleep(0.01)


async def relay_to(*targets: Backend) -> tuple[asyncio.Server, int]:
    relay = _Relay(lambda: targets)
    server = await asyncio.get_running_loop().create_server(relay.accept, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def talk(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    _, received = await asyncio.gather(send(), reader.read())
    writer.close()
    await writer.wait_closed()
    return received


async def test_connections_go_round_and_carry_every_byte_both_ways():
    one, two = Echo(b"1"), Echo(b"2")
    server, port = await relay_to(await one.start(), await two.start())
    data = bytes(range(256)) * 40_000  # 10 MB: more than any buffer on the way
    assert await talk(port, data) == b"1" + data
    assert await talk(port, b"x") == b"2x"
    assert await talk(port, b"y") == b"1y"
    for closing in (server, one.server, two.server):
        closing.close()
    await settled()


async def test_a_pod_that_refuses_is_passed_over():
    echo = Echo(b"1")
    backend = await echo.start()
    unused = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    refusing = Backend("127.0.0.1", unused.sockets[0].getsockname()[1])
    unused.close()
    await unused.wait_closed()
    server, port = await relay_to(refusing, backend)
    assert [await talk(port, b"") for _ in range(4)] == [b"1"] * 4
    server.close()
    echo.server.close()
    await settled()


async def test_without_a_ready_pod_the_client_sees_a_reset():
    server, port = await relay_to()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    server.close()
    await settled()
