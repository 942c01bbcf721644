"""Endpoints for developers and for what watches the KV cache: pause, sleep, cache reset, abort, event sources.

While paused, new requests are accepted and wait without an error; `/health` stays 200. Mode `abort` ends what runs,
`wait` answers when it has ended by itself, `keep` freezes it. Sleeping frees nothing here; it pauses and shows in
`vllm:engine_sleep_state`.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson

from forebay_simulator.engine.engine import Engine
from forebay_simulator.engine.errors import bad_request
from forebay_simulator.engine.server import Exchange

Endpoint = Callable[[Engine, Exchange], None]
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


def event_sources(engine: Engine, exchange: Exchange) -> None:
    """Answer GET /kv_event_sources."""
    sources = {} if engine.events is None else {"0": engine.events.source()}
    exchange.reply(200, orjson.dumps(sources))


def _reply(exchange: Exchange, **fields: object) -> None:
    exchange.reply(200, orjson.dumps(fields))


def _true(exchange: Exchange, name: str) -> bool:
    return exchange.query.get(name, "").lower() in ("1", "true")


def _pause(engine: Engine, exchange: Exchange) -> None:
    mode = exchange.query.get("mode", "abort")
    if mode not in ("abort", "wait", "keep"):
        raise bad_request(f"mode must be abort, wait or keep, got {mode}.", "mode", mode)
    core = engine.core
    core.pause(freeze=mode == "keep")
    if mode == "abort":
        core.abort_all(counted=True)
    if mode == "wait" and core.running:
        core.when_idle(lambda: _reply(exchange, status="paused"))
        return
    _reply(exchange, status="paused")


def _resume(engine: Engine, exchange: Exchange) -> None:
    engine.core.resume()
    _reply(exchange, status="resumed")


def _is_paused(engine: Engine, exchange: Exchange) -> None:
    _reply(exchange, is_paused=engine.core.paused)


def _sleep(engine: Engine, exchange: Exchange) -> None:
    level = exchange.query.get("level", "1")
    if level not in ("0", "1", "2"):
        raise bad_request(f"level must be 0, 1 or 2, got {level}.", "level", level)
    core = engine.core
    core.pause(freeze=False)
    core.abort_all(counted=True)
    if level != "0":
        core.scheduler.reset_cache()
    _show_sleep(engine, SLEEP_STATES[int(level)])
    _reply(exchange, status="sleeping", level=int(level))


def _wake_up(engine: Engine, exchange: Exchange) -> None:
    tags = [value for name, value in exchange.query_pairs if name == "tags"]
    engine.core.resume()
    _show_sleep(engine, "awake")
    _reply(exchange, status="awake", tags=tags or None)


def _show_sleep(engine: Engine, state: str) -> None:
    for name in SLEEP_STATES:
        engine.metrics.set("vllm:engine_sleep_state", name == state, name)


def _is_sleeping(engine: Engine, exchange: Exchange) -> None:
    _reply(exchange, is_sleeping=engine.core.paused)


def _reset_prefix_cache(engine: Engine, exchange: Exchange) -> None:
    core = engine.core
    success = core.scheduler.reset_cache(preempt_running=_true(exchange, "reset_running_requests"))
    core.recorder.gauges(core.scheduler)
    _reply(exchange, success=success)


def _abort_requests(engine: Engine, exchange: Exchange) -> None:
    try:
        body = orjson.loads(exchange.body) if exchange.body else {}
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not JSON: {error}") from error
    wanted = body.get("request_ids") if isinstance(body, dict) else None
    aborted = engine.core.abort_all(counted=False, names=None if not wanted else tuple(map(str, wanted)))
    _reply(exchange, status="aborted", aborted=aborted)


def _server_info(engine: Engine, exchange: Exchange) -> None:
    settings = engine.settings
    config = {
        "model_config": {"model": settings.model, "max_model_len": engine.model.max_model_len},
        "cache_config": {
            "block_size": engine.model.scheduler.block_size,
            "num_gpu_blocks": engine.model.total_blocks,
            "enable_prefix_caching": settings.prefix_caching,
        },
        "parallel_config": {"tensor_parallel_size": settings.tensor, "pipeline_parallel_size": settings.pipeline},
        "scheduler_config": {
            "max_num_seqs": engine.model.scheduler.max_sequences,
            "max_num_batched_tokens": engine.model.scheduler.max_batched_tokens,
            "policy": settings.policy.value,
        },
    }
    _reply(exchange, vllm_config=config)


def _world_size(engine: Engine, exchange: Exchange) -> None:
    _reply(exchange, world_size=engine.settings.tensor * engine.settings.pipeline)


ENDPOINTS: dict[str, dict[str, Endpoint]] = {
    "/pause": {"POST": _pause},
    "/resume": {"POST": _resume},
    "/is_paused": {"GET": _is_paused},
    "/sleep": {"POST": _sleep},
    "/wake_up": {"POST": _wake_up},
    "/is_sleeping": {"GET": _is_sleeping},
    "/reset_prefix_cache": {"POST": _reset_prefix_cache},
    "/abort_requests": {"POST": _abort_requests},
    "/server_info": {"GET": _server_info},
    "/get_world_size": {"GET": _world_size},
    "/weight_info": {"GET": lambda _, exchange: _reply(exchange, weight_version="default")},
}
