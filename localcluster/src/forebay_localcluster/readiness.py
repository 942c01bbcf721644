"""See whether a program is ready. A check that cannot be made says "not yet"; only time and the program's end say no.

HTTP is spoken by hand, one connection a try: all that is asked is a status line, and an HTTP library would take longer to
import than etcd takes to start.
"""

import asyncio
import contextlib
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from forebay_localcluster.children import Child
from forebay_localcluster.plan import Check, FileCheck, HttpCheck, LogCheck

REQUEST_TIMEOUT_S = 5.0
OK = b"200"


class Probe:
    """The checks of one program; a check that has held is not made again."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._pending: list[Check] = list(child.plan.ready)
        self._contexts = {check: _context(check) for check in self._pending if isinstance(check, HttpCheck)}

    async def holds(self) -> bool:
        """Say whether every check has held."""
        while self._pending and await self._passes(self._pending[0]):
            del self._pending[0]
        return not self._pending

    async def _passes(self, check: Check) -> bool:
        match check:
            case HttpCheck(url=url):
                try:
                    async with asyncio.timeout(REQUEST_TIMEOUT_S):
                        return await _answers(url, self._contexts[check])
                except (OSError, TimeoutError):  # an ssl.SSLError is an OSError
                    return False
            case FileCheck(path=path):
                return _exists(path)
            case LogCheck(text=text):
                return text.encode() in self._child.run_output()


async def _answers(url: str, context: ssl.SSLContext | None) -> bool:
    """Say whether a GET of `url` answers 200."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
    try:
        request = f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        status = (await reader.readline()).split(b" ", 2)
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await writer.wait_closed()
    return len(status) > 1 and status[1] == OK


def _exists(path: str) -> bool:
    return Path(path).exists()


def _context(check: HttpCheck) -> ssl.SSLContext | None:
    if check.authority is None:
        return None
    context = ssl.create_default_context(cafile=check.authority)
    if check.certificate:
        context.load_cert_chain(check.certificate, check.key)
    return context
