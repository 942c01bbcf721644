"""The API server over kubernetes.aio: lists and watches as plain JSON, errors translated."""

import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import orjson
import yaml
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from forebay_router.discovery.listwatch import WATCH_S, ApiFailure, Object

REQUEST_TIMEOUT_S = 30.0
WATCH_SLACK_S = 15.0
"""How much longer than asked for a watch may live before the connection is taken for dead."""


class ApiServer:
    """One API server. The token is read anew each minute, since mounted tokens rotate."""

    def __init__(self, api_client: Any) -> None:
        self._client = api_client

    @classmethod
    async def connect(cls, kubeconfig: str | None = None) -> "ApiServer":
        """With the given kubeconfig, else the pod's credentials, else the current kubeconfig; without any the program ends."""
        configuration = kubernetes_client.Configuration()
        try:
            if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
                kubernetes_config.load_incluster_config(client_configuration=configuration)
            else:
                await kubernetes_config.load_kube_config(kubeconfig, client_configuration=configuration)
        except (
            kubernetes_config.ConfigException,
            yaml.YAMLError,
            OSError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            raise SystemExit(  # the library says of a file that is no kubeconfig only where it stumbled
                f"forebay-router: no credentials for the API server: {error}; "
                "run in a pod with a service account, or set KUBECONFIG"
            ) from error
        configuration.retries = False
        return cls(kubernetes_client.ApiClient(configuration))

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()

    async def _get(self, path: str, query: list[tuple[str, str]], timeout_s: float) -> aiohttp.ClientResponse:
        """The response to a GET, its body not read; raises ApiFailure."""
        try:
            request = await self._client.param_serialize(
                "GET",
                path,
                query_params=query,
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(*request, _request_timeout=aiohttp.ClientTimeout(total=timeout_s))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiFailure(f"{type(error).__name__}: {error}") from error
        response: aiohttp.ClientResponse = answer.response
        if response.status != 200:
            detail = (await response.text())[:500]
            response.release()
            raise ApiFailure(f"{response.status} {response.reason}: {detail}", response.status)
        return response

    async def list(self, path: str, selector: str) -> tuple[Sequence[Object], str]:
        """All objects of a collection and the version of the list; raises ApiFailure."""
        query = [("labelSelector", selector)] if selector else []
        response = await self._get(path, query, REQUEST_TIMEOUT_S)
        try:
            listed = orjson.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            raise ApiFailure(f"{type(error).__name__}: {error}") from error
        return listed["items"], listed["metadata"]["resourceVersion"]

    async def watch(self, path: str, selector: str, version: str) -> AsyncIterator[bytes]:
        """The bytes of a watch as they come; raises ApiFailure."""
        query = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(WATCH_S)),
            ("resourceVersion", version),
        ]
        if selector:
            query.append(("labelSelector", selector))
        response = await self._get(path, query, WATCH_S + WATCH_SLACK_S)
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiFailure(f"{type(error).__name__}: {error}") from error
        finally:
            response.close()
