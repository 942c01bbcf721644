"""The only client of the API server: plain objects in and out, one time limit a call, failures as ClusterError.

Reads are whole lists, answered from the API server's cache (resourceVersion=0): two requests a cycle whatever the number of
pools. Three kinds of writes:
- the number of workers, by a JSON patch of WorkerPool /scale that tests the number it was decided on and then replaces it, so
  that a number which somebody set in between is never overwritten;
- status, by server-side apply of the whole of our part;
- Events, created.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from forebay_api.election import LeaseConflictError
from forebay_api.names import (
    ACCELERATOR_CLASS_PLURAL,
    API_VERSION,
    AUTOSCALER_MANAGER,
    GROUP,
    MODEL_SERVICE_KIND,
    MODEL_SERVICE_PLURAL,
    VERSION,
    WORKER_POOL_PLURAL,
)
from forebay_autoscaler.errors import ClusterError, ReplicasChangedError
from forebay_autoscaler.observation import ServiceKey

JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"
NO_ANSWER: Final = 0
_CUSTOM = f"/apis/{GROUP}/{VERSION}"
_HPA = "/apis/autoscaling/v2"
_LEASES = "/apis/coordination.k8s.io/v1"


class Api:
    """Requests to the API server with one time limit each."""

    def __init__(self, client_of_api: client.ApiClient, *, timeout_s: float) -> None:
        self._client = client_of_api
        self._timeout_s = timeout_s

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> dict[str, Any]:
        """One request; the answer's object, or ClusterError."""
        what = f"{method} {path}"
        try:
            async with asyncio.timeout(self._timeout_s):
                request = await self._client.param_serialize(
                    method=method,
                    resource_path=quote(path),
                    query_params=list((query or {}).items()),
                    header_params={"Accept": JSON, "Content-Type": content_type},
                    body=body,
                    auth_settings=["BearerToken"],
                )
                response = await self._client.call_api(*request, _request_timeout=self._timeout_s)
                await response.read()
            answer = self._client.response_deserialize(response, {"2XX": "object"}).data
        except ApiException as error:
            raise _refusal(what, error) from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ClusterError(what, status=NO_ANSWER, why=f"{type(error).__name__}: {error}") from error
        return answer if isinstance(answer, dict) else {}

    async def close(self) -> None:
        """Close connections."""
        await self._client.close()


async def connect(kubeconfig: str | None, *, timeout_s: float) -> Api:
    """A client by the kubeconfig file, or by the pod's service account; ClusterError when there is neither."""
    configuration = client.Configuration()
    try:
        if kubeconfig:
            await config.load_kube_config(kubeconfig, client_configuration=configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException as error:
        why = f"{error}; run inside a cluster, or give --kubeconfig"
        raise ClusterError("credentials of the API server", status=NO_ANSWER, why=why) from error
    return Api(client.ApiClient(configuration), timeout_s=timeout_s)


class Cluster:
    """The calls of the autoscaler, and no others."""

    def __init__(self, api: Api, *, namespaces: Sequence[str]) -> None:
        self._api = api
        self._namespaces = tuple(namespaces)

    async def list_model_services(self) -> list[dict[str, Any]]:
        """ModelServices of the watched namespaces."""
        return await self._list_all(MODEL_SERVICE_PLURAL)

    async def list_worker_pools(self) -> list[dict[str, Any]]:
        """WorkerPools of the watched namespaces."""
        return await self._list_all(WORKER_POOL_PLURAL)

    async def list_accelerator_classes(self) -> list[dict[str, Any]]:
        """AcceleratorClasses of the cluster."""
        listed = await self._api.call("GET", f"{_CUSTOM}/{ACCELERATOR_CLASS_PLURAL}", query={"resourceVersion": "0"})
        return list(listed.get("items") or [])

    async def list_horizontal_pod_autoscalers(self, namespace: str) -> list[dict[str, Any]]:
        """HorizontalPodAutoscalers of one namespace."""
        listed = await self._api.call("GET", f"{_HPA}/namespaces/{namespace}/horizontalpodautoscalers")
        return list(listed.get("items") or [])

    async def scale(self, namespace: str, pool: str, *, current: int, desired: int) -> None:
        """Set a WorkerPool's number of workers, if it still is `current`; ReplicasChangedError when it is not."""
        path = f"{_CUSTOM}/namespaces/{namespace}/{WORKER_POOL_PLURAL}/{pool}/scale"
        # A Scale of zero workers has no spec.replicas at all.
        expected = {"path": "/spec/replicas", "value": current} if current else {"path": "/spec", "value": {}}
        patch = [{"op": "test", **expected}, {"op": "add", "path": "/spec/replicas", "value": desired}]
        query = {"fieldManager": AUTOSCALER_MANAGER}
        try:
            await self._api.call("PATCH", path, query=query, body=patch, content_type=JSON_PATCH)
        except ClusterError as error:
            # A failed test says nothing of its cause; a value that the schema refuses says which.
            if error.status == HTTPStatus.UNPROCESSABLE_ENTITY and not error.explained:
                why = f"the number of workers is no longer {current}"
                raise ReplicasChangedError(error.what, status=error.status, why=why) from error
            raise

    async def apply_status(self, key: ServiceKey, status: Mapping[str, Any]) -> None:
        """Make `status` our part of a ModelService's status; what we set before and is not in it goes."""
        namespace, name = key
        body = {
            "apiVersion": API_VERSION,
            "kind": MODEL_SERVICE_KIND,
            "metadata": {"namespace": namespace, "name": name},
            "status": status,
        }
        await self._api.call(
            "PATCH",
            f"{_CUSTOM}/namespaces/{namespace}/{MODEL_SERVICE_PLURAL}/{name}/status",
            query={"fieldManager": AUTOSCALER_MANAGER, "force": "true"},
            body=body,
            content_type=APPLY,
        )

    async def create_event(self, namespace: str, event: Mapping[str, Any]) -> None:
        """Create an Event object."""
        await self._api.call("POST", f"/api/v1/namespaces/{namespace}/events", body=event)

    async def _list_all(self, plural: str) -> list[dict[str, Any]]:
        paths = [f"{_CUSTOM}/namespaces/{namespace}/{plural}" for namespace in self._namespaces]
        items: list[dict[str, Any]] = []
        for path in paths or [f"{_CUSTOM}/{plural}"]:
            listed = await self._api.call("GET", path, query={"resourceVersion": "0"})
            items += listed.get("items") or []
        return items


class Lease:
    """The election's Lease in the API server (forebay_api.election.LeaseStore)."""

    def __init__(self, api: Api, *, namespace: str, name: str) -> None:
        self._api = api
        self._collection = f"{_LEASES}/namespaces/{namespace}/leases"
        self._name = name

    async def read(self) -> dict[str, Any] | None:
        """The Lease, or None."""
        try:
            return await self._api.call("GET", f"{self._collection}/{self._name}")
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def create(self, spec: dict[str, Any]) -> None:
        """Create it; LeaseConflictError when it exists."""
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": spec,
        }
        await self._write("POST", self._collection, body)

    async def replace(self, lease: dict[str, Any]) -> None:
        """Replace it at its resourceVersion; LeaseConflictError when another replica was faster."""
        await self._write("PUT", f"{self._collection}/{self._name}", lease)

    async def _write(self, method: str, path: str, body: dict[str, Any]) -> None:
        try:
            await self._api.call(method, path, body=body)
        except ClusterError as error:
            if error.status == HTTPStatus.CONFLICT:
                raise LeaseConflictError from error
            raise


def _refusal(what: str, error: ApiException) -> ClusterError:
    """The API server's own words, or what stood in its place."""
    body = str(error.body or "")
    try:
        status = json.loads(body)
        why, explained = str(status["message"]), bool((status.get("details") or {}).get("causes"))
    except (ValueError, KeyError, TypeError, AttributeError):
        why, explained = body[:500], False
    return ClusterError(
        what, status=int(error.status or NO_ANSWER), why=f"{error.status} {error.reason}: {why}", explained=explained
    )
