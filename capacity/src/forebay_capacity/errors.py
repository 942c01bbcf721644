"""What can be wrong with a question to the capacity model.

- CapacityError: the root; `field` is what to change, `fix` is how
  - UnknownModelError: no preset of that name
  - UnknownAcceleratorError: no accelerator of that name
  - ConfigError: a `config.json` that cannot be read as a supported architecture
  - ImpossibleError: a value out of range, or a combination that cannot exist
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches


class CapacityError(ValueError):
    """A question the model cannot answer. Its text names the field and the fix."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {problem}; {fix}")
        self.field = field
        self.problem = problem
        self.fix = fix


class UnknownNameError(CapacityError):
    """A name that is not in a table; `close` holds the likeliest intended ones."""

    def __init__(self, field: str, name: str, known: Iterable[str], alternative: str) -> None:
        names = sorted(known)
        self.name = name
        self.close = get_close_matches(name.lower(), names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(self.close)}?" if self.close else f"known are {', '.join(names)}."
        super().__init__(field, f"{name!r} is not known", f"{hint} {alternative}".rstrip(" ."))


class UnknownModelError(UnknownNameError):
    """No preset of that name."""


class UnknownAcceleratorError(UnknownNameError):
    """No accelerator of that name."""


class ConfigError(CapacityError):
    """A `config.json` that cannot be read as a supported architecture."""


class ImpossibleError(CapacityError):
    """A value out of range, or a combination that cannot exist."""


def require_positive(field: str, value: float, unit: str = "") -> None:
    """`ImpossibleError` unless the value is a finite number above zero."""
    _require(field, value, unit, above_zero=True)


def require_not_negative(field: str, value: float, unit: str = "") -> None:
    """`ImpossibleError` unless the value is a finite number, zero or more."""
    _require(field, value, unit, above_zero=False)


def require_share(field: str, value: float) -> None:
    """`ImpossibleError` unless the value is between 0 and 1."""
    if not _is_number(value) or not 0 <= value <= 1:
        raise ImpossibleError(field, f"{value!r} is not a share", "use a number from 0 to 1")


def _require(field: str, value: float, unit: str, *, above_zero: bool) -> None:
    if _is_number(value) and (value > 0 or (value == 0 and not above_zero)):
        return
    bound = "above zero" if above_zero else "zero or more"
    unit_text = f" {unit}" if unit else ""
    raise ImpossibleError(field, f"{value!r}{unit_text} is out of range", f"use a number {bound}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
