"""Child processes that cannot outlive their supervisor, and the one place that reaps them.

- Each child asks the kernel, between fork and exec, for SIGKILL at its parent's death (PR_SET_PDEATHSIG). The signal comes
  when the *thread* that forked ends, so children are forked from the supervisor's main thread only. A parent that died
  before the request was made is noticed by comparing the parent's id.
- The supervisor is the subreaper of everything below it: what a killed child leaves behind becomes the supervisor's own
  child, so at the end the tree below the supervisor is all there is to kill.
- Being a subreaper means that processes nobody here started end up here. Hence all reaping is done in one place, by
  waitpid(-1) at SIGCHLD, and no `Popen.wait` is used beside it.
"""

import asyncio
import contextlib
import ctypes
import enum
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from forebay_localcluster.plan import ProgramPlan

MARKER = "FOREBAY_LOCALCLUSTER_DATA"
"""In every child's environment: the data folder of its cluster."""
SWEEP_TIMEOUT_S = 2.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class State(enum.StrEnum):
    """Where a program is in its life."""

    WAITING = "waiting"
    """For the programs it needs."""
    STARTING = "starting"
    READY = "ready"
    DONE = "done"
    """Ran once and ended well."""
    ENDED = "ended"
    """By itself, which is a fault."""
    KILLED = "killed"
    """By request."""


@dataclass(slots=True)
class Child:
    """A program of the plan and its process, if it runs."""

    plan: ProgramPlan
    state: State = State.WAITING
    pid: int | None = None
    started_at: float | None = None
    """Unix time."""
    code: int | None = None
    """How the last process ended: exit code, or minus the signal's number."""
    log_start: int = 0
    """Where this run begins in the log."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    _process: subprocess.Popen[bytes] | None = None

    def spawn(self, environment: Mapping[str, str]) -> None:
        """Start the process. Must be called from the main thread."""
        log = Path(self.plan.log)
        self.log_start = log.stat().st_size if log.exists() else 0
        parent = os.getpid()
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 -- the plan's programs are what a supervisor is for
                self.plan.argv,
                env={**environment, **self.plan.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: _die_with(parent),  # noqa: PLW1509 -- the supervisor has one thread
            )
        self.pid, self.code = self._process.pid, None
        self.started_at = time.time()
        self.state = State.STARTING
        self.ready.clear()
        self.exited.clear()

    def note_exit(self, code: int) -> None:
        """Record the end of the process; the state says whether it was asked for."""
        self.pid, self.code = None, code
        if self._process:
            self._process.returncode = code  # it was reaped here, so Popen must not look for it
        if self.state is not State.KILLED:
            self.state = State.DONE if self.plan.runs_once and code == 0 else State.ENDED
        self.ready.clear()
        self.exited.set()

    def note_ready(self) -> None:
        """Record that everything the plan asks for holds."""
        if self.state is State.STARTING:
            self.state = State.READY
        self.ready.set()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def stop(self) -> None:
        """End the process: SIGTERM, the plan's grace, SIGKILL. Returns when it is gone."""
        if self.pid is None:
            return
        self.state = State.KILLED
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self.plan.stop_grace_s):
                await self.exited.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.exited.wait()

    def run_output(self) -> bytes:
        """Return what the program has written in this run."""
        with contextlib.suppress(OSError), Path(self.plan.log).open("rb") as log:
            log.seek(self.log_start)
            return log.read()
        return b""

    def last_lines(self, count: int = 20) -> list[str]:
        """Return the last lines that the program wrote in this run."""
        return self.run_output().decode(errors="replace").splitlines()[-count:]


def become_subreaper() -> None:
    """Make this process the parent of every descendant whose parent dies."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap(children: Mapping[int, Child]) -> None:
    """Collect every child that has ended; those of the plan by process id learn of it."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if child := children.get(pid):
            child.note_exit(os.waitstatus_to_exitcode(status))


def kill_descendants() -> int:
    """Kill everything below this process and return how many there were."""
    below = psutil.Process().children(recursive=True)
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return len(below)


def strays(data: Path) -> list[psutil.Process]:
    """Return the processes of a cluster, found by their environment; for when its supervisor is gone."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARKER) == str(data):
                found.append(process)
    return found


def kill_strays(data: Path) -> int:
    """Kill what a killed supervisor may have left, wait until it is gone, and return how many there were."""
    left = strays(data)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=SWEEP_TIMEOUT_S)
    return len(left)


def describe_code(code: int | None) -> str:
    """Say how a process ended."""
    if code is None:
        return ""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _die_with(parent: int) -> None:
    """Run in the child, between fork and exec: nothing here may allocate much or lock."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
