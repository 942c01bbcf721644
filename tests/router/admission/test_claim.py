"""What a request may claim of a queue."""

from dataclasses import replace
from math import inf

import pytest

from forebay_router.admission.claim import (
    TENANT_MAX_BYTES,
    Claim,
    Priority,
    claim_of,
    patience_of,
    priority_of,
    tenant_of,
)
from forebay_router.endpoints import ENDPOINTS
from forebay_router.errors import RequestRefused
from forebay_router.parsing import parse_request
from forebay_router.reading import Received
from forebay_router.tenancy.keys import Grant

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW


TEAM = Grant(key="k", tenant="team", weight=3)


def received(headers: dict[bytes, bytes] | None = None, *, grant: Grant | None = None) -> Received:
    made = Received(
        b"POST", b"/v1/chat/completions", [], headers or {}, http_10=False, keep_alive=True, received_s=100.0
    )
    made.grant = grant
    return made


@pytest.mark.parametrize(
    ("header", "fields", "ceiling", "priority"),
    [
        (None, {}, None, NORMAL),
        (None, None, None, NORMAL),
        (b"high", {}, None, HIGH),
        (b" Low ", {}, None, LOW),
        (b"normal", {"priority": 5}, None, NORMAL),
        (None, {"priority": -3}, None, HIGH),
        (None, {"priority": 0}, None, NORMAL),
        (None, {"priority": 7}, None, LOW),
        (None, {"priority": "7"}, None, NORMAL),
        (None, {"service_tier": "flex"}, None, LOW),
        (None, {"service_tier": "priority"}, None, HIGH),
        (None, {"service_tier": "auto"}, None, NORMAL),
        (None, {"service_tier": ["flex"]}, None, NORMAL),
        (b"high", {}, 0, NORMAL),
        (b"high", {}, 1, HIGH),
        (b"high", {}, 9, HIGH),
        (b"normal", {}, -1, LOW),
        (b"normal", {}, -9, LOW),
        (b"low", {}, 0, LOW),
    ],
)
def test_priority(header, fields, ceiling, priority):
    headers = {} if header is None else {b"x-forebay-priority": header}
    grant = None if ceiling is None else replace(TEAM, priority_max=ceiling)
    assert priority_of(received(headers, grant=grant), fields) is priority


def test_header_that_is_no_priority_is_an_error_that_names_the_fix():
    with pytest.raises(RequestRefused) as refused:
        priority_of(received({b"x-forebay-priority": b"urgent"}), {})
    assert (refused.value.status, refused.value.param) == (400, "x-forebay-priority")
    assert "high, normal or low" in refused.value.message


def test_tenant_is_the_key_s_else_the_client_s_word():
    assert tenant_of(received({b"x-forebay-tenant": b"me"}, grant=TEAM)) == ("team", 3)
    assert tenant_of(received({b"x-forebay-tenant": b"me"})) == ("me", 1)
    assert tenant_of(received()) == ("", 1)
    assert len(tenant_of(received({b"x-forebay-tenant": b"x" * 10_000}))[0]) == TENANT_MAX_BYTES


@pytest.mark.parametrize(
    ("headers", "stream", "first_byte_s", "total_s"),
    [
        ({}, True, inf, inf),
        ({b"x-forebay-timeout": b"2s"}, True, inf, 102.0),
        ({b"x-forebay-timeout": b"1500ms"}, False, inf, 101.5),
        ({b"x-forebay-timeout": b"7.5"}, False, inf, 107.5),
        ({b"x-stainless-read-timeout": b"600"}, True, 700.0, inf),
        ({b"x-stainless-read-timeout": b"600"}, False, 700.0, 700.0),
        ({b"x-stainless-read-timeout": b"NOT_GIVEN"}, False, inf, inf),
        ({b"x-stainless-read-timeout": b"nan"}, False, inf, inf),
        ({b"x-stainless-read-timeout": b"-5"}, False, inf, inf),
        ({b"x-envoy-expected-rq-timeout-ms": b"15000"}, True, inf, 115.0),
        ({b"x-envoy-expected-rq-timeout-ms": b"15000", b"x-forebay-timeout": b"3s"}, True, inf, 103.0),
    ],
)
def test_patience(headers, stream, first_byte_s, total_s):
    patience = patience_of(received(headers), stream=stream)
    assert (patience.first_byte_s, patience.total_s) == (first_byte_s, total_s)
    assert patience.until_s == min(first_byte_s, total_s)


@pytest.mark.parametrize("value", [b"soon", b"0", b"-3s", b"\xff", b""])
def test_own_timeout_that_cannot_be_read_is_an_error(value):
    with pytest.raises(RequestRefused) as refused:
        patience_of(received({b"x-forebay-timeout": value}), stream=True)
    assert (refused.value.status, refused.value.param) == (400, "x-forebay-timeout")


def test_claim_has_it_all():
    headers = {b"x-forebay-priority": b"low", b"x-forebay-tenant": b"a", b"x-forebay-timeout": b"1s"}
    parsed = parse_request(ENDPOINTS[b"/v1/chat/completions"], {}, b'{"model":"m","stream":true}')
    assert claim_of(received(headers), parsed) == Claim(LOW, "a", 1, 101.0)
