"""Files that may change while the router runs: API keys, certificates, the workers' key, the list of workers.

Each is looked at every `LOOK_INTERVAL_S`. What shows a change is the identity, size and time of what the path leads to in the
end, so the swap of a symbolic link, by which Kubernetes updates a mounted Secret, counts, and so does an edit in place. (A Secret
mounted by subPath is never updated.) A file that cannot be used changes nothing: what was read last stays in force, one log line
and a count tell. It is tried again when it changes again.

The first read happens at the start and its error ends the start; later reads happen in a thread, since a large file takes its
time. The new value is taken over in the loop, in one step.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0
Value = TypeVar("Value")
Mark = tuple[tuple[str, int, int, int], ...]


class Kind(StrEnum):
    """What a file is for. Values are metric labels."""

    API_KEYS = "api_keys"
    CERTIFICATE = "certificate"
    WORKER_KEY = "worker_key"
    WORKER_AUTHORITY = "worker_authority"
    WORKERS = "workers"


class BadFileError(ValueError):
    """A file that cannot be used; its text names the file, the field and the fix, and never what a secret holds."""


@dataclass(slots=True)
class Followed(Generic[Value]):
    """One thing that is read from a file, or from several."""

    kind: Kind
    paths: Callable[[], Iterable[Path]]
    """The files there are now. May touch the disk."""
    read: Callable[[], Value]
    """Reads them; raises BadFileError. Runs in a thread."""
    take: Callable[[Value], None]
    """Takes the new value over."""
    valid: bool = True
    """What is on disk is what is in force."""
    reloads: int = 0
    failures: int = 0
    _mark: Mark = field(default=())

    def start(self) -> None:
        """The first read; raises BadFileError."""
        self._mark = self._look()
        self.take(self.read())

    async def run(self) -> None:
        """Follow for ever."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Read again if something has changed."""
        mark = await asyncio.to_thread(self._look)
        if mark == self._mark:
            return
        self._mark = mark
        try:
            self.take(await asyncio.to_thread(self.read))
        except BadFileError as error:
            self._failed(str(error))
        except Exception as error:  # noqa: BLE001 - the boundary of a loop that must outlive what it reads
            self._failed(f"{self.kind.value}: {type(error).__name__}")  # its text may hold what the file holds
        else:
            self.valid = True
            self.reloads += 1
            log.info("a changed file is in force", extra={"file": self.kind.value})

    def _failed(self, why: str) -> None:
        self.valid = False
        self.failures += 1
        log.error("a changed file is not used, what it held before stays in force: %s", why)

    def _look(self) -> Mark:
        try:
            return tuple(_mark_of(path) for path in self.paths())
        except OSError:
            return ()


def _mark_of(path: Path) -> tuple[str, int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0, 0
    return str(path), found.st_ino, found.st_mtime_ns, found.st_size


def read_secret(path: Path) -> str:
    """The one line that a file holds; raises BadFileError."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadFileError(f"{path}: must hold a key of plain ASCII characters and nothing else") from error
    if not text or not text.isprintable() or " " in text:
        raise BadFileError(f"{path}: must hold one key, on one line, without spaces")
    return text
