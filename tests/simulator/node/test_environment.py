"""Environment, references and quantities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_simulator.node.environment import (
    PodFacts,
    Sources,
    compose_environment,
    expand,
    field_value,
    needed_objects,
)
from forebay_simulator.node.errors import PodConfigError
from forebay_simulator.node.quantities import divided_up, parse_quantity

from .manifests import container, pod

FACTS = PodFacts(pod(), "127.1.0.2", "127.1.0.1", {"cpu": "192", "memory": "2Ti"})
SOURCES = Sources(config_maps={"cm": {"a": b"1", "b": b"2"}}, secrets={"sec": {"pw": b"s3cret"}})


def compose(*env: dict, inherited: dict[str, str] | None = None, **fields) -> dict[str, str]:
    described = container(env=list(env), **fields)
    return compose_environment(described, inherited=inherited or {}, sources=SOURCES, facts=FACTS)


def from_field(name: str, path: str) -> dict:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(", "$("),
        ("$()", "$()"),
        ("$(A", "$(A"),
        ("$$$(A)", "$1"),
    ],
)
def test_references_are_replaced_as_kubernetes_does(text: str, result: str):
    assert expand(text, {"A": "1", "B": "2"}) == result


@given(st.text(alphabet="$(){}Ax "))
def test_text_without_known_names_keeps_all_but_doubled_dollars(text: str):
    assert expand(text, {}) == text.replace("$$", "$")


def test_later_values_win_and_see_earlier_ones():
    env = compose(
        {"name": "URL", "value": "http://$(HOST):$(PORT)"},
        {"name": "HOST", "value": "override"},
        {"name": "URL2", "value": "$(URL)/$(HOST)"},
        inherited={"HOST": "inherited", "PORT": "80"},
    )
    assert env["URL"] == "http://inherited:80"
    assert env["URL2"] == "http://inherited:80/override"


def test_whole_objects_come_before_single_values():
    env = compose(
        {"name": "a", "value": "mine"},
        envFrom=[{"configMapRef": {"name": "cm"}}, {"prefix": "S_", "secretRef": {"name": "sec"}}],
    )
    assert env == {"a": "mine", "b": "2", "S_pw": "s3cret"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web-0"),
        ("metadata.namespace", "default"),
        ("metadata.uid", "uid-1"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['absent']", ""),
        ("metadata.annotations", r'note="say \"hi\""'),
        ("spec.nodeName", "node-0"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "127.1.0.2"),
        ("status.hostIP", "127.1.0.1"),
    ],
)
def test_fields_of_the_pod(path: str, value: str):
    assert field_value(path, FACTS) == value


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ({"resource": "limits.cpu"}, "2"),
        ({"resource": "limits.cpu", "divisor": "1m"}, "1500"),
        ({"resource": "requests.memory", "divisor": "1Mi"}, "512"),
        ({"resource": "limits.memory", "divisor": "1Gi"}, "2048"),  # no limit: what the node has
        ({"resource": "limits.cpu", "divisor": "0"}, "2"),
        ({"resource": "requests.cpu"}, "0"),
    ],
)
def test_resources_of_the_container(reference: dict, value: str):
    env = compose(
        {"name": "R", "valueFrom": {"resourceFieldRef": reference}},
        resources={"limits": {"cpu": "1500m"}, "requests": {"memory": "512Mi"}},
    )
    assert env["R"] == value


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"secretKeyRef": {"name": "gone", "key": "k"}}, 'secret "gone" not found'),
        ({"configMapKeyRef": {"name": "cm", "key": "zz"}}, 'couldn\'t find key zz in configmap "cm"'),
        ({"fieldRef": {"fieldPath": "status.phase"}}, "fieldPath status.phase is not supported"),
    ],
)
def test_what_is_missing_is_named(source: dict, message: str):
    with pytest.raises(PodConfigError, match=message.replace("(", r"\(")):
        compose({"name": "X", "valueFrom": source})


def test_what_is_optional_may_be_missing():
    env = compose(
        {"name": "X", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "k", "optional": True}}},
        envFrom=[{"configMapRef": {"name": "gone", "optional": True}}],
    )
    assert env == {}


def test_needed_objects_are_found():
    described = container(
        envFrom=[{"configMapRef": {"name": "one"}}, {"secretRef": {"name": "two"}}],
        env=[
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "three", "key": "k"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "four", "key": "k"}}},
            from_field("C", "metadata.name"),
        ],
    )
    assert needed_objects(described) == ({"one", "three"}, {"two", "four"})


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("500m", 0.5), ("1Gi", 2**30), ("1.5k", 1500), ("2e3", 2000), ("100u", 0.0001), ("-1", -1)],
)
def test_quantities(text: str, value: float):
    assert float(parse_quantity(text)) == value


@pytest.mark.parametrize("text", ["", "x", "1GB", "1 Gi", "--1"])
def test_what_is_no_quantity_is_refused(text: str):
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        parse_quantity(text)


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_division_rounds_up(amount: int, divisor: int):
    assert divided_up(str(amount), str(divisor)) == -(-amount // divisor)
