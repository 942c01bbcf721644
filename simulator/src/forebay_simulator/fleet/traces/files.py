"""Readers of public traces. Files may be gzipped. A line that cannot be read is an error that names it.

Mooncake      JSON lines: timestamp (ms), input_length, output_length, hash_ids of 512 tokens
LMCache       JSON lines: app, session, turn, offset_ms, input_length, output_length, hash_ids of 16 tokens
Azure         CSV: TIMESTAMP, ContextTokens, GeneratedTokens; no identities
digitised     CSV: service, hours_from_start, req_per_min_mid/low/high; a rate, no requests
"""

from __future__ import annotations

import csv
import gzip
import random
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TextIO

import orjson

from forebay_simulator.fleet.traces.trace import Arrival, Trace, TraceError

MOONCAKE_BLOCK_TOKENS = 512
LMCACHE_BLOCK_TOKENS = 16


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a plain or gzipped file; TraceError when it is not there, damaged, or no text."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror or error}") from error
    except (EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"cannot read the trace {path}: it is damaged: {error}") from error


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise TraceError(f"{path}, line {number}: {error}") from error
            if not isinstance(row, dict):
                raise TraceError(f"{path}, line {number}: must be a JSON object")
            yield number, row


def _whole(row: dict[str, object], field: str, where: str) -> int:
    value = row.get(field)
    if not isinstance(value, int) or value < 0:
        raise TraceError(f"{where}: {field} must be a whole number, not {value!r}")
    return value


def _ids(row: dict[str, object], where: str) -> tuple[int, ...]:
    ids = row.get("hash_ids", [])
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise TraceError(f"{where}: hash_ids must be a list of whole numbers")
    return tuple(ids)


def read_mooncake(path: Path) -> Trace:
    """A trace in Mooncake's form. Arrivals are as recorded; see `scaling.jittered` for their ticks of three seconds."""
    arrivals = []
    for number, row in _json_lines(path):
        where = f"{path}, line {number}"
        at_s = _whole(row, "timestamp", where) / 1000
        prompt, output = _whole(row, "input_length", where), _whole(row, "output_length", where)
        arrivals.append(Arrival(at_s, max(1, prompt), max(1, output), _ids(row, where)))
    return Trace.of(_name(path), arrivals, block_tokens=MOONCAKE_BLOCK_TOKENS)


def read_lmcache(path: Path, *, sessions_per_s: float, seed: int) -> Trace:
    """Agent sessions. The file has no arrivals of sessions: they start as a seeded Poisson process."""
    chance = random.Random(seed)  # noqa: S311  (arrivals, not secrets)
    starts: dict[str, float] = {}
    now_s = 0.0
    arrivals = []
    for number, row in _json_lines(path):
        where = f"{path}, line {number}"
        session = str(row.get("session", ""))
        if session not in starts:
            now_s += chance.expovariate(sessions_per_s)
            starts[session] = now_s
        arrivals.append(
            Arrival(
                starts[session] + _whole(row, "offset_ms", where) / 1000,
                max(1, _whole(row, "input_length", where)),
                max(1, _whole(row, "output_length", where)),
                _ids(row, where),
                session,
            )
        )
    return Trace.of(_name(path), arrivals, block_tokens=LMCACHE_BLOCK_TOKENS)


def read_azure(path: Path) -> Trace:
    """An hour of the Azure 2023 traces. They have no identities: nothing is shared."""
    arrivals = []
    first: datetime | None = None
    with open_text(path) as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                at = datetime.fromisoformat(row["TIMESTAMP"][:26])
                prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            except (KeyError, TypeError, ValueError) as error:
                raise TraceError(
                    f"{path}, line {number}: needs TIMESTAMP, ContextTokens and GeneratedTokens ({error})"
                ) from error
            first = first or at
            arrivals.append(Arrival((at - first).total_seconds(), max(1, prompt), max(1, output)))
    return Trace.of(_name(path), arrivals)


def read_week(path: Path, service: str) -> list[tuple[float, float]]:
    """The digitised week of one service ("coding" or "conversation"): (seconds, requests a second), in order."""
    points = []
    with open_text(path) as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                if row["service"] == service:
                    points.append((float(row["hours_from_start"]) * 3600, float(row["req_per_min_mid"]) / 60))
            except (KeyError, TypeError, ValueError) as error:
                raise TraceError(f"{path}, line {number}: {error}") from error
    if not points:
        raise TraceError(f"{path}: no service {service!r}; use coding or conversation")
    return sorted(points)


def lengths_of(arrivals: Iterable[Arrival]) -> list[tuple[int, int]]:
    """Prompt and output tokens of each request: what a generator may draw from."""
    return [(one.prompt_tokens, one.output_tokens) for one in arrivals]


def _name(path: Path) -> str:
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]
