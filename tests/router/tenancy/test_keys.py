"""The key file: what it may hold, what is said of what it may not, and how a key is found."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from forebay_router.followed import BadFileError
from forebay_router.reading import Received
from forebay_router.tenancy.gate import Gate, Stranger, key_of
from forebay_router.tenancy.keys import Bounds, KeyRing, key_files, read_keys

DIGEST = sha256(b"fb-one").hexdigest()
OTHER = sha256(b"fb-two").hexdigest()
ONE = f"keys:\n- name: one\n  tenant: a\n  sha256: {DIGEST}\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_key_is_found_by_its_digest_with_all_that_it_allows(tmp_path):
    text = f"""
tenants:
- {{name: a, weight: 3, tokensPerMinute: 5000}}
keys:
- name: one
  tenant: a
  sha256: {DIGEST}
  models: [m, n]
  requestsPerMinute: 60
  maxInFlight: 2
  priority: low
- {{name: two, tenant: b, sha256: {OTHER}}}
"""
    ring = read_keys(written(tmp_path / "keys.yaml", text))
    grant = ring.find(b"fb-one")
    assert grant is not None
    assert (grant.key, grant.tenant, grant.weight, grant.priority_max) == ("one", "a", 3, -1)
    assert grant.bounds == Bounds(requests_per_minute=60, in_flight_max=2)
    assert grant.tenant_bounds == Bounds(tokens_per_minute=5000)
    assert (grant.allows("m"), grant.allows("x")) == (True, False)
    two = ring.find(b"fb-two")
    assert two is not None
    assert (two.allows("x"), two.priority_max, two.weight, two.bounds) == (True, None, 1, Bounds())
    assert ring.find(b"fb-three") is None
    assert ring.find(b"") is None


def test_json_means_the_same(tmp_path):
    file = {"keys": [{"name": "one", "tenant": "a", "sha256": DIGEST}]}
    ring = read_keys(written(tmp_path / "keys.json", json.dumps(file)))
    assert ring.find(b"fb-one") is not None


def test_a_directory_is_all_its_key_files_as_a_mounted_secret_has_them(tmp_path):
    data = tmp_path / "..2026"
    data.mkdir()
    written(data / "a.yaml", ONE)
    written(data / "b.json", json.dumps({"keys": [{"name": "two", "tenant": "b", "sha256": OTHER}]}))
    (tmp_path / "..data").symlink_to(data)
    for name in ("a.yaml", "b.json"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    written(tmp_path / "notes.txt", "not a key file")
    assert [path.name for path in key_files(tmp_path)] == ["a.yaml", "b.json"]
    ring = read_keys(tmp_path)
    assert {grant.tenant for grant in ring.grants.values()} == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no key"),
        ("keys: []", "holds no key"),
        ("keys:\n- {name: x", "is not valid YAML at line 2, column 11"),
        ('{"keys": [', "is not valid JSON at line 1, column 11"),
        ("- a", "must begin with `tenants:` or `keys:`"),
        ("text", "must begin with `tenants:` or `keys:`"),
        ("keys:\n- {tenant: a, sha256: " + DIGEST + "}", "keys[0].name: Field required"),
        ("keys:\n- {name: x, tenant: a b, sha256: " + DIGEST + "}", "keys[0].tenant: must be 1 to 63 letters"),
        ("keys:\n- {name: x, tenant: a, sha256: fb-plain}", "keys[0].sha256: must be the SHA-256 of a key"),
        (ONE + "  requestsPerMin: 5\n", "keys[0].requestsPerMin: is no field here: remove it or correct its spelling"),
        (ONE + "  requestsPerMinute: 0\n", "keys[0].requestsPerMinute: Input should be greater than or equal to 1"),
        (ONE + "  priority: urgent\n", "keys[0].priority: Input should be 'high', 'normal' or 'low'"),
        (ONE + "  models: []\n", "keys[0].models: List should have at least 1 item"),
        (ONE + ONE.removeprefix("keys:\n"), "the name 'one' stands there twice"),
        (ONE + f"- {{name: two, tenant: a, sha256: {DIGEST}}}\n", "'two' and 'one' are the same key"),
        ("tenants: [{name: a}, {name: a}]\n" + ONE, "tenants: 'a' stands there twice"),
    ],
)
def test_a_wrong_file_names_the_field_and_the_fix(tmp_path, text, says):
    path = written(tmp_path / "keys.yaml", text)
    with pytest.raises(BadFileError) as raised:
        read_keys(path)
    assert str(path) in str(raised.value)
    assert says in str(raised.value)


def test_a_key_put_where_its_digest_belongs_is_not_told(tmp_path):
    text = "keys:\n- {name: x, tenant: a, sha256: fb-secret, key: fb-secret}"
    with pytest.raises(BadFileError) as raised:
        read_keys(written(tmp_path / "keys.yaml", text))
    assert "fb-secret" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(BadFileError, match=r"keys\.yaml: cannot be read: No such file"):
        read_keys(tmp_path / "keys.yaml")
    with pytest.raises(BadFileError, match="holds no key"):
        read_keys(tmp_path)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({b"authorization": b"Bearer fb-one"}, b"fb-one"),
        ({b"authorization": b"bearer  fb-one "}, b"fb-one"),
        ({b"x-api-key": b"fb-one"}, b"fb-one"),
        ({b"authorization": b"Basic YTpi", b"x-api-key": b"fb-one"}, b"fb-one"),
        ({b"authorization": b"Bearer fb-one", b"x-api-key": b"fb-two"}, b"fb-one"),
        ({b"authorization": b"Bearer"}, b""),
        ({b"authorization": b"Bearer "}, b""),
        ({b"authorization": b"fb-one"}, b""),
        ({}, b""),
    ],
)
def test_a_key_comes_as_bearer_or_as_x_api_key(fields, key):
    assert key_of(fields) == key


def asked(method: bytes = b"POST", target: bytes = b"/v1/completions", **fields: bytes) -> Received:
    named = {name.replace("_", "-").encode(): value for name, value in fields.items()}
    return Received(method, target, list(named.items()), named, http_10=False, keep_alive=True)


def test_the_gate_lets_in_who_has_a_key_and_counts_who_has_none(tmp_path):
    gate = Gate(read_keys(written(tmp_path / "keys.yaml", ONE)))
    known = asked(authorization=b"Bearer fb-one")
    assert gate.check(known) is None
    assert (known.grant.tenant, known.grant.key) == ("a", "one")
    for request in (asked(), asked(target=b"/v1/models?x=1", method=b"GET"), asked(target=b"/nowhere")):
        refused = gate.check(request)
        assert (refused.status, refused.code, request.grant) == (401, "invalid_api_key", None)
        assert "`Authorization: Bearer KEY`" in refused.message
    assert gate.check(asked(x_api_key=b"fb-wrong")).status == 401
    assert gate.strangers == {Stranger.NO_KEY: 3, Stranger.UNKNOWN_KEY: 1}


def test_health_checks_and_preflights_need_no_key():
    gate = Gate(KeyRing())
    for request in (asked(b"GET", b"/health"), asked(b"GET", b"/ping?x"), asked(b"OPTIONS", b"/v1/completions")):
        assert gate.check(request) is None
    assert gate.check(asked(b"GET", b"/healthz")).status == 401
