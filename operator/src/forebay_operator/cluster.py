"""The only API client of the operator.

`Cluster` is the port: eight verbs on JSON objects. `KubernetesCluster` speaks it to a real API server through the official
client's asyncio half; tests speak it to a fake that applies. Every write of desired state is a server-side apply: the server
merges by field owner, so an apply of the same manifest changes nothing (not even the resource version), a field that we
stop naming is removed, and fields of other writers stay.

Every call has a deadline. Failures are translated into the tree of `errors` here and nowhere else. There is no retry here:
the keyed queue retries a whole reconciliation with back-off, which starts from fresh reads.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, Self

import aiohttp
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from forebay_api.names import API_VERSION, OPERATOR_MANAGER
from forebay_operator.errors import (
    ApiCall,
    ApiConflictError,
    ApiError,
    ApiForbiddenError,
    ApiInvalidError,
    ApiNotFoundError,
    ApiTerminatingError,
    ApiUnavailableError,
    LeaseLostError,
)
from forebay_operator.resources import Manifest, Resource, name_of

APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
JSON: Final = "application/json"
KIND_OF_SCHEMA: Final = "x-kubernetes-group-version-kind"
MESSAGE_LENGTH_MAX: Final = 2000
"""Characters of an error body that are kept when it is not a Kubernetes Status."""


class Cluster(Protocol):
    """What the operator asks of the API server. Every method raises `ApiError` or one of its leaves."""

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Manifest | None:
        """The object, or None where it does not exist."""

    async def find(self, resource: Resource, namespace: str | None, labels: Mapping[str, str]) -> list[Manifest]:
        """The objects with all of these labels, in one namespace or (None) in all of them."""

    async def apply(self, resource: Resource, manifest: Manifest, *, manager: str = OPERATOR_MANAGER) -> Manifest:
        """Server-side apply, forced; what the server has stored afterwards."""

    async def apply_status(
        self, resource: Resource, manifest: Manifest, *, manager: str = OPERATOR_MANAGER
    ) -> Manifest:
        """Server-side apply of the status subresource; what the server has stored afterwards."""

    async def patch(
        self, resource: Resource, namespace: str | None, name: str, patch: Manifest, *, subresource: str | None = None
    ) -> Manifest:
        """JSON merge patch; None removes a key, `metadata.uid` or `metadata.resourceVersion` make it conditional."""

    async def create(self, resource: Resource, manifest: Manifest) -> Manifest:
        """Create; `ApiConflictError` when it exists."""

    async def replace(self, resource: Resource, manifest: Manifest) -> Manifest:
        """Replace; `ApiConflictError` when `metadata.resourceVersion` is not the stored one."""

    async def delete(self, resource: Resource, namespace: str | None, name: str, *, uid: str) -> None:
        """Delete that very object in the background; absent is success."""


class KubernetesCluster:
    """`Cluster` on a real API server. Use as an async context manager."""

    def __init__(
        self,
        configuration: kubernetes_client.Configuration,
        *,
        timeout_s: float,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_write` is asked before each write; a write that may not happen raises `LeaseLostError`."""
        self._client = kubernetes_client.ApiClient(configuration)
        self._may_write = may_write
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Manifest | None:
        """See `Cluster`."""
        call = ApiCall("get", resource.kind, namespace, name)
        try:
            return await self._request(call, "GET", resource.path(namespace, name))
        except ApiNotFoundError:
            return None

    async def find(self, resource: Resource, namespace: str | None, labels: Mapping[str, str]) -> list[Manifest]:
        """See `Cluster`."""
        call = ApiCall("list", resource.kind, namespace, None)
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())} if labels else {}
        answer = await self._request(call, "GET", resource.path(namespace), query=query)
        items: list[Manifest] = answer["items"]
        return items

    async def apply(self, resource: Resource, manifest: Manifest, *, manager: str = OPERATOR_MANAGER) -> Manifest:
        """See `Cluster`."""
        return await self._apply(resource, manifest, manager=manager, subresource=None)

    async def apply_status(
        self, resource: Resource, manifest: Manifest, *, manager: str = OPERATOR_MANAGER
    ) -> Manifest:
        """See `Cluster`."""
        return await self._apply(resource, manifest, manager=manager, subresource="status")

    async def patch(
        self, resource: Resource, namespace: str | None, name: str, patch: Manifest, *, subresource: str | None = None
    ) -> Manifest:
        """See `Cluster`."""
        call = ApiCall("patch", resource.kind, namespace, name)
        path = resource.path(namespace, name, subresource)
        query = {"fieldManager": OPERATOR_MANAGER}
        return await self._request(call, "PATCH", path, query=query, body=patch, content_type=MERGE)

    async def create(self, resource: Resource, manifest: Manifest) -> Manifest:
        """See `Cluster`."""
        namespace = manifest["metadata"].get("namespace")
        call = ApiCall("create", resource.kind, namespace, manifest["metadata"].get("name"))
        query = {"fieldManager": OPERATOR_MANAGER}
        return await self._request(call, "POST", resource.path(namespace), query=query, body=manifest)

    async def replace(self, resource: Resource, manifest: Manifest) -> Manifest:
        """See `Cluster`."""
        namespace = manifest["metadata"].get("namespace")
        call = ApiCall("update", resource.kind, namespace, name_of(manifest))
        query = {"fieldManager": OPERATOR_MANAGER}
        path = resource.path(namespace, name_of(manifest))
        return await self._request(call, "PUT", path, query=query, body=manifest)

    async def delete(self, resource: Resource, namespace: str | None, name: str, *, uid: str) -> None:
        """See `Cluster`."""
        call = ApiCall("delete", resource.kind, namespace, name)
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._request(call, "DELETE", resource.path(namespace, name), body=options)
        except ApiNotFoundError:
            return

    async def served_schemas(self) -> dict[str, Manifest]:
        """See `forebay_operator.schemas.SchemaSource`."""
        call = ApiCall("describe", API_VERSION, None, None)
        try:
            document = await self._request(call, "GET", f"/openapi/v3/apis/{API_VERSION}")
        except ApiNotFoundError:
            return {}
        schemas: dict[str, Manifest] = document["components"]["schemas"]
        kinds = [(kind["kind"], one) for one in schemas.values() for kind in one.get(KIND_OF_SCHEMA, ())]
        return {kind: schema for kind, schema in kinds if "spec" in schema.get("properties", {})}

    async def _apply(
        self, resource: Resource, manifest: Manifest, *, manager: str, subresource: str | None
    ) -> Manifest:
        namespace = manifest["metadata"].get("namespace")
        name = name_of(manifest)
        call = ApiCall("apply" if subresource is None else f"apply {subresource} of", resource.kind, namespace, name)
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **manifest}
        query = {"fieldManager": manager, "force": "true"}
        path = resource.path(namespace, name, subresource)
        return await self._request(call, "PATCH", path, query=query, body=body, content_type=APPLY)

    async def _request(
        self,
        call: ApiCall,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = JSON,
    ) -> Manifest:
        if method != "GET" and not self._may_write():
            raise LeaseLostError(f"cannot {call}: this process does not hold the lease")
        try:
            prepared = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": JSON, "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(*prepared, _request_timeout=self._timeout)
            payload = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            raise ApiUnavailableError(call, str(e) or type(e).__name__) from e
        if response.status >= 400:
            raise _error(call, response.status, payload)
        answer: Manifest = json.loads(payload)
        return answer


def _error(call: ApiCall, status: int, payload: bytes) -> ApiError:
    """The leaf of the error tree for one answer."""
    answer = _status(payload)
    message = str(answer.get("message") or payload.decode(errors="replace")[:MESSAGE_LENGTH_MAX])
    causes = (answer.get("details") or {}).get("causes") or []
    if status == 403 and any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return ApiTerminatingError(call, message, status)
    if status == 403:
        return ApiForbiddenError(call, message, status)
    if status == 404:
        return ApiNotFoundError(call, message, status)
    if status == 409:
        return ApiConflictError(call, message, status)
    if status in {401, 429} or status >= 500:  # a token is replaced while we run, so 401 passes
        return ApiUnavailableError(call, message, status)
    return ApiInvalidError(call, message, status)


def _status(payload: bytes) -> Manifest:
    """The Kubernetes Status that an error answer carries; empty when it carries something else."""
    try:
        status: Any = json.loads(payload)
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}


async def load_configuration() -> kubernetes_client.Configuration:
    """Access to the API server: the pod's service account, or KUBECONFIG and its usual places outside a cluster."""
    configuration = kubernetes_client.Configuration()
    try:
        kubernetes_config.load_incluster_config(client_configuration=configuration)
    except kubernetes_config.ConfigException:
        await kubernetes_config.load_kube_config(client_configuration=configuration)
    return configuration
