"""Serves container logs to the API server, so that `kubectl logs` works (with -f, -p, --tail and --limit-bytes).

The API server asks a node's kubelet by `GET /containerLogs/NAMESPACE/POD/CONTAINER` over TLS on the node's address. The node's
own client certificate serves as the server's: a local API server verifies none. Only logs are served; the address is a
loopback one. Logs carry no times of their own, so `--timestamps` and `--since` change nothing.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

_CHUNK_BYTES = 1 << 16
_FOLLOW_POLL_S = 0.25
_REQUEST_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)

IsRunning = Callable[[str, str, str], bool]
"""Whether a container (namespace, pod, name) may still write."""


@dataclass(frozen=True, slots=True)
class LogRequest:
    """What is asked for."""

    namespace: str
    pod: str
    container: str
    follow: bool = False
    previous: bool = False
    tail_lines: int | None = None
    bytes_max: int | None = None

    @property
    def file(self) -> Path:
        """The log file, below the folder of all pods' logs."""
        suffix = "previous.log" if self.previous else "log"
        return Path(f"{self.namespace}_{self.pod}") / f"{self.container}.{suffix}"


def parse_request(target: str) -> LogRequest | None:
    """Read the target of a GET; None for anything but a container's logs."""
    parts = urlsplit(target)
    words = [unquote(word) for word in parts.path.strip("/").split("/")]
    if len(words) != 4 or words[0] != "containerLogs" or any("/" in word or word.startswith(".") for word in words):
        return None
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    tail, limit = query.get("tailLines", ""), query.get("limitBytes", "")
    return LogRequest(
        namespace=words[1],
        pod=words[2],
        container=words[3],
        follow=query.get("follow") == "true",
        previous=query.get("previous") == "true",
        tail_lines=int(tail) if tail.isdigit() else None,
        bytes_max=int(limit) if limit.isdigit() else None,
    )


def tail_offset(path: Path, lines: int) -> int:
    """Where the last `lines` lines of a file begin."""
    with path.open("rb") as file:
        end = position = file.seek(0, 2)
        found = 0
        while position > 0:
            step = min(_CHUNK_BYTES, position)
            position -= step
            file.seek(position)
            chunk = file.read(step)
            for index in range(len(chunk) - 1, -1, -1):
                if chunk[index] == 0x0A and position + index != end - 1:
                    found += 1
                if found == lines:
                    return position + index + 1
    return 0 if lines else end


class LogServer:
    """Serves the logs under `pods`."""

    def __init__(self, pods: Path, is_running: IsRunning) -> None:
        self._pods = pods
        self._is_running = is_running

    async def listen(self, host: str, *, certificate: Path, key: Path) -> asyncio.Server:
        """Listen on a free port of `host`."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        return await asyncio.start_server(self._serve, host, 0, ssl=context)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
            request = parse_request(target) if method == "GET" else None
            if request is None:
                _refuse(writer, "501 Not Implemented", "a simulated node serves container logs only")
            elif not (self._pods / request.file).exists():
                _refuse(writer, "404 Not Found", f"there is no log {request.file}")
            else:
                await self._send(request, writer)
            await writer.drain()
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("a request for logs broke off: %s", error)
        finally:
            writer.close()

    async def _send(self, request: LogRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        path = self._pods / request.file
        left = request.bytes_max
        with path.open("rb") as file:
            if request.tail_lines is not None:
                file.seek(tail_offset(path, request.tail_lines))
            while left is None or left > 0:
                # Asked before reading: what is written until the end is read by the round after it.
                running = request.follow and self._is_running(request.namespace, request.pod, request.container)
                data = file.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
                if data:
                    left = None if left is None else left - len(data)
                    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                    await writer.drain()
                elif not running:
                    break
                elif writer.is_closing():
                    return
                else:
                    await asyncio.sleep(_FOLLOW_POLL_S)
        writer.write(b"0\r\n\r\n")


def _refuse(writer: asyncio.StreamWriter, status: str, reason: str) -> None:
    body = reason.encode()
    with suppress(OSError):
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
