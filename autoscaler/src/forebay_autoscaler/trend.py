"""Where the last bins lead: what shapes they may be of, each as far as it explains them. Pure.

A few minutes of counts may be of a level, a step, a line, a rise that has just begun, one that has just ended, one that slows
down, or something that grows by a share. Nobody knows which, so all are fitted, as a + b g(x) by least squares, with g from a
small family, and each counts by how likely it makes the bins (Bayes, with the usual penalty of ln n for a fitted number):

    weight ~ prior * exp(-(chi2 + fitted numbers * ln n) / 2)          chi2: squared distances over the variance of chance

The rate of now is their mean. The forecast is the rate that they do not exceed with a given probability: the best one where
too little is worse than too much by the odds of it. So a step is a step as soon as it looks like one, a rise counts from its
third bin if it is steep and later if it is not, and no threshold lies between them.

What a trend gains is bounded by what was gained in the last lead, and by the most there was if it has been there before.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Final, NamedTuple

LEVEL_BINS: Final = 3
WINDOW_BINS: Final = 16
"""Bins that shapes are fitted to: four rate windows; what began within them is a shape of its own."""
BINS_MIN: Final = 4
"""Bins from which shapes are told apart."""
GROWTH_MAX: Final = math.log(4.0)
"""Most that demand is taken to grow within a lead, as a logarithm."""
KNOWN_MAX: Final = 1.15
"""Share of the most there was to which a trend is believed when it was there before."""
SURELY: Final = 0.8
"""Weight of the shapes that rise from which a rise is none of chance."""
LATELY_BINS: Final = 10
"""Bins over which a gain is measured, at least: over fewer, chance gains, too."""
RISE_MAX: Final = math.exp(GROWTH_MAX)
"""Most that a trend may gain, in gains of the last lead: as what grows by so much in each."""
GROWTHS: Final = (0.05, 0.1, 0.15, 0.2, 0.3)
"""Growth of a logarithm in a bin."""
STEP_PARTS: Final = (0.0, 0.25, 0.5, 0.75)
"""Where within a bin a step may be."""
DAMPINGS: Final = (3.0, 6.0, 12.0)
"""Bins in which a rise slows to a third."""

Shape = Callable[[float], float]
"""g(x); x is 0 at the end of the last bin and falls into the past."""


class Fit(NamedTuple):
    """One shape as it fits the bins. A tuple, since a saved state holds many."""

    kind: str
    parameter: float
    base: float
    factor: float
    weight: float

    def at(self, ahead: float) -> float:
        """The rate so many bins after the last one's end."""
        return self.base + self.factor * _shape(self.kind, self.parameter, ahead)


@dataclass(frozen=True, slots=True)
class Line:
    """Where the last bins lead. Times in bins."""

    end: float = 0.0
    """End of the last bin."""
    plain: float = 0.0
    """Mean of the last bins."""
    fits: tuple[Fit, ...] = ()
    """Weights sum to 1."""
    rise_max: float = math.inf
    """Most that a trend may add."""

    def at(self, position: float) -> float:
        """The rate at a position; not below zero."""
        if not self.fits:
            return self.plain
        most = self.plain + self.rise_max
        return math.fsum(fit.weight * max(0.0, min(most, fit.at(position - self.end))) for fit in self.fits)

    def at_least(self, position: float, share: float) -> float:
        """The rate that is not exceeded with this probability, if one of the shapes is right."""
        most, total = self.plain + self.rise_max, 0.0
        for rate, weight in sorted((fit.at(position - self.end), fit.weight) for fit in self.fits):
            total += weight
            if total >= share - 1e-9:
                return max(0.0, min(most, rate))
        return self.plain

    def rises_surely(self, ahead: float) -> bool:
        """Whether chance can hardly explain the last bins but by shapes that lead up from those that a level is the mean of.

        A step before these is over: that it lies a little above their mean is chance.
        """
        risen = (fit.weight for fit in self.fits if fit.at(ahead) > fit.at(0.5 - LEVEL_BINS))
        return math.fsum(risen) >= SURELY

    @property
    def slope(self) -> float:
        """Rate per bin at the end."""
        return self.at(self.end) - self.at(self.end - 1.0)


def line_of(values: Sequence[float], end: int, *, dispersion: float, lead: float, bin_s: float) -> Line:
    """Where the last bins lead, of which the last one ends at `end`."""
    few = values[-LEVEL_BINS:]
    plain = math.fsum(few) / len(few)
    recent = values[-WINDOW_BINS:]
    if len(recent) < BINS_MIN:
        return Line(end, plain)
    return Line(end, plain, tuple(_fits(recent, dispersion, bin_s)), _rise_max(values, plain, lead))


def _fits(values: Sequence[float], dispersion: float, bin_s: float) -> list[Fit]:
    """Every shape with its weight; those that hardly count are left out."""
    count = len(values)
    bins = _weighed(values, [bin_s / (dispersion * max(rate, 1.0 / bin_s)) for rate in _smoothed(values)])
    penalty, total = math.log(count) / 2, bins.w[0]
    scores: list[float] = []
    fitted: list[_Fitted] = []
    for kind, prior, candidates in _family(count):
        sums = _SUMS[kind](bins, candidates)
        fitted += zip(candidates, sums, strict=True)
        if kind == "level":
            scores.append(prior - bins.spread / 2 - penalty)
        elif kind == "growth":  # in proportion: no base
            scores += [
                prior - (bins.spread + bins.mean * bins.mean * total - along * along / xx) / 2 - 2 * penalty
                for x, xx, xy in sums
                for along in (xy + bins.mean * x,)
            ]
        else:
            spread, twice = bins.spread, 2 * penalty
            scores += [prior - (spread - xy / (xx - x * x / total) * xy) / 2 - twice for x, xx, xy in sums]
    most = max(scores)
    kept = [place for place, score in enumerate(scores) if score - most > LOG_LEAST]
    shares = [math.exp(scores[place] - most) for place in kept]
    whole = math.fsum(shares)
    return [_fit(bins, *fitted[place], share / whole) for place, share in zip(kept, shares, strict=True)]


_Fitted = tuple["_Candidate", tuple[float, float, float]]


def _fit(bins: "_Bins", shape: "_Candidate", sums: tuple[float, float, float], weight: float) -> Fit:
    (x, xx, xy), total = sums, bins.w[0]
    if shape.kind == "level":
        base, factor = bins.mean, 0.0
    elif shape.kind == "growth":
        base, factor = 0.0, (xy + bins.mean * x) / xx
    else:
        factor = xy / (xx - x * x / total)
        base = bins.mean - factor * x / total
    return Fit(shape.kind, shape.parameter, _short(base), _short(factor), _short(weight))


def _short(number: float) -> float:
    """Five digits: more is noise, and takes room in a saved state."""
    return float(f"{number:.5g}")


LEAST: Final = 0.05
"""Share of the likeliest shape's weight below which one is left out."""
LOG_LEAST: Final = math.log(LEAST)


def _smoothed(values: Sequence[float]) -> list[float]:
    """Means of three: the variance of chance is that of what was to be expected, not of what came."""
    padded = [values[0], *values, values[-1]]
    return [(a + b + c) / 3 for a, b, c in zip(padded, padded[1:], padded[2:], strict=False)]


class _Bins(NamedTuple):
    """Rates y with their weights w, about their mean; and the sums from each bin to the last, m being the middle of one."""

    weights: Sequence[float]
    mean: float
    weighed: Sequence[float]
    """w (y - mean)"""
    spread: float
    """Sum of w (y - mean)^2."""
    w: Sequence[float]
    wm: Sequence[float]
    wmm: Sequence[float]
    wy: Sequence[float]
    wym: Sequence[float]


def _weighed(values: Sequence[float], weights: Sequence[float]) -> _Bins:
    mean = math.fsum(map(mul, weights, values)) / math.fsum(weights)
    rest = [value - mean for value in values]
    middles = _middles(len(values))
    weighed = list(map(mul, weights, rest))
    by_middle = list(map(mul, weights, middles))
    return _Bins(
        weights,
        mean,
        weighed,
        math.fsum(map(mul, weighed, rest)),
        _onward(weights),
        _onward(by_middle),
        _onward(map(mul, by_middle, middles)),
        _onward(weighed),
        _onward(map(mul, weighed, middles)),
    )


def _onward(values: Iterable[float]) -> list[float]:
    """Sums from each to the last."""
    return list(accumulate(reversed(list(values))))[::-1]


_Sums = list[tuple[float, float, float]]
"""Sums of w g, w g^2 and w g (y - mean). Of shapes made of straight lines they follow from those of the bins."""


def _levels(bins: _Bins, candidates: Sequence["_Candidate"]) -> _Sums:
    return [(bins.w[0], bins.w[0], 0.0)] * len(candidates)


def _lines(bins: _Bins, _candidates: Sequence["_Candidate"]) -> _Sums:
    return [(bins.wm[0], bins.wmm[0], bins.wym[0])]


def _steps(bins: _Bins, candidates: Sequence["_Candidate"]) -> _Sums:
    """0, then `turn` in the bin before `first`, then 1."""
    weights, weighed, w, wy = bins.weights, bins.weighed, bins.w, bins.wy
    sums: _Sums = []
    for _, _, _, first, turn in candidates:
        part = turn * weights[first - 1]
        sums.append((w[first] + part, w[first] + turn * part, wy[first] + turn * weighed[first - 1]))
    return sums


def _begun(bins: _Bins, candidates: Sequence["_Candidate"]) -> _Sums:
    """Of m - turn from `first` on."""
    sums: _Sums = []
    for _, _, _, first, turn in candidates:
        w, wm = bins.w[first], bins.wm[first]
        xx = bins.wmm[first] - 2 * turn * wm + turn * turn * w
        sums.append((wm - turn * w, xx, bins.wym[first] - turn * bins.wy[first]))
    return sums


def _ended(bins: _Bins, candidates: Sequence["_Candidate"]) -> _Sums:
    """Of m until `first`, then turn."""
    all_wm, all_wmm, all_wym = bins.wm[0], bins.wmm[0], bins.wym[0]
    sums: _Sums = []
    for _, _, _, first, turn in candidates:
        w, wm, wmm, wy, wym = bins.w[first], bins.wm[first], bins.wmm[first], bins.wy[first], bins.wym[first]
        sums.append((all_wm - wm + turn * w, all_wmm - wmm + turn * turn * w, all_wym - wym + turn * wy))
    return sums


def _curves(bins: _Bins, candidates: Sequence["_Candidate"]) -> _Sums:
    """Any g, by its points."""
    sums: _Sums = []
    for candidate in candidates:
        by_point = list(map(mul, bins.weights, candidate.points))
        along = sum(map(mul, bins.weighed, candidate.points))
        sums.append((sum(by_point), sum(map(mul, by_point, candidate.points)), along))
    return sums


_SUMS: Final = {
    "level": _levels,
    "line": _lines,
    "growth": _curves,
    "step": _steps,
    "begun": _begun,
    "ended": _ended,
    "damped": _curves,
}


def _shape(kind: str, parameter: float, x: float) -> float:
    if kind == "level":
        return 0.0
    if kind == "line":
        return x
    if kind == "step":  # x is the middle of a bin, in which the step may be
        return max(0.0, min(1.0, x + 0.5 - parameter))
    if kind == "begun":
        return max(0.0, x - parameter)
    if kind == "ended":
        return min(x, parameter)
    if kind == "damped":
        return 1.0 - math.exp(-x / parameter)
    return math.exp(min(GROWTH_MAX, parameter * x))


class _Candidate(NamedTuple):
    """A shape that bins may be of."""

    kind: str
    parameter: float
    points: Sequence[float]
    """g at the middle of each bin."""
    first: int
    """The first bin behind its bend or step, of those that have one."""
    turn: float
    """Where that is; of a step, its share of the bin before."""


@lru_cache(maxsize=WINDOW_BINS)
def _middles(count: int) -> tuple[float, ...]:
    return tuple(number + 0.5 - count for number in range(count))


@lru_cache(maxsize=WINDOW_BINS)
def _family(count: int) -> tuple[tuple[str, float, tuple[_Candidate, ...]], ...]:
    """The shapes that so many bins can show, by kind, with the logarithm of how likely each is before they are seen."""
    breaks = [float(number - count) for number in range(1, count)]
    steps = [one - part for one in breaks for part in STEP_PARTS]
    kinds: list[tuple[str, Sequence[float]]] = [
        ("level", (0.0,)),
        ("line", (0.0,)),
        ("growth", GROWTHS),
        ("step", steps),
    ]
    if count > BINS_MIN:
        kinds += [("begun", breaks[1:-1]), ("ended", breaks[1:]), ("damped", DAMPINGS)]
    return tuple(
        (kind, -math.log(len(kinds) * len(parameters)), tuple(_candidate(kind, one, count) for one in parameters))
        for kind, parameters in kinds
    )


def _candidate(kind: str, parameter: float, count: int) -> _Candidate:
    bent = kind in ("step", "begun", "ended")
    points = tuple(_shape(kind, parameter, x) for x in _middles(count))
    turn = math.ceil(parameter) - parameter if kind == "step" else parameter
    return _Candidate(kind, parameter, points, math.ceil(parameter) + count if bent else 0, turn)


def _rise_max(values: Sequence[float], plain: float, lead: float) -> float:
    """Some times what it gained in the last lead; where it has been higher before, hardly beyond that."""
    lately = max(LATELY_BINS, math.ceil(lead))
    rise = RISE_MAX * max(0.0, plain - min(values[-lately:]))
    most = max(values[:-lately], default=0.0)
    return min(rise, max(KNOWN_MAX * most - plain, rise / RISE_MAX / 2)) if most > plain else rise


NO_LINE: Final = Line()
"""Before there is a past."""
