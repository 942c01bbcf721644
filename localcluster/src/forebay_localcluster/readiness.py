"""See whether a program is ready. A check that cannot be made says "not yet"; only time and the program's end say no."""

import contextlib
import ssl
from pathlib import Path
from typing import Self

import httpx

from forebay_localcluster.children import Child
from forebay_localcluster.plan import Check, FileCheck, HttpCheck, LogCheck

REQUEST_TIMEOUT_S = 5.0


class Probe:
    """The checks of one program, with connections that are kept between tries; an async context manager."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._pending: list[Check] = list(child.plan.ready)
        self._clients: dict[HttpCheck, httpx.AsyncClient] = {}
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        for check in self._pending:
            if isinstance(check, HttpCheck):
                client = httpx.AsyncClient(verify=_context(check), timeout=REQUEST_TIMEOUT_S, trust_env=False)
                self._clients[check] = await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def holds(self) -> bool:
        """Say whether every check has held."""
        while self._pending and await self._passes(self._pending[0]):
            del self._pending[0]
        return not self._pending

    async def _passes(self, check: Check) -> bool:
        match check:
            case HttpCheck(url=url):
                try:
                    answer = await self._clients[check].get(url)
                except httpx.HTTPError:
                    return False
                return answer.status_code == httpx.codes.OK
            case FileCheck(path=path):
                return _exists(path)
            case LogCheck(text=text):
                return text.encode() in self._child.run_output()


def _exists(path: str) -> bool:
    return Path(path).exists()


def _context(check: HttpCheck) -> ssl.SSLContext | bool:
    if check.authority is None:
        return False
    context = ssl.create_default_context(cafile=check.authority)
    if check.certificate:
        context.load_cert_chain(check.certificate, check.key)
    return context
