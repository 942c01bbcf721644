"""Endpoints for developers and for what watches the KV cache: pause, sleep, cache reset, abort, event sources."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from forebay_simulator.engine.engine import Engine
from forebay_simulator.engine.server import Exchange

Endpoint = Callable[[Engine, Exchange], None]


def event_sources(engine: Engine, exchange: Exchange) -> None:
    """Answer GET /kv_event_sources."""
    sources = {} if engine.events is None else {"0": engine.events.source()}
    exchange.reply(200, orjson.dumps(sources))


ENDPOINTS: dict[str, dict[str, Endpoint]] = {}
