"""Reads Prometheus text into families."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass
class Family:
    """One family as a scraper sees it."""

    kind: str
    help: str
    samples: list[tuple[str, dict[str, str], float]] = field(default_factory=list)

    def values(self, label: str) -> list[str]:
        return list(dict.fromkeys(labels[label] for _, labels, _ in self.samples if label in labels))


def read_exposition(text: str) -> dict[str, Family]:
    """Parse; every sample has to stand below the HELP and TYPE of its family."""
    families: dict[str, Family] = {}
    current = ""
    for line in text.split("\n"):
        if line.startswith("# HELP "):
            _, _, current, help_text = line.split(" ", 3)
            families[current] = Family("", help_text)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            assert name == current, f"TYPE of {name} stands below HELP of {current}"
            families[name].kind = kind
        elif line and not line.startswith("#"):
            match = _SAMPLE.match(line)
            assert match, f"not a sample: {line}"
            assert match[1].startswith(current), f"{match[1]} stands below {current}"
            families[current].samples.append((match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])))
    return families
