"""Reads snapshots of one model service from the API server.

The API server may be away for a while (a fault test kills it): a reading that fails is no reading, and the caller
keeps the one before.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
from kubernetes import aio as kubernetes

from forebay_api import names
from forebay_cli.timeline import Snapshot, snapshot_of

REQUEST_TIMEOUT_S = 5.0


class ServiceReader:
    """Reads one model service, its pools and its workers."""

    def __init__(self, api: kubernetes.client.ApiClient, *, namespace: str, service: str) -> None:
        self._objects = kubernetes.client.CustomObjectsApi(api)
        self._core = kubernetes.client.CoreV1Api(api)
        self._namespace = namespace
        self._service = service

    async def service(self) -> Mapping[str, Any]:
        """The ModelService as the API server has it."""
        found: Any = await self._objects.get_namespaced_custom_object(
            names.GROUP,
            names.VERSION,
            self._namespace,
            names.MODEL_SERVICE_PLURAL,
            self._service,
            _request_timeout=REQUEST_TIMEOUT_S,
        )
        return cast("Mapping[str, Any]", found)

    async def _pools(self) -> list[Mapping[str, Any]]:
        found: Any = await self._objects.list_namespaced_custom_object(
            names.GROUP, names.VERSION, self._namespace, names.WORKER_POOL_PLURAL, _request_timeout=REQUEST_TIMEOUT_S
        )
        return [one for one in found["items"] if one["spec"]["modelService"] == self._service]

    async def _pods(self) -> list[Mapping[str, Any]]:
        response = await self._core.list_namespaced_pod_without_preload_content(
            self._namespace,
            label_selector=f"{names.MODEL_SERVICE_LABEL}={self._service}",
            _request_timeout=REQUEST_TIMEOUT_S,
        )
        found: list[Mapping[str, Any]] = json.loads(await response.read())["items"]
        return found

    async def snapshot(self, time_s: float) -> Snapshot | None:
        """The service now, stamped with the caller's time; None when the API server did not answer."""
        try:
            pools, pods = await self._pools(), await self._pods()
            return snapshot_of(time_s, await self.service(), pools, pods)  # the status follows what it tells of
        except (kubernetes.client.ApiException, aiohttp.ClientError, TimeoutError, KeyError):
            return None


@asynccontextmanager
async def reading(kubeconfig: Path, *, namespace: str, service: str) -> AsyncIterator[ServiceReader]:
    """A reader with the rights of a kubeconfig."""
    configuration = kubernetes.client.Configuration()
    await kubernetes.config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)
    async with kubernetes.client.ApiClient(configuration) as api:
        yield ServiceReader(api, namespace=namespace, service=service)
