"""Made-up requests: a rate over time, how bursty arrivals are, how long requests are, what they share.

Arrivals are a renewal process in operational time: gaps are drawn from a gamma distribution of mean 1 and coefficient of
variation `cv` (1 is Poisson), and time runs as fast as the rate says, L(t) = integral of rate. ServeGen's clients (arXiv
2505.09999) are of this kind, with cv around 1 for most and 3.5 weighted by rate.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from forebay_simulator.fleet.traces.trace import Arrival, Trace

Rate = Callable[[float], float]
"""Requests a second at a time."""
LengthsOf = Callable[[random.Random, float], tuple[int, int]]
"""Prompt and output tokens of a request that arrives at a time."""
GRID_S = 1.0
"""The rate is taken as constant for so long."""


# ---- rates


def constant(rate_per_s: float) -> Rate:
    """The same at all times."""
    return lambda _at_s: rate_per_s


def sinusoid(low_per_s: float, high_per_s: float, period_s: float) -> Rate:
    """From low up to high and back in each period, beginning at low."""
    middle, swing = (low_per_s + high_per_s) / 2, (high_per_s - low_per_s) / 2
    return lambda at_s: middle - swing * math.cos(2 * math.pi * at_s / period_s)


def steps(*rates: tuple[float, float]) -> Rate:
    """(from, rate) in order of time; zero before the first."""
    starts = [begins_s for begins_s, _ in rates]

    def rate(at_s: float) -> float:
        number = bisect_left(starts, at_s + 1e-9)
        return rates[number - 1][1] if number else 0.0

    return rate


def curve(
    points: Sequence[tuple[float, float]], *, begins_s: float = 0.0, speed: float = 1.0, scale: float = 1.0
) -> Rate:
    """Straight lines between (time, rate) points; time runs `speed` times as fast from `begins_s` on."""
    times = [at_s for at_s, _ in points]

    def rate(at_s: float) -> float:
        when_s = begins_s + at_s * speed
        number = bisect_left(times, when_s)
        if number in (0, len(points)):
            return scale * points[min(number, len(points) - 1)][1]
        (before_s, before), (after_s, after) = points[number - 1 : number + 1]
        return scale * (before + (after - before) * (when_s - before_s) / (after_s - before_s))

    return rate


# ---- lengths


def fixed(prompt_tokens: int, output_tokens: int) -> LengthsOf:
    """All alike."""
    return lambda _chance, _at_s: (prompt_tokens, output_tokens)


def lognormal(median: float, mean: float, most: int) -> Callable[[random.Random], int]:
    """One length with this median and mean, at least 1 and at most `most`."""
    spread = math.sqrt(2 * math.log(mean / median))
    return lambda chance: max(1, min(most, round(chance.lognormvariate(math.log(median), spread))))


def code(chance: random.Random, _at_s: float) -> tuple[int, int]:
    """Lengths as in the Azure 2023 code trace: lognormal with its medians and means."""
    return _CODE_PROMPT(chance), _CODE_OUTPUT(chance)


def chat(chance: random.Random, _at_s: float) -> tuple[int, int]:
    """Lengths as in the Azure 2023 conversation trace: lognormal with its medians and means."""
    return _CHAT_PROMPT(chance), _CHAT_OUTPUT(chance)


_CODE_PROMPT, _CODE_OUTPUT = lognormal(1469, 2048, 7437), lognormal(13, 28, 1899)
_CHAT_PROMPT, _CHAT_OUTPUT = lognormal(1020, 1155, 14050), lognormal(129, 211, 1000)


def drawn_from(pairs: Sequence[tuple[int, int]]) -> LengthsOf:
    """Prompt and output of one recorded request."""
    return lambda chance, _at_s: chance.choice(pairs)


def switching(first: LengthsOf, then: LengthsOf, at_s: float) -> LengthsOf:
    """One kind of request before a time, another one from it on."""
    return lambda chance, when_s: (first if when_s < at_s else then)(chance, when_s)


# ---- arrivals


def arrival_times(rate: Rate, duration_s: float, chance: random.Random, *, cv: float = 1.0) -> Iterator[float]:
    """Times of arrivals within the duration."""
    shape = 1.0 / cv**2

    def gap() -> float:
        return chance.gammavariate(shape, 1.0 / shape)

    wanted, begins_s = gap(), 0.0
    while begins_s < duration_s:
        length_s = min(GRID_S, duration_s - begins_s)
        rate_per_s = rate(begins_s + length_s / 2)
        passed = 0.0
        while rate_per_s > 0 and wanted <= (length_s - passed) * rate_per_s:
            passed += wanted / rate_per_s
            yield begins_s + passed
            wanted = gap()
        wanted -= (length_s - passed) * rate_per_s
        begins_s += length_s


def generate(name: str, rate: Rate, lengths: LengthsOf, *, duration_s: float, seed: int, cv: float = 1.0) -> Trace:
    """Requests that share nothing."""
    chance = random.Random(f"{seed}/{name}")  # noqa: S311  (arrivals, not secrets)
    arrivals = [Arrival(at_s, *lengths(chance, at_s)) for at_s in arrival_times(rate, duration_s, chance, cv=cv)]
    return Trace.of(name, arrivals, duration_s=duration_s)


@dataclass(frozen=True, slots=True)
class Family:
    """Requests that begin with the same blocks."""

    share: float
    """Of all requests."""
    blocks: int
    prompt_tokens: tuple[int, int]
    """From, to."""
    output_tokens: tuple[int, int]


HOT_FAMILIES = (
    Family(0.38, 12, (6145, 8200), (3, 53)),
    Family(0.14, 5, (3000, 3500), (16, 24)),
    Family(0.48, 1, (1000, 20000), (50, 700)),
)
"""A stand-in, and labelled so, for Mooncake's tool and agent trace, which is not available: its three families as far as a
published extract of 93 requests shows them; the last one stands for chats that share only their first block."""


def hot_prefixes(
    rate: Rate, *, duration_s: float, seed: int, families: Sequence[Family] = HOT_FAMILIES, block_tokens: int = 512
) -> Trace:
    """Requests of families with a common beginning; what follows it is each request's own."""
    chance = random.Random(f"{seed}/hot prefixes")  # noqa: S311  (arrivals, not secrets)
    own = sum(family.blocks for family in families)
    arrivals = []
    weights = [family.share for family in families]
    for at_s in arrival_times(rate, duration_s, chance):
        number = chance.choices(range(len(families)), weights)[0]
        family = families[number]
        prompt, output = chance.randint(*family.prompt_tokens), chance.randint(*family.output_tokens)
        first = sum(one.blocks for one in families[:number])
        tail = max(0, -(-prompt // block_tokens) - family.blocks)
        ids = (*range(first, first + family.blocks), *range(own, own + tail))
        own += tail
        arrivals.append(Arrival(at_s, prompt, output, ids))
    return Trace.of("hot prefixes (synthetic)", arrivals, block_tokens=block_tokens, duration_s=duration_s)
