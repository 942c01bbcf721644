"""The error contract: status, message, type and param, in both shapes, on every source."""

from __future__ import annotations

import re

import pytest

from .shapes import CHAT, COMPLETION, chat_ask, check_answer
from .sources import MAX_MODEL_LEN, NAME, Ask, Source, words


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
        chat_ask(6, "hi", max_tokens=4, n=2),
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
    body = check_answer(source.ask(_error(number, max_tokens=1, **fields)), CHAT, 1)
    assert body["kv_transfer_params"] is None


def test_a_rank_that_does_not_exist_is_refused(source: Source):
    body = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    answer = source.ask(Ask("http/data_parallel.txt", 3, CHAT, body, headers={"X-data-parallel-rank": "7"}))
    assert answer.status == 400
    error = answer.json["error"]
    assert re.fullmatch(r"data_parallel_rank 7 is out of range \[0, [12]\)\.", error.pop("message"))
    assert error == {"type": "BadRequestError", "param": None, "code": 400}


def test_a_limit_beyond_the_context_is_clipped_without_an_error(source: Source):
    """The captured answer is cut off, so its text alone cannot be parsed: only its head and tail are looked at."""
    answer = source.ask(_error(2, messages=[{"role": "user", "content": words(1000)}], max_tokens=1500))
    assert answer.status == 200
    prompt, total = (int(re.search(rf'"{name}":(\d+)', answer.text)[1]) for name in ("prompt_tokens", "total_tokens"))
    assert prompt < total == MAX_MODEL_LEN
    assert '"finish_reason":"length"' in answer.text
