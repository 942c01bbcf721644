"""What will be asked when a worker that is ordered now can answer. Pure.

Three forecasts are made at every closed bin (past.py), from the simplest to the one that knows most:

    level     the mean of the last bins
    trend     the level, with what surely was its slope or its growth (trend.py)
    season    the rhythm of the past (season.py) at that time, plus the part of today's distance from it that lasts

Each is held to what it said: when the bin it spoke of has closed, the loss is LATE for a unit too little and 1 - LATE for one
too much, averaged over the last forecasts. The one with the smallest loss is used; a simpler one unless more knowledge paid,
so that a rhythm that ends, or a slope that misleads, is dropped by itself.

Below it lies a floor, the `echo`: what followed the last times it looked like this (habits.py). While its forecasts lose more
than the level's, it does not count. By how much more than half of the last forecasts fell short is kept on top: `shortfall`.
It is the median, since forecasts fall short together: a surprise makes as many of them do so as a lead has bins, and is one
event, which a margin kept for long after it does not undo. More than half is a bias. So is room for a `burst`, a share of the
rises that are usual, as far as a known rhythm does not foresee them. The larger of the two counts.
"""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from forebay_autoscaler.habits import burst_of, dispersion_of, echo_of, in_pairs
from forebay_autoscaler.past import COARSER, Past
from forebay_autoscaler.season import Season, find_season
from forebay_autoscaler.trend import LEVEL_BINS, NO_LINE, WINDOW_BINS, Line, line_of

LATE: Final = 0.8
"""Loss of a request a second that was not foreseen; of one that does not come it is the rest."""
MEMORY_BINS: Final = 24.0
"""Forecasts over which losses are averaged."""
SCORED_MIN: Final = 4
"""Forecasts after which a loss counts."""
WORTH: Final = 0.95
"""Share of a simpler forecast's loss that one which knows more must stay below."""
SHORT: Final = 0.5
"""Percentile of the shortfall: what more than half of forecasts lack."""
SHORTFALL_MAX: Final = 0.25
"""And its most, as a share of the rate."""
ERRORS_MIN: Final = 10
ERRORS_MAX: Final = 60
"""Forecasts over which it is taken."""
SEARCH_BINS: Final = 12
"""Bins between two searches for a rhythm. Which of them it is differs by service: all at once would hold up a cycle."""
LASTING: Final = 0.5
"""Share of today's distance from the rhythm that is still there after a lead."""
PENDING_MAX: Final = 64
"""Longest lead, in bins."""


Promise = tuple[float, float, float | None, float | None]
"""Rates by the three methods and the echo."""


class Method(StrEnum):
    """How a forecast was made."""

    LEVEL = "level"
    TREND = "trend"
    SEASON = "season"
    ECHO = "echo"


METHODS: Final = tuple(Method)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Past, forecasts that are open, and how good they were."""

    past: Past = field(default_factory=Past)
    line: Line | None = None
    offset: float = 0.0
    """Distance of the last bins from the rhythm."""
    season: Season | None = None
    season_scale: int = 1
    """Fine bins in a bin of the rhythm."""
    pending: tuple[tuple[int, Promise], ...] = ()
    """(bin, forecasts for it), oldest first."""
    losses: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """By method; the echo's last."""
    scored: tuple[int, int, int, int] = (0, 0, 0, 0)
    echo: float | None = None
    """Rate a lead from now, as it was the last times; None where nothing looked like this."""
    errors: tuple[float, ...] = ()
    """By how much the last forecasts fell short; negative where they were too high."""
    shortfall: float = 0.0
    """Requests a second by which forecasts fall short, at their percentile."""
    burst: float = 0.0
    """Requests a second by which it may rise within a lead, as far as it has before."""
    dispersion: float = 1.0
    """Variance over mean of the number of arrivals."""
    rises: bool = False
    """Whether a rise has begun that is surely none of chance: what held all night says nothing of it."""
    searched: int = 0
    """Bin at which a rhythm was last looked for."""

    @property
    def method(self) -> Method:
        """The one to use."""
        best = Method.TREND if self.scored[1] < SCORED_MIN or self.rises else Method.LEVEL
        loss = self.losses[METHODS.index(best)]
        for method in METHODS[METHODS.index(best) if self.rises else 0 :]:
            number = METHODS.index(method)
            if (method is Method.SEASON and self.season is None) or (method is Method.ECHO and self.echo is None):
                continue
            if self.scored[number] >= SCORED_MIN and self.losses[number] < WORTH * loss:
                best, loss = method, self.losses[number]
        return best

    def rate_at(self, position: float, lead: float) -> float | None:
        """Requests a second at a position, in bins; None before there is a past."""
        if self.line is None:
            return None
        method = self.method
        if method is Method.LEVEL:
            return self.line.plain
        if method is Method.ECHO:
            return self.echo
        return self.line.at_least(position, LATE) if method is Method.TREND else self._season_at(position, lead)

    @property
    def blindness(self) -> float:
        """How much of what a level does not foresee a past that comes again does not either; 1 while none does."""
        number = METHODS.index(self.method)
        if self.method not in (Method.SEASON, Method.ECHO) or not self.losses[0]:
            return 1.0
        return min(1.0, self.losses[number] / self.losses[0])

    def all_at(self, position: float, lead: float) -> tuple[float, float, float | None]:
        """By each method; None without a rhythm, or before there is a past zero."""
        line = self.line or NO_LINE
        season = None if self.season is None else self._season_at(position, lead)
        return line.plain, line.at_least(position, LATE), season

    def _season_at(self, position: float, lead: float) -> float:
        line = self.line or NO_LINE
        lasting: float = LASTING ** (max(0.0, position - line.end + LEVEL_BINS / 2) / max(1.0, lead))
        return max(0.0, self.usual_at(position) + self.offset * lasting)

    @property
    def falls(self) -> bool:
        """Whether demand falls."""
        return self.line is not None and self.line.slope < 0

    @property
    def untested(self) -> bool:
        """Whether it has begun to forecast and nothing of it has come to pass yet."""
        return self.line is not None and self.scored[0] < SCORED_MIN

    @property
    def floor(self) -> float:
        """The echo while its forecasts are worth something, else zero."""
        if self.echo is None or (self.scored[3] >= SCORED_MIN and self.losses[3] > self.losses[0]):
            return 0.0
        return self.echo

    def usual_at(self, position: float) -> float:
        """What the rhythm says of a position. A bin's rate is that of its middle."""
        return 0.0 if self.season is None else self.season.at(position / self.season_scale - 0.5)


def take(forecast: Forecast, past: Past, *, lead: float, bin_s: float, turn: int = 0) -> Forecast:
    """The forecast after the past went on; `lead` is in bins, `turn` tells those apart that should not search at once."""
    if past.levels == forecast.past.levels or not past.fine.values:
        return replace(forecast, past=past)
    values, end, whole = past.fine.values, past.fine.end, max(1, round(lead))
    for number in range(max(forecast.past.fine.end, past.fine.first), end):
        # A forecast from a shorter past than shapes are fitted to says nothing of those from a whole one.
        wise = number - past.fine.first >= WINDOW_BINS + lead
        forecast = _score(forecast, number, values[number - past.fine.first], wise=wise)
    dispersion = dispersion_of(values, bin_s)
    forecast = replace(forecast, past=past, dispersion=dispersion)
    if (end + turn) // SEARCH_BINS > (forecast.searched + turn) // SEARCH_BINS:
        forecast = _search(forecast, bin_s)
    line, rates = line_of(values, end, dispersion=dispersion, lead=lead, bin_s=bin_s), in_pairs(values)
    forecast = replace(
        forecast,
        line=line,
        rises=line.rises_surely(lead),
        offset=_offset(forecast, line),
        echo=echo_of(rates, whole, dispersion=dispersion, bin_s=bin_s),
        burst=burst_of(rates, whole),
    )
    target = end - 1 + min(PENDING_MAX, whole)
    kept = [one for one in forecast.pending[-PENDING_MAX:] if one[0] < target]  # leads may have become shorter
    promised = (*forecast.all_at(target + 0.5, lead), forecast.echo)
    return replace(forecast, pending=(*kept, (target, promised)))


def _offset(forecast: Forecast, line: Line) -> float:
    """How far the last bins are from the rhythm."""
    if forecast.season is None:
        return 0.0
    end = forecast.past.fine.end
    usual = [forecast.usual_at(end - number - 0.5) for number in range(min(LEVEL_BINS, len(forecast.past.fine.values)))]
    return line.plain - math.fsum(usual) / len(usual)


def _score(forecast: Forecast, number: int, actual: float, *, wise: bool) -> Forecast:
    """Hold the forecasts for a bin to what came."""
    due = [promised for target, promised in forecast.pending if target == number]
    left = tuple(one for one in forecast.pending if one[0] > number)
    if not due:
        return replace(forecast, pending=left)
    promised = due[0]
    used = promised[METHODS.index(forecast.method)]
    losses, scored = list(forecast.losses), list(forecast.scored)
    for place, value in enumerate(promised):
        if value is None:
            continue
        short = actual - value
        loss = LATE * short if short > 0 else (LATE - 1.0) * short
        weight = max(1.0 / MEMORY_BINS, 1.0 / (scored[place] + 1))
        losses[place] += weight * (loss - losses[place])
        scored[place] += 1
    planned = max(used or 0.0, promised[3] or 0.0)
    errors = (*forecast.errors[-(ERRORS_MAX - 1) :], actual - planned) if wise else forecast.errors
    shortfall = sorted(errors)[math.ceil(SHORT * len(errors)) - 1] if len(errors) >= ERRORS_MIN else 0.0
    return replace(
        forecast,
        pending=left,
        losses=(losses[0], losses[1], losses[2], losses[3]),
        scored=(scored[0], scored[1], scored[2], scored[3]),
        errors=errors,
        shortfall=max(0.0, min(shortfall, SHORTFALL_MAX * actual)),
    )


def _search(forecast: Forecast, bin_s: float) -> Forecast:
    """Look for a rhythm, at the finest level that shows one."""
    scale = 1
    for level, coarser in zip(forecast.past.levels, COARSER, strict=True):
        scale *= coarser
        values = level.values
        if not values:
            break
        noise = forecast.dispersion * math.fsum(values) / len(values) / (bin_s * scale)
        season = find_season(values, level.first, noise)
        if season is not None:
            return _found(forecast, season, scale)
    if forecast.method is Method.SEASON:  # it keeps what it said: dropped when it does not any more
        return replace(forecast, searched=forecast.past.fine.end)
    return replace(
        forecast,
        season=None,
        searched=forecast.past.fine.end,
        losses=(*forecast.losses[:2], 0.0, forecast.losses[3]),
        scored=(*forecast.scored[:2], 0, forecast.scored[3]),
    )


def _found(forecast: Forecast, season: Season, scale: int) -> Forecast:
    return replace(forecast, season=season, season_scale=scale, searched=forecast.past.fine.end)
