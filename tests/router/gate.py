"""A place between prefill and decode where a test can interfere: a proxy that sees the decode leg's request come by."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Gate:
    """A TCP proxy before a decode engine."""

    def __init__(self, target: int) -> None:
        self.target = target
        """The engine's port."""
        self.on_hand_over: Callable[[], bool] | None = None
        """Called when a hand-over comes by; false swallows it."""
        self.url = ""
        self.handed_over = 0
        self.broken = 0
        self._connections: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Gate"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self
            for one in self._connections:
                one.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(reader, forth, watched=True))
                tasks.create_task(self._pass(back, writer, watched=False))
        except* ConnectionError:
            self.broken += 1
        finally:
            forth.close()
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, watched: bool) -> None:
        while data := await reader.read(65536):
            if watched and b'"remote_engine_id"' in data:
                self.handed_over += 1
                if self.on_hand_over is not None and not self.on_hand_over():
                    continue
            writer.write(data)
            await writer.drain()
        writer.close()
