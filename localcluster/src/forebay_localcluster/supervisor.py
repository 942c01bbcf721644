"""The process that keeps a cluster: `python -m forebay_localcluster.supervisor --data FOLDER ...`.

It starts the plan's programs as their needs become ready, tells whoever started it how that goes, answers requests, and ends
everything when it is told to (request, SIGTERM, SIGINT), when a start fails, or when its owner ends. It restarts nothing by
itself: a program that ends is a fact for `status` and for tests.

Owner. The starter listens on a pipe; should it stop listening before all is ready, there is nobody the cluster is for. An
owned cluster is also given a pidfd of its starter, which becomes readable when that ends, however it ends.

Inherited descriptors. The lock on the data folder and the claims on ports are open descriptors that the starter passed on;
they are held by being open, so they end with this process, however it ends.

Life and death. Every child dies with this process (see `children`); this process forks from its only thread.
"""

import argparse
import asyncio
import contextlib
import enum
import json
import logging
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from forebay_localcluster.children import (
    MARKER,
    SWEEP_TIMEOUT_S,
    Child,
    State,
    become_subreaper,
    describe_code,
    kill_descendants,
    reap,
)
from forebay_localcluster.control import Answer, serve
from forebay_localcluster.errors import ControlError
from forebay_localcluster.layout import Layout
from forebay_localcluster.plan import Plan, ProgramPlan, load_plan, load_program, stop_waves
from forebay_localcluster.readiness import Probe

POLL_S = 0.05
"""How often a starting program is looked at."""

log = logging.getLogger("forebay.localcluster")


class Ending(enum.Enum):
    """Why the supervisor ends everything, and with it how."""

    ASKED = "asked to"
    """In order, each program with its grace."""
    OWNER_GONE = "the owner is gone"
    """At once: nobody waits for a clean end."""
    START_FAILED = "a start failed"


class StartFailedError(Exception):
    """A program did not become ready."""

    def __init__(self, child: Child, reason: str) -> None:
        super().__init__(f"{child.plan.name} {reason}")
        self.fields = {
            "program": child.plan.name,
            "reason": reason,
            "command": shlex.join(child.plan.argv),
            "last_lines": child.last_lines(),
            "log": child.plan.log,
        }


class Supervisor:
    """A cluster's programs, from start to end."""

    def __init__(self, plan: Plan, layout: Layout, *, report_fd: int, owner_fd: int) -> None:
        self._plan = plan
        self._layout = layout
        self._report_fd = report_fd
        self._owner_fd = owner_fd
        self._children = {program.name: Child(program) for program in plan.programs}
        self._environment = {**os.environ, MARKER: str(layout.data)}
        self._ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._up = False

    async def run(self) -> Ending:
        """Keep the cluster until it has to end; return why it ended."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, Ending.ASKED)
        for descriptor in (self._report_fd, self._owner_fd):  # a pipe "reads" when its reader has closed it
            if descriptor >= 0:
                loop.add_reader(descriptor, self._lose_owner, descriptor)
        async with serve(self._layout.socket, self._answer):
            starting = asyncio.create_task(self._start_all())
            try:
                events: list[asyncio.Future[Any]] = [starting, self._ending]
                await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    starting.result()
                ending = await self._ending
            finally:
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
            log.info("ending: %s", ending.value)
            if ending is not Ending.OWNER_GONE:
                await self._stop_all()
            await self._sweep()
        return ending

    def _end(self, ending: Ending) -> None:
        if not self._ending.done():
            self._ending.set_result(ending)

    def _lose_owner(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        self._end(Ending.OWNER_GONE)

    def _reap(self) -> None:
        before = {child.pid: child for child in self._children.values() if child.pid is not None}
        reap(before)
        for pid, child in before.items():
            if child.pid is None:
                log.info("%s (pid %d) ended: %s", child.plan.name, pid, describe_code(child.code))

    async def _start_all(self) -> None:
        """Start every program when what it needs is ready; a start that fails ends everything."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for child in self._children.values():
                group.create_task(self._start_or_end(child))
        if self._ending.done():
            return
        self._up = True
        log.info("up after %.1f s", time.monotonic() - started)
        asyncio.get_running_loop().remove_reader(self._report_fd)
        self._report({"up": True})
        os.close(self._report_fd)

    async def _start_or_end(self, child: Child) -> None:
        try:
            await self._start(child)
        except StartFailedError as failure:
            log.error("%s", failure)
            if not self._ending.done():  # others may fail because the first one did
                self._report({"failed": failure.fields})
            self._end(Ending.START_FAILED)

    async def _start(self, child: Child) -> None:
        """Start a program when what it needs is ready; return when it is ready itself."""
        for name in child.plan.after:
            await self._children[name].ready.wait()
        try:
            child.spawn(self._environment)
        except OSError as error:
            raise StartFailedError(child, f"cannot be run ({error.strerror})") from error
        log.info("%s started, pid %s", child.plan.name, child.pid)
        self._report_state(child)
        try:
            async with asyncio.timeout(child.plan.ready_timeout_s):
                await _until_ready(child, Probe(child))
        except TimeoutError as error:
            raise StartFailedError(child, f"was not ready within {child.plan.ready_timeout_s:g} s") from error
        child.note_ready()
        self._report_state(child)

    def _report_state(self, child: Child) -> None:
        if not self._up:
            self._report({"program": child.plan.name, "state": child.state})

    def _report(self, line: Answer) -> None:
        with contextlib.suppress(OSError):  # the starter may have gone
            os.write(self._report_fd, json.dumps(line).encode() + b"\n")

    async def _stop_all(self) -> None:
        for wave in stop_waves(child.plan for child in self._children.values()):
            async with asyncio.TaskGroup() as group:
                for name in wave:
                    group.create_task(self._children[name].stop())

    async def _sweep(self) -> None:
        """Kill whatever is left below this process, until nothing is."""
        deadline = time.monotonic() + SWEEP_TIMEOUT_S
        while (left := kill_descendants()) and time.monotonic() < deadline:
            log.info("killed what was left: %d processes", left)
            await asyncio.sleep(POLL_S)
            self._reap()

    async def _answer(self, request: Answer) -> Answer:
        match request:
            case {"do": "status"}:
                return self._status()
            case {"do": "stop"}:
                self._end(Ending.ASKED)
                return {}
            case {"do": "kill", "program": str(name)}:
                return await self._kill(self._child(name))
            case {"do": "start", "program": str(name)}:
                return await self._start_again(self._child(name))
            case {"do": "add", "program": dict(fields)}:
                return await self._add(load_program(fields))
        raise ControlError(f"no such request: {request}")

    def _status(self) -> Answer:
        programs = [_describe(child) for child in self._children.values()]
        return {"up": self._up, "pid": os.getpid(), "number": self._plan.number, "programs": programs}

    def _child(self, name: str) -> Child:
        if name not in self._children:
            raise ControlError(f"no program {name!r} in this cluster; there is: {', '.join(self._children)}")
        return self._children[name]

    async def _kill(self, child: Child) -> Answer:
        if child.pid is None:
            raise ControlError(f"{child.plan.name} does not run")
        child.state = State.KILLED
        child.signal(signal.SIGKILL)
        await child.exited.wait()
        return {}

    async def _start_again(self, child: Child) -> Answer:
        if child.pid is not None:
            raise ControlError(f"{child.plan.name} runs already, pid {child.pid}")
        if absent := [name for name in child.plan.after if not self._children[name].ready.is_set()]:
            raise ControlError(f"{child.plan.name} needs {', '.join(absent)}; start that first")
        try:
            await self._start(child)
        except StartFailedError as failure:
            return {"failed": failure.fields}
        return {}

    async def _add(self, program: ProgramPlan) -> Answer:
        if program.name in self._children:
            raise ControlError(f"there is a program {program.name!r} in this cluster already")
        self._children[program.name] = Child(program)
        return await self._start_again(self._children[program.name])


async def _until_ready(child: Child, probe: Probe) -> None:
    while True:
        if child.exited.is_set():
            if child.state is State.DONE:
                return
            raise StartFailedError(child, f"ended before it was ready ({describe_code(child.code)})")
        if not child.plan.runs_once and await probe.holds():
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.exited.wait(), POLL_S)


def _describe(child: Child) -> dict[str, Any]:
    return {
        "name": child.plan.name,
        "state": child.state,
        "pid": child.pid,
        "started_at": child.started_at,
        "ended": describe_code(child.code),
        "version": child.plan.version,
        "port": child.plan.port,
    }


def _detach(kept: Iterable[int]) -> None:
    """Become a process that nobody waits for: no zombie is left to the starter, and no terminal reaches it."""
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    os.chdir("/")
    for descriptor in kept:
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="forebay_localcluster.supervisor", description="Keep a local cluster.")
    parser.add_argument("--data", type=Path, required=True, help="the cluster's data folder, with a plan in it")
    parser.add_argument("--report-fd", type=int, required=True, help="where to tell how the start goes")
    parser.add_argument("--owner-fd", type=int, default=-1, help="a pidfd; everything ends with that process")
    parser.add_argument(
        "--held-fd", type=int, action="append", default=[], help="a lock or claim to hold by having it open"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Detach, keep the cluster, and end."""
    options = _parse(arguments)
    _detach((options.report_fd, options.owner_fd, *options.held_fd))
    become_subreaper()
    layout = Layout(options.data)
    logging.basicConfig(
        filename=layout.log("supervisor"), level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    layout.lock.write_text(str(os.getpid()))
    layout.socket.unlink(missing_ok=True)
    plan = load_plan(layout.plan.read_text())

    async def run() -> Ending:
        supervisor = Supervisor(plan, layout, report_fd=options.report_fd, owner_fd=options.owner_fd)
        return await supervisor.run()

    try:
        ending = asyncio.run(run())
    except BaseException:
        log.exception("the supervisor failed")
        raise
    layout.socket.unlink(missing_ok=True)
    if plan.disposable and ending is Ending.OWNER_GONE:
        shutil.rmtree(layout.data, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
