"""Limits of keys and tenants: reserve when a request is let in, settle when its tokens are known. Pure: the time is an argument.

A rate is a bucket that holds what one minute allows and fills again evenly, so a client that was quiet may send a minute's worth
at once, and never more than two in any minute. Tokens are taken out before they are known: the prompt by its size, and all the
output that the request allows. When the answer has ended, what was not used goes back, and what was used beyond it is owed: a
level may fall below zero, and then nobody is let in until it is above.

    let in    if every bucket (the key's and the tenant's) has what is asked, or is full and less than the whole limit is asked
    settle    level += reserved - used; an answer that broke off without telling its tokens keeps its reservation

All or nothing: a request that one limit refuses takes nothing from the others. Limits hold for one router process; with
`replicas` live routers each gives out its part of the rates, so the sum holds where a balancer spreads a key's requests evenly.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from forebay_router.errors import RequestRefused
from forebay_router.index.content import content_of
from forebay_router.parsing import BYTES_PER_TOKEN, DEFAULT_OUTPUT_TOKENS, ParsedRequest
from forebay_router.tenancy.keys import UNBOUNDED, Bounds, Grant, KeyRing

MINUTE_S: Final = 60.0
_ROUNDING: Final = 1e-6
"""Of a level, which is a sum of many floats."""


_REQUESTS_LINES: Final = (
    "x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\nx-ratelimit-reset-requests: %s\r\n"
)
_TOKENS_LINES: Final = _REQUESTS_LINES.replace("requests", "tokens")


class Limit(StrEnum):
    """What a request can be too much for. Values are metric labels."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    IN_FLIGHT = "in_flight"
    MODEL = "model"


@dataclass(slots=True)
class Bucket:
    """One rate."""

    per_minute: float
    level: float
    updated_s: float

    def refill(self, now_s: float) -> None:
        """Add what has come in since the last time."""
        gained = (now_s - self.updated_s) * self.per_minute / MINUTE_S
        self.level = min(self.per_minute, self.level + gained)
        self.updated_s = now_s

    def wait_s(self, amount: float) -> float:
        """How long until it has an amount; one that is more than it ever holds is given when it is full."""
        missing = min(amount, self.per_minute) - self.level
        return missing * MINUTE_S / self.per_minute if missing > _ROUNDING else 0.0


@dataclass(slots=True)
class Account:
    """What a key, or a tenant, has left."""

    bounds: Bounds
    requests: Bucket | None = None
    tokens: Bucket | None = None
    in_flight: int = 0
    """Counted while there are bounds."""

    def take_over(self, bounds: Bounds, replicas: int, now_s: float) -> None:
        """Changed limits: what is left stays, as a share of the limit."""
        self.bounds = bounds
        self.requests = _adapted(self.requests, bounds.requests_per_minute, replicas, now_s)
        self.tokens = _adapted(self.tokens, bounds.tokens_per_minute, replicas, now_s)


def _adapted(bucket: Bucket | None, per_minute: int | None, replicas: int, now_s: float) -> Bucket | None:
    if per_minute is None:
        return None
    part = per_minute / replicas
    if bucket is None:
        return Bucket(part, part, now_s)
    bucket.refill(now_s)
    return Bucket(part, bucket.level * part / bucket.per_minute, now_s)


@dataclass(slots=True)
class TenantStats:
    """What a tenant has done."""

    requests: int = 0
    in_flight: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    refused: dict[Limit, int] = field(default_factory=lambda: dict.fromkeys(Limit, 0))

    def add(self, other: "TenantStats") -> None:
        """Count another tenant in."""
        self.requests += other.requests
        self.in_flight += other.in_flight
        self.prompt_tokens += other.prompt_tokens
        self.output_tokens += other.output_tokens
        for limit, count in other.refused.items():
            self.refused[limit] += count


@dataclass(slots=True)
class Ticket:
    """One request that was let in. Settled once."""

    accounts: tuple[Account, ...]
    stats: TenantStats
    reserved_tokens: int
    lines: bytes
    """Header lines that tell the client what is left."""
    held: bool = True


@dataclass(slots=True)
class Quotas:
    """The accounts of all keys and tenants."""

    replicas: int = 1
    """Live routers that share the rates."""
    accounts: dict[tuple[str, str], Account] = field(default_factory=dict)
    """By kind and name."""
    tenants: dict[str, TenantStats] = field(default_factory=dict)
    _limited: dict[str, tuple[Account, ...]] = field(default_factory=dict)
    """The accounts that may refuse a key's requests, by its name."""

    def know(self, ring: KeyRing, now_s: float) -> None:
        """Take over the keys of a file: new accounts are full, changed ones keep what they have used."""
        wanted: dict[tuple[str, str], Bounds] = {}
        for grant in ring.grants.values():
            wanted["key", grant.key] = grant.bounds
            wanted["tenant", grant.tenant] = grant.tenant_bounds
        for name in self.accounts.keys() - wanted.keys():
            del self.accounts[name]
        for name, bounds in wanted.items():
            account = self.accounts.setdefault(name, Account(bounds))
            account.take_over(bounds, self.replicas, now_s)
        for grant in ring.grants.values():
            both = (self.accounts["key", grant.key], self.accounts["tenant", grant.tenant])
            self._limited[grant.key] = tuple(account for account in both if account.bounds != UNBOUNDED)
            self.tenants.setdefault(grant.tenant, TenantStats())

    def share(self, replicas: int, now_s: float) -> None:
        """So many routers share the rates from now on."""
        if replicas != self.replicas:
            self.replicas = replicas
            for account in self.accounts.values():
                account.take_over(account.bounds, replicas, now_s)

    def admit(self, grant: Grant, tokens: int, now_s: float) -> Ticket:
        """Let a request in that may use so many tokens; raises RequestRefused (429)."""
        stats = self.stats_of(grant.tenant)
        accounts = self._limited.get(grant.key, ())
        if accounts:
            self._take(accounts, tokens, now_s, stats)
        stats.requests += 1
        stats.in_flight += 1
        return Ticket(accounts, stats, tokens, left_lines(accounts, self.replicas) if accounts else b"")

    def stats_of(self, tenant: str) -> TenantStats:
        """Counts of a tenant, also of one whose last key is gone."""
        return self.tenants.get(tenant) or self.tenants.setdefault(tenant, TenantStats())

    def _take(self, accounts: tuple[Account, ...], tokens: int, now_s: float, stats: TenantStats) -> None:
        """Take a request out of every account, or out of none."""
        for account in accounts:
            for bucket in (account.requests, account.tokens):
                if bucket is not None:
                    bucket.refill(now_s)
        refused = _refusal(accounts, tokens, self.replicas)
        if refused is not None:
            limit, error = refused
            stats.refused[limit] += 1
            error.lines += left_lines(accounts, self.replicas)
            raise error
        for account in accounts:
            account.in_flight += 1
            if account.requests is not None:
                account.requests.level -= 1
            if account.tokens is not None:
                account.tokens.level -= tokens

    @staticmethod
    def settle(ticket: Ticket, used_tokens: int | None) -> None:
        """The request has ended with so many tokens; None keeps the reservation. Only the first call counts."""
        if not ticket.held:
            return
        ticket.held = False
        ticket.stats.in_flight -= 1
        back = 0 if used_tokens is None else ticket.reserved_tokens - used_tokens
        for account in ticket.accounts:
            account.in_flight -= 1
            if account.tokens is not None:
                account.tokens.level = min(account.tokens.per_minute, account.tokens.level + back)


def _refusal(accounts: tuple[Account, ...], tokens: int, replicas: int) -> tuple[Limit, RequestRefused] | None:
    """Why a request cannot be let in now, and the limit that keeps it out longest; None when it can."""
    worst: tuple[float, Limit, RequestRefused] | None = None
    for account in accounts:
        bounds = account.bounds
        if bounds.tokens_per_minute is not None and tokens > bounds.tokens_per_minute:
            return Limit.TOKENS, _too_large(bounds.tokens_per_minute, tokens)
        for found in _waits(account, tokens, replicas):
            if worst is None or found[0] > worst[0]:
                worst = found
    return None if worst is None else worst[1:]


def _waits(account: Account, tokens: int, replicas: int) -> Iterator[tuple[float, Limit, RequestRefused]]:
    bounds = account.bounds
    if bounds.in_flight_max is not None and account.in_flight >= math.ceil(bounds.in_flight_max / replicas):
        yield 1.0, Limit.IN_FLIGHT, _too_many_at_once(bounds.in_flight_max)
    for limit, bucket, per_minute, amount in (
        (Limit.REQUESTS, account.requests, bounds.requests_per_minute, 1),
        (Limit.TOKENS, account.tokens, bounds.tokens_per_minute, tokens),
    ):
        if bucket is not None and (wait_s := bucket.wait_s(amount)) > 0:
            yield wait_s, limit, _rate_reached(limit, per_minute or 0, wait_s)


def _rate_reached(limit: Limit, per_minute: int, wait_s: float) -> RequestRefused:
    return RequestRefused(
        429,
        f"Rate limit reached: {per_minute} {limit.value} per minute. Try again in {duration(wait_s)}.",
        type=limit.value,
        code="rate_limit_exceeded",
        retry_after_s=max(1, math.ceil(wait_s)),
    )


def _too_many_at_once(most: int) -> RequestRefused:
    return RequestRefused(
        429,
        f"Too many requests at once: this key may have {most} in flight. Wait for one to end.",
        type=Limit.REQUESTS.value,
        code="concurrency_limit_exceeded",
        retry_after_s=1,
    )


def _too_large(per_minute: int, tokens: int) -> RequestRefused:
    """No wait will help, so clients are told not to try again (the official ones obey x-should-retry)."""
    return RequestRefused(
        429,
        f"Request too large: it may use {tokens} tokens (prompt and allowed output), the limit is {per_minute} tokens per "
        "minute. Shorten the prompt or lower max_tokens.",
        type=Limit.TOKENS.value,
        code="rate_limit_exceeded",
        lines=b"x-should-retry: false\r\n",
    )


def duration(seconds: float) -> str:
    """A time as OpenAI writes it in its headers: 120ms, 6.5s, 2m3s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < MINUTE_S:
        return f"{math.ceil(seconds * 100) / 100:g}s"
    whole = math.ceil(seconds)
    return f"{whole // 60}m{whole % 60}s"


def left_lines(accounts: tuple[Account, ...], replicas: int) -> bytes:
    """Header lines on what is left, of the account that has least left."""
    requests = tokens = None
    for account in accounts:
        bucket = account.requests
        if bucket is not None and (requests is None or bucket.level < requests.level):
            requests = bucket
        bucket = account.tokens
        if bucket is not None and (tokens is None or bucket.level < tokens.level):
            tokens = bucket
    return _told(_REQUESTS_LINES, requests, replicas) + _told(_TOKENS_LINES, tokens, replicas)


def _told(lines: str, bucket: Bucket | None, replicas: int) -> bytes:
    if bucket is None:
        return b""
    per_minute, left = bucket.per_minute, bucket.level
    reset = duration((per_minute - left) * MINUTE_S / per_minute)
    return (lines % (round(per_minute * replicas), max(0, int(left * replicas)), reset)).encode()


def tokens_to_reserve(parsed: ParsedRequest) -> int:
    """The most tokens a request may use, as far as its body tells: the prompt by its size, and the output it allows.

    Where the client sets no limit the output is guessed and settled later. A request whose answer tells no token counts (audio,
    tokenising) is not counted in tokens.
    """
    fields = parsed.outline  # it is whole where there is no content yet
    if fields is None or not parsed.endpoint.judged:
        return 0
    content = parsed.content or (content_of(fields) if parsed.endpoint.prompted else None)
    if content is None:
        return parsed.prompt_tokens
    prompt = len(content.token_ids) if content.token_ids is not None else content.size_bytes // BYTES_PER_TOKEN
    allowed = fields.get("max_completion_tokens") or fields.get("max_tokens") or fields.get("max_output_tokens")
    output = allowed if type(allowed) is int and allowed > 0 else DEFAULT_OUTPUT_TOKENS
    choices = fields.get("n")
    return prompt + output * (choices if type(choices) is int and 1 < choices <= 128 else 1)
