"""Reads the captures of a real vLLM 0.32 under tests/data/vllm-contract into answers like those of a live engine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[3] / "data" / "vllm-contract"
_REQUEST = re.compile(r"> (GET|POST) (\S+)")
_STATUS = re.compile(r"< (\d{3}) ")


@dataclass
class Answer:
    """One response, captured or fresh."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""

    @property
    def json(self) -> Any:
        """The first line as JSON: some captures have remarks below."""
        return json.loads(self.text.split("\n", 1)[0])

    @property
    def events(self) -> list[str]:
        """The data lines of a stream, without [DONE], which has to be the last."""
        lines = [line.removeprefix("data: ") for line in self.text.split("\n") if line.startswith("data: ")]
        assert lines[-1] == "[DONE]", f"a stream ends with [DONE], not {lines[-1]}"
        return lines[:-1]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.events]


@dataclass
class Captured:
    """One request and its answer, with the comment above it."""

    comment: str
    method: str
    path: str
    answer: Answer


@cache
def captured(name: str) -> list[Captured]:
    """Return the exchanges of one capture file, in order."""
    found: list[Captured] = []
    comment = ""
    in_body = False
    for line in (DATA / name).read_text(encoding="utf-8").split("\n"):  # answers contain other line ends
        if match := _REQUEST.match(line):
            found.append(Captured(comment, match[1], match[2], Answer(0)))
            comment, in_body = "", False
        elif line.startswith("#"):
            comment, in_body = line.lstrip("# "), False
        elif match := _STATUS.match(line):
            found[-1].answer.status = int(match[1])
        elif line.startswith("< ") and ":" in line and not in_body:
            name_, _, value = line[2:].partition(": ")
            found[-1].answer.headers[name_] = value
        elif line.strip() == "<":
            in_body = True
        elif in_body:
            found[-1].answer.text += line + "\n"
    for exchange in found:
        exchange.answer.text = exchange.answer.text.strip("\n")
    return found


def by_comment(name: str, comment: str) -> Answer:
    """Return the answer below a comment that starts so."""
    matches = [exchange.answer for exchange in captured(name) if exchange.comment.startswith(comment)]
    assert matches, f"no comment {comment!r} in {name}"
    return matches[0]


def events_of(name: str) -> list[dict[str, Any]]:
    """Return the batches of a file of KV events."""
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]
