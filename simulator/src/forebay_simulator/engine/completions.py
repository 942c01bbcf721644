"""POST /v1/chat/completions and /v1/completions: from a parsed body to running generations and back.

A body is checked in vLLM's order: shape, model, values, prompt, queue limits. What fails there is answered with its
status; from the first byte of a stream on, failures are events. When the client leaves, its generations are aborted at
once and no counter shows it.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from dataclasses import replace

from forebay_simulator.engine.bodies import Fields, Options, read_json, read_messages, read_options, read_prompts
from forebay_simulator.engine.engine import Engine, with_lease
from forebay_simulator.engine.errors import ENGINE_DEAD, bad_request, internal
from forebay_simulator.engine.generation import Generation, Listener
from forebay_simulator.engine.responses import CHAT, COMPLETION, Dialect, Response, StreamedAnswer, WholeAnswer
from forebay_simulator.engine.server import Exchange
from forebay_simulator.engine.transfer import InvalidParamsError

COMPLETION_MAX_TOKENS = 16
"""What /v1/completions generates when the request does not say."""


def chat(engine: Engine, exchange: Exchange) -> None:
    """Answer POST /v1/chat/completions."""
    body = read_json(exchange.headers.get(b"content-type"), exchange.body)
    fields = Fields(body)
    messages = read_messages(fields)
    options = read_options(fields, default_max_tokens=None, session=_session(exchange))
    fields.check()
    options.check()
    engine.adapters.find(options.model)
    if body.get("tools") and body.get("tool_choice", "auto") == "auto" and not engine.settings.tool_parser:
        raise bad_request('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    prompt = engine.tokenizer.encode_chat(messages)
    _run(engine, exchange, CHAT, options, [prompt])


def complete(engine: Engine, exchange: Exchange) -> None:
    """Answer POST /v1/completions."""
    body = read_json(exchange.headers.get(b"content-type"), exchange.body)
    fields = Fields(body)
    options = read_options(fields, default_max_tokens=COMPLETION_MAX_TOKENS, session=_session(exchange))
    fields.check()
    options.check()
    engine.adapters.find(options.model)
    encode = engine.tokenizer.encode
    prompts = [encode(prompt) if isinstance(prompt, str) else prompt for prompt in read_prompts(body, fields)]
    _run(engine, exchange, COMPLETION, options, prompts)


def _session(exchange: Exchange) -> str | None:
    name = exchange.headers.get(b"x-session-id")
    return None if name is None else name.decode("latin-1")


def _with_headers(options: Options, exchange: Exchange) -> Options:
    """Apply what headers say: a priority outranks the body's, and of data parallel ranks there is one."""
    rank = _whole_number(exchange, b"x-data-parallel-rank")
    if rank:
        raise bad_request(f"data_parallel_rank {rank} is out of range [0, 1).")
    priority = _whole_number(exchange, b"x-vllm-priority")
    return options if priority is None else replace(options, priority=priority)


def _whole_number(exchange: Exchange, header: bytes) -> int | None:
    """Read a header; what is no number counts as absent, as in vLLM."""
    try:
        return int(exchange.headers[header])
    except (KeyError, ValueError):
        return None


def _run(engine: Engine, exchange: Exchange, dialect: Dialect, options: Options, prompts: Sequence[list[int]]) -> None:
    for prompt in prompts:
        engine.check_prompt(prompt)
    options = _with_headers(options, exchange)
    if options.xargs_transfer:
        raise internal("")
    engine.admit(prompts, options.choices)
    given = exchange.headers.get(b"x-request-id")
    response = Response(
        exchange=exchange,
        dialect=dialect,
        style=engine.style,
        options=options,
        response_id=dialect.prefix + (given.decode("latin-1") if given else uuid.uuid4().hex[:16]),
        model=options.model or engine.settings.name,
        include_usage=options.includes_usage or engine.settings.force_include_usage,
        open_choices=len(prompts) * options.choices,
    )
    listener = StreamedAnswer(response) if options.stream else PlainAnswer(engine, response)
    try:
        response.generations = _prepare(engine, response, listener, prompts)
    except InvalidParamsError:
        # The assertion that fails in a real engine takes its core down.
        exchange.reply(500, internal(ENGINE_DEAD).body())
        engine.core.die()
        return
    exchange.on_disconnect = lambda: _abort(engine, response)
    _add_load_header(engine, exchange)
    if options.stream:
        exchange.start_stream()
        if engine.settings.sse_keep_alive_s is not None:
            keep_alive(exchange, engine.settings.sse_keep_alive_s)
    for generation in response.generations:
        engine.submit(generation)


def _prepare(engine: Engine, response: Response, listener: Listener, prompts: Sequence[list[int]]) -> list[Generation]:
    generations: list[Generation] = []
    for prompt in prompts:
        for _ in range(response.options.choices):
            index = len(generations)
            name = response.response_id if response.dialect.chat else f"{response.response_id}-{index}"
            generations.append(engine.prepare(prompt, response.options, listener, response_id=name, index=index))
    return generations


def _abort(engine: Engine, response: Response) -> None:
    for generation in response.generations:
        engine.core.abort(generation, counted=False)


def _add_load_header(engine: Engine, exchange: Exchange) -> None:
    """Report load in the response's head, in ORCA's formats, to whoever asks for it."""
    wanted = exchange.headers.get(b"endpoint-load-metrics-format", b"").upper()
    if wanted not in (b"JSON", b"TEXT"):
        return
    waiting = engine.metrics.get("vllm:num_requests_waiting")
    usage = engine.metrics.get("vllm:kv_cache_usage_perc")
    named = {"num_requests_waiting": float(waiting), "kv_cache_usage_perc": float(usage)}
    if wanted == b"JSON":
        text = "JSON " + json.dumps({"named_metrics": named})
    else:
        text = "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())
    exchange.extra_headers += b"endpoint-load-metrics: %b\r\n" % text.encode()


def keep_alive(exchange: Exchange, interval_s: float) -> None:
    """Write a comment line at this interval while nothing has been written."""

    def beat() -> None:
        if exchange.open and not exchange.written:
            exchange.write(b": keep-alive\n\n", counts=False)
            loop.call_later(interval_s, beat)

    loop = asyncio.get_running_loop()
    loop.call_later(interval_s, beat)


class PlainAnswer(WholeAnswer):
    """A whole answer that knows of the connector: a prefill leg's answer says where its blocks are."""

    def __init__(self, engine: Engine, response: Response) -> None:
        super().__init__(response)
        self._engine = engine
        self._own = response

    def on_finish(self, generation: Generation, word: int | None) -> None:
        """Add the hand-over and answer."""
        self._own.transfer_params = with_lease(generation, self._engine.transfer)
        super().on_finish(generation, word)
