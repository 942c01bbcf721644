"""Sources for contract tests, started once a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .sources import ALL, EVENTS, LIVE, STARTERS, CapturedSource, LiveSource, Source


@pytest.fixture(scope="module", params=ALL)
def source(request) -> Iterator[Source]:
    """Each source in turn; a live one publishes KV events, as the captured engine did."""
    if request.param == "captured":
        yield CapturedSource()
        return
    with STARTERS[request.param]("--kv-events-config", EVENTS) as engine:
        yield LiveSource(request.param, engine)


@pytest.fixture(scope="module", params=LIVE)
def start(request):
    """The function that starts an engine of each live kind."""
    return STARTERS[request.param]


@pytest.fixture(scope="module", params=ALL)
def any_start(request):
    """As `start`, or None for the captures."""
    return STARTERS.get(request.param)
