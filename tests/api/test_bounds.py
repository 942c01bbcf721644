"""Every bound and enum of the schemas, each put to the real API server from both sides.

The cases come from the schemas, so a new field is covered without a new line here; the objects that they change use every
field. A value at its bound may break a rule of another kind (a name of the right length and the wrong form); what counts
is that the server does not complain about the bound.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import ValidationError

from forebay_api.crds import DEFINITIONS, structural_schema
from tests.api.manifests import FULL, ITEMS, Location, field_path, get, locations, merge, places, put
from tests.support.api_server import ApiServer, RefusedError

pytestmark = pytest.mark.tables

COMPLAINTS = {
    "minimum": "should be greater than or equal to",
    "maximum": "should be less than or equal to",
    "minLength": "should be at least",
    "maxLength": "Too long",
    "minItems": "should have at least",
    "maxItems": "Too many",
    "maxProperties": "Too many",
    "enum": "supported values",
    "required": "Required value",
    "type": "must be of type",
    "format": "must be of type",
    "x-kubernetes-list-map-keys": "Duplicate value",
}
ONLY_IN_THE_SERVER = {"format", "x-kubernetes-list-map-keys"}
MODELS = {one.kind: one.model for one in DEFINITIONS}
WRONG_TYPE = {"string": 7, "integer": "seven", "boolean": "maybe", "object": "none", "array": "none"}


@dataclass(frozen=True, slots=True)
class Case:
    """A value on the wrong side of one bound, and the value at the bound."""

    kind: str
    keyword: str
    location: Location
    bad: Any
    good: Any

    def __str__(self) -> str:
        return f"{self.kind}.{field_path(self.location)} {self.keyword}"


def items(node: dict[str, Any], current: list[Any], count: int) -> list[Any]:
    """A list of some length made from its first item; told apart by the key where the items have one."""
    if "x-kubernetes-list-map-keys" not in node:
        return [current[0]] * count
    (key,) = node["x-kubernetes-list-map-keys"]
    return [{**current[0], key: f"a{number}"} for number in range(count)]


def labels(count: int) -> dict[str, str]:
    return {f"a{number}": "b" for number in range(count)}


Sides = Callable[[dict[str, Any], Any], tuple[Any, Any]]
SIDES: dict[str, Sides] = {
    "minimum": lambda node, _: (node["minimum"] - 1, node["minimum"]),
    "maximum": lambda node, _: (node["maximum"] + 1, node["maximum"]),
    "minLength": lambda node, _: ("a" * (node["minLength"] - 1), "a" * node["minLength"]),
    "maxLength": lambda node, _: ("a" * (node["maxLength"] + 1), "a" * node["maxLength"]),
    "minItems": lambda node, current: (
        items(node, current, node["minItems"] - 1),
        items(node, current, node["minItems"]),
    ),
    "maxItems": lambda node, current: (
        items(node, current, node["maxItems"] + 1),
        items(node, current, node["maxItems"]),
    ),
    "maxProperties": lambda node, _: (labels(node["maxProperties"] + 1), labels(node["maxProperties"])),
    "enum": lambda node, _: (3 if node["type"] == "integer" else "Nonsense", node["enum"][-1]),
    "type": lambda node, current: (WRONG_TYPE[node["type"]], current),
    "x-kubernetes-list-map-keys": lambda _, current: ([current[0], current[0]], current[:1]),
}
"""For each keyword of a schema node a value that breaks it, and one that just keeps it."""


def cases() -> Iterator[Case]:
    for definition in DEFINITIONS:
        full = FULL[definition.kind]
        for path, node in places(structural_schema(definition.model)):
            if not path:
                continue
            location = next(locations(full, path))
            current = get(full, location)
            for name in node.get("required", []):
                yield Case(definition.kind, "required", (*location, name), None, current[name])
            if node.get("format") == "date-time":
                yield Case(definition.kind, "format", location, "yesterday", current)
            for keyword in SIDES.keys() & node.keys():
                yield Case(definition.kind, keyword, location, *SIDES[keyword](node, current))


CASES = sorted(cases(), key=str)


def changed(case: Case, value: Any) -> dict[str, Any]:
    """The full object with another value at the case's place; without it for None."""
    full = FULL[case.kind]
    if value is not None:
        return put(full, case.location, value)
    above, last = case.location[:-1], case.location[-1]
    return put(full, above, merge(get(full, above), {last: None}))


def submit(server: ApiServer, case: Case, value: Any) -> list[str]:
    """What the server says against the full object with a value at the case's place."""
    try:
        if case.location[0] == "status":
            server.replace_status(changed(case, value), dry_run=True)
        else:
            server.create({**changed(case, value), "metadata": {"name": "probe"}}, dry_run=True)
    except RefusedError as refused:
        return [f"{cause.field}: {cause.message}" for cause in refused.causes] or [str(refused)]
    return []


def complaint(case: Case) -> tuple[str, str]:
    """The field that the server must name, and a part of what it must say."""
    place = case.location
    if case.keyword == "x-kubernetes-list-map-keys":
        place = (*place, 1)
    return field_path(place), COMPLAINTS[case.keyword]


def is_about(said: str, case: Case) -> bool:
    field, words = complaint(case)
    return said.startswith(f"{field}: ") and words in said


def test_every_field_has_a_case():
    """Every scalar's type is tried at least, so no field of the full objects was forgotten."""
    tried = {(case.kind, tuple(ITEMS if isinstance(part, int) else part for part in case.location)) for case in CASES}
    for definition in DEFINITIONS:
        for path, node in places(structural_schema(definition.model)):
            assert node["type"] == "object" or (definition.kind, path) in tried or "{}" in path, path


@pytest.fixture(scope="module")
def stored(server: ApiServer) -> Iterator[ApiServer]:
    """The full objects exist, so that their status can be written."""
    with_status = [kind for kind in FULL if "status" in FULL[kind]]
    for kind in with_status:
        server.create(FULL[kind])
    yield server
    for kind in with_status:
        server.kubectl("delete", kind, FULL[kind]["metadata"]["name"])


@pytest.mark.parametrize("case", [one for one in CASES if one.keyword not in ONLY_IN_THE_SERVER], ids=str)
def test_the_models_refuse_what_breaks_a_bound(case: Case):
    with pytest.raises(ValidationError):
        MODELS[case.kind].model_validate(changed(case, case.bad))


@pytest.mark.cluster
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_server_names_the_field_and_the_bound(stored: ApiServer, case: Case):
    said = submit(stored, case, case.bad)
    assert any(is_about(one, case) for one in said), said


@pytest.mark.cluster
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_server_accepts_the_bound_itself(stored: ApiServer, case: Case):
    said = submit(stored, case, case.good)
    assert not any(is_about(one, case) for one in said), said
