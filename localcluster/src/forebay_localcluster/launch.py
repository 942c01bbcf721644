"""Start a supervisor and hear how the start goes; find out whether one runs, and end one that does not listen."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from forebay_localcluster.errors import ClusterStartError, LocalClusterError
from forebay_localcluster.layout import Layout
from forebay_localcluster.ports import Claim

LOCK_PATIENCE_S = 1.0
"""How long a starter waits for a lock that is only being looked at."""
POLL_S = 0.05

Heard = Callable[[str, str], None]
"""Called with the name and the new state of a program while a cluster starts."""


def launch(layout: Layout, *, lock: int, claims: Sequence[Claim], owned: bool, heard: Heard) -> None:
    """Start the supervisor of the plan in `layout` and return when everything is ready; raise `ClusterStartError`.

    A supervisor ends everything when nobody listens any more to how the start goes, so leaving this function early, by
    whatever exception, leaves nothing behind.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading) as report:
        _spawn(layout, writing, [lock, *(claim.holder.fileno() for claim in claims)], owned=owned)
        _listen(report, layout, heard)


def _spawn(layout: Layout, writing: int, held: Sequence[int], *, owned: bool) -> None:
    command = [sys.executable, "-m", "forebay_localcluster.supervisor", f"--data={layout.data}"]
    command += [f"--report-fd={writing}", *(f"--held-fd={descriptor}" for descriptor in held)]
    passed = [writing, *held]
    with contextlib.ExitStack() as closing, layout.log("supervisor").open("wb") as log:
        closing.callback(os.close, writing)
        if owned:
            owner = os.pidfd_open(os.getpid())
            closing.callback(os.close, owner)
            command.append(f"--owner-fd={owner}")
            passed.append(owner)
        subprocess.run(  # noqa: S603 -- our own module
            command,
            check=False,  # what matters is what it reports
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _listen(report: Iterator[str], layout: Layout, heard: Heard) -> None:
    failed = None
    for line in report:
        match json.loads(line):
            case {"up": True}:
                return
            case {"failed": dict(fields)}:
                failed = fields  # the report ends when everything that was started has been ended
            case {"program": str(program), "state": str(state)}:
                heard(program, state)
    if failed is None:
        raise ClusterStartError(
            program="the supervisor",
            reason="ended",
            command="forebay_localcluster.supervisor",
            last_lines=layout.log("supervisor").read_text(errors="replace").splitlines()[-20:],
            log=layout.log("supervisor"),
        )
    raise start_error(failed)


def start_error(fields: dict[str, object]) -> ClusterStartError:
    """Return the error that a supervisor reported."""
    return ClusterStartError(
        program=str(fields["program"]),
        reason=str(fields["reason"]),
        command=str(fields["command"]),
        last_lines=[str(line) for line in fields["last_lines"]] if isinstance(fields["last_lines"], list) else [],
        log=Path(str(fields["log"])),
    )


@contextlib.contextmanager
def locked(layout: Layout) -> Iterator[int]:
    """Lock a data folder and yield the lock's descriptor; the lock lives on in whoever inherited that."""
    descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _try_lock(descriptor, timeout_s=LOCK_PATIENCE_S):
            raise LocalClusterError(
                f"the cluster in {layout.data} is being started or ended by someone else; try again"
            )
        os.truncate(descriptor, 0)  # the supervisor writes its process id here
        yield descriptor
    finally:
        os.close(descriptor)


def wait_until_ended(layout: Layout, *, timeout_s: float) -> bool:
    """Wait until no supervisor holds the data folder; return whether that is so."""
    try:
        descriptor = os.open(layout.lock, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        return _try_lock(descriptor, timeout_s=timeout_s)
    finally:
        os.close(descriptor)


def kill_supervisor(layout: Layout) -> None:
    """Kill a supervisor that holds the lock; its programs die with it."""
    with contextlib.suppress(OSError, ValueError):
        os.kill(int(layout.lock.read_text()), signal.SIGKILL)


def _try_lock(descriptor: int, *, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        else:
            return True
