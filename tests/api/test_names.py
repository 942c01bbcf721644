import re

from hypothesis import given
from hypothesis import strategies as st

from forebay_api import names

LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
service_names = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)
pool_names = st.from_regex(r"[a-z][a-z0-9]{0,19}", fullmatch=True)


@given(service_names, pool_names)
def test_the_name_of_a_pool_fits_a_service_and_a_label(service: str, pool: str):
    name = names.worker_pool_name(service, pool)
    assert DNS_LABEL.fullmatch(name)
    assert LABEL_VALUE.fullmatch(name)
    assert len(name) <= 63


@given(service_names, pool_names, service_names, pool_names)
def test_two_pools_never_share_a_name(service: str, pool: str, other_service: str, other_pool: str):
    same = names.worker_pool_name(service, pool) == names.worker_pool_name(other_service, other_pool)
    assert same == ((service, pool) == (other_service, other_pool))


@given(service_names, pool_names, st.sampled_from(["Prefill", "Decode", "Mixed"]))
def test_the_labels_of_a_worker_are_labels(service: str, pool: str, role: str):
    for key, value in names.worker_labels(model_service=service, pool=pool, role=role).items():
        assert LABEL_KEY.fullmatch(key)
        assert LABEL_VALUE.fullmatch(value)


def test_port_names_have_at_most_15_characters_and_differ():
    made = {value for name, value in vars(names).items() if name.endswith("_PORT_NAME")}
    assert all(re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", one) and len(one) <= 15 for one in made)
    assert len(made) == len([name for name in vars(names) if name.endswith("_PORT_NAME")])


def test_labels_and_annotations_are_well_formed_and_differ():
    made = [value for name, value in vars(names).items() if name.endswith(("_LABEL", "_ANNOTATION"))]
    assert len(set(made)) == len(made)
    assert all(LABEL_KEY.fullmatch(one) for one in made)


def test_field_managers_differ():
    made = [value for name, value in vars(names).items() if name.endswith("_MANAGER")]
    assert len(set(made)) == len(made)
