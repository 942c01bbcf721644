"""The data plane as a whole: what happens to each request, and the one timer.

Requests the router answers itself (models, health, preflight, errors) take no worker; all others become an `Exchange`.

One sweep every `TICK_S` enforces all time limits (first byte, idle, total, client idle): setting a timer a request and moving
it with each token would cost more than relaying the token. Limits are therefore kept to within a quarter of a second.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from forebay_router import errors
from forebay_router.client import ClientConnection, ClientConnections, Work
from forebay_router.endpoints import ENDPOINTS, HEALTH_PATHS, MODELS_PATH
from forebay_router.headers import request_id
from forebay_router.mesh.sockets import Mesh
from forebay_router.reading import Received
from forebay_router.relay import Exchange, Tools
from forebay_router.replies import Cors, ModelList, write_json, write_refusal
from forebay_router.reply import Reply
from forebay_router.table import Worker, WorkerTable
from forebay_router.upstream import Upstreams

log = logging.getLogger(__name__)

TICK_S = 0.25
_GET = frozenset({b"GET", b"HEAD"})


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """How long a client may take."""

    idle_s: float
    """Between two requests."""
    request_s: float
    """For sending one request."""


@dataclass(slots=True)
class Router:
    """Serves requests."""

    table: WorkerTable
    tools: Tools
    cors: Cors
    client_limits: ClientLimits
    models: ModelList = field(init=False)
    connections: ClientConnections | None = None
    """Set by `listen_with`."""
    mesh: Mesh | None = None
    """The other replicas, where there may be any."""

    def __post_init__(self) -> None:
        """Listen to the table."""
        self.models = ModelList(self.table, {})
        self.table.on_gone.append(self._close_idle)

    @staticmethod
    def _close_idle(worker: Worker) -> None:
        Upstreams.close_idle(worker.peer)

    def serve(self, received: Received, client: ClientConnection) -> Work | None:
        """Answer one request at once, or return what will."""
        identity = request_id(received.fields)
        lines = b"x-request-id: %b\r\n" % identity
        if self.cors.origins:
            lines += self.cors.lines(received)
        endpoint = ENDPOINTS.get(received.path)
        if endpoint is not None and received.method == b"POST" and received.refused is None:
            reply = Reply(client, received, endpoint.shape, lines)
            return Exchange(self.tools, endpoint, received, identity, reply)
        try:
            self._answer(received, client, lines)
        except errors.RequestRefused as refused:
            self.tools.unknown_stats.count_response(refused.status)
            self.tools.access_log.write_refused(refused, request_id=identity, path=received.path)
            write_refusal(client, received, refused, lines)
        return None

    def _answer(self, received: Received, client: ClientConnection, lines: bytes) -> None:
        """Requests that need no worker; raises RequestRefused."""
        if received.refused is not None:
            raise received.refused
        if received.method == b"OPTIONS" and self.cors.origins:
            client.whole(received, 204, self.cors.preflight_lines(received), b"")
            return
        path = received.path
        if path in ENDPOINTS:
            raise errors.method_not_allowed(_text(received.method), _text(path), "POST")
        if path == MODELS_PATH or path.startswith(MODELS_PATH + b"/") or path in HEALTH_PATHS:
            if received.method not in _GET:
                raise errors.method_not_allowed(_text(received.method), _text(path), "GET")
            self._answer_get(received, client, lines)
            return
        raise errors.not_found(_text(path))

    def _answer_get(self, received: Received, client: ClientConnection, lines: bytes) -> None:
        path = received.path
        if path in HEALTH_PATHS:
            if not self.ready:
                raise errors.RequestRefused(
                    503, "The router is not ready.", type="service_unavailable", code="not_ready"
                )
            write_json(client, received, b'{"status":"ok"}', lines)
        elif path == MODELS_PATH:
            write_json(client, received, self.models.body(received.grant), lines)
        else:
            model = unquote_to_bytes(path[len(MODELS_PATH) + 1 :]).decode(errors="replace")
            body = self.models.one(model, received.grant)
            if body is None:
                raise errors.unknown_model(model)
            write_json(client, received, body, lines)

    @property
    def ready(self) -> bool:
        """New requests are welcome: the workers are known and no drain has begun."""
        draining = self.connections is not None and self.connections.draining
        return self.table.complete and not draining

    async def sweep(self) -> None:
        """Enforce time limits, for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            self.tools.upstreams.sweep([worker.peer for worker in self.table.workers.values()], now_s)
            self.tools.placing.guard.sweep(now_s)
            self.tools.protection.sweep(now_s, replicas=1 + len(self.mesh.peers.known) if self.mesh else 1)
            if self.connections is not None:
                self.connections.sweep(now_s, idle_s=self.client_limits.idle_s, request_s=self.client_limits.request_s)


def _text(value: bytes) -> str:
    return value[:200].decode(errors="replace")
