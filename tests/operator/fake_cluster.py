"""A cluster in memory that applies as the API server does, for reconciliations without one.

What matters here is kept: field ownership (what a manager stops naming goes, unless another names it), resource versions that
move only on change, generations that move only with the spec, UID preconditions, status as a part of its own. Schemas,
defaults and admission are the real server's, and tested there.
"""

import copy
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from forebay_api.names import OPERATOR_MANAGER
from forebay_operator.errors import ApiCall, ApiConflictError, ApiError, ApiNotFoundError
from forebay_operator.resources import Manifest, Resource

LIST_KEYS = {"conditions": "type", "pools": "name", "ownerReferences": "uid", "containers": "name", "env": "name"}
Address = tuple[str, str, str]


class FakeCluster:
    """See the module's docstring. `calls` records the verbs, `fail` may raise for one call."""

    def __init__(self) -> None:
        self.objects: dict[Address, Manifest] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.fail: Callable[[ApiCall], ApiError | None] = lambda _call: None
        self._applied: dict[tuple[Address, str, str], Manifest] = {}
        self._numbers = itertools.count(1)

    # What the operator calls.

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Manifest | None:
        self._note("get", resource, namespace, name)
        found = self.objects.get(self._address(resource, namespace, name))
        return copy.deepcopy(found)

    async def find(self, resource: Resource, namespace: str | None, labels: Mapping[str, str]) -> list[Manifest]:
        self._note("find", resource, namespace, "")
        return [
            copy.deepcopy(stored)
            for (kind, where, _), stored in sorted(self.objects.items())
            if kind == resource.kind
            and namespace in {None, where}
            and all((stored["metadata"].get("labels") or {}).get(key) == value for key, value in labels.items())
        ]

    async def apply(self, resource: Resource, manifest: Manifest, *, manager: str = OPERATOR_MANAGER) -> Manifest:
        return self._apply(resource, manifest, manager=manager, part="")

    async def apply_status(
        self, resource: Resource, manifest: Manifest, *, manager: str = OPERATOR_MANAGER
    ) -> Manifest:
        return self._apply(resource, manifest, manager=manager, part="status")

    async def patch(
        self, resource: Resource, namespace: str | None, name: str, patch: Manifest, *, subresource: str | None = None
    ) -> Manifest:
        call = self._note("patch", resource, namespace, name)
        address = self._address(resource, namespace, name)
        stored = self.objects.get(address)
        if stored is None:
            raise ApiNotFoundError(call, "not found", 404)
        uid = (patch.get("metadata") or {}).get("uid", stored["metadata"]["uid"])
        if uid != stored["metadata"]["uid"]:
            raise ApiConflictError(call, "uid differs", 409)
        for (where, manager, _), applied in self._applied.items():
            if where == address and subresource == "scale" and manager != OPERATOR_MANAGER:
                applied.get("spec", {}).pop("replicas", None)
        return self._store(address, merge_patch(copy.deepcopy(stored), patch))

    async def create(self, resource: Resource, manifest: Manifest) -> Manifest:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"].get("namespace")
        call = self._note("create", resource, namespace, name)
        address = self._address(resource, namespace, name)
        if address in self.objects:
            raise ApiConflictError(call, "exists", 409)
        return self._store(address, copy.deepcopy(manifest))

    async def replace(self, resource: Resource, manifest: Manifest) -> Manifest:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"].get("namespace")
        call = self._note("update", resource, namespace, name)
        address = self._address(resource, namespace, name)
        if self.objects[address]["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]:
            raise ApiConflictError(call, "changed", 409)
        return self._store(address, copy.deepcopy(manifest))

    async def delete(self, resource: Resource, namespace: str | None, name: str, *, uid: str) -> None:
        call = self._note("delete", resource, namespace, name)
        address = self._address(resource, namespace, name)
        stored = self.objects.get(address)
        if stored is not None and stored["metadata"]["uid"] != uid:
            raise ApiConflictError(call, "uid differs", 409)
        self.remove(resource, namespace, name)

    # What tests call.

    def add(self, resource: Resource, manifest: Manifest) -> Manifest:
        """Put an object there as somebody else would."""
        metadata = manifest["metadata"]
        return self._store(
            self._address(resource, metadata.get("namespace"), metadata["name"]), copy.deepcopy(manifest)
        )

    def edit(self, resource: Resource, namespace: str, name: str, patch: Manifest) -> Manifest:
        """Change an object as somebody else would."""
        address = self._address(resource, namespace, name)
        return self._store(address, merge_patch(copy.deepcopy(self.objects[address]), patch))

    def remove(self, resource: Resource, namespace: str | None, name: str) -> None:
        address = self._address(resource, namespace, name)
        self.objects.pop(address, None)
        self._applied = {key: value for key, value in self._applied.items() if key[0] != address}

    def see(self, resource: Resource, name: str, namespace: str = "team") -> Manifest:
        """The stored object."""
        return self.objects[self._address(resource, namespace, name)]

    def names(self, resource: Resource) -> list[str]:
        return sorted(name for kind, _, name in self.objects if kind == resource.kind)

    def writes(self) -> list[tuple[str, str, str]]:
        """Calls that may change something."""
        return [call for call in self.calls if call[0] not in {"get", "find"}]

    # How it works.

    def _note(self, verb: str, resource: Resource, namespace: str | None, name: str) -> ApiCall:
        self.calls.append((verb, resource.kind, name))
        call = ApiCall(verb, resource.kind, namespace, name)
        error = self.fail(call)
        if error is not None:
            raise error
        return call

    @staticmethod
    def _address(resource: Resource, namespace: str | None, name: str) -> Address:
        return resource.kind, namespace if resource.namespaced and namespace else "", name

    def _apply(self, resource: Resource, manifest: Manifest, *, manager: str, part: str) -> Manifest:
        metadata = manifest["metadata"]
        self._note(f"apply{' ' if part else ''}{part}", resource, metadata.get("namespace"), metadata["name"])
        address = self._address(resource, metadata.get("namespace"), metadata["name"])
        before = copy.deepcopy(self.objects.get(address, {"metadata": {}}))
        key = (address, manager, part)
        others = [
            value
            for (where, who, what), value in self._applied.items()
            if where == address and (who, what) != (manager, part)
        ]
        made = drop_unnamed(before, self._applied.get(key, {}), manifest, others)
        made = merge(made, copy.deepcopy(manifest))
        self._applied[key] = copy.deepcopy(manifest)
        made["metadata"]["managedFields"] = self._managed_fields(address)
        return self._store(address, made)

    def _managed_fields(self, address: Address) -> list[Manifest]:
        return [
            {
                "manager": manager,
                "operation": "Apply",
                "fieldsV1": {"f:spec": {f"f:{key}": {} for key in applied.get("spec") or {}}},
            }
            for (where, manager, part), applied in sorted(self._applied.items(), key=str)
            if where == address and not part
        ]

    def _store(self, address: Address, made: Manifest) -> Manifest:
        before = self.objects.get(address)
        _kind, namespace, name = address
        metadata = made["metadata"]
        metadata.setdefault("name", name)
        if namespace:
            metadata.setdefault("namespace", namespace)
        metadata.setdefault("uid", f"uid-{next(self._numbers)}")
        metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        metadata.setdefault("generation", 1)
        metadata.setdefault("resourceVersion", "0")
        if before is not None and before.get("spec") != made.get("spec"):
            metadata["generation"] = before["metadata"]["generation"] + 1
        if before is None or _without_version(before) != _without_version(made):
            metadata["resourceVersion"] = str(next(self._numbers))
        self.objects[address] = made
        return copy.deepcopy(made)


def _without_version(stored: Manifest) -> Manifest:
    metadata = {k: v for k, v in stored["metadata"].items() if k not in {"resourceVersion", "managedFields"}}
    return {**stored, "metadata": metadata}


def merge(base: Any, over: Any, key: str = "") -> Any:
    """`over` on `base`: dicts by key, keyed lists by item, everything else replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{name: merge(base.get(name), value, name) for name, value in over.items()}}
    if isinstance(base, list) and isinstance(over, list) and key in LIST_KEYS:
        by = LIST_KEYS[key]
        merged = {item[by]: item for item in base}
        merged |= {item[by]: merge(merged.get(item[by]), item) for item in over}
        return list(merged.values())
    return over


def drop_unnamed(stored: Any, was: Any, now: Any, others: list[Any], key: str = "") -> Any:
    """`stored` without what a manager named before, names no more, and nobody else names."""
    if isinstance(stored, dict) and isinstance(was, dict):
        now, kept = now if isinstance(now, dict) else {}, {}
        for name, value in stored.items():
            rest = [other[name] for other in others if isinstance(other, dict) and name in other]
            if name in was and name not in now and not rest:
                continue
            kept[name] = drop_unnamed(value, was.get(name), now.get(name), rest, name)
        return kept
    if isinstance(stored, list) and isinstance(was, list) and key in LIST_KEYS:
        by = LIST_KEYS[key]
        named = {item[by] for item in [*(now or []), *(item for other in others for item in other)]}
        gone = {item[by] for item in was} - named

        def named_as(one: Any, items: list[Any]) -> Any:
            return next((item for item in items if item[by] == one[by]), {})

        return [
            drop_unnamed(
                item, named_as(item, was), named_as(item, now or []), [named_as(item, other) for other in others]
            )
            for item in stored
            if item[by] not in gone
        ]
    return stored


def merge_patch(stored: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    made = stored if isinstance(stored, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merge_patch(made.get(key), value)
    return made
