"""Every decision with its inputs, appended to a file: one JSON object a line.

The file is bounded: once it holds half of what it may, it becomes FILE.1, in place of the one before, and a new FILE begins.
Each line stands for itself, so either file can be replayed. Deciding must go on when a disk is full: a write that fails is
logged at the first failure and again after a success, and its records are lost.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_autoscaler.codec import Stored, read_record, record_text
from forebay_autoscaler.errors import HistoryError
from forebay_autoscaler.history import Record

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class HistoryFile:
    """Appends records. `size_max` bounds both files together, in bytes, but for the last cycle's records."""

    path: Path
    size_max: int
    failing: bool = False

    def add(self, records: Sequence[Record]) -> None:
        """Append the decisions of one cycle. Never raises for the sake of the file."""
        lines = b"".join(record_text(record) + b"\n" for record in records)
        try:
            self._append(lines)
        except OSError as error:
            if not self.failing:
                _log.error("decisions are not recorded in %s: %s", self.path, error.strerror or error)
            self.failing = True
        else:
            self.failing = False

    def _append(self, lines: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size + len(lines) > self.size_max // 2:
            self.path.replace(self.path.with_name(self.path.name + ".1"))
        with self.path.open("ab") as file:
            file.write(lines)


def read_history(path: Path) -> Iterator[Stored]:
    """The records of a file, or of an answer of /decisions that was saved. HistoryError names the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise HistoryError(f"cannot read the history {path}: {error.strerror or error}") from error
    for number, found in _objects(path, text):
        try:
            yield read_record(found)
        except HistoryError as error:
            raise HistoryError(f"{path}, record {number}: {error}") from error


def _objects(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        if text.lstrip().startswith("["):
            yield from enumerate(reversed(json.loads(text)), start=1)  # /decisions has the newest first
            return
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                yield number, json.loads(line)
    except json.JSONDecodeError as error:
        raise HistoryError(f"{path} is no history of decisions: {error}") from error
