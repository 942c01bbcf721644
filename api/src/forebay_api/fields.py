"""Building blocks of the resource models: the base model, and rules that the API server and the models both check.

A `Rule` has its condition twice, side by side: as CEL, which the API server runs at admission, and as a predicate, which the
models run when they read a stored object (it may be older than the rule). One message serves both; it names the field and
the fix. A rule stands in a class's `RULES`, for fields that depend on each other, or in the `Annotated` type of one field.
Rules that compare with the old object exist only in the server.

Two facts about the API server shape the rules. It answers a failed `pattern` with the bare regular expression, so patterns
are rules here (`text`). And a rule that fails does not keep others from running, while an error inside a rule is reported
as a failure of its own: a rule that converts a string (`duration(self)`) first asks whether the string has the right form.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

VALIDATIONS: Final = "x-kubernetes-validations"


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on a value."""

    expression: str
    """The condition in CEL."""
    message: str
    """What is wrong, and what to write instead."""
    holds: Callable[[Any], bool] | None = None
    """The condition in Python; None where only the server can check it."""
    field_path: str | None = None
    """The field to blame, relative to the value, where it is not the value itself."""

    def check(self, value: Any) -> Any:
        """The value, or ValueError with the rule's message."""
        if self.holds is not None and not self.holds(value):
            raise ValueError(self.message)
        return value

    def to_schema(self) -> dict[str, str]:
        """The rule as a structural schema has it."""
        made = {"rule": self.expression, "message": self.message}
        return made if self.field_path is None else {**made, "fieldPath": self.field_path}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        made = handler(schema)
        return {**made, VALIDATIONS: [*made.get(VALIDATIONS, []), self.to_schema()]}


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
    RULES: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        for rule in type(self).RULES:
            rule.check(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        made = handler(schema)
        if cls.RULES:
            handler.resolve_ref_schema(made)[VALIDATIONS] = [rule.to_schema() for rule in cls.RULES]
        return made


def violations(error: ValidationError) -> list[str]:
    """What is wrong with a resource, a sentence a fault, each with the path of its field, as the API server writes them."""
    return [f"{_path(one['loc'])}: {one['msg'].removeprefix('Value error, ')}" for one in error.errors()]


def _path(location: tuple[int | str, ...]) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".") or "<root>"


def matches(expression: str, pattern: str) -> str:
    """CEL that tests a string against a pattern; the pattern must hold no single quote."""
    return f"{expression}.matches(r'{pattern}')"


def text(pattern: str, advice: str) -> Rule:
    """Rule for the form of a string: its pattern, and what to write instead of what does not match."""
    return Rule(matches("self", pattern), advice, holds=lambda value: re.fullmatch(pattern, value) is not None)


def list_map(*keys: str) -> dict[str, Any]:
    """Schema extra of a list whose items are told apart by keys, so that several writers can own items."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
