"""Kubernetes quantities: `500m`, `1Gi`, `2e3`."""

import math
import re
from decimal import Decimal

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)(n|u|m|k|[MGTPE]|[KMGTPE]i)?")


def parse_quantity(text: str | float) -> Decimal:
    """Read a quantity. Raises ValueError when it is none."""
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not a Kubernetes quantity such as 500m or 1Gi")
    return Decimal(match[1]) * _SUFFIXES[match[2] or ""]


def divided_up(text: str | float, divisor: str | float = "1") -> int:
    """`text` in units of `divisor`, rounded up, as resourceFieldRef gives it."""
    unit = parse_quantity(divisor) or Decimal(1)
    return math.ceil(parse_quantity(text) / unit)
