"""CRD documents from the resource models.

pydantic's JSON schema is not a structural schema; this module bridges the difference:

- `$ref` is resolved in place (the models have no cycles); siblings of a `$ref` (description, default) win;
- `anyOf [X, null]` (an optional field) becomes X: in Kubernetes absence is absence;
- `const` becomes a one-value `enum`; numeric `exclusiveMinimum` does not occur (use `ge`);
- titles, `additionalProperties: false` and null defaults go; an enum of a StrEnum keeps its type;
- `maxLength` of a dict is `maxProperties`;
- the default of an object is filled with its fields' own defaults: the server runs CEL rules on defaults as they are
  written, before it fills them.

Key order is fixed, so equal models give equal bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel

from forebay_api.acceleratorclass import AcceleratorClass
from forebay_api.fields import VALIDATIONS
from forebay_api.modelservice import ModelService
from forebay_api.names import (
    ACCELERATOR_CLASS_KIND,
    ACCELERATOR_CLASS_PLURAL,
    GROUP,
    MODEL_SERVICE_KIND,
    MODEL_SERVICE_PLURAL,
    VERSION,
    WORKER_POOL_KIND,
    WORKER_POOL_PLURAL,
)
from forebay_api.workerpool import WorkerPool


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    description: str
    type: str = "string"
    priority: int = 0
    """0 is always shown, 1 with -o wide."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What a CRD has beside its schema."""

    model: type[BaseModel]
    kind: str
    plural: str
    short_names: tuple[str, ...]
    scope: str
    columns: tuple[Column, ...]
    has_status: bool = True
    has_scale: bool = False


RULE_KEYS = ("rule", "message", "fieldPath")


class _PlainDumper(yaml.SafeDumper):
    """Writes a repeated value out each time: an anchor far away does not help a reader."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 — the signature is PyYAML's
        return True


def _condition(column_type: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{column_type}")].{field}'


AGE = Column("Age", ".metadata.creationTimestamp", "Time since creation.", type="date")

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        model=ModelService,
        kind=MODEL_SERVICE_KIND,
        plural=MODEL_SERVICE_PLURAL,
        short_names=("msvc",),
        scope="Namespaced",
        columns=(
            Column("Model", ".spec.model.name", "Name that clients send."),
            Column("Ready", _condition("Ready", "status"), "Whether requests are served."),
            Column("Reason", _condition("Ready", "reason"), "Why, in a word."),
            Column("Workers", ".status.workers", "Ready and wanted workers."),
            Column("Attainment", ".status.attainment", "Share of recent requests that met the objective."),
            Column("Goodput/s", ".status.goodputPerSecond", "Good requests per second."),
            Column("Scaling", ".spec.autoscaling.mode", "Auto, Advise or Off."),
            AGE,
            Column("Message", _condition("Ready", "message"), "The Ready condition's sentence.", priority=1),
        ),
    ),
    Definition(
        model=WorkerPool,
        kind=WORKER_POOL_KIND,
        plural=WORKER_POOL_PLURAL,
        short_names=("wp",),
        scope="Namespaced",
        columns=(
            Column("Service", ".spec.modelService", "ModelService that owns the pool."),
            Column("Role", ".spec.pool.role", "Prefill, Decode or Mixed."),
            Column("Accelerator", ".spec.pool.accelerator", "AcceleratorClass."),
            Column("TP", ".spec.pool.parallelism.tensor", "Accelerators that share a layer.", type="integer"),
            Column("Desired", ".spec.replicas", "Wanted workers.", type="integer"),
            Column("Ready", ".status.ready", "Workers that answer.", type="integer"),
            Column("Draining", ".status.draining", "Workers that finish and leave.", type="integer"),
            Column("Reason", ".status.reason", "Root cause when not every worker is ready."),
            AGE,
        ),
        has_scale=True,
    ),
    Definition(
        model=AcceleratorClass,
        kind=ACCELERATOR_CLASS_KIND,
        plural=ACCELERATOR_CLASS_PLURAL,
        short_names=("acc",),
        scope="Cluster",
        columns=(
            Column("Hardware", ".spec.hardware", "Name in the capacity model."),
            Column("Resource", ".spec.resourceName", "Extended resource of a node."),
            Column("Price/h", ".spec.pricePerHour", "Price of one accelerator for an hour."),
            AGE,
        ),
        has_status=False,
    ),
)


def _structural(node: Any, definitions: Mapping[str, Any]) -> Any:
    """A JSON schema node as a structural schema node."""
    if isinstance(node, list):
        return [_structural(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        return _structural({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions)
    if "anyOf" in node:
        (only,) = [one for one in node["anyOf"] if one.get("type") != "null"]
        return _structural({**only, **{k: v for k, v in node.items() if k != "anyOf"}}, definitions)
    made: dict[str, Any] = {}
    for key, value in node.items():
        made.update(_keyword(key, value, node=node, definitions=definitions))
    if made.get("type") == "integer" and "enum" not in made:
        made.setdefault("format", "int64")
    if made.get("type") == "object" and "default" in made:
        made["default"] = _filled(made["default"], made.get("properties", {}))
    return made


def _filled(value: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object's default with the defaults of the fields that it leaves out."""
    defaults = {name: child["default"] for name, child in properties.items() if "default" in child}
    return {**defaults, **value}


def _keyword(key: str, value: Any, *, node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """One keyword of a schema node as the structural schema has it; empty where it has none."""
    if key == "additionalProperties":
        return {key: _structural(value, definitions)} if isinstance(value, dict) else {}
    if key in {"title", "$defs"} or (key == "default" and value is None):
        return {}
    if key == "const":
        return {"enum": [value]}
    if key == "maxLength" and node.get("type") == "object":
        return {"maxProperties": value}
    if key == "properties":
        return {key: {name: _structural(child, definitions) for name, child in value.items()}}
    if key == "description":
        return {key: " ".join(str(value).split())}
    if key == VALIDATIONS:
        return {key: [{name: one[name] for name in RULE_KEYS if name in one} for one in value]}
    if key in {"default", "enum"}:
        return {key: value}
    return {key: _structural(value, definitions)}


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The structural OpenAPI v3 schema of a resource model."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    made: dict[str, Any] = _structural(schema, schema.get("$defs", {}))
    return made


def _version(definition: Definition) -> dict[str, Any]:
    schema = structural_schema(definition.model)
    schema["properties"] = {
        "apiVersion": {"type": "string", "description": "Version of the schema of this object."},
        "kind": {"type": "string", "description": "Kind of this object."},
        "metadata": {"type": "object"},
        **schema["properties"],
    }
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {
                "name": column.name,
                "type": column.type,
                "jsonPath": column.path,
                "description": column.description,
                **({"priority": column.priority} if column.priority else {}),
            }
            for column in definition.columns
        ],
        "schema": {"openAPIV3Schema": schema},
    }
    subresources: dict[str, Any] = {"status": {}} if definition.has_status else {}
    if definition.has_scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    if subresources:
        version["subresources"] = subresources
    return version


def build_crd(definition: Definition) -> dict[str, Any]:
    """The CustomResourceDefinition of one kind; Helm keeps it on uninstall, so no model service is lost with it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{definition.plural}.{GROUP}",
            "annotations": {"helm.sh/resource-policy": "keep"},
            "labels": {"app.kubernetes.io/name": "forebay"},
        },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": definition.kind,
                "listKind": f"{definition.kind}List",
                "plural": definition.plural,
                "singular": definition.kind.lower(),
                "shortNames": list(definition.short_names),
                "categories": ["forebay"],
            },
            "scope": definition.scope,
            "versions": [_version(definition)],
        },
    }


def render_crd(definition: Definition) -> str:
    """The CRD as YAML text, as it stands in the chart."""
    body = yaml.dump(build_crd(definition), Dumper=_PlainDumper, sort_keys=False, width=110, allow_unicode=True)
    return f"# Generated by `make generate` from the models in api/. Do not edit.\n{body}"
