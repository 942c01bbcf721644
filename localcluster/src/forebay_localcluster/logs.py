"""Find and read the logs of programs and pods.

A program logs to `logs/<program>.log`. A pod's containers log to `nodes/<node>/pods/<namespace>_<pod>/<container>.log`, written
by the simulated nodes. A pod is asked for as `POD` or `NAMESPACE/POD`; the beginning of a pod's name stands for every pod
that begins so, as pods of a Deployment do.

Following reads what is appended, from the files that are there and from those that appear later, until the caller stops
asking. A file that becomes another one, or shorter, is read from its start.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from forebay_localcluster.errors import NoSuchLogError
from forebay_localcluster.layout import Layout

POLL_S = 0.2
BLOCK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """One log and what it is called."""

    name: str
    """`kube-apiserver`, or `namespace/pod/container`."""
    path: Path


def list_logs(layout: Layout) -> list[LogFile]:
    """Return every log of a cluster: programs first, then pods by name."""
    programs = [LogFile(path.stem, path) for path in sorted(layout.logs.glob("*.log"))]
    pods = [LogFile(_pod_name(path), path) for path in layout.nodes.glob("*/pods/*_*/*.log")]
    return [*programs, *sorted(pods)]


def find_logs(layout: Layout, query: str) -> list[LogFile]:
    """Return the logs that `query` names: a program, else a pod, else pods that begin so; raise `NoSuchLogError`."""
    logs = list_logs(layout)
    matches = [log for log in logs if log.name == query]
    for matching in (_is_pod, _begins_pod):
        matches = matches or [log for log in logs if matching(log.name, query)]
    if not matches:
        raise NoSuchLogError(query, sorted({log.name.rpartition("/")[0] or log.name for log in logs}))
    return matches


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a file, reading from its end."""
    if count <= 0:
        return []
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        tail = b""
        while position > 0 and tail.count(b"\n") <= count:
            step = min(BLOCK_BYTES, position)
            position -= step
            file.seek(position)
            tail = file.read(step) + tail
    return tail.decode(errors="replace").splitlines()[-count:]


def follow(
    find: Callable[[], list[LogFile]], *, wait: Callable[[float], None] = time.sleep
) -> Iterator[tuple[str, str]]:
    """Yield (log's name, line) for every line written from now on to the logs that `find` returns, which is asked again."""
    tails = {log: _Tail.at_end(log.path) for log in find()}
    while True:
        for log in _still(find):
            tail = tails.setdefault(log, _Tail(log.path))
            for line in tail.new_lines():
                yield log.name, line
        wait(POLL_S)


def _still(find: Callable[[], list[LogFile]]) -> list[LogFile]:
    """Return the logs there are; between two pods of a Deployment that may be none."""
    try:
        return find()
    except NoSuchLogError:
        return []


@dataclass(slots=True)
class _Tail:
    """How far a file was read."""

    path: Path
    identity: tuple[int, int] = (0, 0)
    """Device and inode; another file under the same name is another log."""
    position: int = 0
    partial: bytes = field(default=b"")
    """The beginning of a line whose end is not written yet."""

    @classmethod
    def at_end(cls, path: Path) -> "_Tail":
        status = path.stat()
        return cls(path, (status.st_dev, status.st_ino), status.st_size)

    def new_lines(self) -> list[str]:
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if identity != self.identity or status.st_size < self.position:
                self.identity, self.position, self.partial = identity, 0, b""
            file.seek(self.position)
            written = file.read()
            self.position += len(written)
        *lines, self.partial = (self.partial + written).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


def _pod_name(path: Path) -> str:
    namespace, _, pod = path.parent.name.partition("_")
    return f"{namespace}/{pod}/{path.stem}"


def _is_pod(name: str, query: str) -> bool:
    namespace, _, rest = name.partition("/")
    pod = rest.partition("/")[0]
    return bool(pod) and query in {pod, f"{namespace}/{pod}"}


def _begins_pod(name: str, query: str) -> bool:
    namespace, _, rest = name.partition("/")
    pod = rest.partition("/")[0]
    return bool(pod) and (pod.startswith(query) or f"{namespace}/{pod}".startswith(query))
