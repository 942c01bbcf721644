"""Failures that other operators met in the field, tried on ours."""

from copy import deepcopy
from typing import Any

import pytest
from pydantic import ValidationError

from forebay_api.fields import violations
from forebay_api.modelservice import ModelService
from tests.api.manifests import FULL, merge
from tests.support.api_server import ApiServer, RefusedError

pytestmark = pytest.mark.tables

POOLS = "spec.pools[0]"
C142 = [
    ("min above max", {"replicas": {"min": 8, "max": 2}}, f"{POOLS}.replicas.min"),
    ("negative replicas", {"replicas": {"min": -1}}, f"{POOLS}.replicas.min"),
    ("unknown role", {"role": "Both"}, f"{POOLS}.role"),
    ("no GPUs", {"parallelism": {"tensor": 0}}, f"{POOLS}.parallelism.tensor"),
]
C142_SPEC = [
    ("budget of no GPUs", {"autoscaling": {"budget": {"gpus": 0}}}, "spec.autoscaling.budget.gpus"),
    ("objective of 0 ms", {"objective": {"ttft": "0ms"}}, "spec.objective.ttft"),
    ("empty model", {"model": {"name": ""}}, "spec.model.name"),
    ("no model", {"model": None}, "spec.model"),
]
LONG_NAME = "llama." * 10 + "8bx"


def in_first_pool(patch: dict[str, Any]) -> dict[str, Any]:
    wrong = deepcopy(FULL["ModelService"])
    wrong["spec"]["pools"][0] = merge(wrong["spec"]["pools"][0], patch)
    return wrong


def in_spec(patch: dict[str, Any]) -> dict[str, Any]:
    return merge(FULL["ModelService"], {"spec": patch})


IMPOSSIBLE = [
    *[pytest.param(in_first_pool(patch), field, id=name) for name, patch, field in C142],
    *[pytest.param(in_spec(patch), field, id=name) for name, patch, field in C142_SPEC],
]


@pytest.mark.cluster
@pytest.mark.parametrize(("manifest", "field"), IMPOSSIBLE)
def test_c142_an_impossible_spec_is_refused_at_admission_with_its_field(
    server: ApiServer, manifest: dict[str, Any], field: str
):
    with pytest.raises(RefusedError) as refused:
        server.create(manifest, dry_run=True)
    assert field in [cause.field for cause in refused.value.causes]


@pytest.mark.cluster
def test_c142_a_name_of_63_characters_with_dots_is_refused_with_the_reason(server: ApiServer):
    assert len(LONG_NAME) == 63
    with pytest.raises(RefusedError, match=r"metadata\.name must be at most 40 characters .* choose another name"):
        server.create({**FULL["ModelService"], "metadata": {"name": LONG_NAME}}, dry_run=True)


@pytest.mark.parametrize(("manifest", "field"), IMPOSSIBLE)
def test_c142_the_same_spec_found_stored_is_reported_with_its_field(manifest: dict[str, Any], field: str):
    """It may be older than the rule; the operator shows these sentences in a condition and leaves the workers alone."""
    with pytest.raises(ValidationError) as invalid:
        ModelService.model_validate(manifest)
    about = field.removesuffix(".min")
    assert any(one.startswith(about) for one in violations(invalid.value)), violations(invalid.value)
