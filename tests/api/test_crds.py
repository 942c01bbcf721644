"""The generated CRDs: equal to the files of the chart, structural, described; and what the API server makes of them."""

import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from forebay_api.crds import DEFINITIONS, Definition, build_crd, structural_schema
from forebay_api.names import AUTOSCALER_MANAGER, OPERATOR_MANAGER
from forebay_localcluster.errors import CommandError
from tests.api.manifests import FULL, MODEL, locations, places
from tests.support.api_server import ApiServer, RefusedError

pytestmark = pytest.mark.tables

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "deploy/samples").glob("*.yaml"))
NODES = [(one, path, node) for one in DEFINITIONS for path, node in places(structural_schema(one.model))]
OBJECTS = [(one, path, node) for one, path, node in NODES if "properties" in node]
MINIMAL = {
    "ModelService": {
        "model": {"name": "m", "source": "/models/m"},
        "pools": [{"name": "mixed", "accelerator": "h100-sxm"}],
        "engine": {
            "speculative": {"method": "ngram"},
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}],
        },
    },
    "WorkerPool": {
        "modelService": "m",
        "model": {"name": "m", "source": "/models/m", "cache": {"claimName": "weights"}},
        "engine": {},
        "pool": {"name": "mixed", "accelerator": "h100-sxm"},
    },
    "AcceleratorClass": {"hardware": "h100-sxm", "tolerations": [{"key": "gpu"}]},
}


def sample_objects(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def model_defaults(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A spec with the models' defaults, as JSON."""
    (definition,) = [one for one in DEFINITIONS if one.kind == kind]
    made = definition.model.model_validate({"spec": spec}).model_dump(by_alias=True, exclude_none=True, mode="json")
    filled: dict[str, Any] = made["spec"]
    return filled


def test_the_files_of_the_chart_are_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_field_has_a_description_that_is_a_sentence():
    for definition, path, node in OBJECTS:
        for name, child in node["properties"].items():
            text = child.get("description", "")
            assert text.endswith("."), f"{definition.kind}.{'.'.join((*path, name))}: {text!r}"


def test_no_bare_pattern_speaks_to_a_user():
    assert not [(one.kind, path) for one, path, node in NODES if "pattern" in node]


def test_every_string_map_and_list_of_a_spec_is_bounded():
    """The server estimates the cost of a rule from the bounds; a field without one would grow a later rule's cost."""
    limit = {"string": "maxLength", "array": "maxItems"}
    unbounded = [
        (one.kind, path)
        for one, path, node in NODES
        if path[:1] == ("spec",) and node["type"] in limit and limit[node["type"]] not in node and "enum" not in node
    ]
    assert not unbounded


def test_the_parts_of_a_worker_pool_are_those_of_the_model_service():
    service, pool = (structural_schema(one.model)["properties"]["spec"]["properties"] for one in DEFINITIONS[:2])
    for name in ("model", "engine", "rollout"):
        assert {**service[name], "description": ""} == {**pool[name], "description": ""} | (
            {"default": service[name]["default"]} if "default" in service[name] else {}
        )
    assert {**service["pools"]["items"], "description": ""} == {**pool["pool"], "description": ""}


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda one: one.kind)
def test_every_column_shows_a_field_that_exists(definition: Definition):
    paths = {path for one, path, _ in NODES if one is definition}
    for column in definition.columns:
        if column.path.startswith(".metadata"):
            continue
        field = column.path.removeprefix(".").partition("[")[0]
        assert tuple(field.split(".")) in paths, column


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_the_models_accept_the_samples(path: Path):
    for sample in sample_objects(path):
        assert model_defaults(sample["kind"], sample["spec"])


@pytest.mark.cluster
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_the_server_accepts_the_samples_and_fills_in_the_models_defaults(server: ApiServer, path: Path):
    for sample in sample_objects(path):
        stored = server.create(sample, dry_run=True)
        assert stored["spec"] == model_defaults(sample["kind"], sample["spec"])


@pytest.mark.cluster
@pytest.mark.parametrize("kind", MINIMAL)
def test_the_server_fills_in_the_models_defaults(server: ApiServer, kind: str):
    bare = {"apiVersion": "forebay.dev/v1alpha1", "kind": kind, "metadata": {"name": "bare"}, "spec": MINIMAL[kind]}
    assert server.create(bare, dry_run=True)["spec"] == model_defaults(kind, MINIMAL[kind])


@pytest.mark.cluster
def test_the_server_stores_the_crds_without_a_complaint(server: ApiServer):
    """No condition says that a schema is not structural or that a name is taken."""
    for definition in DEFINITIONS:
        name = build_crd(definition)["metadata"]["name"]
        stored = yaml.safe_load(server.kubectl("get", "crd", name, "-o", "yaml"))
        conditions = {one["type"]: one["status"] for one in stored["status"]["conditions"]}
        assert conditions.pop("Established") == "True"
        assert conditions.pop("NamesAccepted") == "True"
        assert "True" not in conditions.values()


@pytest.mark.cluster
def test_explain_tells_what_every_field_is_for(server: ApiServer):
    shared = {"model", "engine", "pool", "rollout"}
    for definition, path, node in OBJECTS:
        if definition.kind == "WorkerPool" and shared.intersection(path):
            continue
        steps = [definition.plural, *(step for step in path if step not in {"[]", "{}"})]
        words = " ".join(server.kubectl("explain", ".".join(steps)).split())
        for name, child in node["properties"].items():
            if name in {"metadata", "status", "spec"} and not path:
                continue
            assert " ".join(child["description"].split()) in words, f"{'.'.join(steps)}.{name}"


@pytest.mark.cluster
def test_short_names_and_the_category_find_every_kind(server: ApiServer):
    table = server.kubectl("api-resources", "--api-group=forebay.dev", "--no-headers", "-o", "wide")
    found = {line.split()[0]: line.split()[1] for line in table.splitlines()}
    assert found == {"modelservices": "msvc", "workerpools": "wp", "acceleratorclasses": "acc"}
    in_category = server.kubectl("api-resources", "--categories=forebay", "--no-headers", "-o", "name").split()
    assert len(in_category) == len(DEFINITIONS)


@pytest.mark.cluster
def test_an_unknown_field_is_refused_by_its_path(server: ApiServer):
    wrong = deepcopy(FULL["ModelService"])
    wrong["spec"]["pools"][0]["replicas"]["maximum"] = 3
    with pytest.raises(RefusedError, match=r'unknown field "spec.pools\[0\].replicas.maximum"'):
        server.create(wrong, dry_run=True)


@pytest.fixture
def service(server: ApiServer) -> Iterator[dict[str, Any]]:
    """A stored service with two worker pools, as the operator would have made them."""
    spec = FULL["ModelService"]["spec"]
    made = server.create({**FULL["ModelService"], "metadata": {"name": "chat"}})
    for pool in spec["pools"]:
        body = {**FULL["WorkerPool"]["spec"], "modelService": "chat", "pool": pool, "replicas": 2}
        server.create({**FULL["WorkerPool"], "metadata": {"name": f"chat-{pool['name']}"}, "spec": body})
    yield made
    server.kubectl("delete", "modelservice/chat", "workerpool/chat-prefill", "workerpool/chat-decode")


def condition(
    kind: str, *, status: str = "True", reason: str = "Fine", message: str = "All is well."
) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def chat(status: dict[str, Any]) -> dict[str, Any]:
    """A status to apply to the stored service."""
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": "chat"},
        "status": status,
    }


def pool_chat(name: str, status: dict[str, Any]) -> dict[str, Any]:
    """A status to apply to one of its pools."""
    return {**chat(status), "kind": "WorkerPool", "metadata": {"name": name}}


OPERATORS = {
    "observedGeneration": 1,
    "conditions": [condition("Accepted"), condition("Ready", status="False", reason="WaitingForAccelerators")],
    "pools": [
        {"name": "prefill", "role": "Prefill", "replicas": 2, "ready": 2, "draining": 0},
        {"name": "decode", "role": "Decode", "replicas": 2, "ready": 1, "draining": 0},
    ],
    "workers": "3/4",
}
AUTOSCALERS = {
    "conditions": [condition("MetricsFresh"), condition("ScalingActive")],
    "pools": [{"name": "prefill", "desired": 2, "reason": "demand 1.6 of 2 workers"}, {"name": "decode", "desired": 2}],
    "attainment": "99.3%",
    "goodputPerSecond": "12.4",
}


@pytest.mark.cluster
@pytest.mark.usefixtures("service")
def test_two_field_managers_share_the_status_without_touching_each_others_part(server: ApiServer):
    server.apply_status(chat(OPERATORS), manager=OPERATOR_MANAGER)
    both = server.apply_status(chat(AUTOSCALERS), manager=AUTOSCALER_MANAGER)["status"]
    assert [one["type"] for one in both["conditions"]] == ["Accepted", "Ready", "MetricsFresh", "ScalingActive"]
    assert both["pools"][0] == {**OPERATORS["pools"][0], **AUTOSCALERS["pools"][0]}
    assert both["attainment"] == "99.3%"

    fewer = {"observedGeneration": 2, "conditions": [condition("Accepted")], "pools": [OPERATORS["pools"][0]]}
    after = server.apply_status(chat(fewer), manager=OPERATOR_MANAGER)["status"]
    assert [one["type"] for one in after["conditions"]] == ["Accepted", "MetricsFresh", "ScalingActive"]
    assert "workers" not in after
    assert after["attainment"] == "99.3%", "the autoscaler's field outlives the operator's write"
    assert after["pools"][1] == {"name": "decode", "desired": 2}, "an item lives while one of its writers names it"

    last = server.apply_status(chat({}), manager=AUTOSCALER_MANAGER)["status"]
    assert [one["type"] for one in last["conditions"]] == ["Accepted"]
    assert last["pools"] == [OPERATORS["pools"][0]]
    assert "attainment" not in last


@pytest.mark.cluster
@pytest.mark.usefixtures("service")
def test_scale_changes_replicas_and_gives_the_selector(server: ApiServer):
    selector = "forebay.dev/model-service=chat,forebay.dev/pool=decode"
    server.apply_status(pool_chat("chat-decode", {"replicas": 2, "selector": selector}), manager=OPERATOR_MANAGER)
    server.kubectl("scale", "wp/chat-decode", "--replicas=3")
    scale = yaml.safe_load(server.kubectl("get", "wp/chat-decode", "--subresource=scale", "-o", "yaml"))
    assert scale["spec"]["replicas"] == 3
    assert scale["status"] == {"replicas": 2, "selector": selector}
    with pytest.raises(CommandError, match=r"spec.replicas in body should be less than or equal to 1000"):
        server.kubectl("scale", "wp/chat-decode", "--replicas=1001")


@pytest.mark.cluster
@pytest.mark.usefixtures("service")
def test_get_shows_what_is_going_on(server: ApiServer):
    server.apply_status(chat(OPERATORS), manager=OPERATOR_MANAGER)
    server.apply_status(chat(AUTOSCALERS), manager=AUTOSCALER_MANAGER)
    waiting = {"replicas": 2, "ready": 1, "reason": "1 of 2: no free nvidia.com/gpu"}
    server.apply_status(pool_chat("chat-decode", waiting), manager=OPERATOR_MANAGER)
    server.apply_status(pool_chat("chat-prefill", {"replicas": 2, "ready": 2}), manager=OPERATOR_MANAGER)
    expected = (ROOT / "tests/data/kubectl-get-msvc-wp.txt").read_text(encoding="utf-8")
    assert cells(server.kubectl("get", "msvc,wp")) == cells(expected)


def cells(table: str) -> list[list[str]]:
    """The cells of kubectl's table, without the age, which is the last one."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()][:-1] for line in table.splitlines()]


def test_every_place_of_the_full_objects_exists():
    """The objects that the tables change use every field of the schemas."""
    for definition, path, _ in NODES:
        assert next(locations(FULL[definition.kind], path), None) is not None, (definition.kind, path)


def test_a_default_is_complete():
    """The server runs rules on a default as it is written; one that leaves a field out would be refused with the CRD."""
    engine = structural_schema(DEFINITIONS[0].model)["properties"]["spec"]["properties"]["engine"]
    assert (
        engine["default"]
        == model_defaults("ModelService", {"model": MODEL, "pools": MINIMAL["ModelService"]["pools"]})["engine"]
    )
