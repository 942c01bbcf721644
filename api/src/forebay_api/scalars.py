"""Types of single fields: names, durations, quantities, labels; each with the sentence that a wrong value gets."""

import re
from decimal import Decimal
from typing import Annotated, Final

from pydantic import Field

from forebay_api.durations import DURATION_MAX_LENGTH, DURATION_PATTERN, parse_duration_s
from forebay_api.fields import Rule, matches, text

PoolName = Annotated[
    str,
    Field(max_length=20),
    text(
        r"^[a-z][a-z0-9]*$",
        "must be lower-case letters and digits, starting with a letter, such as prefill or decode2: it is joined to the "
        "service's name by a dash, and two services must never make the same name",
    ),
]
"""Name of a pool within its service. It has no dash, so that <service>-<pool> is read in one way only."""

ObjectName = Annotated[
    str,
    Field(max_length=253),
    text(
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        "must be the name of a Kubernetes object: lower-case letters, digits, '-' and '.', "
        "starting and ending with a letter or digit",
    ),
]
"""Name of another Kubernetes object."""

ModelName = Annotated[
    str,
    Field(max_length=200),
    text(
        r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$",
        "must be letters, digits and . _ / : -, starting with a letter or digit, such as llama-3.1-8b",
    ),
]
"""Name that clients send."""

Source = Annotated[
    str,
    Field(max_length=512),
    text(
        r"^((hf|s3|gs|pvc|oci)://[^ ]+|/[^ ]+)$",
        "must say where the weights are: hf://organisation/name, s3://bucket/path, gs://bucket/path, pvc://claim/path, "
        "oci://image, or an absolute path",
    ),
]
"""Where weights are."""

Share = Annotated[
    str,
    Field(max_length=6),
    text(
        r"^(0\.[0-9]*[1-9][0-9]*|1(\.0+)?)$",
        'must be a share above 0 and at most 1, in quotes, such as "0.99"',
    ),
]
"""A share in (0, 1], as a string, since floating-point numbers do not survive every client unchanged."""

Price = Annotated[
    str,
    Field(max_length=16),
    text(
        r"^[0-9]+(\.[0-9]{1,4})?$",
        'must be a number with at most four decimals and no currency, in quotes, such as "2.50"',
    ),
]
"""A price, without its currency."""

Duration = Annotated[
    str,
    Field(max_length=DURATION_MAX_LENGTH),
    text(DURATION_PATTERN, "must be a duration: a number with ms, s, m or h, such as 500ms, 2.5s or 1m30s"),
]
"""A duration such as 500ms, 2.5s, 5m or 1h."""

PositiveDuration = Annotated[
    Duration,
    Rule(
        f"!{matches('self', DURATION_PATTERN)} || duration(self) > duration('0s')",
        "must be longer than zero: write a duration such as 500ms or 2s",
        holds=lambda value: parse_duration_s(value) > 0,
    ),
]
"""A duration above zero."""

_QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"
_EXAMPLES: Final = "such as 4, 500m or 80Gi"
Quantity = Annotated[
    str,
    Field(max_length=32),
    text(_QUANTITY_PATTERN, f"must be a quantity: a number, with a unit where one is meant, {_EXAMPLES}"),
    Rule(
        f"!{matches('self', _QUANTITY_PATTERN)} || quantity(self).isGreaterThan(quantity('0'))",
        f"must be above zero: write a quantity {_EXAMPLES}",
        holds=lambda value: Decimal(value.rstrip("mkKMGTi")) > 0,
    ),
]
"""A Kubernetes quantity above zero, such as 4, 500m or 80Gi."""

_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DNS_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def _is_label_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    well_placed = not slash or (len(prefix) <= 253 and _DNS_SUBDOMAIN.fullmatch(prefix) is not None)
    return well_placed and _LABEL_NAME.fullmatch(name) is not None


Labels = Annotated[
    dict[str, Annotated[str, Field(max_length=63)]],
    Field(max_length=32),
    Rule(
        "self.all(key, size(key) <= 317 && !format.qualifiedName().validate(key).hasValue())",
        "keys must be label keys: a name of at most 63 letters, digits, '-', '_' and '.', after an optional "
        "DNS prefix and a slash, such as nvidia.com/gpu.product",
        holds=lambda labels: all(_is_label_key(key) for key in labels),
    ),
    Rule(
        "self.all(key, !format.labelValue().validate(self[key]).hasValue())",
        "values must be label values: at most 63 letters, digits, '-', '_' and '.', "
        "starting and ending with a letter or digit",
        holds=lambda labels: all(_LABEL_VALUE.fullmatch(value) for value in labels.values()),
    ),
]
"""Labels that select nodes."""
