"""Requests to a running supervisor, over a Unix socket in the data folder: a line of JSON there, a line of JSON back.

A socket's path may be 107 bytes long, a data folder's is anything. Both sides therefore name the socket through the
folder's open file descriptor (`/proc/self/fd/N/control.sock`), which is always short.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from forebay_localcluster.errors import ControlError

Answer = dict[str, Any]
Handler = Callable[[Answer], Awaitable[Answer]]
LINE_BYTES_MAX = 1 << 20
REQUEST_TIMEOUT_S = 5.0


def ask(path: Path, request: Answer, *, timeout_s: float) -> Answer:
    """Send a request and return the answer; raise `ControlError` when there is none, or it is a refusal."""
    try:
        line = _exchange(path, json.dumps(request).encode() + b"\n", timeout_s=timeout_s)
    except OSError as error:
        raise ControlError(f"the cluster's supervisor does not answer at {path}: {error}") from error
    answer: Answer = json.loads(line)
    if "error" in answer:
        raise ControlError(answer["error"])
    return answer


@contextlib.asynccontextmanager
async def serve(path: Path, handler: Handler) -> AsyncIterator[None]:
    """Answer requests at `path`, where no file may be yet, until the block is left.

    A `ControlError` from the handler is sent back as a refusal.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = json.loads(await reader.readline())
            try:
                reply = await handler(request)
            except ControlError as error:
                reply = {"error": str(error)}
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass  # a caller that hangs up or talks nonsense gets no answer
        finally:
            writer.close()

    with _short(path) as short:
        server = await asyncio.start_unix_server(answer, short, limit=LINE_BYTES_MAX)
    try:
        yield
    finally:
        server.close()


def _exchange(path: Path, line: bytes, *, timeout_s: float) -> bytes:
    """Send a line and return the one that comes back; raise `ConnectionError` when the other side is gone, or going."""
    with _short(path) as short, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(short)
        connection.sendall(line)
        with connection.makefile("rb") as answers:
            answer = answers.readline(LINE_BYTES_MAX)
    if not answer:
        raise ConnectionResetError("it ended meanwhile")
    return answer


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
