"""The HTTP contract: the same assertions on the captures, on a simulated engine and on a real one."""

from __future__ import annotations

import re

import pytest

from .sources import BLOCK_SIZE, MAX_MODEL_LEN, NAME, Ask, Source, words

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
JSON = {"content-type": "application/json"}
ANSWER_KEYS = {
    CHAT: [
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "prompt_logprobs",
        "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics",
    ],
    COMPLETION: [
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "kv_transfer_params",
        "ec_transfer_params", "metrics",
    ],
}  # fmt: skip
CHOICE_KEYS = {
    CHAT: ["index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"],
    COMPLETION: [
        "index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids",
        "routed_experts",
    ],
}  # fmt: skip
MESSAGE_KEYS = ["role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"]
FINGERPRINT = re.compile(r"vllm-0\.32\.0-[0-9a-f]{8}")


def _chat(number: int, text: str | None = None, **fields: object) -> Ask:
    messages = [
        {"role": "system", "content": "You are a small test engine."},
        {"role": "user", "content": text or words(180)},
    ]
    body = {"model": NAME, "messages": messages, "temperature": 0, **fields}
    return Ask("http/chat_completions.txt", number, CHAT, body)


def _completion(number: int, prompt: object = None, **fields: object) -> Ask:
    body = {"model": NAME, "prompt": prompt or words(180), "temperature": 0, **fields}
    return Ask("http/completions.txt", number, COMPLETION, body)


def _check_answer(answer, path: str, tokens: int) -> dict:
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json
    assert list(body) == ANSWER_KEYS[path]
    assert [list(choice) for choice in body["choices"]] == [CHOICE_KEYS[path]]
    assert body["model"] == NAME
    assert FINGERPRINT.fullmatch(body["system_fingerprint"])
    choice, usage = body["choices"][0], body["usage"]
    assert (choice["index"], choice["finish_reason"]) == (0, "length")
    assert list(usage) == [
        "prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details",
    ]  # fmt: skip
    assert usage["completion_tokens"] == tokens
    assert usage["total_tokens"] == usage["prompt_tokens"] + tokens
    assert list(usage["prompt_tokens_details"]) == ["cached_tokens", "created_cache_tokens", "multimodal_tokens"]
    return body


def test_a_chat_answer_and_its_repetition_from_the_cache(source: Source):
    text = words(180)
    cold = _check_answer(source.ask(_chat(0, text, max_tokens=8)), CHAT, 8)
    again = _check_answer(source.ask(_chat(1, text, max_tokens=8)), CHAT, 8)
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
    cold = _check_answer(source.ask(_completion(0, prompt, max_tokens=4)), COMPLETION, 4)
    again = _check_answer(source.ask(_completion(1, prompt, max_tokens=4)), COMPLETION, 4)
    assert re.fullmatch(r"cmpl-[0-9a-f]{16}", cold["id"])
    assert cold["object"] == "text_completion"
    assert cold["choices"][0]["text"] == again["choices"][0]["text"]
    tokens = cold["usage"]["prompt_tokens"]
    details = [body["usage"]["prompt_tokens_details"] for body in (cold, again)]
    assert [d["cached_tokens"] for d in details] == [0, (tokens - 1) // BLOCK_SIZE * BLOCK_SIZE]
    assert [d["created_cache_tokens"] for d in details] == [None, None]


def test_a_prompt_of_token_ids(source: Source):
    body = _check_answer(source.ask(_completion(2, [714, 492, 654, 511, 18], max_tokens=4)), COMPLETION, 4)
    assert body["usage"]["prompt_tokens"] == 5


def test_the_model_may_be_left_out(source: Source):
    ask = Ask("http/completions.txt", 4, COMPLETION, {"prompt": "hello", "max_tokens": 1, "temperature": 0})
    _check_answer(source.ask(ask), COMPLETION, 1)


def test_token_ids_are_returned_when_asked_for(source: Source):
    body = _check_answer(source.ask(_chat(7, "hi", max_tokens=4, return_token_ids=True)), CHAT, 4)
    assert len(body["choices"][0]["token_ids"]) == 4
    assert len(body["prompt_token_ids"]) == body["usage"]["prompt_tokens"]


def test_the_request_id_names_the_answer_and_load_is_reported_on_request(source: Source):
    ask = _chat(5, max_tokens=4)
    ask.headers = {"X-Request-Id": "req-abc-123", "X-Session-ID": "sess-1", "endpoint-load-metrics-format": "JSON"}
    answer = source.ask(ask)
    assert _check_answer(answer, CHAT, 4)["id"] == "chatcmpl-req-abc-123"
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
    chunks = _check_stream(source.ask(_chat(2, max_tokens=4, stream=True)))
    _check_chat_chunks(chunks, [], last_keys=["system_fingerprint"])
    assert chunks[0]["object"] == "chat.completion.chunk"


def test_a_stream_ends_with_usage_when_asked_for(source: Source):
    text = words(180)
    source.ask(_chat(0, text, max_tokens=8))
    *chunks, usage = _check_stream(
        source.ask(_chat(3, text, max_tokens=4, stream=True, stream_options={"include_usage": True}))
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
    *chunks, usage = _check_stream(source.ask(_chat(4, max_tokens=4, stream=True, stream_options=options)))
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
    ask = _completion(3, max_tokens=4, stream=True, stream_options={"include_usage": True})
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


def _error(number: int, path: str = CHAT, **fields: object) -> Ask:
    messages = [{"role": "system", "content": "You are a small test engine."}, {"role": "user", "content": "hi"}]
    body = {"model": NAME, "messages": messages, **fields}
    return Ask("http/errors.txt", number, path, {key: value for key, value in body.items() if value is not ...})


def _raw(number: int, raw: bytes, content_type: str = "application/json") -> Ask:
    return Ask("http/errors.txt", number, CHAT, raw=raw, headers={"content-type": content_type})


def _invalid(kind: str, where: str, message: str, shown: str, more: str = "") -> tuple[int, str, str, str]:
    problem = f"{{'type': '{kind}', 'loc': '{where}', 'msg': '{message}', 'input': '{shown}'{more}}}"
    return 400, f"1 validation error:\n  {problem}", "Bad Request", where


TOO_LONG = (
    "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value=2049)"
)
ERRORS = {
    "unknown model": (
        _error(0, model="no-such-model"),
        (404, "The model `no-such-model` does not exist. Valid aliases: tiny-llama.", "NotFoundError", "model"),
    ),
    "unknown model, streaming": (
        _error(17, model="no-such-model", stream=True),
        (404, "The model `no-such-model` does not exist. Valid aliases: tiny-llama.", "NotFoundError", "model"),
    ),
    "prompt too long": (
        _error(1, messages=[{"role": "user", "content": words(2500, 1)}], max_tokens=2),
        (400, TOO_LONG, "BadRequestError", "input_tokens"),
    ),
    "bad JSON": (
        _raw(3, b'{"model": "tiny-llama", "messages": ['),
        _invalid(
            "json_invalid", "body.37", "JSON decode error", "<dict of 0 items>", ", 'ctx': {'error': 'Expecting value'}"
        ),
    ),
    "empty body": (_raw(4, b""), _invalid("missing", "body", "Field required", "None")),
    "wrong content type": (
        _raw(5, b"model=x", "text/plain"),
        (400, "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", "Bad Request", None),
    ),
    "missing messages": (
        _error(6, messages=...),
        _invalid("missing", "body.messages", "Field required", "<dict of 1 items>"),
    ),
    "temperature": (
        _error(7, temperature=-1),
        (
            400,
            "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
            "BadRequestError",
            "temperature",
        ),
    ),
    "top_p": (
        _error(8, top_p=2),
        (400, "top_p must be in (0, 1], got 2.0. (parameter=top_p, value=2.0)", "BadRequestError", "top_p"),
    ),
    "max_tokens 0": (
        _error(9, max_tokens=0),
        (400, "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", "BadRequestError", "max_tokens"),
    ),
    "max_tokens wrong type": (
        _error(10, max_tokens="many"),
        _invalid(
            "int_parsing",
            "body.max_tokens",
            "Input should be a valid integer, unable to parse string as an integer",
            "many",
        ),
    ),
    "messages wrong type": (
        _error(11, messages="hi"),
        _invalid("list_type", "body.messages", "Input should be a valid list", "hi"),
    ),
    "stream_options without stream": (
        _error(14, stream_options={"include_usage": True}),
        (
            400,
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            "BadRequestError",
            "stream_options",
        ),
    ),
    "empty cache_salt": (
        _error(16, cache_salt=""),
        (
            400,
            "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)",
            "BadRequestError",
            "cache_salt",
        ),
    ),
    "tool_choice auto": (
        _error(
            18,
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
            tool_choice="auto",
            max_tokens=2,
        ),
        (
            400,
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
            "BadRequestError",
            None,
        ),
    ),
    "completions: prompt too long": (
        _error(19, COMPLETION, messages=..., prompt=words(2500, 1), max_tokens=2),
        (400, TOO_LONG, "BadRequestError", "input_tokens"),
    ),
    "completions: token id out of vocabulary": (
        _error(20, COMPLETION, messages=..., prompt=[999999], max_tokens=2),
        (400, "Token id 999999 is out of vocabulary", "BadRequestError", None),
    ),
    "completions: empty prompt": (
        _error(21, COMPLETION, messages=..., prompt="", max_tokens=2),
        (
            400,
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            "BadRequestError",
            "prompt",
        ),
    ),
    "n=2 greedy": (
        _chat(6, "hi", max_tokens=4, n=2),
        (400, "n must be 1 when using greedy sampling, got 2.", "BadRequestError", None),
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_have_their_status_message_type_and_param(source: Source, case: str):
    ask, (status, message, kind, param) = ERRORS[case]
    answer = source.ask(ask)
    assert answer.status == status
    assert answer.json == {"error": {"message": message, "type": kind, "param": param, "code": status}}
    assert "retry-after" not in answer.headers


@pytest.mark.parametrize(
    ("number", "method", "path", "status", "text"),
    [
        (22, "GET", CHAT, 405, '{"detail":"Method Not Allowed"}'),
        (23, "GET", "/nope", 404, '{"detail":"Not Found"}'),
        (24, "POST", "/v1/embeddings", 404, '{"detail":"Not Found"}'),
        (25, "POST", "/v1/load_lora_adapter", 404, '{"detail":"Not Found"}'),
    ],
)
def test_what_is_not_there_is_not_in_the_error_shape(source: Source, number, method, path, status, text):
    answer = source.ask(Ask("http/errors.txt", number, path, {"model": NAME, "input": "hi"}, method=method))
    assert (answer.status, answer.text) == (status, text)


@pytest.mark.parametrize(
    ("number", "fields"),
    [(12, {"bogus_field": 1}), (13, {"priority": 5}), (15, {"kv_transfer_params": {"do_remote_decode": True}})],
)
def test_what_is_unknown_is_ignored(source: Source, number, fields):
    body = _check_answer(source.ask(_error(number, max_tokens=1, **fields)), CHAT, 1)
    assert body["kv_transfer_params"] is None


def test_a_limit_beyond_the_context_is_clipped_without_an_error(source: Source):
    """The captured answer is cut off, so its text alone cannot be parsed: only its head and tail are looked at."""
    answer = source.ask(_error(2, messages=[{"role": "user", "content": words(1000)}], max_tokens=1500))
    assert answer.status == 200
    prompt, total = (int(re.search(rf'"{name}":(\d+)', answer.text)[1]) for name in ("prompt_tokens", "total_tokens"))
    assert prompt < total == MAX_MODEL_LEN
    assert '"finish_reason":"length"' in answer.text


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
