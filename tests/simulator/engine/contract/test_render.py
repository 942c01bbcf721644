"""Rendering a request to token ids without running it."""

from __future__ import annotations

import pytest

from .sources import NAME, Ask, CapturedSource, LiveSource

FILE = "http/render.txt"
CHAT = "/v1/chat/completions/render"
COMPLETION = "/v1/completions/render"
KEYS = [
    "request_id", "token_ids", "token_offsets", "features", "content_parts", "sampling_params", "model", "reasoning_ended",
    "reasoning_parser_kwargs", "return_token_ids", "output_mode", "stream", "stream_options", "cache_salt", "priority",
    "kv_transfer_params", "ec_transfer_params",
]  # fmt: skip


@pytest.fixture(scope="module")
def rendering(any_start):
    if any_start is None:
        yield CapturedSource()
        return
    with any_start("--enable-scale-out") as engine:
        yield LiveSource("live", engine)


def test_a_chat_is_rendered(rendering):
    messages = [{"role": "user", "content": "Please explain the router cache."}]
    body = rendering.ask(Ask(FILE, 0, CHAT, {"model": NAME, "messages": messages, "max_tokens": 2})).json
    assert list(body) == KEYS
    assert body["request_id"].startswith("chatcmpl-")
    assert body["sampling_params"]["max_tokens"] == 2
    if rendering.kind == "live":
        tokens = rendering.ask(Ask("", 0, "/tokenize", {"messages": messages})).json["tokens"]
        assert body["token_ids"] == tokens


def test_completions_are_rendered_one_by_one(rendering):
    ask = Ask(FILE, 1, COMPLETION, {"model": NAME, "prompt": "Please explain the router cache.", "max_tokens": 2})
    (body,) = rendering.ask(ask).json
    assert list(body) == KEYS
    assert body["request_id"].startswith("cmpl-")
    assert all(type(token) is int for token in body["token_ids"])


def test_without_the_flag_it_is_forbidden(start):
    with start() as engine:
        answer = engine.post(CHAT, {"messages": []})
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "PermissionDeniedError"
