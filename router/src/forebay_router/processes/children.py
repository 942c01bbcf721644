"""The child processes: begun, begun again when they end, asked over their control sockets, stopped.

A child that ends by itself is begun again after a pause that doubles from `FIRST_PAUSE_S` to `LONGEST_PAUSE_S` and starts anew
after one that has lived `LIVED_S`. A child's standard input is a pipe from the parent: its end tells the child that the parent
is no more, however it ended. Children have a session of their own, so that a Ctrl-C reaches them through the parent only.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from forebay_router.processes.part import PART_VARIABLE, Part

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
LIVED_S: Final = 30.0
ASK_TIMEOUT_S: Final = 2.0
EXPLAIN_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Told:
    """A child's answer."""

    status: int
    body: bytes
    pid: int


@dataclass(slots=True)
class Child:
    """One process and its successors."""

    part: Part
    command: Sequence[str]
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    answered: bool = False
    """It has been heard since it was begun last, and has not ended."""
    _session: aiohttp.ClientSession | None = None

    async def keep(self, stopping: asyncio.Event) -> None:
        """Have one run until told to stop."""
        pause_s = FIRST_PAUSE_S
        while not stopping.is_set():
            began_s = time.monotonic()
            code = await self._run(stopping)
            if stopping.is_set():
                return
            self.restarts += 1
            log.error("a process has ended", extra={"part": self.part.number, "exit_code": code, "pause_s": pause_s})
            if time.monotonic() - began_s > LIVED_S:
                pause_s = FIRST_PAUSE_S
            await _pause(stopping, pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _run(self, stopping: asyncio.Event) -> int | None:
        """One process from beginning to end: its exit code, or None when it could not be begun."""
        try:
            process = self.process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                env={**os.environ, PART_VARIABLE: str(self.part)},
                start_new_session=True,
            )
        except OSError as error:
            log.warning("a process cannot be begun: %s", error, extra={"part": self.part.number})
            return None
        if stopping.is_set():
            self.send(signal.SIGTERM)  # `stop` came while it was being begun and did not see it
        code = await process.wait()
        self.process, self.answered = None, False
        return code

    def send(self, number: signal.Signals) -> None:
        """Give it a signal, if it runs."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    async def ask(self, path: str, *, body: bytes | None = None, timeout_s: float = ASK_TIMEOUT_S) -> Told | None:
        """Its control port's answer; None when it gives none."""
        process = self.process
        if process is None:
            return None
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(self.part.control_path))
        method = "GET" if body is None else "POST"
        limit = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(method, f"http://child{path}", data=body, timeout=limit) as answer:
                told = Told(answer.status, await answer.read(), process.pid)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.debug("a process does not answer %s: %r", path, error, extra={"part": self.part.number})
            return None
        self.answered = self.process is process
        return told

    async def close(self) -> None:
        """Close the connections to its control port."""
        if self._session is not None:
            await self._session.close()


async def _pause(stopping: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return


@dataclass(slots=True)
class Children:
    """All of them."""

    children: tuple[Child, ...]
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def of(cls, count: int, directory: str, arguments: Sequence[str]) -> "Children":
        """So many routers with these arguments."""
        command = (sys.executable, "-m", "forebay_router", *arguments)
        return cls(tuple(Child(Part(number, directory), command) for number in range(count)))

    @property
    def restarts(self) -> int:
        """Times that one was begun again."""
        return sum(child.restarts for child in self.children)

    async def keep(self) -> None:
        """Have all of them run until told to stop."""
        async with asyncio.TaskGroup() as tasks:
            for child in self.children:
                tasks.create_task(child.keep(self.stopping), name=f"process {child.part.number}")

    def stop(self) -> None:
        """Let them drain; at once the second time."""
        self.stopping.set()
        for child in self.children:
            child.send(signal.SIGTERM)

    def kill(self) -> None:
        """End those that are left."""
        for child in self.children:
            child.send(signal.SIGKILL)

    async def ask(self, path: str) -> Mapping[int, Told | None]:
        """The answer of every one, by number."""
        asked: list[Awaitable[Told | None]] = [child.ask(path) for child in self.children]
        told = await asyncio.gather(*asked)
        return {child.part.number: one for child, one in zip(self.children, told, strict=True)}

    async def ask_any(self, path: str, body: bytes) -> Told | None:
        """The first answer that one gives."""
        return await _first([_asking(child, path, body) for child in self.children])

    async def close(self) -> None:
        """Close all connections to them."""
        for child in self.children:
            await child.close()


def _asking(child: Child, path: str, body: bytes) -> Callable[[], Awaitable[Told | None]]:
    return lambda: child.ask(path, body=body, timeout_s=EXPLAIN_TIMEOUT_S)


async def _first(asking: Sequence[Callable[[], Awaitable[Told | None]]]) -> Told | None:
    for ask in asking:
        told = await ask()
        if told is not None:
            return told
    return None
