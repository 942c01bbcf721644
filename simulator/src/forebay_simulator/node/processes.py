"""The agent's side of the launcher: starts it and turns its reports into awaitable results.

Each process has an id of the agent's own. Its reports resolve two futures, "started" and "exited"; they are kept until the
exit was awaited. The end of the socket means that the launcher, hence every process, is gone.
"""

import asyncio
import itertools
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import forebay_simulator
from forebay_simulator.node import launch_protocol as protocol
from forebay_simulator.node.errors import LauncherGoneError, LauncherUnusableError, ProgramError

_SOURCE = str(Path(forebay_simulator.__file__).resolve().parent.parent)
_LAUNCHER = f"import sys; sys.path.insert(0, {_SOURCE!r}); from forebay_simulator.node.launcher import main; main()"
_CAPTURE_BYTES_MAX = 10 * 1024
_READ_BYTES = 1 << 16
_READY_TIMEOUT_S = 10.0
_KILL_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended; one of the two is set."""

    code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class Captured:
    """A process run to its end."""

    exit: Exit
    output: str


@dataclass(slots=True)
class _Process:
    started: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    exited: asyncio.Future[Exit] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Processes:
    """All processes of a node's pods. `async with` starts the launcher and ends everything."""

    def __init__(self, scratch: Path, lock: int) -> None:
        """Outputs of commands pass through `scratch`; `lock` is a descriptor that the launcher keeps open."""
        self._scratch = scratch
        self._lock = lock
        self._ids = itertools.count(1)
        self._processes: dict[int, _Process] = {}
        self._channel: socket.socket | None = None
        self._ready: asyncio.Future[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()  # a request longer than the socket's buffer is sent in parts

    async def __aenter__(self) -> Self:
        self._scratch.mkdir(parents=True, exist_ok=True)
        mine, its = socket.socketpair()
        mine.setblocking(False)
        # It forks the launcher proper and ends at once.
        starter = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _LAUNCHER, str(its.fileno()), str(self._lock)),
            pass_fds=[its.fileno(), self._lock],
            start_new_session=True,
        )
        its.close()
        self._channel = mine
        self._ready = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(mine))
        await starter.wait()
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                await self._ready
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError, LauncherGoneError):
                await self._reader
        if self._channel is not None:
            self._channel.close()

    async def failed(self) -> None:
        """Return never; raise LauncherGoneError when the launcher ends."""
        if self._reader is None:
            raise LauncherGoneError("the launcher was not started")
        await asyncio.shield(self._reader)

    def new_id(self) -> int:
        """An id for a process to come."""
        return next(self._ids)

    async def start(self, request: protocol.Start) -> int:
        """Start a container's main process; the number that the machine knows it by. Raises ProgramError.

        Cancelled while under way, it kills what may have started.
        """
        return await self._start(request)

    async def wait(self, identifier: int) -> Exit:
        """Wait until a started process has ended. Once a process; cancelled, it kills the process."""
        try:
            return await asyncio.shield(self._processes[identifier].exited)
        except asyncio.CancelledError:
            with suppress(LauncherGoneError):
                await asyncio.shield(self._end(identifier))
            raise
        finally:
            self._processes.pop(identifier, None)

    async def signal(self, identifier: int, number: signal.Signals) -> None:
        """Send a signal; does nothing when the process has ended."""
        await self._send(protocol.Signal(identifier, int(number)))

    async def capture(
        self, inside: int, argv: Sequence[str], *, environment: Mapping[str, str], directory: str, timeout_s: float
    ) -> Captured:
        """Run a command inside a container. Raises ProgramError, and TimeoutError after having killed it."""
        identifier = self.new_id()
        output = self._scratch / f"exec-{identifier}.log"
        request = protocol.Execute(identifier, inside, tuple(argv), dict(environment), directory, str(output))
        try:
            async with asyncio.timeout(timeout_s):
                await self._start(request)
                ended = await asyncio.shield(self._processes[identifier].exited)
            return Captured(ended, _read_head(output))
        finally:
            await self._end(identifier)
            output.unlink(missing_ok=True)

    async def _start(self, request: protocol.Start | protocol.Execute) -> int:
        process = _Process()
        self._processes[request.id] = process
        try:
            await self._send(request)
            return await asyncio.shield(process.started)
        except asyncio.CancelledError:
            await asyncio.shield(self._end(request.id))
            raise
        except ProgramError:
            self._processes.pop(request.id, None)
            raise

    async def _end(self, identifier: int) -> None:
        """Kill a process that nobody waits for."""
        process = self._processes.get(identifier)
        if process is None:
            return
        if not process.exited.done():
            await self._send(protocol.Signal(identifier, int(signal.SIGKILL)))
            with suppress(TimeoutError, LauncherGoneError):
                async with asyncio.timeout(_KILL_TIMEOUT_S):
                    await asyncio.shield(process.exited)
        self._processes.pop(identifier, None)

    async def _send(self, request: protocol.Request) -> None:
        if self._channel is None:
            raise LauncherGoneError("the launcher was not started")
        try:
            async with self._sending:
                await asyncio.get_running_loop().sock_sendall(self._channel, protocol.encode(request))
        except OSError as error:
            raise LauncherGoneError(f"the launcher is gone: {error}") from error

    async def _read(self, channel: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        rest = b""
        try:
            while data := await loop.sock_recv(channel, _READ_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._take(protocol.decode(line))
            raise LauncherGoneError("the launcher ended, and every pod's process with it")
        except OSError as error:
            raise LauncherGoneError(f"the launcher is gone: {error}") from error
        finally:
            self._abandon()

    def _take(self, report: Any) -> None:
        match report:
            case protocol.Ready():
                if self._ready is not None:
                    self._ready.set_result(None)
            case protocol.Unusable(message=message):
                if self._ready is not None:
                    self._ready.set_exception(LauncherUnusableError(f"pods can't be run on this machine: {message}"))
            case _:
                process = self._processes.get(report.id)
                if process is not None:
                    _resolve(process, report)

    def _abandon(self) -> None:
        """Nothing more will be heard: fail what is waited for."""
        gone = LauncherGoneError("the launcher is gone")
        futures: list[asyncio.Future[Any]] = [
            future for p in self._processes.values() for future in (p.started, p.exited)
        ]
        if self._ready is not None:
            futures.append(self._ready)
        for future in futures:
            if not future.done():
                future.set_exception(gone)
                future.exception()  # not everyone is awaited, and that is no fault


def _resolve(process: _Process, report: Any) -> None:
    match report:
        case protocol.Started(process_id=process_id) if not process.started.done():
            process.started.set_result(process_id)
        case protocol.StartFailed(message=message):
            if not process.started.done():
                process.started.set_exception(ProgramError(message))
            if not process.exited.done():
                process.exited.set_result(Exit(code=None, signal=int(signal.SIGKILL)))
        case protocol.Exited(code=code, signal=number) if not process.exited.done():
            process.exited.set_result(Exit(code=code, signal=number))
        case _:
            pass


def _read_head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_CAPTURE_BYTES_MAX).decode(errors="replace")
    except FileNotFoundError:
        return ""


def last_lines(path: Path, *, bytes_max: int, lines_max: int) -> str:
    """The end of a log, whole lines where possible."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - bytes_max))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "".join(text.splitlines(keepends=True)[-lines_max:])
