"""What the routers say themselves, each asked on its control port: how many requests they hold, whom they leave alone.

Requests held are asked for on the way around Prometheus, which may be away just when a request comes for a pool that sleeps, and
workers that are left alone because metrics do not name them. Router pods are found by
their labels in the namespace of the release, anew each time, since a list of a few pods from the API server's cache is cheap and
is asked for by the leader alone. A router that does not answer holds requests that nobody sees; the others count.
"""

import asyncio
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from forebay_api.names import APPLICATION, COMPONENT_LABEL, METRICS_PORT_NAME, NAME_LABEL
from forebay_autoscaler.cluster import Api
from forebay_autoscaler.ejections import Answers, read_answer
from forebay_autoscaler.observation import ServiceKey

_log = logging.getLogger(__name__)

ROUTER_COMPONENT: Final = "router"
PENDING: Final = "forebay_router_requests_pending"
ENDED: Final = ("Succeeded", "Failed")
ROUTERS_MAX: Final = 100
"""Routers asked at most."""


class Routers:
    """The routers of one release."""

    def __init__(self, api: Api, http: httpx.AsyncClient, *, namespace: str) -> None:
        self._api = api
        self._http = http
        self._path = f"/api/v1/namespaces/{namespace}/pods"

    async def held(self) -> dict[ServiceKey, float]:
        """Requests that wait in routers for a worker, by model service; ClusterError when routers cannot be found."""
        held: dict[ServiceKey, float] = {}
        for content in await self._ask_all("/metrics"):
            for key, number in pending_in((content or b"").decode(errors="replace")):
                held[key] = held.get(key, 0.0) + number
        return held

    async def ejected(self) -> Answers:
        """Workers that routers leave alone; ClusterError when routers cannot be found."""
        contents = await self._ask_all("/ejected")
        answers = []
        for content in contents:
            if content is not None:
                with suppress(ValueError):  # a router of an older release, or something else on its port
                    answers.append(read_answer(content))
        return Answers(len(contents), answers)

    async def _ask_all(self, path: str) -> list[bytes | None]:
        """The answer of each router; None of one that gives none, or is one too many to be asked."""
        selector = f"{NAME_LABEL}={APPLICATION},{COMPONENT_LABEL}={ROUTER_COMPONENT}"
        listed = await self._api.call("GET", self._path, query={"labelSelector": selector, "resourceVersion": "0"})
        urls = [url for pod in listed.get("items") or () if (url := control_url(pod)) is not None]
        answers = await asyncio.gather(*(self._read(url + path) for url in urls[:ROUTERS_MAX]))
        return answers + [None] * (len(urls) - len(answers))

    async def _read(self, url: str) -> bytes | None:
        try:
            response = await self._http.get(url)
        except (httpx.HTTPError, OSError) as error:
            _log.debug("router %s does not answer: %s", url, error)
            return None
        return response.content if response.status_code == httpx.codes.OK else None


def control_url(pod: Mapping[str, Any]) -> str | None:
    """The control port of a router pod; None while it has no address or no such port, and when it has ended."""
    status = pod.get("status") or {}
    address = status.get("podIP")
    containers = (pod.get("spec") or {}).get("containers") or ()
    ports = [port for container in containers for port in container.get("ports") or ()]
    number = next((port.get("containerPort") for port in ports if port.get("name") == METRICS_PORT_NAME), None)
    if not address or number is None or status.get("phase") in ENDED:
        return None
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{number}"


def pending_in(text: str) -> Iterator[tuple[ServiceKey, float]]:
    """Requests held, of each model service, in a router's exposition; what is no number is left out."""
    lines = [line for line in text.splitlines() if line.startswith(PENDING + "{")]
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except ValueError:
        return
    for sample in (sample for family in families for sample in family.samples):
        namespace, name = sample.labels.get("namespace"), sample.labels.get("model_service")
        if namespace and name and math.isfinite(sample.value) and sample.value >= 0:
            yield (namespace, name), sample.value
