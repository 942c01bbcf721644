"""One flag of the command line, and how the text of its value is read.

Parsers raise ValueError with what is wrong and what to write instead; `settings` puts the flag's name before it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from forebay_api.durations import parse_duration_s

ENVIRONMENT_PREFIX = "FOREBAY_ROUTER_"


@dataclass(frozen=True, slots=True)
class HostPort:
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def host_port(text: str) -> HostPort:
    """HOST:PORT or [HOST]:PORT."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not HOST:PORT; write for example 0.0.0.0:8080")
    return HostPort(host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port))  # noqa: S104 - as asked for


def worker_url(text: str) -> str:
    """http://HOST:PORT of a worker."""
    parts = urlsplit(text if "//" in text else f"http://{text}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or not parts.hostname or port is None or parts.path not in {"", "/"}:
        raise ValueError(f"{text!r} is not a worker's address; write http://HOST:PORT without a path")
    return f"http://{parts.netloc}"


def duration_s(text: str) -> float:
    """A duration above zero, such as 500ms or 2m."""
    seconds = parse_duration_s(text)
    if seconds <= 0:
        raise ValueError(f"{text!r} must be above zero")
    return seconds


def duration_or_zero_s(text: str) -> float:
    """A duration, 0s included."""
    return parse_duration_s(text)


_SIZES = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def size_bytes(text: str) -> int:
    """A size, such as 64MiB."""
    found = re.fullmatch(r"([0-9]+)(KiB|MiB|GiB)?", text)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r} is not a size; write a number with KiB, MiB or GiB, such as 64MiB")
    return int(found[1]) * _SIZES[found[2] or ""]


def count(text: str) -> int:
    """A whole number from 1."""
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number from 1")
    return int(text)


def share(text: str) -> float:
    """A share in (0, 1]."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ValueError(f"{text!r} is not a share; write a number above 0 and at most 1, such as 0.99")
    return value


def one_of(*choices: str) -> Callable[[str], str]:
    """One of some words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return parse


@dataclass(frozen=True, slots=True)
class Option:
    """One flag."""

    flag: str
    parse: Callable[[str], Any]
    default: str | None
    metavar: str
    help: str
    many: bool = False

    @property
    def dest(self) -> str:
        """Attribute name."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """Environment variable."""
        return ENVIRONMENT_PREFIX + self.dest.upper()
