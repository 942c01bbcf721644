"""Every CEL rule: refused by the API server and by the models, with the field and the fix in the message."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from forebay_api.crds import DEFINITIONS, structural_schema
from forebay_api.fields import VALIDATIONS, violations
from tests.api.manifests import FULL, Location, field_path, get, locations, merge, places, put
from tests.api.rule_examples import CHANGES, EXAMPLES, Example, example_of
from tests.support.api_server import ApiServer, RefusedError

pytestmark = pytest.mark.tables

MODELS: dict[str, type[BaseModel]] = {one.kind: one.model for one in DEFINITIONS}


@dataclass(frozen=True, slots=True)
class Placed:
    """A rule at one place of a resource."""

    kind: str
    path: tuple[str, ...]
    rule: dict[str, str]

    @property
    def message(self) -> str:
        return self.rule["message"]

    @property
    def location(self) -> Location:
        """Where the full object has the rule's value."""
        return next(locations(FULL[self.kind], self.path))

    @property
    def field(self) -> str:
        """The field that the server blames."""
        return (field_path(self.location) + self.rule.get("fieldPath", "")) or "<nil>"

    def with_value(self, value: Any) -> dict[str, Any]:
        full = FULL[self.kind]
        return put(full, self.location, merge(get(full, self.location), value))

    def __str__(self) -> str:
        return f"{self.kind}.{'.'.join(self.path)}: {' '.join(self.message.split()[:6])}"


def placed_rules() -> Iterator[Placed]:
    for definition in DEFINITIONS:
        for path, node in places(structural_schema(definition.model)):
            for rule in node.get(VALIDATIONS, []):
                yield Placed(definition.kind, path, rule)


RULES = list(placed_rules())
STANDING = [one for one in RULES if "oldSelf" not in one.rule["rule"]]
IN_MODELS = [one for one in STANDING if "self.metadata" not in one.rule["rule"]]
"""The models hold no metadata."""
BY_ERROR = "must be a time zone that exists"
"""CEL has no other way to ask for a time zone than to use it; the message stands in the error all the same."""
CHANGING = [one for one in RULES if "oldSelf" in one.rule["rule"]]


def example(placed: Placed, table: dict[str, Example]) -> Example:
    found = example_of(placed.message, table)
    assert found is not None, f"no example for {placed}: add one to rule_examples.py"
    return found


def test_every_example_belongs_to_a_rule():
    for start in [*EXAMPLES, *CHANGES]:
        assert any(one.message.startswith(start) for one in RULES), f"no rule says {start!r}"


@pytest.mark.parametrize("kind", FULL)
def test_the_models_accept_an_object_with_every_field(kind: str):
    made = MODELS[kind].model_validate(FULL[kind]).model_dump(by_alias=True, exclude_none=True, mode="json")
    assert made == {name: FULL[kind][name] for name in made}


@pytest.mark.parametrize("placed", IN_MODELS, ids=str)
def test_the_models_refuse_and_accept_what_the_rule_does(placed: Placed):
    model = MODELS[placed.kind]
    model.model_validate(placed.with_value(example(placed, EXAMPLES).good))
    with pytest.raises(ValidationError) as refused:
        model.model_validate(placed.with_value(example(placed, EXAMPLES).bad))
    assert f"{field_path(placed.location)}: {placed.message}" in violations(refused.value)


@pytest.mark.cluster
@pytest.mark.parametrize("kind", FULL)
def test_the_server_accepts_an_object_with_every_field(server: ApiServer, kind: str):
    assert server.create(FULL[kind], dry_run=True)["spec"] == FULL[kind]["spec"]


@pytest.mark.cluster
@pytest.mark.parametrize("placed", STANDING, ids=str)
def test_the_server_refuses_a_bad_value_with_the_field_and_the_fix(server: ApiServer, placed: Placed):
    with pytest.raises(RefusedError) as refused:
        server.create(placed.with_value(example(placed, EXAMPLES).bad), dry_run=True)
    about_it = [cause for cause in refused.value.causes if cause.message.endswith(placed.message)]
    assert placed.field in [cause.field for cause in about_it], refused.value
    by_error = placed.message.startswith(BY_ERROR)
    assert ("evaluating rule" in str(refused.value)) is by_error, "a rule failed with an error of its own"


@pytest.mark.cluster
@pytest.mark.parametrize("placed", STANDING, ids=str)
def test_the_server_accepts_a_good_value(server: ApiServer, placed: Placed):
    good = placed.with_value(example(placed, EXAMPLES).good)
    assert server.create(good, dry_run=True)["spec"]


@pytest.mark.cluster
@pytest.mark.parametrize("placed", CHANGING, ids=str)
def test_the_server_refuses_a_change_of_what_must_stay(server: ApiServer, placed: Placed):
    change = example(placed, CHANGES)
    stored = server.create({**placed.with_value(change.good), "metadata": {"name": "stays"}})
    try:
        server.replace(put(stored, placed.location, change.good), dry_run=True)
        with pytest.raises(RefusedError) as refused:
            server.replace(put(stored, placed.location, change.bad), dry_run=True)
    finally:
        server.kubectl("delete", placed.kind, "stays")
    blamed = [cause.field for cause in refused.value.causes if cause.message.endswith(placed.message)]
    assert blamed == [placed.field], refused.value
