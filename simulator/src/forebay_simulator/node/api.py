"""The API server: plain JSON in and out, errors translated once."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp
import kubernetes.aio.client as kubernetes_client
import kubernetes.aio.config as kubernetes_config

from forebay_simulator.node.errors import (
    ApiConflictError,
    ApiError,
    ApiForbiddenError,
    ApiGoneError,
    ApiNotFoundError,
    ApiUnavailableError,
    SettingsError,
)

STRATEGIC_MERGE = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
WATCH_TIMEOUT_S = 300
_REQUEST_TIMEOUT_S = 10.0
_WATCH_SLACK_S = 20.0
_ERRORS: Mapping[int, type[ApiError]] = {
    401: ApiForbiddenError,
    403: ApiForbiddenError,
    404: ApiNotFoundError,
    409: ApiConflictError,
    410: ApiGoneError,
    429: ApiUnavailableError,
}

Object = dict[str, Any]


def error_for(status: int, message: str) -> ApiError:
    """The error that a status code stands for."""
    kind = ApiUnavailableError if status >= 500 else _ERRORS.get(status, ApiError)
    return kind(status, message)


class Api:
    """One identity at one API server."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    async def connect(cls, kubeconfig: Path, scratch: Path) -> "Api":
        """Read a kubeconfig; nothing is sent yet. Certificates within it pass through `scratch`. Raises SettingsError."""
        configuration = kubernetes_client.Configuration()
        try:
            await kubernetes_config.load_kube_config(
                str(kubeconfig), client_configuration=configuration, persist_config=False, temp_file_path=str(scratch)
            )
        except (kubernetes_config.ConfigException, OSError) as error:
            raise SettingsError(f"--kubeconfig {kubeconfig}: {error}") from error
        configuration.retries = False  # a caller that may try again does so itself, within its own bound
        return cls(kubernetes_client.ApiClient(configuration))

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port of the API server."""
        parts = urlsplit(self._client.configuration.host)
        return parts.hostname or "", parts.port or 443

    @property
    def certificate(self) -> tuple[Path, Path] | None:
        """Files of the client certificate and its key; None for an identity by token."""
        configuration = self._client.configuration
        if not configuration.cert_file or not configuration.key_file:
            return None
        return Path(configuration.cert_file), Path(configuration.key_file)

    async def get(self, path: str, **parameters: Any) -> Object:
        """Read an object or list."""
        return await self._call("GET", path, parameters=parameters)

    async def create(self, path: str, body: Mapping[str, Any]) -> Object:
        """POST to a collection or a subresource."""
        return await self._call("POST", path, body=body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Object:
        """PUT an object."""
        return await self._call("PUT", path, body=body)

    async def patch(self, path: str, body: Mapping[str, Any], *, kind: str = STRATEGIC_MERGE) -> Object:
        """PATCH an object."""
        return await self._call("PATCH", path, body=body, content_type=kind)

    async def delete(self, path: str, body: Mapping[str, Any]) -> Object:
        """DELETE an object; `body` holds the options."""
        return await self._call("DELETE", path, body=body)

    async def watch(self, path: str, **parameters: Any) -> AsyncIterator[Object]:
        """Events until the server ends the watch. Raises ApiGoneError when `resourceVersion` is too old."""
        parameters |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": WATCH_TIMEOUT_S}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=WATCH_TIMEOUT_S + _WATCH_SLACK_S)
        response = await self._send("GET", path, parameters=parameters, timeout=timeout)
        try:
            if response.status != 200:
                raise error_for(response.status, await _message(response))
            async for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise error_for(event["object"].get("code", 500), event["object"].get("message", "watch failed"))
                yield event
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ApiUnavailableError(0, f"watch of {path} broke: {error!r}") from error
        finally:
            response.close()

    async def _call(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S)
        response = await self._send(
            method, path, parameters=parameters, body=body, content_type=content_type, timeout=timeout
        )
        try:
            if response.status >= 300:
                raise error_for(response.status, await _message(response))
            answer: Object = json.loads(await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ApiUnavailableError(0, f"{method} {path}: {error!r}") from error
        finally:
            response.release()
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - handed to the HTTP client
        parameters: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        url = f"{path}?{urlencode(parameters)}" if parameters else path
        try:
            request = await self._client.param_serialize(
                method, url, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            answer = await self._client.call_api(*request, _request_timeout=timeout)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ApiUnavailableError(0, f"{method} {path}: {error!r}") from error
        response: aiohttp.ClientResponse = answer.response
        return response


async def _message(response: aiohttp.ClientResponse) -> str:
    text = await response.text()
    try:
        return str(json.loads(text).get("message", text))
    except ValueError:
        return text[:500]


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length; the reader's own line iteration has a bound that a large object breaks."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
