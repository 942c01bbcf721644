"""CRDs that an upgrade left behind are noticed, field by field (C151)."""

import asyncio
import copy
from typing import Any

import pytest

from forebay_api.crds import DEFINITIONS, structural_schema
from forebay_operator import schemas
from forebay_operator.control import Health
from forebay_operator.errors import ApiCall, ApiError, ApiForbiddenError, ApiUnavailableError
from forebay_operator.schemas import describe_outdated, watch_schemas
from tests.support.bounds import NEVER_S

CALL = ApiCall("describe", "forebay.dev/v1alpha1", None, None)


def current() -> dict[str, Any]:
    """What a server with this version's CRDs describes."""
    return {one.kind: copy.deepcopy(structural_schema(one.model)) for one in DEFINITIONS}


def without(*fields: str) -> dict[str, Any]:
    """The same, of CRDs that lack fields of a ModelService's pools."""
    made = current()
    pool = made["ModelService"]["properties"]["spec"]["properties"]["pools"]["items"]
    for field in fields:
        del pool["properties"][field]
    return made


def test_this_versions_crds_lack_nothing():
    assert describe_outdated(current()) is None


def test_newer_crds_lack_nothing_either():
    served = current()
    served["WorkerPool"]["properties"]["spec"]["properties"]["fromTheFuture"] = {"type": "string"}
    assert describe_outdated(served) is None


def test_an_absent_field_is_named_with_its_path_and_the_fix():
    told = describe_outdated(without("priorityClassName"))
    assert told is not None
    assert told.startswith("the ModelService CRD lacks spec.pools[].priorityClassName: it is older")
    assert "apply the chart's CRDs" in told


def test_of_many_absent_fields_a_few_are_named():
    told = describe_outdated(without("accelerator", "nodeSelector", "parallelism", "priorityClassName", "replicas"))
    assert told is not None
    assert "spec.pools[].parallelism and 2 more" in told


def test_a_kind_that_is_not_served_yet_is_not_outdated():
    assert describe_outdated({}) is None


class Server:
    """Answers one look after the other, the last one for ever."""

    def __init__(self, *answers: dict[str, Any] | type[ApiError]) -> None:
        self.answers = list(answers)

    async def served_schemas(self) -> dict[str, Any]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, dict):
            return answer
        raise answer(CALL, "no")


async def test_a_replica_is_not_ready_while_a_field_is_absent_and_looks_no_more_when_all_are_there(monkeypatch):
    health = Health(not_ready_because=None)
    seen = []

    async def sleep(_pause_s: float) -> None:
        seen.append(health.unready_reason)

    monkeypatch.setattr(schemas.asyncio, "sleep", sleep)
    await watch_schemas(Server(ApiUnavailableError, {}, without("replicas"), current()), health)
    assert seen[:2] == [None, None]
    assert "spec.pools[].replicas" in seen[2]
    assert health.unready_reason is None


@pytest.mark.parametrize("server", [Server(ApiForbiddenError)])
async def test_what_may_not_be_read_is_unknown_and_does_not_hold_the_operator_up(server):
    health = Health(not_ready_because=None)
    async with asyncio.timeout(NEVER_S):
        await watch_schemas(server, health)
    assert health.unready_reason is None
