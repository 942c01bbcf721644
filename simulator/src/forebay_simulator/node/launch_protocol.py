"""What the node agent and its launcher say to each other: one JSON object a line over a socket pair.

Standard library only, since the launcher runs without site-packages.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mount:
    """Binds `source`, a path on the machine, to `target`, a path in the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Start a container's main process. `id` names it in every later message."""

    id: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    working_directory: str
    log_file: str
    root_directory: str  # an empty folder of this container's own
    mounts: tuple[Mount, ...] = ()
    hostname: str = ""
    read_only_root: bool = False
    new_privileges: bool = True


@dataclass(frozen=True, slots=True)
class Execute:
    """Run a further process inside the container whose main process is `inside`; its output goes to `log_file`."""

    id: int
    inside: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    working_directory: str
    log_file: str


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to process `id`; unknown and ended ones are passed over."""

    id: int
    number: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The launcher may be used."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """This machine refuses what the launcher needs; it has ended."""

    message: str


@dataclass(frozen=True, slots=True)
class Started:
    """The program runs; `process_id` is the number that the machine knows it by."""

    id: int
    process_id: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The program was never executed."""

    id: int
    message: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The process and everything in its process namespace is gone. One of `code` and `signal` is set."""

    id: int
    code: int | None
    signal: int | None


Request = Start | Execute | Signal
Report = Ready | Unusable | Started | StartFailed | Exited
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Start, Execute, Signal, Ready, Unusable, Started, StartFailed, Exited)
}


def encode(message: Request | Report) -> bytes:
    """One line, newline included."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Any:
    """Read back what `encode` wrote."""
    fields = json.loads(line)
    kind = _KINDS[fields.pop("kind")]
    if kind in (Start, Execute):
        fields["argv"] = tuple(fields["argv"])
    if kind is Start:
        fields["mounts"] = tuple(Mount(**item) for item in fields["mounts"])
    return kind(**fields)
