"""Limits: what is let in, what is given back, and the laws that hold whatever comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_router.endpoints import ENDPOINTS
from forebay_router.errors import RequestRefused
from forebay_router.parsing import DEFAULT_OUTPUT_TOKENS, parse_request
from forebay_router.tenancy.keys import Bounds, Grant, KeyRing
from forebay_router.tenancy.quotas import Limit, Quotas, Ticket, duration, tokens_to_reserve


def granted(key: str = "k", tenant: str = "t", *, bounds: Bounds, tenant_bounds: Bounds | None = None) -> Grant:
    return Grant(key=key, tenant=tenant, bounds=bounds, tenant_bounds=tenant_bounds or Bounds())


def known(*grants: Grant, now_s: float = 0.0) -> Quotas:
    quotas = Quotas()
    quotas.know(ring(*grants), now_s)
    return quotas


def ring(*grants: Grant) -> KeyRing:
    return KeyRing({grant.key.encode(): grant for grant in grants})


def refusal(quotas: Quotas, grant: Grant, tokens: int, now_s: float) -> RequestRefused:
    with pytest.raises(RequestRefused) as raised:
        quotas.admit(grant, tokens, now_s)
    return raised.value


def test_requests_per_minute_are_a_minutes_worth_at_once_and_then_evenly():
    grant = granted(bounds=Bounds(requests_per_minute=60))
    quotas = known(grant)
    for _ in range(60):
        quotas.admit(grant, 0, 0.0)
    refused = refusal(quotas, grant, 0, 0.0)
    assert (refused.status, refused.code, refused.type, refused.retry_after_s) == (
        429,
        "rate_limit_exceeded",
        "requests",
        1,
    )
    assert refused.message == "Rate limit reached: 60 requests per minute. Try again in 1s."
    quotas.admit(grant, 0, 1.0)
    assert refusal(quotas, grant, 0, 1.5).retry_after_s == 1
    assert quotas.tenants["t"].refused[Limit.REQUESTS] == 2


def test_tokens_are_reserved_and_what_was_not_used_goes_back():
    grant = granted(bounds=Bounds(tokens_per_minute=1000))
    quotas = known(grant)
    first = quotas.admit(grant, 900, 0.0)
    refused = refusal(quotas, grant, 200, 0.0)
    assert (refused.type, refused.retry_after_s) == ("tokens", 6), "100 tokens are missing, 1000 come in 60 s"
    quotas.settle(first, 300)
    quotas.admit(grant, 700, 0.0)
    refusal(quotas, grant, 1, 0.0)


def test_what_was_used_beyond_the_reservation_is_owed():
    grant = granted(bounds=Bounds(tokens_per_minute=600))
    quotas = known(grant)
    quotas.settle(quotas.admit(grant, 100, 0.0), 700)
    assert refusal(quotas, grant, 1, 0.0).retry_after_s == 11, "101 tokens at 10 a second"
    quotas.admit(grant, 1, 10.2)


def test_a_reservation_without_known_usage_stays():
    grant = granted(bounds=Bounds(tokens_per_minute=600))
    quotas = known(grant)
    quotas.settle(quotas.admit(grant, 600, 0.0), None)
    refusal(quotas, grant, 1, 0.0)


def test_a_ticket_is_settled_once():
    grant = granted(bounds=Bounds(tokens_per_minute=600, in_flight_max=1))
    quotas = known(grant)
    ticket = quotas.admit(grant, 100, 0.0)
    quotas.settle(ticket, 0)
    quotas.settle(ticket, 0)
    quotas.admit(grant, 600, 0.0)
    assert quotas.accounts["key", "k"].in_flight == 1


def test_a_request_that_can_never_fit_is_told_so_and_not_to_try_again():
    grant = granted(bounds=Bounds(tokens_per_minute=600))
    refused = refusal(known(grant), grant, 601, 0.0)
    assert (refused.status, refused.retry_after_s) == (429, None)
    assert b"x-should-retry: false\r\n" in refused.lines
    assert "it may use 601 tokens" in refused.message
    assert "limit is 600" in refused.message


def test_in_flight_is_bounded_and_comes_back():
    grant = granted(bounds=Bounds(in_flight_max=2))
    quotas = known(grant)
    tickets = [quotas.admit(grant, 0, 0.0) for _ in range(2)]
    refused = refusal(quotas, grant, 0, 0.0)
    assert (refused.status, refused.code, refused.retry_after_s) == (429, "concurrency_limit_exceeded", 1)
    quotas.settle(tickets[0], 0)
    quotas.admit(grant, 0, 0.0)


def test_keys_of_a_tenant_share_its_limit_and_keep_their_own():
    shared = Bounds(requests_per_minute=3)
    one = granted("one", bounds=Bounds(requests_per_minute=2), tenant_bounds=shared)
    two = granted("two", bounds=Bounds(), tenant_bounds=shared)
    quotas = known(one, two)
    quotas.admit(one, 0, 0.0)
    quotas.admit(one, 0, 0.0)
    refusal(quotas, one, 0, 0.0)
    quotas.admit(two, 0, 0.0)
    refusal(quotas, two, 0, 0.0)


def test_a_request_that_one_limit_refuses_takes_nothing_from_the_others():
    grant = granted(bounds=Bounds(requests_per_minute=10, tokens_per_minute=100, in_flight_max=10))
    quotas = known(grant)
    quotas.admit(grant, 100, 0.0)
    for _ in range(20):
        refusal(quotas, grant, 50, 0.0)
    account = quotas.accounts["key", "k"]
    assert (account.requests.level, account.tokens.level, account.in_flight) == (9, 0, 1)


def test_headers_tell_what_is_left_of_the_tighter_limit():
    grant = granted(
        bounds=Bounds(requests_per_minute=60, tokens_per_minute=6000), tenant_bounds=Bounds(requests_per_minute=30)
    )
    ticket = known(grant).admit(grant, 1000, 0.0)
    assert ticket.lines.decode().splitlines() == [
        "x-ratelimit-limit-requests: 30",
        "x-ratelimit-remaining-requests: 29",
        "x-ratelimit-reset-requests: 2s",
        "x-ratelimit-limit-tokens: 6000",
        "x-ratelimit-remaining-tokens: 5000",
        "x-ratelimit-reset-tokens: 10s",
    ]


def test_a_key_without_limits_costs_no_headers_and_is_counted():
    grant = granted(bounds=Bounds())
    quotas = known(grant)
    ticket = quotas.admit(grant, 10**9, 0.0)
    assert (ticket.lines, ticket.accounts) == (b"", ())
    assert (quotas.tenants["t"].requests, quotas.tenants["t"].in_flight) == (1, 1)
    quotas.settle(ticket, 5)
    assert quotas.tenants["t"].in_flight == 0


def test_a_changed_limit_keeps_the_share_that_was_left():
    grant = granted(bounds=Bounds(requests_per_minute=100))
    quotas = known(grant)
    for _ in range(80):
        quotas.admit(grant, 0, 0.0)
    quotas.know(ring(granted(bounds=Bounds(requests_per_minute=10))), 0.0)
    assert quotas.accounts["key", "k"].requests.level == pytest.approx(2)
    quotas.know(ring(granted("other", bounds=Bounds())), 0.0)
    assert ("key", "k") not in quotas.accounts


def test_replicas_give_out_their_part():
    grant = granted(bounds=Bounds(requests_per_minute=60, tokens_per_minute=900, in_flight_max=4))
    quotas = known(grant)
    quotas.share(3, 0.0)
    account = quotas.accounts["key", "k"]
    assert (account.requests.per_minute, account.tokens.per_minute) == (20, 300)
    ticket = quotas.admit(grant, 600, 0.0)
    assert b"x-ratelimit-limit-tokens: 900\r\n" in ticket.lines, "clients are told of the whole limit"
    assert account.tokens.level == -300, "what fits into the limit is let in, though more than this router's part"
    quotas.settle(ticket, 0)
    for _ in range(2):
        quotas.admit(grant, 0, 0.0)
    assert refusal(quotas, grant, 0, 0.0).code == "concurrency_limit_exceeded"
    quotas.share(1, 0.0)
    assert account.requests.per_minute == 60


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.0121, "13ms"), (1, "1s"), (6.4999, "6.5s"), (59.999, "60s"), (123.2, "2m4s")]
)
def test_durations_are_written_as_openai_writes_them(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        (
            "/v1/chat/completions",
            b'{"messages":[{"role":"user","content":"%b"}],"max_tokens":7}' % (b"x" * 400),
            100 + 8,
        ),
        ("/v1/chat/completions", b'{"messages":[],"max_completion_tokens":7,"max_tokens":9}', 7),
        ("/v1/completions", b'{"prompt":[1,2,3],"max_tokens":5,"n":4}', 3 + 20),
        ("/v1/completions", b'{"prompt":[1,2,3]}', 3 + DEFAULT_OUTPUT_TOKENS),
        ("/v1/embeddings", b'{"input":"xxxxxxxx"}', 5),
        ("/tokenize", b'{"prompt":"xxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', 0),
    ],
)
def test_reserved_are_the_prompt_and_all_the_output_that_is_allowed(path, body, tokens):
    parsed = parse_request(ENDPOINTS[path.encode()], {}, body)
    assert abs(tokens_to_reserve(parsed) - tokens) <= 2


def test_an_image_is_not_taken_for_its_weight_in_text():
    part = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,%b"}}' % (b"A" * 400_000)
    body = b'{"messages":[{"role":"user","content":[%b]}],"max_tokens":1}' % part
    parsed = parse_request(ENDPOINTS[b"/v1/chat/completions"], {}, body)
    assert tokens_to_reserve(parsed) < 50


Step = tuple[float, int, int | None]
steps = st.lists(
    st.tuples(st.floats(0, 20), st.integers(0, 120), st.one_of(st.none(), st.integers(0, 200))), max_size=60
)


@given(steps)
def test_no_more_is_let_in_than_a_full_bucket_and_what_came_in_meanwhile(run: list[Step]):
    """With settled usage that never exceeds the reservation, what is used in time T is at most limit x (1 + T / 60)."""
    limit = 100
    grant = granted(bounds=Bounds(tokens_per_minute=limit))
    quotas = known(grant)
    now_s, used = 0.0, 0
    for pause_s, tokens, spent in run:
        now_s += pause_s
        try:
            ticket = quotas.admit(grant, tokens, now_s)
        except RequestRefused:
            continue
        actual = tokens if spent is None else min(spent, tokens)
        quotas.settle(ticket, actual)
        used += actual
        assert used <= limit * (1 + now_s / 60) + 1e-6


@given(steps)
def test_everything_settled_means_nothing_in_flight_and_no_level_above_its_limit(run: list[Step]):
    grant = granted(bounds=Bounds(requests_per_minute=50, tokens_per_minute=100, in_flight_max=3))
    quotas = known(grant)
    now_s = 0.0
    open_tickets: list[tuple[Ticket, int | None]] = []
    account = quotas.accounts["key", "k"]
    for pause_s, tokens, spent in run:
        now_s += pause_s
        try:
            open_tickets.append((quotas.admit(grant, tokens, now_s), spent))
        except RequestRefused:
            if len(open_tickets) > 1:
                quotas.settle(*open_tickets.pop(0))
        assert account.in_flight == len(open_tickets) <= 3
        assert account.tokens.level <= 100
        assert 0 <= account.requests.level <= 50
    for ticket, spent in open_tickets:
        quotas.settle(ticket, spent)
    assert account.in_flight == quotas.tenants["t"].in_flight == 0


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.floats(0.01, 1000))
def test_after_the_wait_that_was_told_the_request_is_let_in(limit: int, tokens: int, waited: float):
    grant = granted(bounds=Bounds(tokens_per_minute=limit))
    quotas = known(grant)
    quotas.admit(grant, limit, 0.0)
    try:
        quotas.admit(grant, min(tokens, limit), waited)
    except RequestRefused as refused:
        quotas.admit(grant, min(tokens, limit), waited + refused.retry_after_s)
