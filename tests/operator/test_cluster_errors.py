"""The API client: what goes over the wire, and how failures become the operator's own errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kubernetes.aio import client as kubernetes_client

from forebay_operator.cluster import KubernetesCluster
from forebay_operator.errors import (
    ApiConflictError,
    ApiForbiddenError,
    ApiInvalidError,
    ApiNotFoundError,
    ApiTerminatingError,
    ApiUnavailableError,
    LeaseLostError,
)
from forebay_operator.resources import DEPLOYMENT, MODEL_SERVICE, POD


class Server:
    """An HTTP server that answers every request the same way and remembers it."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.body = status, body
        self.requests: list[tuple[str, dict[str, str], bytes]] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().splitlines()
        headers = {key.lower(): value for key, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append((first.removesuffix(" HTTP/1.1"), headers, body))
        writer.write(
            f"HTTP/1.1 {self.status} X\r\nContent-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(self.body)}\r\n\r\n".encode()
            + self.body
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def api(status: int, body: object, **options) -> AsyncIterator[tuple[KubernetesCluster, Server]]:
    server = Server(status, body if isinstance(body, bytes) else json.dumps(body).encode())
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    configuration = kubernetes_client.Configuration()
    configuration.host = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening, KubernetesCluster(configuration, timeout_s=2.0, **options) as cluster:
        yield cluster, server


async def test_an_apply_is_a_forced_server_side_apply_with_one_manager():
    async with api(200, {}) as (cluster, server):
        await cluster.apply(DEPLOYMENT, {"metadata": {"namespace": "team", "name": "x"}, "spec": {"replicas": 0}})
    ((line, headers, body),) = server.requests
    assert line == "PATCH /apis/apps/v1/namespaces/team/deployments/x?fieldManager=forebay-operator&force=true"
    assert headers["content-type"] == "application/apply-patch+yaml"
    sent = json.loads(body)
    assert (sent["apiVersion"], sent["kind"], sent["spec"]) == ("apps/v1", "Deployment", {"replicas": 0})


async def test_a_status_is_applied_to_its_subresource():
    async with api(200, {}) as (cluster, server):
        await cluster.apply_status(MODEL_SERVICE, {"metadata": {"namespace": "team", "name": "x"}, "status": {}})
    assert "/modelservices/x/status?" in server.requests[0][0]


async def test_a_selector_is_sent_as_one():
    async with api(200, {"items": []}) as (cluster, server):
        assert await cluster.find(POD, None, {"a": "b", "c/d": "e"}) == []
    assert server.requests[0][0] == "GET /api/v1/pods?labelSelector=a%3Db,c/d%3De"


async def test_a_delete_names_the_very_object():
    async with api(200, {}) as (cluster, server):
        await cluster.delete(DEPLOYMENT, "team", "x", uid="u1")
    assert json.loads(server.requests[0][2])["preconditions"] == {"uid": "u1"}


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ApiInvalidError),
        (401, ApiUnavailableError),
        (403, ApiForbiddenError),
        (404, ApiNotFoundError),
        (409, ApiConflictError),
        (422, ApiInvalidError),
        (429, ApiUnavailableError),
        (500, ApiUnavailableError),
        (503, ApiUnavailableError),
    ],
)
async def test_each_status_is_one_error_that_names_the_call_and_the_reason(status, error):
    body = {"kind": "Status", "message": "deployments.apps x is wrong"}
    async with api(status, body) as (cluster, _):
        with pytest.raises(error) as raised:
            await cluster.apply(DEPLOYMENT, {"metadata": {"namespace": "team", "name": "x"}})
    assert str(raised.value) == f"cannot apply Deployment team/x ({status}): deployments.apps x is wrong"
    assert raised.value.status == status


async def test_a_namespace_that_is_being_deleted_is_told_from_a_missing_right():
    cause = {"reason": "NamespaceTerminating", "message": "namespace team is being terminated"}
    async with api(403, {"kind": "Status", "message": "forbidden", "details": {"causes": [cause]}}) as (cluster, _):
        with pytest.raises(ApiTerminatingError):
            await cluster.create(DEPLOYMENT, {"metadata": {"namespace": "team", "name": "x"}})


async def test_an_answer_that_is_no_json_still_tells_something():
    async with api(502, b"<html>bad gateway</html>") as (cluster, _):
        with pytest.raises(ApiUnavailableError, match="bad gateway"):
            await cluster.get(DEPLOYMENT, "team", "x")


async def test_an_absent_object_is_none_and_deleting_it_succeeds():
    async with api(404, {"message": "not found"}) as (cluster, _):
        assert await cluster.get(DEPLOYMENT, "team", "x") is None
        await cluster.delete(DEPLOYMENT, "team", "x", uid="u1")


async def test_a_refused_connection_is_unavailable(unused_tcp_port):
    configuration = kubernetes_client.Configuration()
    configuration.host = f"http://127.0.0.1:{unused_tcp_port}"
    async with KubernetesCluster(configuration, timeout_s=1.0) as cluster:
        with pytest.raises(ApiUnavailableError, match="cannot get Deployment team/x"):
            await cluster.get(DEPLOYMENT, "team", "x")


async def test_a_server_that_hangs_is_given_up(unused_tcp_port_factory):
    port, held = unused_tcp_port_factory(), asyncio.Event()

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await held.wait()
        writer.close()

    configuration = kubernetes_client.Configuration()
    configuration.host = f"http://127.0.0.1:{port}"
    async with (
        await asyncio.start_server(hang, "127.0.0.1", port),
        KubernetesCluster(configuration, timeout_s=0.1) as c,
    ):
        with pytest.raises(ApiUnavailableError):
            await c.get(DEPLOYMENT, "team", "x")
        held.set()


async def test_nothing_is_written_without_the_lease_but_reading_goes_on():
    async with api(200, {"items": []}, may_write=lambda: False) as (cluster, server):
        await cluster.find(POD, "team", {})
        with pytest.raises(LeaseLostError):
            await cluster.apply(DEPLOYMENT, {"metadata": {"namespace": "team", "name": "x"}})
    assert len(server.requests) == 1
