"""A container's environment and command line, as Kubernetes composes them: pure.

Order, later wins: what the image brings, the Services of the namespace, envFrom, env. `$(NAME)` is replaced in env values by
what came before, in command and args by the whole; `$$` stands for `$`; an unknown name stays as it is written.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay_simulator.node.errors import PodConfigError
from forebay_simulator.node.quantities import divided_up

_REFERENCE = re.compile(r"\$(\$|\(([-._a-zA-Z0-9]+)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")

Data = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What a pod's fields and resources refer to."""

    raw: Mapping[str, Any]
    pod_address: str
    node_address: str
    allocatable: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sources:
    """The objects that a container's environment draws on; one that does not exist is absent."""

    config_maps: Mapping[str, Data]
    secrets: Mapping[str, Data]


def needed_objects(container: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the config maps and of the secrets that the container's environment draws on."""
    config_maps, secrets = set(), set()
    for item in container.get("envFrom") or []:
        if reference := item.get("configMapRef"):
            config_maps.add(reference["name"])
        if reference := item.get("secretRef"):
            secrets.add(reference["name"])
    for item in container.get("env") or []:
        source = item.get("valueFrom") or {}
        if reference := source.get("configMapKeyRef"):
            config_maps.add(reference["name"])
        if reference := source.get("secretKeyRef"):
            secrets.add(reference["name"])
    return frozenset(config_maps), frozenset(secrets)


def compose_environment(
    container: Mapping[str, Any], *, inherited: Mapping[str, str], sources: Sources, facts: PodFacts
) -> dict[str, str]:
    """The whole environment. Raises PodConfigError that names what is missing."""
    environment = dict(inherited)
    for item in container.get("envFrom") or []:
        environment |= _whole_object(item, sources)
    for item in container.get("env") or []:
        value = _value(container, item, sources=sources, facts=facts)
        if value is None:
            continue
        environment[item["name"]] = expand(value, environment) if "valueFrom" not in item else value
    return environment


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace `$(NAME)` where NAME is known and `$$` by `$`."""

    def replacement(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return environment.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def _whole_object(item: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    prefix = item.get("prefix", "")
    for field, kind, objects in (
        ("configMapRef", "configmap", sources.config_maps),
        ("secretRef", "secret", sources.secrets),
    ):
        reference = item.get(field)
        if reference is None:
            continue
        data = objects.get(reference["name"])
        if data is not None:
            return {prefix + key: value.decode(errors="replace") for key, value in data.items()}
        if not reference.get("optional"):
            raise PodConfigError(f'{kind} "{reference["name"]}" not found')
    return {}


def _value(container: Mapping[str, Any], item: Mapping[str, Any], *, sources: Sources, facts: PodFacts) -> str | None:
    source = item.get("valueFrom")
    if not source:
        return str(item.get("value", ""))
    if reference := source.get("fieldRef"):
        return field_value(reference["fieldPath"], facts)
    if reference := source.get("resourceFieldRef"):
        return resource_value(reference, container, facts)
    if reference := source.get("configMapKeyRef"):
        return _keyed("configmap", sources.config_maps, reference)
    if reference := source.get("secretKeyRef"):
        return _keyed("secret", sources.secrets, reference)
    raise PodConfigError(f'env "{item["name"]}": valueFrom {"/".join(source)} is not supported on a simulated node')


def _keyed(kind: str, objects: Mapping[str, Data], reference: Mapping[str, Any]) -> str | None:
    name, key = reference["name"], reference["key"]
    data = objects.get(name)
    if data is not None and key in data:
        return data[key].decode(errors="replace")
    if reference.get("optional"):
        return None
    if data is None:
        raise PodConfigError(f'{kind} "{name}" not found')
    raise PodConfigError(f'couldn\'t find key {key} in {kind} "{name}"')


def field_value(path: str, facts: PodFacts) -> str:
    """The value of a fieldRef."""
    metadata, spec = facts.raw["metadata"], facts.raw["spec"]
    if match := _SUBSCRIPT.fullmatch(path):
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    if path in {"metadata.labels", "metadata.annotations"}:
        pairs = metadata.get(path.removeprefix("metadata.")) or {}
        return "\n".join(f"{key}={_quoted(value)}" for key, value in sorted(pairs.items()))
    known = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": facts.pod_address,
        "status.podIPs": facts.pod_address,
        "status.hostIP": facts.node_address,
        "status.hostIPs": facts.node_address,
    }
    if path not in known:
        raise PodConfigError(f"fieldPath {path} is not supported on a simulated node")
    return str(known[path])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def resource_value(reference: Mapping[str, Any], container: Mapping[str, Any], facts: PodFacts) -> str:
    """The value of a resourceFieldRef; an absent limit is what the node has."""
    if name := reference.get("containerName"):
        spec = facts.raw["spec"]
        everyone = [*(spec.get("initContainers") or []), *spec["containers"]]
        container = next((item for item in everyone if item["name"] == name), container)
    kind, _, resource = reference["resource"].partition(".")
    amounts = (container.get("resources") or {}).get(kind) or {}
    amount = amounts.get(resource)
    if amount is None:
        amount = facts.allocatable.get(resource, "0") if kind == "limits" else "0"
    divisor = reference.get("divisor") or "1"
    return str(divided_up(amount, divisor if divisor != "0" else "1"))


def expand_all(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """`expand` for a command line."""
    return [expand(word, environment) for word in words]
