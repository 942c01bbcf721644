"""The ConfigMaps that hold saved states, in the namespace of the Lease: `<name>-state-0` and so on."""

from collections.abc import Mapping
from http import HTTPStatus

from forebay_api.names import APPLICATION, AUTOSCALER_MANAGER, MANAGED_BY_LABEL, NAME_LABEL
from forebay_autoscaler.cluster import JSON_PATCH, Api
from forebay_autoscaler.errors import ClusterError


class ConfigMaps:
    """Reads and writes them whole. Only one replica writes."""

    def __init__(self, api: Api, *, namespace: str, name: str) -> None:
        self._api = api
        self._collection = f"/api/v1/namespaces/{namespace}/configmaps"
        self._name = name

    def name_of(self, number: int) -> str:
        """Name of the ConfigMap with this number."""
        return f"{self._name}-state-{number}"

    async def read(self, number: int) -> dict[str, str]:
        """What it holds; nothing when it does not exist. ClusterError otherwise."""
        try:
            found = await self._api.call("GET", f"{self._collection}/{self.name_of(number)}")
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return {}
            raise
        return dict(found.get("data") or {})

    async def write(self, number: int, data: Mapping[str, str]) -> None:
        """Make `data` what it holds; its labels, which may be another's, stay. ClusterError when it could not be."""
        name, query = self.name_of(number), {"fieldManager": AUTOSCALER_MANAGER}
        patch = [{"op": "add", "path": "/data", "value": dict(data)}]
        try:
            await self._api.call(
                "PATCH", f"{self._collection}/{name}", query=query, body=patch, content_type=JSON_PATCH
            )
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            labels = {NAME_LABEL: APPLICATION, MANAGED_BY_LABEL: AUTOSCALER_MANAGER}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}
            await self._api.call("POST", self._collection, query=query, body={**body, "data": dict(data)})
