"""Runs one probe or hook: HTTP, TCP or a command.

HTTP is spoken by hand over a stream: a probe needs the status line and nothing else, and a client object a probe would cost
many times more than the request. Certificates are not verified, as a kubelet does not.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from forebay_simulator.node.errors import LauncherGoneError, ProgramError
from forebay_simulator.node.pods import Handler, HttpGet, Pause, RunCommand, TcpConnect
from forebay_simulator.node.processes import Captured

_BODY_BYTES_MAX = 10 * 1024
_BODY_SHOWN_MAX = 200
_insecure = ssl.create_default_context()
_insecure.check_hostname = False
_insecure.verify_mode = ssl.CERT_NONE

Execute = Callable[[tuple[str, ...], float], Awaitable[Captured]]
"""Runs a command in the container, for at most so many seconds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe found."""

    healthy: bool
    message: str = ""


async def run_handler(handler: Handler, *, address: str, timeout_s: float, execute: Execute) -> Answer:
    """Run a probe or hook once. Never raises for what the container does; cancellation passes."""
    try:
        async with asyncio.timeout(timeout_s):
            match handler:
                case HttpGet():
                    return await _http_get(handler, address)
                case TcpConnect():
                    return await _connect(handler, address)
                case RunCommand(argv=argv):
                    return await _execute(argv, timeout_s, execute)
                case Pause(duration_s=duration_s):
                    await asyncio.sleep(duration_s)
                    return Answer(healthy=True)
    except TimeoutError:
        return Answer(healthy=False, message=f"no answer within {timeout_s:g} s")


async def _http_get(handler: HttpGet, address: str) -> Answer:
    host = handler.host or address
    scheme = "https" if handler.tls else "http"
    url = f"{scheme}://{host}:{handler.port}{handler.path}"
    try:
        reader, writer = await asyncio.open_connection(host, handler.port, ssl=_insecure if handler.tls else None)
        try:
            writer.write(_request(handler, host))
            status_line = await reader.readline()
            status = int(status_line.split(None, 2)[1])
            if 200 <= status < 400:
                return Answer(healthy=True)
            body = await _read_body(reader)
        finally:
            writer.close()
    except (OSError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
        return Answer(healthy=False, message=f'Get "{url}": {error}')
    return Answer(healthy=False, message=f"HTTP probe failed with statuscode: {status}{body}")


def _request(handler: HttpGet, host: str) -> bytes:
    headers = {"Host": f"{host}:{handler.port}", "User-Agent": "kube-probe/1.37", "Accept": "*/*"}
    headers |= dict(handler.headers)
    lines = [f"GET {handler.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()


async def _read_body(reader: asyncio.StreamReader) -> str:
    """The start of the body, to show why a probe failed."""
    received = await reader.read(_BODY_BYTES_MAX)
    _, separator, body = received.partition(b"\r\n\r\n")
    text = body.decode(errors="replace").strip() if separator else ""
    return f": {text[:_BODY_SHOWN_MAX]}" if text else ""


async def _connect(handler: TcpConnect, address: str) -> Answer:
    host = handler.host or address
    try:
        _, writer = await asyncio.open_connection(host, handler.port)
    except OSError as error:
        return Answer(healthy=False, message=f"dial tcp {host}:{handler.port}: {error}")
    writer.close()
    return Answer(healthy=True)


async def _execute(argv: tuple[str, ...], timeout_s: float, execute: Execute) -> Answer:
    try:
        captured = await execute(argv, timeout_s)
    except TimeoutError:
        return Answer(healthy=False, message=f'command "{" ".join(argv)}" timed out after {timeout_s:g} s')
    except (ProgramError, LauncherGoneError) as error:
        return Answer(healthy=False, message=str(error))
    if captured.exit.code == 0:
        return Answer(healthy=True)
    return Answer(healthy=False, message=captured.output.strip() or f"command ended with {captured.exit}")
