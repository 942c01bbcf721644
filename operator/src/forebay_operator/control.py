"""The control port: /metrics, /healthz and /readyz, served from a thread of its own.

The thread answers while the event loop is busy (a resync of many objects), and it can tell busy from stuck: the loop sets a
heartbeat, and /healthz fails only when that is older than `STUCK_AFTER_S`. So a busy operator is left alone and one whose
loop turns for ever is restarted. /readyz is about serving as leader *or* standby: a standby that can reach the API server is
ready.
"""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

STUCK_AFTER_S: Final = 60.0
HEARTBEAT_PERIOD_S: Final = 1.0
REQUEST_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.1
"""How often the thread looks whether it is to end."""


@dataclass(slots=True)
class Health:
    """What the probes see. Written by the event loop, read by the control thread; each field is one assignment."""

    now: Callable[[], float] = time.monotonic
    heartbeat: float = field(default_factory=time.monotonic)
    """When the event loop last turned."""
    not_ready_because: str | None = "starting"
    """What is waited for; None when nothing is."""
    leading: bool = False
    outdated_crds: str | None = None
    """Which fields the API server's CRDs lack; None when none, or when it is not known."""

    @property
    def unready_reason(self) -> str | None:
        """What /readyz says; None when ready."""
        return self.not_ready_because or self.outdated_crds

    def beat(self) -> None:
        """Called by the event loop, at least every `HEARTBEAT_PERIOD_S`."""
        self.heartbeat = self.now()

    @property
    def stuck_s(self) -> float:
        """Seconds since the event loop last turned."""
        return self.now() - self.heartbeat


class _Server(ThreadingHTTPServer):
    """Of the address's own family; each request has a thread, which does not keep the process."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)


class ControlServer:
    """Serves the control port between `__enter__` and `__exit__`."""

    def __init__(self, address: tuple[str, int], health: Health, registry: CollectorRegistry) -> None:
        self._server = _Server(address, _handler(health, registry))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="control", daemon=True)

    @property
    def port(self) -> int:
        """The bound port, also where 0 was asked for."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(health: Health, registry: CollectorRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """One request on the control port."""

        timeout = REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            """Answer one of the three paths."""
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
            elif path == "/healthz":
                alive = health.stuck_s < STUCK_AFTER_S
                self._answer_json(
                    200 if alive else 503, {"alive": alive, "heartbeatAgeSeconds": round(health.stuck_s, 3)}
                )
            elif path == "/readyz":
                because = health.unready_reason
                body = {"ready": because is None, "leading": health.leading, "reason": because}
                self._answer_json(200 if because is None else 503, body)
            else:
                self._answer_json(404, {"error": "paths are /metrics, /healthz and /readyz"})

        def _answer_json(self, status: int, body: dict[str, Any]) -> None:
            self._answer(status, json.dumps(body).encode(), "application/json")

        def _answer(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class names it so
            """Requests are logged at debug level only; probes come every few seconds."""
            logging.getLogger(__name__).debug(format, *arguments)

    return Handler
