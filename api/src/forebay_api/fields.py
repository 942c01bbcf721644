"""Building blocks of the resource models: the base model, cross-field rules, scalar types with their patterns."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from forebay_api.durations import DURATION_PATTERN

VALIDATIONS: Final = "x-kubernetes-validations"


class Resource(BaseModel):
    """Base of every model that becomes a part of a CRD: camelCase on the wire, docstrings as descriptions.

    Unknown fields are ignored on reading, as the API server prunes them; models are frozen, since a spec is read, never edited.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        frozen=True,
        extra="ignore",
    )


def rule(expression: str, message: str, *, field_path: str | None = None) -> dict[str, str]:
    """One CEL rule; `message` names the field and the fix."""
    made = {"rule": expression, "message": message}
    if field_path is not None:
        made["fieldPath"] = field_path
    return made


def rules(*made: dict[str, str]) -> dict[str, Any]:
    """The schema extra that carries CEL rules."""
    return {VALIDATIONS: list(made)}


def list_map(*keys: str) -> dict[str, Any]:
    """Schema extra of a list whose items are told apart by keys, so that several writers can own items."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
MODEL_NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$"
TARGET_PATTERN: Final = r"^(0\.[0-9]{1,4}|1(\.0{1,4})?)$"
SOURCE_PATTERN: Final = r"^((hf|s3|gs|pvc|oci)://[^ ]+|/[^ ]+)$"
QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"
PRICE_PATTERN: Final = r"^[0-9]+(\.[0-9]{1,4})?$"

Duration = Annotated[str, Field(pattern=DURATION_PATTERN, max_length=32)]
"""A duration such as 500ms, 2.5s, 5m or 1h."""
PositiveDuration = Annotated[
    Duration,
    Field(
        json_schema_extra=rules(
            rule(
                "duration(self) > duration('0s')",
                "must be longer than zero: write a duration such as 500ms or 2s",
            )
        )
    ),
]
Quantity = Annotated[str, Field(pattern=QUANTITY_PATTERN, max_length=32)]
"""A Kubernetes quantity such as 4, 500m or 80Gi."""
Labels = Annotated[dict[str, str], Field(max_length=64)]
