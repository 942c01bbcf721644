"""Building blocks of the resource models: the base model, cross-field rules, scalar types with their patterns.

The API server's own message for a failed pattern shows the regular expression and leaves the fix to the reader. So a
pattern here comes with advice, and the CRD generator turns the two into a CEL rule; a bare `pattern` never reaches a CRD.
The server skips CEL rules while the structural schema is violated, but a rule that fails does not keep other rules from
running: a rule that converts a string (`duration(self)`) therefore first asks whether the string has the right form.
"""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from forebay_api.durations import DURATION_MAX_LENGTH, DURATION_PATTERN

VALIDATIONS: Final = "x-kubernetes-validations"
ADVICE: Final = "x-forebay-advice"
"""Schema extra that says in words what the `pattern` beside it wants; consumed by the generator."""


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
    """One CEL rule; `message` names the field and the fix (the server puts the path of the field in front)."""
    made = {"rule": expression, "message": message}
    if field_path is not None:
        made["fieldPath"] = field_path
    return made


def rules(*made: dict[str, str]) -> dict[str, Any]:
    """The schema extra that carries CEL rules."""
    return {VALIDATIONS: list(made)}


def matches(expression: str, pattern: str) -> str:
    """CEL that tests a string against a pattern; the pattern must hold no single quote."""
    return f"{expression}.matches(r'{pattern}')"


def text(pattern: str, advice: str, *, max_length: int) -> Any:
    """Constraint of a string: its pattern, what to write instead of what does not match, and its longest length."""
    return Field(pattern=pattern, max_length=max_length, json_schema_extra={ADVICE: advice})


def list_map(*keys: str) -> dict[str, Any]:
    """Schema extra of a list whose items are told apart by keys, so that several writers can own items."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


PoolName = Annotated[
    str,
    text(
        r"^[a-z][a-z0-9]*$",
        "must be lower-case letters and digits, starting with a letter, such as prefill or decode2: it is joined to the "
        "service's name by a dash, and two services must never make the same name",
        max_length=20,
    ),
]
"""Name of a pool within its service. It has no dash, so that <service>-<pool> is read in one way only."""
ObjectName = Annotated[
    str,
    text(
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        "must be the name of a Kubernetes object: lower-case letters, digits, '-' and '.', "
        "starting and ending with a letter or digit",
        max_length=253,
    ),
]
"""Name of another Kubernetes object."""
ModelName = Annotated[
    str,
    text(
        r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$",
        "must be letters, digits and . _ / : -, starting with a letter or digit, such as llama-3.1-8b",
        max_length=200,
    ),
]
"""Name that clients send."""
Source = Annotated[
    str,
    text(
        r"^((hf|s3|gs|pvc|oci)://[^ ]+|/[^ ]+)$",
        "must say where the weights are: hf://organisation/name, s3://bucket/path, gs://bucket/path, pvc://claim/path, "
        "oci://image, or an absolute path",
        max_length=512,
    ),
]
"""Where weights are."""
Duration = Annotated[
    str,
    text(
        DURATION_PATTERN,
        "must be a duration: a number with ms, s, m or h, such as 500ms, 2.5s or 1m30s",
        max_length=DURATION_MAX_LENGTH,
    ),
]
"""A duration such as 500ms, 2.5s, 5m or 1h."""
PositiveDuration = Annotated[
    Duration,
    Field(
        json_schema_extra=rules(
            rule(
                f"!{matches('self', DURATION_PATTERN)} || duration(self) > duration('0s')",
                "must be longer than zero: write a duration such as 500ms or 2s",
            )
        )
    ),
]
"""A duration above zero."""
_QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"
Quantity = Annotated[
    str,
    text(
        _QUANTITY_PATTERN,
        "must be a quantity: a number, with a unit where one is meant, such as 4, 500m or 80Gi",
        max_length=32,
    ),
    Field(
        json_schema_extra=rules(
            rule(
                f"!{matches('self', _QUANTITY_PATTERN)} || quantity(self).isGreaterThan(quantity('0'))",
                "must be above zero: write a quantity such as 4, 500m or 80Gi",
            )
        )
    ),
]
"""A Kubernetes quantity above zero, such as 4, 500m or 80Gi."""
Labels = Annotated[
    dict[str, Annotated[str, Field(max_length=63)]],
    Field(
        max_length=32,
        json_schema_extra=rules(
            rule(
                "self.all(key, size(key) <= 317 && !format.qualifiedName().validate(key).hasValue())",
                "keys must be label keys: a name of at most 63 letters, digits, '-', '_' and '.', after an optional "
                "DNS prefix and a slash, such as nvidia.com/gpu.product",
            ),
            rule(
                "self.all(key, !format.labelValue().validate(self[key]).hasValue())",
                "values must be label values: at most 63 letters, digits, '-', '_' and '.', "
                "starting and ending with a letter or digit",
            ),
        ),
    ),
]
"""Labels that select nodes."""


def not_shorter(longer: str, shorter: str, message: str) -> dict[str, str]:
    """Rule that one duration of the spec is at least as long as another; malformed ones are their own rules' concern."""
    both = " && ".join(matches(one, DURATION_PATTERN) for one in (longer, shorter))
    return rule(f"!({both}) || duration({longer}) >= duration({shorter})", message)
