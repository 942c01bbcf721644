"""Predicted against delivered cached tokens, per worker and source; and which source a worker is judged by.

Each answer that tells its cached tokens is compared with what every source had predicted for that worker, whether or not the
source was used. The error is kept as a share of the prompt, with exponential forgetting over about `MEMORY` answers:

    over    predicted, not delivered: the worker will be slower than promised
    under   delivered, not predicted: the prompt might have gone elsewhere

The precise source is used while it has spoken of a worker and errs no more than the approximate one does (within `MARGIN`);
else the worker is judged by the approximate source, until the precise one is the better one again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MEMORY: Final = 32
MARGIN: Final = 0.02
"""Share of the prompt: about one block of the engine's in a chat prompt."""
_MINIMUM: Final = 8
"""Answers before a source is distrusted."""


class Source(StrEnum):
    """Where a prediction comes from."""

    APPROXIMATE = "approximate"
    PRECISE = "precise"


@dataclass(slots=True)
class Errors:
    """One source's errors about one worker."""

    over: float = 0.0
    """Mean share of the prompt that was predicted and not delivered."""
    under: float = 0.0
    answers: int = 0

    @property
    def total(self) -> float:
        """Both kinds."""
        return self.over + self.under

    def note(self, predicted: float, delivered: float, prompt: float) -> None:
        """One answer, all in tokens."""
        self.answers += 1
        weight = max(1 / self.answers, 1 / MEMORY)
        miss = (predicted - delivered) / max(1.0, prompt)
        self.over += weight * (max(0.0, miss) - self.over)
        self.under += weight * (max(0.0, -miss) - self.under)


@dataclass(slots=True)
class Audit:
    """One worker's audit."""

    errors: dict[Source, Errors] = field(default_factory=lambda: {source: Errors() for source in Source})
    fallbacks: int = 0
    """Times the precise source was given up for the approximate one."""
    distrusted: bool = False

    def source(self, *, precise_speaks: bool) -> Source:
        """Which source the worker is judged by."""
        return Source.PRECISE if precise_speaks and not self.distrusted else Source.APPROXIMATE

    def note(self, predicted: Mapping[Source, float], delivered: float, prompt: float) -> None:
        """One answer told its cached tokens; `predicted` has the tokens that each source had promised."""
        for source, tokens in predicted.items():
            self.errors[source].note(tokens, delivered, prompt)
        if Source.PRECISE in predicted:
            self._judge()

    def _judge(self) -> None:
        precise, approximate = self.errors[Source.PRECISE], self.errors[Source.APPROXIMATE]
        if precise.answers < _MINIMUM:
            return
        worse = precise.total > approximate.total + MARGIN
        if worse and not self.distrusted:
            self.fallbacks += 1
        self.distrusted = worse
