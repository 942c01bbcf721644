"""Render endpoints of `--enable-scale-out`: template and tokenise a request without running it.

A router that matches prefixes by token ids asks here. `/inference/v1/generate` is not simulated.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import orjson

from forebay_simulator.engine.bodies import Fields, Options, read_json, read_messages, read_options, read_prompts
from forebay_simulator.engine.completions import COMPLETION_MAX_TOKENS
from forebay_simulator.engine.engine import Engine
from forebay_simulator.engine.server import Exchange

Endpoint = Callable[[Engine, Exchange], None]


def _render_chat(engine: Engine, exchange: Exchange) -> None:
    fields = Fields(read_json(exchange.headers.get(b"content-type"), exchange.body))
    messages = read_messages(fields)
    options = read_options(fields, default_max_tokens=None, session=None)
    fields.check()
    options.check()
    engine.adapters.find(options.model)
    prompt = engine.tokenizer.encode_chat(messages)
    engine.check_prompt(prompt)
    exchange.reply(200, orjson.dumps(_rendered(engine, options, prompt, "chatcmpl-")))


def _render_completion(engine: Engine, exchange: Exchange) -> None:
    body = read_json(exchange.headers.get(b"content-type"), exchange.body)
    fields = Fields(body)
    options = read_options(fields, default_max_tokens=COMPLETION_MAX_TOKENS, session=None)
    fields.check()
    options.check()
    engine.adapters.find(options.model)
    encode = engine.tokenizer.encode
    prompts = [encode(prompt) if isinstance(prompt, str) else prompt for prompt in read_prompts(body, fields)]
    for prompt in prompts:
        engine.check_prompt(prompt)
    exchange.reply(200, orjson.dumps([_rendered(engine, options, prompt, "cmpl-") for prompt in prompts]))


def _rendered(engine: Engine, options: Options, prompt: list[int], prefix: str) -> dict[str, Any]:
    room = engine.model.max_model_len - len(prompt)
    return {
        "request_id": prefix + uuid.uuid4().hex[:16],
        "token_ids": prompt,
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": {
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "min_p": 0.0,
            "stop": list(options.stop),
            "stop_token_ids": [],
            "max_tokens": room if options.max_tokens is None else min(options.max_tokens, room),
            "output_kind": 2,
            "skip_clone": True,
            "bad_words": [],
            "skip_reading_prefix_cache": False,
        },
        "model": options.model or engine.settings.name,
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": None,
        "output_mode": "tokens",
        "stream": options.stream,
        "stream_options": options.stream_options,
        "cache_salt": options.cache_salt,
        "priority": options.priority,
        "kv_transfer_params": options.kv_transfer,
        "ec_transfer_params": None,
    }


ENDPOINTS: dict[str, dict[str, Endpoint]] = {
    "/v1/chat/completions/render": {"POST": _render_chat},
    "/v1/completions/render": {"POST": _render_completion},
}
