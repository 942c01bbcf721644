"""Prometheus in virtual time: who was scraped when, and the functions that Forebay's queries use, as Prometheus 3 defines them.

A target is scraped every interval at its own offset. Its last sample is seen for five minutes (the lookback), unless the target
has gone, which ends its series at the next scrape (a stale marker). While Prometheus is down nothing is scraped and nothing is
answered; afterwards its history has a hole, and what was counted meanwhile arrives as one large step.

    rate(w)     (last - first) over the samples in (t-w, t], extrapolated to the window's ends: up to half a mean gap beyond
                the first and last sample, or to the whole rest where that is less than 1.1 mean gaps; never below zero
    irate(w)    (last - one before) / their distance
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

LOOKBACK_S = 300.0
EXTRAPOLATION = 1.1
"""Mean gaps up to which the distance to the window's end counts as no gap."""

Row = tuple[float, ...]


@dataclass(slots=True)
class Target:
    """One scraped process. Rows are samples of all its series at one time."""

    names: tuple[str, ...]
    read: Callable[[], Row]
    labels: Mapping[str, str] = field(default_factory=dict)
    rows: deque[tuple[float, Row]] = field(default_factory=deque)
    gone: bool = False
    columns: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        """Index the series."""
        self.columns = {name: column for column, name in enumerate(self.names)}

    def scrape(self, now_s: float, retention_s: float) -> None:
        """Take a sample of every series."""
        self.rows.append((now_s, self.read()))
        while self.rows[0][0] < now_s - retention_s:
            self.rows.popleft()

    def seen(self, now_s: float) -> bool:
        """Whether an instant query finds its series."""
        return not self.gone and bool(self.rows) and self.rows[-1][0] > now_s - LOOKBACK_S

    def last(self, name: str) -> float:
        """The last sample; the caller knows that there is one."""
        return self.rows[-1][1][self.columns[name]]

    def window(self, name: str, now_s: float, length_s: float) -> list[tuple[float, float]]:
        """(time, value) in (now - length, now]."""
        column = self.columns[name]
        found = []
        for at_s, row in reversed(self.rows):
            if at_s <= now_s - length_s:
                break
            if at_s <= now_s:
                found.append((at_s, row[column]))
        found.reverse()
        return found


def rate(samples: Sequence[tuple[float, float]], now_s: float, length_s: float) -> float | None:
    """A counter's growth a second over (now - length, now], as Prometheus has it; None with fewer than two samples."""
    if len(samples) < 2:
        return None
    first_s, first = samples[0]
    last_s, last = samples[-1]
    increase = last - first
    for (_, before), (_, after) in pairwise(samples):
        if after < before:  # the process began anew
            increase += before
    sampled_s = last_s - first_s
    gap_s = sampled_s / (len(samples) - 1)
    to_start_s, to_end_s = first_s - (now_s - length_s), now_s - last_s
    if to_start_s >= EXTRAPOLATION * gap_s:
        to_start_s = gap_s / 2
    if increase > 0 and first >= 0:  # a counter cannot have been below zero
        to_start_s = min(to_start_s, sampled_s * first / increase)
    if to_end_s >= EXTRAPOLATION * gap_s:
        to_end_s = gap_s / 2
    return increase * (sampled_s + to_start_s + to_end_s) / sampled_s / length_s


def irate(samples: Sequence[tuple[float, float]]) -> float | None:
    """A counter's growth a second between its last two samples; None with fewer."""
    if len(samples) < 2:
        return None
    (before_s, before), (last_s, last) = samples[-2:]
    return (last - before if last >= before else last) / (last_s - before_s)


def mean(samples: Sequence[tuple[float, float]]) -> float | None:
    """avg_over_time(); None without samples."""
    return sum(value for _, value in samples) / len(samples) if samples else None
