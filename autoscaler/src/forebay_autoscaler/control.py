"""The control port: health, metrics, and the decisions with all their inputs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from forebay_autoscaler.codec import record_object
from forebay_autoscaler.loop import Loop

LATE_CYCLES = 5
"""Cycles that may be missed before the process counts as stuck."""
LATE_S = 60.0
"""And at least this long: the API server may be away for a while without a restart here being of help."""


def build_app(loop: Loop) -> FastAPI:
    """The application, on a loop."""
    app = FastAPI(title="Forebay autoscaler", docs_url=None, redoc_url=None)

    @app.get("/healthz")
    def healthz() -> dict[str, Any]:
        """200 while the process answers: a restart would not bring a lost API server or Prometheus back."""
        return {"status": "ok", "leading": loop.leadership.leading, "seconds_since_cycle": _since(loop)}

    @app.get("/readyz")
    def readyz(response: Response) -> dict[str, Any]:
        """200 once model services are looked at, and as long as cycles succeed."""
        since_s = _since(loop)
        ready = since_s is not None and since_s < max(LATE_S, LATE_CYCLES * loop.interval_s)
        response.status_code = 200 if ready else 503
        return {"status": "ok" if ready else "no cycle succeeded lately", "seconds_since_cycle": since_s}

    @app.get("/metrics")
    async def metrics() -> Response:
        """In the loop, not on a thread: a scrape must not see the series of decisions half replaced."""
        return Response(generate_latest(loop.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/decisions")
    def decisions(
        namespace: str | None = None,
        model_service: str | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    ) -> list[dict[str, Any]]:
        """The newest decisions first, with inputs, reasons and rejected options."""
        chosen = loop.history.select(namespace=namespace, model_service=model_service, limit=limit)
        return [record_object(record) for record in chosen]

    return app


def _since(loop: Loop) -> float | None:
    return None if loop.cycled_s is None else round(loop.clock() - loop.cycled_s, 3)


class ControlServer(uvicorn.Server):
    """A server inside a process that handles its own signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def build_server(app: FastAPI, host: str, port: int) -> ControlServer:
    """A server for the control port; `serve()` runs it until cancelled."""
    return ControlServer(
        uvicorn.Config(
            app, host=host, port=port, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
    )
