"""The endpoints: which path and method is answered by what, and the small answers themselves.

Unknown paths are 404 and wrong methods 405 with FastAPI's `detail` body, not the error shape. Development endpoints exist
with VLLM_SERVER_DEV_MODE=1 only, adapter endpoints with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.
"""

from __future__ import annotations

import hmac
import logging
import uuid
from collections.abc import Callable
from typing import Any

import orjson

from forebay_simulator.engine import completions, development, scale_out
from forebay_simulator.engine.bodies import Fields, read_json, read_messages
from forebay_simulator.engine.engine import Engine
from forebay_simulator.engine.errors import ApiError, internal
from forebay_simulator.engine.metrics import CONTENT_TYPE, HttpMetrics
from forebay_simulator.engine.server import Exchange
from forebay_simulator.engine.settings import VERSION

LOG = logging.getLogger("forebay.engine")
Endpoint = Callable[[Engine, Exchange], None]
GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""Path prefixes that --api-key guards."""
SCALE_OUT = frozenset({"/v1/chat/completions/render", "/v1/completions/render", "/inference/v1/generate"})


class Router:
    """Answers the exchanges of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._table = _table(engine)

    def handle(self, exchange: Exchange) -> None:
        """Answer, or start to."""
        engine = self._engine
        if engine.settings.request_id_headers:
            given = exchange.headers.get(b"x-request-id") or uuid.uuid4().hex.encode()
            exchange.extra_headers += b"x-request-id: %b\r\n" % given
        try:
            self._dispatch(exchange)
        except ApiError as error:
            exchange.reply(error.status, error.body())
        except Exception:  # the boundary of a request: answered as a real server answers its own faults
            LOG.exception("%s %s failed", exchange.method, exchange.path)
            exchange.reply(500, internal("Internal server error").body())

    def observe(self, exchange: Exchange, status: int, seconds: float, sent: int) -> None:
        """Count an ended exchange."""
        path = exchange.path
        if path in HttpMetrics.UNTRACKED:
            return
        handler = path if path in self._table else "none"
        sizes = (len(exchange.body), sent)
        self._engine.metrics.http.observe(
            handler=handler, method=exchange.method, status=status, seconds=seconds, sizes=sizes
        )

    def _dispatch(self, exchange: Exchange) -> None:
        path = exchange.path
        if path.startswith(GUARDED) and not self._authorised(exchange):
            exchange.reply(401, b'{"error":"Unauthorized"}')
            return
        if path in SCALE_OUT and not self._engine.settings.scale_out:
            message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to use them."
            raise ApiError(403, message, "PermissionDeniedError")
        methods = self._table.get(path)
        if methods is None:
            exchange.reply(404, b'{"detail":"Not Found"}')
            return
        endpoint = methods.get(exchange.method)
        if endpoint is None:
            exchange.extra_headers += b"allow: %b\r\n" % ", ".join(methods).encode()
            exchange.reply(405, b'{"detail":"Method Not Allowed"}')
            return
        endpoint(self._engine, exchange)

    def _authorised(self, exchange: Exchange) -> bool:
        keys = self._engine.settings.api_keys
        if not keys:
            return True
        scheme, _, token = exchange.headers.get(b"authorization", b"").partition(b" ")
        known = [hmac.compare_digest(token, key.encode()) for key in keys]
        return scheme.lower() == b"bearer" and any(known)


def _table(engine: Engine) -> dict[str, dict[str, Endpoint]]:
    table: dict[str, dict[str, Endpoint]] = {
        "/health": {"GET": _health},
        "/ping": {"GET": _health, "POST": _health},
        "/version": {"GET": lambda _, exchange: _json(exchange, {"version": VERSION})},
        "/load": {"GET": _load},
        "/metrics": {"GET": _metrics},
        "/kv_event_sources": {"GET": development.event_sources},
        "/v1/models": {"GET": _models},
        "/v1/chat/completions": {"POST": completions.chat},
        "/v1/completions": {"POST": completions.complete},
        "/tokenize": {"POST": _tokenize},
        "/detokenize": {"POST": _detokenize},
    }
    if engine.settings.runtime_lora:
        table["/v1/load_lora_adapter"] = {"POST": _load_adapter}
        table["/v1/unload_lora_adapter"] = {"POST": _unload_adapter}
    if engine.settings.scale_out:
        table |= scale_out.ENDPOINTS
    if engine.settings.dev_mode:
        table |= development.ENDPOINTS
    return table


def _json(exchange: Exchange, value: Any) -> None:
    exchange.reply(200, orjson.dumps(value))


def _health(engine: Engine, exchange: Exchange) -> None:
    exchange.reply(503 if engine.core.dead else 200)


def _load(engine: Engine, exchange: Exchange) -> None:
    # The request that asks is in flight too, but it is not one of those that vLLM tracks.
    load = len({id(generation.listener) for generation in engine.core.generations.values()})
    _json(exchange, {"server_load": load if engine.settings.load_tracking else 0})


def _metrics(engine: Engine, exchange: Exchange) -> None:
    exchange.reply(200, engine.metrics.render(), CONTENT_TYPE.encode())


def _models(engine: Engine, exchange: Exchange) -> None:
    _json(exchange, {"object": "list", "data": engine.adapters.cards(engine.model.max_model_len)})


def _tokenize(engine: Engine, exchange: Exchange) -> None:
    body = read_json(exchange.headers.get(b"content-type"), exchange.body)
    fields = Fields(body)
    model = fields.text("model")
    strings = fields.switch("return_token_strs")
    if "messages" in body:
        messages = read_messages(fields)
        answer_follows = fields.switch("add_generation_prompt", default=True)
        fields.check()
        engine.adapters.find(model)
        tokens = engine.tokenizer.encode_chat(messages, answer_follows=answer_follows)
    else:
        fields.required("prompt")
        prompt = fields.text("prompt")
        fields.check()
        engine.adapters.find(model)
        tokens = engine.tokenizer.encode(prompt or "")
    pieces = engine.tokenizer.pieces(tokens) if strings else None
    _json(
        exchange,
        {
            "count": len(tokens),
            "max_model_len": engine.model.max_model_len,
            "tokens": tokens,
            "token_strs": pieces,
        },
    )


def _detokenize(engine: Engine, exchange: Exchange) -> None:
    body = read_json(exchange.headers.get(b"content-type"), exchange.body)
    fields = Fields(body)
    model = fields.text("model")
    tokens = fields.required("tokens")
    if tokens is not None and not (isinstance(tokens, list) and all(type(token) is int for token in tokens)):
        fields.problem("list_type", "tokens", "Input should be a valid list", tokens)
    fields.check()
    engine.adapters.find(model)
    assert isinstance(tokens, list), "checked above"
    _json(exchange, {"prompt": engine.tokenizer.decode(tokens)})


def _load_adapter(engine: Engine, exchange: Exchange) -> None:
    body = read_json(exchange.headers.get(b"content-type"), exchange.body)
    fields = Fields(body)
    for name in ("lora_name", "lora_path"):
        fields.required(name)
    name, path = fields.text("lora_name") or "", fields.text("lora_path") or ""
    fields.check()
    exchange.reply(200, engine.adapters.load(name, path).encode(), None)


def _unload_adapter(engine: Engine, exchange: Exchange) -> None:
    body = read_json(exchange.headers.get(b"content-type"), exchange.body)
    fields = Fields(body)
    fields.required("lora_name")
    name = fields.text("lora_name") or ""
    fields.check()
    exchange.reply(200, engine.adapters.unload(name).encode(), None)
