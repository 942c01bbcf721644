"""What the files of a volume contain, from the pod's declaration and the objects it draws on: pure.

Only configMap, secret, downwardAPI and projected volumes have such content; an emptyDir is an empty folder.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from forebay_simulator.node.environment import Data, PodFacts, Sources, field_value, resource_value
from forebay_simulator.node.errors import PodConfigError

DEFAULT_MODE = 0o644


@dataclass(frozen=True, slots=True)
class File:
    """One file of a volume."""

    content: bytes
    mode: int = DEFAULT_MODE


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A service-account token that a projected volume asks for."""

    path: str
    audience: str
    lifetime_s: int
    mode: int


Files = dict[str, File]


def has_files(volume: Mapping[str, Any]) -> bool:
    """Whether the volume's content comes from objects."""
    return any(kind in volume for kind in ("configMap", "secret", "downwardAPI", "projected"))


def _parts(volume: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """Every source of a volume as (kind, declaration, file mode)."""
    for kind in ("configMap", "secret", "downwardAPI"):
        if kind in volume:
            yield kind, volume[kind] or {}, (volume[kind] or {}).get("defaultMode", DEFAULT_MODE)
    projected = volume.get("projected") or {}
    for source in projected.get("sources") or []:
        for kind, declared in source.items():
            yield kind, declared or {}, projected.get("defaultMode", DEFAULT_MODE)


def volume_objects(volume: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the config maps and of the secrets that the volume shows."""
    config_maps, secrets = set(), set()
    for kind, declared, _ in _parts(volume):
        if kind == "configMap":
            config_maps.add(declared["name"])
        elif kind == "secret":
            secrets.add(_secret_name(declared))
    return frozenset(config_maps), frozenset(secrets)


def volume_tokens(volume: Mapping[str, Any]) -> tuple[TokenRequest, ...]:
    """The service-account tokens that the volume holds."""
    return tuple(
        TokenRequest(
            path=declared["path"],
            audience=declared.get("audience", ""),
            lifetime_s=declared.get("expirationSeconds", 3600),
            mode=mode,
        )
        for kind, declared, mode in _parts(volume)
        if kind == "serviceAccountToken"
    )


def volume_files(volume: Mapping[str, Any], *, sources: Sources, facts: PodFacts) -> Files:
    """All files but tokens. Raises PodConfigError that names what is missing."""
    files: Files = {}
    for kind, declared, mode in _parts(volume):
        if kind == "configMap":
            files |= _object_files("configmap", declared["name"], sources.config_maps, declared, mode)
        elif kind == "secret":
            files |= _object_files("secret", _secret_name(declared), sources.secrets, declared, mode)
        elif kind == "downwardAPI":
            files |= _downward_files(declared, facts, mode)
        elif kind != "serviceAccountToken":
            raise PodConfigError(f'volume "{volume["name"]}": source {kind} is not supported on a simulated node')
    return files


def _secret_name(declared: Mapping[str, Any]) -> str:
    # A secret volume says secretName, a projected source says name.
    return str(declared.get("secretName") or declared["name"])


def _object_files(kind: str, name: str, objects: Mapping[str, Data], declared: Mapping[str, Any], mode: int) -> Files:
    data = objects.get(name)
    if data is None:
        if declared.get("optional"):
            return {}
        raise PodConfigError(f'{kind} "{name}" not found')
    items = declared.get("items")
    if items is None:
        return {key: File(value, mode) for key, value in data.items()}
    files: Files = {}
    for item in items:
        if item["key"] in data:
            files[item["path"]] = File(data[item["key"]], item.get("mode", mode))
        elif not declared.get("optional"):
            raise PodConfigError(f'{kind} "{name}" has no key {item["key"]}')
    return files


def _downward_files(declared: Mapping[str, Any], facts: PodFacts, mode: int) -> Files:
    files: Files = {}
    for item in declared.get("items") or []:
        if reference := item.get("fieldRef"):
            text = field_value(reference["fieldPath"], facts)
        else:
            text = resource_value(item["resourceFieldRef"], facts.raw["spec"]["containers"][0], facts)
        files[item["path"]] = File(text.encode(), item.get("mode", mode))
    return files
