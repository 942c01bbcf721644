"""The HTTP contract: the same assertions on the captures, on a simulated engine and on a real one."""

from __future__ import annotations

import re

import pytest

from .shapes import CHAT, COMPLETION, MESSAGE_KEYS, chat_ask, check_answer, completion_ask
from .sources import BLOCK_SIZE, MAX_MODEL_LEN, NAME, Ask, Source, words


def test_a_chat_answer_and_its_repetition_from_the_cache(source: Source):
    text = words(180)
    cold = check_answer(source.ask(chat_ask(0, text, max_tokens=8)), CHAT, 8)
    again = check_answer(source.ask(chat_ask(1, text, max_tokens=8)), CHAT, 8)
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{16}", cold["id"])
    assert cold["object"] == "chat.completion"
    message = cold["choices"][0]["message"]
    assert list(message) == MESSAGE_KEYS
    assert message["role"] == "assistant"
    assert message == again["choices"][0]["message"]
    prompt = cold["usage"]["prompt_tokens"]
    details = [body["usage"]["prompt_tokens_details"] for body in (cold, again)]
    assert [d["cached_tokens"] for d in details] == [0, (prompt - 1) // BLOCK_SIZE * BLOCK_SIZE]
    assert [d["created_cache_tokens"] for d in details] == [prompt // BLOCK_SIZE * BLOCK_SIZE, 0]


def test_a_completion_and_its_repetition_from_the_cache(source: Source):
    prompt = words(180)
    cold = check_answer(source.ask(completion_ask(0, prompt, max_tokens=4)), COMPLETION, 4)
    again = check_answer(source.ask(completion_ask(1, prompt, max_tokens=4)), COMPLETION, 4)
    assert re.fullmatch(r"cmpl-[0-9a-f]{16}", cold["id"])
    assert cold["object"] == "text_completion"
    assert cold["choices"][0]["text"] == again["choices"][0]["text"]
    tokens = cold["usage"]["prompt_tokens"]
    details = [body["usage"]["prompt_tokens_details"] for body in (cold, again)]
    assert [d["cached_tokens"] for d in details] == [0, (tokens - 1) // BLOCK_SIZE * BLOCK_SIZE]
    assert [d["created_cache_tokens"] for d in details] == [None, None]


def test_a_prompt_of_token_ids(source: Source):
    body = check_answer(source.ask(completion_ask(2, [714, 492, 654, 511, 18], max_tokens=4)), COMPLETION, 4)
    assert body["usage"]["prompt_tokens"] == 5


def test_the_model_may_be_left_out(source: Source):
    ask = Ask("http/completions.txt", 4, COMPLETION, {"prompt": "hello", "max_tokens": 1, "temperature": 0})
    check_answer(source.ask(ask), COMPLETION, 1)


def test_token_ids_are_returned_when_asked_for(source: Source):
    body = check_answer(source.ask(chat_ask(7, "hi", max_tokens=4, return_token_ids=True)), CHAT, 4)
    assert len(body["choices"][0]["token_ids"]) == 4
    assert len(body["prompt_token_ids"]) == body["usage"]["prompt_tokens"]


def test_the_request_id_names_the_answer_and_load_is_reported_on_request(source: Source):
    ask = chat_ask(5, max_tokens=4)
    ask.headers = {"X-Request-Id": "req-abc-123", "X-Session-ID": "sess-1", "endpoint-load-metrics-format": "JSON"}
    answer = source.ask(ask)
    assert check_answer(answer, CHAT, 4)["id"] == "chatcmpl-req-abc-123"
    assert answer.headers["x-request-id"] == "req-abc-123"
    load = '{"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}'
    assert answer.headers["endpoint-load-metrics"] == f"JSON {load}"


def _check_stream(answer) -> list[dict]:
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["transfer-encoding"] == "chunked"
    chunks = answer.chunks
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert len({chunk["created"] for chunk in chunks}) == 1
    return chunks


CHUNK_KEYS = ["id", "object", "created", "model", "choices"]
DELTA_KEYS = ["index", "delta", "logprobs", "finish_reason", "token_ids"]


def _check_chat_chunks(chunks: list[dict], usage_keys: list[str], *, last_keys: list[str]) -> None:
    first, *middle, last = chunks
    assert list(first) == [*CHUNK_KEYS, *usage_keys, "prompt_token_ids", "prompt_text"]
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    assert first["choices"] == [role]
    for chunk in middle:
        assert list(chunk) == [*CHUNK_KEYS, *usage_keys]
        assert [list(choice) for choice in chunk["choices"]] == [DELTA_KEYS]
        assert list(chunk["choices"][0]["delta"]) == ["content"]
        assert chunk["choices"][0]["finish_reason"] is None
    assert list(last) == [*CHUNK_KEYS, *usage_keys, *last_keys]
    assert list(last["choices"][0]) == ["index", "delta", "logprobs", "finish_reason", "stop_reason", "token_ids"]
    assert last["choices"][0]["finish_reason"] == "length"


def test_a_stream_has_a_role_words_and_an_end(source: Source):
    chunks = _check_stream(source.ask(chat_ask(2, max_tokens=4, stream=True)))
    _check_chat_chunks(chunks, [], last_keys=["system_fingerprint"])
    assert chunks[0]["object"] == "chat.completion.chunk"


def test_a_stream_ends_with_usage_when_asked_for(source: Source):
    text = words(180)
    source.ask(chat_ask(0, text, max_tokens=8))
    *chunks, usage = _check_stream(
        source.ask(chat_ask(3, text, max_tokens=4, stream=True, stream_options={"include_usage": True}))
    )
    _check_chat_chunks(chunks, [], last_keys=[])
    assert list(usage) == [*CHUNK_KEYS, "usage", "system_fingerprint"]
    assert usage["choices"] == []
    prompt = usage["usage"]["prompt_tokens"]
    cached = (prompt - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert usage["usage"] == {
        "prompt_tokens": prompt,
        "total_tokens": prompt + 4,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": cached, "created_cache_tokens": 0},
    }


def test_usage_comes_in_every_chunk_when_asked_for(source: Source):
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, usage = _check_stream(source.ask(chat_ask(4, max_tokens=4, stream=True, stream_options=options)))
    _check_chat_chunks(chunks, ["usage"], last_keys=[])
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] == usage["usage"]["completion_tokens"] == 4
    for chunk in chunks:
        assert list(chunk["usage"]) == [
            "prompt_tokens", "total_tokens", "completion_tokens", "completion_tokens_details",
        ]  # fmt: skip


def test_a_completion_stream_and_its_load_header(source: Source):
    ask = completion_ask(3, max_tokens=4, stream=True, stream_options={"include_usage": True})
    ask.headers = {"endpoint-load-metrics-format": "TEXT"}
    *chunks, usage = _check_stream(source.ask(ask))
    keys = ["index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"]
    for chunk in chunks:
        assert list(chunk) == CHUNK_KEYS
        assert [list(choice) for choice in chunk["choices"]] == [keys]
        assert chunk["object"] == "text_completion"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    assert list(usage) == [*CHUNK_KEYS, "usage", "system_fingerprint"]
    assert list(usage["usage"]["prompt_tokens_details"]) == ["cached_tokens"]


@pytest.mark.parametrize(
    ("number", "path", "text"),
    [
        (0, "/health", ""), (1, "/ping", ""), (2, "/version", '{"version":"0.32.0"}'), (4, "/load", '{"server_load":0}'),
        (6, "/is_sleeping", '{"is_sleeping":false}'), (7, "/is_paused", '{"is_paused":false}'),
        (8, "/get_world_size", '{"world_size":1}'), (9, "/weight_info", '{"weight_version":"default"}'),
    ],
)  # fmt: skip
def test_small_endpoints(source: Source, number, path, text):
    answer = source.ask(Ask("http/endpoints.txt", number, path, method="GET"))
    assert (answer.status, answer.text) == (200, text)
    assert answer.headers["server"] == "uvicorn"
    assert answer.headers.get("content-type") == ("application/json" if text else None)


def test_the_list_of_models(source: Source):
    body = source.ask(Ask("http/endpoints.txt", 3, "/v1/models", method="GET")).json
    assert list(body) == ["object", "data"]
    (card,) = body["data"]
    assert list(card) == ["id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"]
    assert (card["id"], card["owned_by"], card["parent"], card["max_model_len"]) == (NAME, "vllm", None, MAX_MODEL_LEN)
    (permission,) = card["permission"]
    assert list(permission) == [
        "id", "object", "created", "allow_create_engine", "allow_sampling", "allow_logprobs", "allow_search_indices",
        "allow_view", "allow_fine_tuning", "organization", "group", "is_blocking",
    ]  # fmt: skip


def test_where_events_come_from(source: Source):
    body = source.ask(Ask("http/endpoints.txt", 5, "/kv_event_sources", method="GET")).json
    assert list(body) == ["0"]
    assert list(body["0"]) == [
        "enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint", "buffer_steps", "hwm", "max_queue_size", "topic",
    ]  # fmt: skip
    assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", body["0"]["endpoint"])


TOKENISE = [
    (0, {"model": NAME, "prompt": "Please explain the router cache block prefix."}),
    (1, {"model": NAME, "messages": [{"role": "user", "content": "Please explain."}], "return_token_strs": True}),
    (2, {"prompt": "hello"}),
]


@pytest.mark.parametrize(("number", "body"), TOKENISE)
def test_tokenisation(source: Source, number, body):
    answer = source.ask(Ask("http/tokenize.txt", number, "/tokenize", body)).json
    assert list(answer) == ["count", "max_model_len", "tokens", "token_strs"]
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == MAX_MODEL_LEN
    if "return_token_strs" in body:
        assert len(answer["token_strs"]) == answer["count"]
    else:
        assert answer["token_strs"] is None


def test_tokens_are_turned_back_into_text(source: Source):
    text = "Please explain the router."
    if source.kind == "captured":
        tokens: list[int] = []
    else:
        tokens = source.ask(Ask("", 0, "/tokenize", {"prompt": text})).json["tokens"]
    answer = source.ask(Ask("http/tokenize.txt", 4, "/detokenize", {"model": NAME, "tokens": tokens}))
    assert answer.json == {"prompt": text}


def test_tokenising_for_an_unknown_model_is_an_error(source: Source):
    answer = source.ask(Ask("http/tokenize.txt", 3, "/tokenize", {"model": "nope", "prompt": "hello"}))
    assert answer.status == 404
    assert answer.json["error"]["type"] == "NotFoundError"


RESET = [
    (8, "POST", "/sleep?level=1", {"status": "sleeping", "level": 1}),
    (9, "GET", "/is_sleeping", {"is_sleeping": True}),
    (10, "POST", "/wake_up", {"status": "awake", "tags": None}),
    (11, "GET", "/is_sleeping", {"is_sleeping": False}),
    (12, "POST", "/sleep?level=0", {"status": "sleeping", "level": 0}),
    (13, "GET", "/is_sleeping", {"is_sleeping": True}),
    (14, "POST", "/wake_up", {"status": "awake", "tags": None}),
]


def test_sleeping_and_waking(source: Source):
    for number, method, path, expected in RESET:
        answer = source.ask(Ask("http/lifecycle.txt", number, path, method=method, raw=b""))
        assert (answer.status, answer.json) == (200, expected)
