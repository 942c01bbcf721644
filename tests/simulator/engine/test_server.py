"""HTTP as clients really speak it: pipelined, chunked, slow, wrong, and through the official OpenAI client."""

from __future__ import annotations

import json
import socket
import time

import openai
import pytest

from tests.support.bounds import NEVER_S

from .process import EngineProcess, running


@pytest.fixture(scope="module")
def engine():
    with running("--enable-prompt-tokens-details", FOREBAY_SIM_SPEED="20") as process:
        yield process


def _talk(engine: EngineProcess, sent: bytes, enough: bytes = b"", timeout_s: float = NEVER_S) -> bytes:
    """Send bytes and read until `enough` was seen or the server closes."""
    with socket.create_connection(("127.0.0.1", engine.port), timeout=timeout_s) as client:
        client.sendall(sent)
        received = b""
        while not enough or enough not in received:
            data = client.recv(65536)
            if not data:
                break
            received += data
        return received


def _request(body: dict, *more: str) -> bytes:
    content = json.dumps(body).encode()
    lines = ["POST /v1/completions HTTP/1.1", "host: x", "content-type: application/json", *more]
    return "\r\n".join([*lines, f"content-length: {len(content)}", "", ""]).encode() + content


def test_pipelined_requests_are_answered_in_order(engine):
    tokens = (7, 3, 5)
    asked = (
        b"".join(_request({"prompt": "hi", "max_tokens": n}) for n in tokens)
        + b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
    )
    received = _talk(engine, asked, b'{"version"')
    bodies = [json.loads(part.split(b"\r\n\r\n", 1)[1]) for part in received.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert [body["usage"]["completion_tokens"] for body in bodies[:3]] == list(tokens)
    assert bodies[3] == {"version": "0.32.0"}


def test_a_request_may_come_in_pieces_and_chunks(engine):
    content = json.dumps({"prompt": "hi", "max_tokens": 1}).encode()
    pieces = [content[at : at + 7] for at in range(0, len(content), 7)]
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = b"POST /v1/completions?" + b"a=b&" * 200 + b" HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    sent = head + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n" + body
    with socket.create_connection(("127.0.0.1", engine.port), timeout=NEVER_S) as client:
        for at in range(0, len(sent), 100):
            client.sendall(sent[at : at + 100])
            time.sleep(0.002)  # lets each piece arrive by itself
        received = b""
        while data := client.recv(65536):
            received += data
    assert received.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close" in received


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_not_http_is_refused(engine, garbage):
    assert _talk(engine, garbage + b"\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_a_connection_is_closed_when_the_client_asks_for_it(engine):
    assert b"connection: close" in _talk(engine, b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert b'"version"' in _talk(engine, b"GET /version HTTP/1.0\r\n\r\n")


def test_a_client_that_reads_slowly_gets_several_tokens_a_chunk():
    with running(FOREBAY_SIM_SPEED="500") as engine:
        _read_late(engine, tokens=30_000)


def _read_late(engine: EngineProcess, tokens: int) -> None:
    body = {"prompt": "hi", "max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}}
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", engine.port))
        client.settimeout(NEVER_S)
        client.sendall(_request(body, "connection: close"))
        engine.eventually("vllm:generation_tokens_total", tokens)  # nothing is read while the answer is made
        received = b""
        while data := client.recv(1 << 20):
            received += data
    lines = [line for line in received.split(b"\n") if line.startswith(b"data: {")]
    usage = json.loads(lines[-1].removeprefix(b"data: "))["usage"]
    words = sum(len(json.loads(line[6:])["choices"][0]["text"].split()) for line in lines[:-1])
    assert usage["completion_tokens"] == words == tokens
    assert len(lines) < tokens / 2
    assert received.rstrip().endswith(b"0")


def test_tokens_can_be_grouped_by_the_engine():
    with running("--stream-interval", "10", FOREBAY_SIM_SPEED="20") as process:
        answer = process.chat("hi", max_tokens=45, stream=True)
    contents = [
        json.loads(line[6:])["choices"][0]["delta"]["content"] for line in answer.text.split("\n") if '"delta"' in line
    ]
    assert [len(content.split()) for content in contents] == [0, 1, 10, 10, 10, 10, 4]


def test_stop_strings_end_an_answer_and_are_not_part_of_it(engine):
    whole = engine.post("/v1/completions", {"prompt": "hi", "max_tokens": 60}).json()["choices"][0]["text"]
    words = whole.split()
    stop = f"{words[20]} {words[21]}"
    body = {"prompt": "hi", "max_tokens": 60, "stop": [stop, "never said"]}
    plain = engine.post("/v1/completions", body).json()["choices"][0]
    assert (plain["finish_reason"], plain["stop_reason"]) == ("stop", stop)
    assert plain["text"] == whole[: whole.index(stop)]
    streamed = engine.post("/v1/completions", {**body, "stream": True}).text
    chunks = [json.loads(line[6:])["choices"][0] for line in streamed.split("\n") if line.startswith("data: {")]
    assert "".join(chunk["text"] for chunk in chunks) == plain["text"]
    assert chunks[-1]["finish_reason"] == "stop"
    kept = engine.post("/v1/completions", {**body, "include_stop_str_in_output": True}).json()["choices"][0]["text"]
    assert kept == plain["text"] + stop
    later = engine.post("/v1/completions", {**body, "min_tokens": 40}).json()
    assert later["usage"]["completion_tokens"] >= 40


def test_an_answer_without_a_limit_ends_by_itself(engine):
    body = engine.chat("how long is this").json()
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body == {
        **engine.chat("how long is this").json(),
        "id": body["id"],
        "created": body["created"],
        "usage": body["usage"],
    }
    assert body["usage"]["completion_tokens"] > 1


def test_several_choices_are_several_answers(engine):
    body = engine.chat("hi", n=3, max_tokens=6).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in body["choices"]}) == 3
    assert body["usage"]["completion_tokens"] == 18


def test_the_next_turn_of_a_conversation_is_found_in_the_cache(engine):
    first = {"role": "user", "content": "tell me of rivers " * 20}
    answer = engine.chat(first["content"], max_tokens=100).json()
    said = answer["choices"][0]["message"]["content"]
    turns = [first, {"role": "assistant", "content": said}, {"role": "user", "content": "and of lakes"}]
    second = engine.post("/v1/chat/completions", {"messages": turns, "max_tokens": 1}).json()
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= answer["usage"]["total_tokens"] - 1 - 16


def test_the_official_client_streams_a_chat(engine):
    with openai.OpenAI(base_url=engine.url + "/v1", api_key="none") as client:
        stream = client.chat.completions.create(
            model="llama-3.1-8b",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=9,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        assert chunks[-1].usage.completion_tokens == 9
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        whole = client.chat.completions.create(
            model="llama-3.1-8b", messages=[{"role": "user", "content": "hi"}], max_tokens=9
        )
        assert whole.choices[0].message.content == text
        assert [model.id for model in client.models.list()] == ["llama-3.1-8b"]
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.completions.create(model="nope", prompt="hi")
