"""Samples of keys, limits, files and bounds, for a scrape.

Tenants have series by their names in the key file, at most `TENANTS_MAX`; all further ones are counted together, as `_other`. So
the number of series is bounded by us, whatever the file holds.
"""

from collections.abc import Iterator
from typing import Final

from forebay_router import metrics
from forebay_router.metrics import Sample
from forebay_router.protection import Protection
from forebay_router.tenancy.gate import Stranger
from forebay_router.tenancy.quotas import Limit, TenantStats

TENANTS_MAX: Final = 100
OTHER: Final = "_other"
"""No tenant can have this name."""


def protection_samples(protection: Protection) -> Iterator[Sample]:
    """Everything that protection counts."""
    gate = protection.gate
    for stranger in Stranger:
        yield metrics.STRANGERS, (("reason", stranger.value),), gate.strangers[stranger] if gate else 0
    yield metrics.API_KEYS, (), len(gate.ring.grants) if gate else 0
    for tenant, stats in shown_tenants(protection.quotas.tenants).items():
        yield from _tenant_samples(tenant, stats)
    for file in protection.files:
        label = (("file", file.kind.value),)
        yield metrics.FILE_RELOADS, label, file.reloads
        yield metrics.FILE_FAILURES, label, file.failures
        yield metrics.FILE_VALID, label, int(file.valid)
    yield metrics.BODY_BYTES, (), protection.bodies.held_bytes
    yield metrics.BODIES_REFUSED, (), protection.bodies.refused
    yield metrics.KEEP_ALIVES, (), protection.keep_alive.comments if protection.keep_alive else 0


def shown_tenants(tenants: dict[str, TenantStats]) -> dict[str, TenantStats]:
    """The first tenants by name, and the sum of all others."""
    names = list(tenants)
    shown = {name: tenants[name] for name in names[:TENANTS_MAX]}
    for name in names[TENANTS_MAX:]:
        shown.setdefault(OTHER, TenantStats()).add(tenants[name])
    return shown


def _tenant_samples(tenant: str, stats: TenantStats) -> Iterator[Sample]:
    label = ("tenant", tenant)
    yield metrics.TENANT_REQUESTS, (label,), stats.requests
    yield metrics.TENANT_IN_FLIGHT, (label,), stats.in_flight
    yield metrics.TENANT_TOKENS, (label, ("kind", "prompt")), stats.prompt_tokens
    yield metrics.TENANT_TOKENS, (label, ("kind", "output")), stats.output_tokens
    for limit in Limit:
        yield metrics.TENANT_REFUSED, (label, ("limit", limit.value)), stats.refused[limit]
