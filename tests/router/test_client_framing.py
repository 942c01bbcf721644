"""The client side of the proxy: what is one request, where it ends, and what is refused."""

import asyncio
import itertools
import json

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay_router.client import ClientConnection, ClientConnections
from forebay_router.reading import Limits, Received
from tests.router.harness import ask, chat, request_bytes, routed, until
from tests.router.scripted import MODEL, chat_chunk, completion, hello, workers

HOST = b"Host: a\r\n"
OK = b"Content-Length: 2\r\n\r\n{}"

SMUGGLING = {
    "length and chunked": HOST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": HOST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "two equal lengths": HOST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "list of lengths": HOST + b"Content-Length: 2, 2\r\n\r\n{}",
    "signed length": HOST + b"Content-Length: +2\r\n\r\n{}",
    "negative length": HOST + b"Content-Length: -2\r\n\r\n{}",
    "hexadecimal length": HOST + b"Content-Length: 0x2\r\n\r\n{}",
    "empty length": HOST + b"Content-Length:\r\n\r\n{}",
    "huge length": HOST + b"Content-Length: 99999999999999999999\r\n\r\n{}",
    "coding with a prefix": HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "coding gzip, chunked": HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding chunked, identity": HOST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "coding twice": HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding identity": HOST + b"Transfer-Encoding: identity\r\n\r\n{}",
    "coding with vertical tab": HOST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "space before colon": HOST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "folded header": HOST + b"X: a\r\n Transfer-Encoding: chunked\r\n" + OK,
    "line feed alone": HOST + b"X: a\nContent-Length: 2\r\n\r\n{}",
    "carriage return alone": HOST + b"X: a\rContent-Length: 2\r\n\r\n{}",
    "null in value": HOST + b"X: a\x00b\r\n" + OK,
    "escape in value": HOST + b"X: a\x1bb\r\n" + OK,
    "null in name": HOST + b"X\x00: b\r\n" + OK,
    "no name": HOST + b": b\r\n" + OK,
    "chunk size with 0x": HOST + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    "chunk size with space": HOST + b"Transfer-Encoding: chunked\r\n\r\n2 \r\n{}\r\n0\r\n\r\n",
    "chunk size with sign": HOST + b"Transfer-Encoding: chunked\r\n\r\n+2\r\n{}\r\n0\r\n\r\n",
    "chunk size overflow": HOST + b"Transfer-Encoding: chunked\r\n\r\n10000000000000002\r\n{}\r\n0\r\n\r\n",
    "chunk with line feed": HOST + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n",
    "chunk longer than told": HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}}\r\n0\r\n\r\n",
    "no host": b"X: a\r\n" + OK,
    "two hosts": HOST + HOST + OK,
}
FIRST_LINES = {
    "HTTP/0.9": b"GET /v1/models\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "version 1.2": b"GET /v1/models HTTP/1.2\r\nHost: a\r\n\r\n",
    "version 2.0": b"GET /v1/models HTTP/2.0\r\nHost: a\r\n\r\n",
    "bad method": b"G@T /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c403"),
    "space in path": b"GET /v1 /models HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("case", SMUGGLING)
async def test_ambiguous_framing_is_refused_and_the_connection_closed(case):
    """400, nothing reaches a worker, and what follows on the connection is not read as a request."""
    hidden = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
    async with workers(hello) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\n" + SMUGGLING[case] + hidden)
        reply = await client.read()
        assert reply.status == 400
        assert reply.json["error"].keys() == {"message", "type", "param", "code"}
        assert reply.headers["connection"] == "close"
        assert await client.at_end()
        assert worker.asked == []
        await client.close()


@pytest.mark.parametrize("case", FIRST_LINES)
async def test_what_is_not_http_1_is_refused(case):
    async with workers(hello) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(FIRST_LINES[case])
        assert (await client.read()).status == 400
        assert await client.at_end()
        await client.close()


async def test_chunked_upload_becomes_a_body_with_a_length():
    body = json.dumps(chat()).encode()
    async with workers(hello) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(body), 7):
            part = body[start : start + 7]
            await client.send(b"%x;ext=1\r\n%b\r\n" % (len(part), part))
        await client.send(b"0\r\nX-Trailer: Content-Length\r\n\r\n")
        assert (await client.read()).json == completion("hello")
        assert worker.asked[0].body == body
        assert "x-trailer" not in worker.asked[0].headers
        await client.close()


async def test_keep_alive_connection_serves_many_requests():
    async with workers(hello) as [worker], routed(worker) as router:
        client = await router.connect()
        for number in range(5):
            await client.send(request_bytes(chat(stream=number % 2 == 1)))
            reply = await client.read()
            assert reply.status == 200
            assert "connection" not in reply.headers
        await client.close()
        assert worker.accepted <= 2, "one kept connection and the probe's"


async def test_pipelined_requests_are_answered_in_order():
    async def script(asked, wire):
        await asyncio.sleep(0.05 if asked.json["seed"] == 0 else 0)
        await wire.json(completion(str(asked.json["seed"])))

    async with workers(script) as [worker], routed(worker) as router:
        client = await router.connect()
        together = b"".join(request_bytes(chat(seed=number)) for number in range(5))
        await client.send(together[:-20])
        await asyncio.sleep(0.1)
        await client.send(together[-20:] + b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
        for number in range(5):
            assert (await client.read()).json == completion(str(number))
        assert (await client.read()).json["data"][0]["id"] == MODEL
        await client.close()


async def test_requests_that_come_behind_a_running_one_are_answered_one_at_a_time():
    running, most = 0, 0

    async def script(asked, wire):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        running -= 1
        await wire.json(completion(str(asked.json["seed"])))

    async with workers(script) as [worker], routed(worker) as router:
        client = await router.connect()
        for number in range(4):
            await client.send(request_bytes(chat(seed=number)))
            await asyncio.sleep(0.06)
        for number in range(4):
            assert (await client.read()).json == completion(str(number))
        assert most == 1
        connections = router.process.router.connections
        await until(lambda: connections.busy == 0, "no request is counted as running")
        await client.close()


async def test_bytes_behind_a_running_request_are_bounded_and_nothing_is_lost():
    gate = asyncio.Event()

    async def script(_asked, wire):
        await gate.wait()
        await wire.json(completion("x"))

    async with workers(script) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(request_bytes(chat()))
        await until(lambda: worker.asked, "the first request runs")
        second = request_bytes(chat(pad="p" * 600_000))
        sending = asyncio.create_task(client.send(second))
        await asyncio.sleep(0.1)
        (connection,) = router.process.router.connections.live
        assert len(connection._held) < 1_000_000
        gate.set()
        assert (await client.read()).status == 200
        assert (await client.read()).status == 200
        await sending
        assert worker.asked[1].json["pad"] == "p" * 600_000
        await client.close()


async def test_http_1_0_client_gets_no_chunks_and_each_token_as_it_comes():
    """C038."""
    gate = asyncio.Event()

    async def script(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("one"))
        await gate.wait()
        await wire.event(chat_chunk("two"))
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0"))
        status, headers = await client.read_head()
        assert status == 200
        assert "transfer-encoding" not in headers
        assert headers["connection"] == "close"
        first = await client.reader.readuntil(b"\n\n")
        assert json.loads(first.removeprefix(b"data: "))["choices"][0]["delta"]["content"] == "one"
        gate.set()
        rest = await client.reader.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        assert b"\r\n" not in rest
        await client.close()


async def test_http_1_0_keep_alive_is_honoured_for_answers_of_known_length():
    async with workers(hello) as [worker], routed(worker) as router:
        client = await router.connect()
        for _ in range(2):
            await client.send(
                request_bytes(chat(), headers={"Connection": "keep-alive"}).replace(b"HTTP/1.1", b"HTTP/1.0")
            )
            reply = await client.read()
            assert reply.headers["connection"] == "keep-alive"
        await client.send(request_bytes(chat()).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (await client.read()).headers["connection"] == "close"
        assert await client.at_end()
        await client.close()


async def test_connection_close_is_honoured():
    async with workers(hello) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True), headers={"Connection": "close"}))
        reply = await client.read()
        assert (reply.text(), reply.headers["connection"]) == ("hello", "close")
        assert await client.at_end()
        await client.close()


async def test_expect_is_answered_before_the_body_comes():
    async with workers(hello) as [worker], routed(worker) as router:
        client = await router.connect()
        sent = request_bytes(chat(), headers={"Expect": "100-continue"})
        head, _, body = sent.partition(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(body)
        assert (await client.read()).status == 200
        assert "expect" not in worker.asked[0].headers
        await client.close()


async def test_expect_of_a_body_that_is_too_large_is_refused_at_once():
    async with workers(hello) as [worker], routed(worker, flags=("--body-limit", "1KiB")) as router:
        client = await router.connect()
        await client.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1025\r\n\r\n"
        )
        assert (await client.read()).status == 413
        await client.close()


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_body_limit_is_exact(chunked):
    """C040: a body of the limit passes, one byte more is 413, never 400."""
    limit = 2048
    filler = len(json.dumps(chat(pad="")))
    exact = json.dumps(chat(pad="p" * (limit - filler))).encode()
    assert len(exact) == limit
    async with workers(hello) as [worker], routed(worker, flags=("--body-limit", "2KiB")) as router:
        for body, status in ((exact, 200), (exact[:-2] + b'p"}', 413)):
            client = await router.connect()
            if chunked:
                await client.send(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                await client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            else:
                await client.send(request_bytes(body))
            reply = await client.read()
            assert reply.status == status
            if status == 413:
                assert reply.json["error"]["code"] == "request_too_large"
                assert await client.at_end()
            await client.close()
        assert worker.asked[0].body == exact


async def test_client_reads_413_although_it_is_still_sending():
    async with workers(hello) as [worker], routed(worker, flags=("--body-limit", "64KiB")) as router:
        client = await router.connect()
        await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n")
        sending = asyncio.create_task(client.send(b"x" * 4_000_000))
        assert (await client.read()).status == 413
        await asyncio.gather(sending, return_exceptions=True)
        await client.close()


async def test_large_headers_pass_and_larger_ones_are_refused():
    """C041: 20 KB of authorization pass to the worker, 200 KB of headers are 431 with a reason."""
    async with workers(hello) as [worker], routed(worker) as router:
        token = "Bearer " + "t" * 20_000
        assert (await ask(router, chat(), headers={"Authorization": token})).status == 200
        assert worker.asked[0].headers["authorization"] == token
        for headers in ({"X-Large": "l" * 200_000}, {f"X-{n}": "l" * 900 for n in range(220)}):
            reply = await ask(router, chat(), headers=headers)
            assert reply.status == 431
            assert "65536" in reply.json["error"]["message"]


async def test_head_that_never_ends_is_refused():
    async with workers(hello) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(b"GET /" + b"x" * 70_000)
        assert (await client.read()).status == 431
        await client.close()


async def test_upgrade_is_ignored_and_the_body_kept():
    """Java clients offer h2c on their first request, body included."""
    async with workers(hello) as [worker], routed(worker) as router:
        client = await router.connect()
        offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk"}
        await client.send(request_bytes(chat(), headers=offer))
        assert (await client.read()).json == completion("hello")
        assert worker.asked[0].json == chat()
        assert not {"upgrade", "http2-settings", "connection"} & worker.asked[0].headers.keys()
        await client.send(
            request_bytes(chat(seed=2))
            + b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
        )
        assert (await client.read()).json == completion("hello")
        assert (await client.read()).status == 200
        await client.close()


async def test_tunnels_are_not_made():
    async with workers(hello) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n")
        reply = await client.read()
        assert reply.status == 405
        assert reply.headers["connection"] == "close", "what follows is no request"
        await client.close()


async def test_head_has_the_status_of_get_and_no_body():
    """C043, its HEAD part."""
    async with workers(hello) as [worker], routed(worker) as router:
        client = await router.connect()
        for path in (b"/health", b"/v1/models"):
            await client.send(b"HEAD " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
            reply = await client.read(head_only=True)
            assert reply.status == 200
            assert int(reply.headers["content-length"]) > 0
        await client.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.read()).status == 200, "the connection is in step"
        await client.close()


async def test_cors_off_means_plain_405():
    """C043."""
    async with workers(hello) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: a\r\nOrigin: https://x\r\n\r\n")
        reply = await client.read()
        assert reply.status == 405
        assert not any(name.startswith("access-control") for name in reply.headers)
        await client.close()


async def test_cors_on_answers_preflights_and_marks_every_answer():
    """C043: no credentials asked, nothing forwarded, errors carry the headers too."""
    async with workers(hello) as [worker], routed(worker, flags=("--cors-origin", "https://ui.example")) as router:
        client = await router.connect()
        await client.send(
            b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: a\r\nOrigin: https://ui.example\r\n"
            b"Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,content-type\r\n\r\n"
        )
        reply = await client.read()
        assert reply.status == 204
        assert reply.headers["access-control-allow-origin"] == "https://ui.example"
        assert "POST" in reply.headers["access-control-allow-methods"]
        assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
        await client.close()
        assert worker.asked == []
        for body in (chat(), {"model": "unknown"}):
            reply = await ask(router, body, headers={"Origin": "https://ui.example"})
            assert reply.headers["access-control-allow-origin"] == "https://ui.example"
        reply = await ask(router, chat(), headers={"Origin": "https://other.example"})
        assert "access-control-allow-origin" not in reply.headers


async def test_worker_has_no_say_in_cors_where_the_router_decides():
    """Two Access-Control-Allow-Origin headers are none to a browser."""
    headers = {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "x"}
    script = lambda _asked, wire: wire.json(completion("x"), headers=headers)  # noqa: E731
    async with workers(script) as [worker], routed(worker, flags=("--cors-origin", "https://ui.example")) as router:
        reply = await ask(router, chat(), headers={"Origin": "https://ui.example"})
        assert reply.headers["access-control-allow-origin"] == "https://ui.example"
        reply = await ask(router, chat(), headers={"Origin": "https://other.example"})
        assert "access-control-allow-origin" not in reply.headers
    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, chat(), headers={"Origin": "https://ui.example"})
        assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m",}',
        b"",
        b"[]",
        b'"s"',
        b"null",
        b"\xff\xfe",
        b"[" * 10_000,
        b'{"model":"m","x":NaN}',
        b'{"model":1}',
    ],
    ids=["comma", "empty", "list", "string", "null", "bytes", "nested", "NaN", "number"],
)
async def test_bad_json_is_a_client_error(body):
    """C044: 400 in OpenAI's shape, no worker asked, and the router goes on."""
    async with workers(hello) as [worker], routed(worker) as router:
        reply = await ask(router, body)
        assert reply.status == 400
        assert reply.json["error"]["type"] == "invalid_request_error"
        assert worker.asked == []
        assert (await ask(router, chat())).status == 200


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/nothing", "/v1/chat/completions/", "/v1/responses/resp_1", "/metrics"]
)
async def test_unknown_path_is_404_as_json(path):
    """C004, its last sentence."""
    async with workers(hello) as [worker], routed(worker) as router:
        reply = await ask(router, chat(), path)
        assert (reply.status, reply.json["error"]["code"]) == (404, "unknown_path")


async def test_wrong_method_names_the_right_one():
    async with workers(hello) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(b"GET /v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n")
        reply = await client.read()
        assert (reply.status, reply.headers["allow"]) == (405, "POST")
        await client.close()


async def test_request_that_does_not_arrive_is_given_up():
    async with (
        workers(hello) as [worker],
        routed(worker, flags=("--client-request", "300ms", "--client-idle", "300ms")) as router,
    ):
        slow, idle = await router.connect(), await router.connect()
        await slow.send(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n{")
        assert (await slow.read()).status == 408
        assert await slow.at_end()
        assert await idle.at_end()
        await slow.close()
        await idle.close()


class _Recorder:
    """A connection's transport and its requests, without a network."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


async def _feed(parts: list[bytes]) -> tuple[list[Received], _Recorder]:
    """What a connection understands of these reads."""
    seen: list[Received] = []

    def serve(received: Received, client: ClientConnection) -> None:
        seen.append(received)
        client.whole(received, received.refused.status if received.refused else 200, b"", b"")

    shared = ClientConnections(Limits(head_bytes=65536, body_bytes=100_000), serve)
    connection = shared.make()
    recorder = _Recorder()
    connection.connection_made(recorder)
    for part in parts:
        connection.data_received(part)
        await shared.finished()
    for _ in range(3):
        await shared.finished()
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return seen, recorder


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places) if end > start]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    bodies=st.lists(st.binary(max_size=200), min_size=1, max_size=4),
    chunked=st.lists(st.booleans(), min_size=4, max_size=4),
    cuts=st.lists(st.integers(0, 5000), max_size=12),
)
def test_requests_are_the_same_however_they_are_cut(bodies, chunked, cuts):
    """Law: splitting the bytes of pipelined requests at any places changes nothing of what is understood."""
    data = b""
    for body, in_chunks in zip(bodies, chunked, strict=False):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
        if in_chunks:
            parts = b"".join(b"%x\r\n%b\r\n" % (len(body[i : i + 9]), body[i : i + 9]) for i in range(0, len(body), 9))
            data += head + b"Transfer-Encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"
        else:
            data += head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    seen, recorder = asyncio.run(_feed(_cut(data, cuts)))
    assert [received.body for received in seen] == bodies
    assert all(received.refused is None for received in seen)
    assert recorder.written.count(b"HTTP/1.1 200") == len(bodies)


def _h11_reads(data: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Requests as h11 understands them, up to the first that it refuses."""
    found = []
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=200_000)
    connection.receive_data(data)
    method = target = b""
    body = b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                method, target, body = event.method, event.target, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                found.append((method, target, body))
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return found
                connection.start_next_cycle()
            else:
                return found
    except h11.RemoteProtocolError:
        return found


_LINES = st.sampled_from(
    [
        b"Host: a", b"Content-Length: 3", b"Content-Length: 0", b"content-length:2", b"Content-Length: 3 ",
        b"Transfer-Encoding: chunked", b"transfer-encoding:Chunked", b"Transfer-Encoding: gzip",
        b"Connection: close", b"Connection: keep-alive", b"X: y",
        b"X : y", b" X: y", b"X:", b"Expect: 100-continue", b"Content-Length: 0x3", b"X: \xc3\xa9", b"X\x00: y", b"TE: trailers",
    ]
)  # fmt: skip
_BODIES = st.sampled_from(
    [b"", b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"0\r\n\r\n", b"3\nabc\r\n0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"]
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    first=st.sampled_from(
        [b"POST /x HTTP/1.1", b"GET /x HTTP/1.1", b"POST /x HTTP/1.0", b"POST  /x HTTP/1.1", b"post /x HTTP/1.1"]
    ),
    lines=st.lists(_LINES, max_size=4),
    ends=st.sampled_from([b"\r\n", b"\n"]),
    body=_BODIES,
    more=st.sampled_from([b"", b"POST /y HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nz"]),
)
def test_whatever_is_accepted_is_read_as_h11_reads_it(first, lines, ends, body, more):
    """Law: we may refuse what h11 takes, or take what it refuses, but never understand the same bytes differently."""
    data = first + ends + b"".join(line + ends for line in [b"Host: b", *lines]) + ends + body + more
    seen, _ = asyncio.run(_feed([data]))
    ours = [(received.method, received.target, received.body) for received in seen if received.refused is None]
    both = list(zip(ours, _h11_reads(data), strict=False))
    assert [one for one, _ in both] == [other for _, other in both]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(max_size=300), max_size=5))
def test_no_bytes_break_the_connection(parts):
    """Law: whatever comes, every answer is a well-formed one."""
    _, recorder = asyncio.run(_feed(parts))
    assert recorder.written == b"" or recorder.written.startswith(b"HTTP/1.1 ")
