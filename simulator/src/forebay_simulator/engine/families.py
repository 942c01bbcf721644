"""Every metric family of vLLM 0.32 that this engine exports: name, kind, help, labels, buckets.

The table, `families.json`, is the contract (56 families, captured from a real engine); `metrics` fills it. `when` says
under which configuration a family exists at all, as in vLLM, where NIXL metrics come with a NIXL connector, the fetch
stages on a consumer, and block statistics with `--kv-cache-metrics`. Known label values are exported as zeros from the
start.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Kind(Enum):
    """Prometheus type."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class When(Enum):
    """Which engines export a family."""

    ALWAYS = "always"
    NIXL = "nixl"
    CONSUMER = "consumer"
    BLOCK_METRICS = "block_metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family. A counter's name ends in `_total`."""

    name: str
    kind: Kind
    help: str
    label: str = ""
    """The family's own label, beside `engine` and `model_name`."""
    values: tuple[str, ...] = ()
    """Known values of that label."""
    buckets: tuple[float, ...] = ()
    """Upper bounds, without +Inf."""
    per_engine: bool = True
    """Carries the label `engine`."""
    per_model: bool = True
    """Carries the label `model_name`."""
    when: When = When.ALWAYS

    @property
    def base(self) -> str:
        """The name without `_total`."""
        return self.name.removesuffix("_total") if self.kind is Kind.COUNTER else self.name


def _load() -> tuple[Family, ...]:
    rows = json.loads(Path(__file__).with_name("families.json").read_text(encoding="utf-8"))
    return tuple(
        Family(
            **{
                **row,
                "kind": Kind(row["kind"]),
                "values": tuple(row.get("values", ())),
                "buckets": tuple(row.get("buckets", ())),
                "when": When(row.get("when", "always")),
            }
        )
        for row in rows
    )


FAMILIES = _load()
HTTP_PREFIX = "http_"
"""Families of the HTTP server rather than the engine start with this."""
