"""Kopf's access to the API server: the same configuration as our own client's, through a session with two habits.

The token is read for each request. A mounted service-account token is rotated while the process runs; a copy kept in a
header would be refused after its life, so the header is set on each request from the file (which the configuration re-reads
once a minute).

A watch is not opened in a hot loop. Kopf reconnects without a pause when a watch ends, which is right when it lived for
minutes. An API server (or a proxy before it) that answers a watch with an immediate end would be asked hundreds of times a
second; so the n-th watch in a row that lived for less than `SHORT_S` is followed by a pause of `PAUSE_FIRST_S * 2 ** (n -
1)`, at most `PAUSE_MAX_S`.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import kopf
from aiohttp.client_middlewares import ClientHandlerType
from kubernetes.aio import client as kubernetes_client

SHORT_S: Final = 5.0
PAUSE_FIRST_S: Final = 0.5
PAUSE_MAX_S: Final = 8.0
LOGIN_PERIOD_S: Final = 1.0
"""Shortest time between two logins, which Kopf asks for after a 401."""


@dataclass(slots=True)
class WatchPacer:
    """How long to wait before a watch is opened; pure but for the clock."""

    now: Callable[[], float]
    _opened_at: dict[str, float] = field(default_factory=dict)
    _short: dict[str, int] = field(default_factory=dict)

    def pause_s(self, path: str) -> float:
        """Seconds to wait before opening the watch of this path; assumes that it is opened then."""
        now = self.now()
        opened_at = self._opened_at.get(path)
        is_short = opened_at is not None and now - opened_at < SHORT_S
        self._short[path] = self._short.get(path, 0) + 1 if is_short else 0
        count = self._short[path]
        pause_s = min(PAUSE_FIRST_S * 2 ** (count - 1), PAUSE_MAX_S) if count else 0.0
        self._opened_at[path] = now + pause_s
        return pause_s


@dataclass(slots=True)
class _Middleware:
    """Sets the token and paces watches."""

    configuration: kubernetes_client.Configuration
    pacer: WatchPacer

    async def __call__(self, request: aiohttp.ClientRequest, handler: ClientHandlerType) -> aiohttp.ClientResponse:
        header = await self.configuration.get_api_key_with_prefix("BearerToken")
        if header:
            scheme, _, token = header.partition(" ")
            request.headers["Authorization"] = f"{scheme.capitalize()} {token}"
        if request.url.query.get("watch") == "true":
            await asyncio.sleep(self.pacer.pause_s(request.url.path))
        return await handler(request)


def register_login(registry: kopf.OperatorRegistry, configuration: kubernetes_client.Configuration) -> None:
    """Let Kopf log in with this configuration."""
    pacer = WatchPacer(time.monotonic)
    logged_in_at = float("-inf")

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        nonlocal logged_in_at
        await asyncio.sleep(max(0.0, logged_in_at + LOGIN_PERIOD_S - time.monotonic()))
        logged_in_at = time.monotonic()
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=_ssl_context(configuration)),
            middlewares=(_Middleware(configuration, pacer),),
        )
        return kopf.AiohttpSession(server=configuration.host, aiohttp_session=session)


def _ssl_context(configuration: kubernetes_client.Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
