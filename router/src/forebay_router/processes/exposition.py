"""Several processes' metrics as one exposition. Pure.

Counters and histograms are sums, and a sum must never fall while one process begins anew with zeros: what a process had counted
when it was last read stays in the sum after it. (What it counted since then is lost with it.) A process that cannot be read keeps
its last counts.

Gauges are sums over the processes that could be read, but where all see the same thing: those are named here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from forebay_router import metrics

_ADDED: Final = frozenset({"counter", "histogram", "summary"})
OTHERWISE: Final[Mapping[str, Callable[[Iterable[float]], float]]] = {
    metrics.WORKERS.name: max,
    metrics.INDEX_WORKERS.name: max,
    metrics.WORKERS_EJECTED.name: max,
    metrics.OBJECTIVE_TARGET.name: max,
    metrics.SYNCED.name: min,
    metrics.MESH_PEERS.name: max,
    metrics.MESH_SILENCE.name: max,
    metrics.API_KEYS.name: max,
    metrics.FILE_VALID.name: min,
    "process_start_time_seconds": min,
    "process_max_fds": max,
    "python_info": max,
}
"""Gauges that are not summed."""
NOTHING: Final[Mapping[str, float]] = {}


@dataclass(slots=True)
class Family:
    """One metric of one exposition."""

    kind: str
    heading: tuple[str, ...]
    """Its HELP and TYPE lines."""
    samples: dict[str, float] = field(default_factory=dict)
    """By name and labels, as written."""


def read(text: str) -> dict[str, Family]:
    """The families of an exposition by name; lines that are none of one are passed over."""
    families: dict[str, Family] = {}
    family: Family | None = None
    helps: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helps[line.split(" ", 3)[2]] = line
        elif line.startswith("# TYPE "):
            name, kind = line.split(" ")[2:4]
            heading = (helps[name], line) if name in helps else (line,)
            family = families.setdefault(name, Family(kind, heading))
        elif line and not line.startswith("#") and family is not None:
            key, _, value = line.rpartition(" ")
            family.samples[key] = float(value)
    return families


@dataclass(slots=True)
class Exposition:
    """What was read of every process so far."""

    _last: dict[int, tuple[int, dict[str, Family]]] = field(default_factory=dict)
    """By the process's number: its pid, and what it said last."""
    _gone: dict[str, dict[str, float]] = field(default_factory=dict)
    """Counts of processes that are no more, by family."""

    def combine(self, texts: Mapping[int, tuple[int, str]], known: Mapping[str, float] = NOTHING) -> str:
        """One exposition. `texts` has the pid and the exposition of each process that could be read, by its number.

        `known` has what the parent counts itself, by sample: it is added.
        """
        fresh = {number: read(text) for number, (_, text) in texts.items()}
        for number, (pid, _) in texts.items():
            if number in self._last and self._last[number][0] != pid:
                self._bury(number)
            self._last[number] = (pid, fresh[number])
        lines: list[str] = []
        for name, family in self._families().items():
            lines += family.heading
            samples = self._added(name) if family.kind in _ADDED else _gauges(name, fresh.values())
            lines += [f"{key} {metrics.number(value + known.get(key, 0))}" for key, value in samples.items()]
        return "\n".join(lines) + "\n"

    def _families(self) -> dict[str, Family]:
        """Every family that any process has told of."""
        found: dict[str, Family] = {}
        for _, families in self._last.values():
            for name, family in families.items():
                found.setdefault(name, family)
        return found

    def _added(self, name: str) -> dict[str, float]:
        total = dict(self._gone.get(name, {}))
        for _, families in self._last.values():
            _add(total, families.get(name))
        return total

    def _bury(self, number: int) -> None:
        """A process is no more: its counts stay."""
        for name, family in self._last[number][1].items():
            if family.kind in _ADDED:
                _add(self._gone.setdefault(name, {}), family)


def _add(total: dict[str, float], family: Family | None) -> None:
    for key, value in family.samples.items() if family is not None else ():
        total[key] = total.get(key, 0.0) + value


def _gauges(name: str, processes: Iterable[Mapping[str, Family]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for families in processes:
        for key, value in families[name].samples.items() if name in families else ():
            values.setdefault(key, []).append(value)
    combine = OTHERWISE.get(name, sum)
    return {key: combine(found) for key, found in values.items()}
