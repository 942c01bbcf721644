"""Who asks: one process, one workload, one JSON object of figures at the end. Loopback only.

closed loop   every connection asks again as soon as it is answered
open loop     requests at random times, whatever has become of those before; latency counts from the intended time
chats         an open loop of chats; each turn brings the whole history, after a pause
"""

import argparse
import asyncio
import gc
import heapq
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, count, cycle
from typing import Any

import orjson
import uvloop

from tests.bench.routers.processes import busy_s, resident_mib
from tests.bench.routers.workloads import Words, Workload, bodies, body, decode

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_ENGINE = re.compile(rb"\r\nx-engine:\s*(\d+)", re.IGNORECASE)
_COUNTS = re.compile(rb'"prompt_tokens":\s*(\d+).*?"cached_tokens":\s*(\d+)', re.DOTALL)
_CONTENT = re.compile(rb'"content":\s*"([^"]*)"')
OPEN_CONNECTIONS_MAX = 2000
DRAIN_S = 5.0


@dataclass
class Asked:
    """One request and what came of it."""

    due_s: float
    then: Callable[["Connection", "Asked"], None]
    first_s: float = 0.0
    end_s: float = 0.0
    tokens: int = 0
    ok: bool = False
    engine: int = -1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer: bytes = b""
    chat: Any = None


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, target: str, *, keep: bool) -> None:
        self.target = target
        self._keep = keep
        self.asked: Asked | None = None
        self.alive = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self.alive = True

    def connection_lost(self, _error: Exception | None) -> None:
        self.alive = False
        if self.asked is not None:
            self._done(ok=False)

    def close(self) -> None:
        if self.alive:
            self._transport.close()

    def ask(self, payload: bytes, asked: Asked) -> None:
        self.asked = asked
        self._head, self._parts, self._size, self._length, self._tail = b"", [], 0, -1, b""
        self._transport.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nAccept: */*\r\n"
            b"User-Agent: bench\r\nContent-Length: %d\r\n\r\n%b" % (self.target.encode(), len(payload), payload)
        )

    def data_received(self, data: bytes) -> None:
        asked = self.asked
        if asked is None:
            return
        now_s = time.perf_counter()
        if not self._parts:
            data = self._head + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._head = data
                return
            self._head, data = data[: end + 2], data[end + 4 :]
            length = _LENGTH.search(self._head)
            self._length = int(length[1]) if length else -1
            self._parts.append(b"")
        joined = self._tail + data
        tokens = joined.count(b"data: {")  # the tail is shorter than the needle
        if not asked.first_s and (tokens or (data and self._length >= 0)):
            asked.first_s = now_s
        asked.tokens += tokens
        self._tail = joined[-6:]
        self._size += len(data)
        self._parts.append(data)
        if not self._keep and len(self._parts) > 3:  # the last two reads hold the counts
            del self._parts[1:-2]
        if self._size >= self._length if self._length >= 0 else joined.endswith(b"0\r\n\r\n"):
            asked.end_s = now_s
            self._done(ok=self._head.startswith(b"HTTP/1.1 200"))

    def _done(self, *, ok: bool) -> None:
        asked, self.asked = self.asked, None
        assert asked is not None
        asked.ok = ok
        if ok:
            asked.answer = b"".join(self._parts)
            counts, engine = _COUNTS.search(asked.answer), _ENGINE.search(self._head)
            if counts:
                asked.prompt_tokens, asked.cached_tokens = int(counts[1]), int(counts[2])
            asked.engine = int(engine[1]) if engine else -1
        asked.then(self, asked)


@dataclass
class Load:
    """One run of a workload."""

    workload: Workload
    targets: Iterator[str]
    pid: int
    """The router; 0 when engines are asked directly."""
    done: list[Asked] = field(default_factory=list)
    failed: int = 0
    connections: list[Connection] = field(default_factory=list)
    begun_s: float = 0.0
    ended_s: float = 0.0
    cpu_s: float = 0.0
    resident_mib: float = 0.0

    async def connect(self) -> Connection:
        target = next(self.targets)
        host, port = target.split(":")
        keep = bool(self.workload.prompts)
        _, made = await asyncio.get_running_loop().create_connection(
            lambda: Connection(target, keep=keep), host, int(port)
        )
        self.connections.append(made)
        return made

    def note(self, asked: Asked) -> None:
        """Count a request that ended within the measured time."""
        if self.begun_s and not self.ended_s:
            if asked.ok:
                self.done.append(asked)
            else:
                self.failed += 1
        if not self.workload.prompts:
            asked.answer = b""

    async def measure(self) -> None:
        """Wait until all is warm, then measure."""
        await asyncio.sleep(self.workload.warm_s)
        started_cpu_s = busy_s(self.pid)
        self.begun_s = time.perf_counter()
        await asyncio.sleep(self.workload.seconds)
        self.ended_s = time.perf_counter()
        self.cpu_s = busy_s(self.pid) - started_cpu_s
        self.resident_mib = resident_mib(self.pid)

    async def run(self) -> None:
        """Run it."""
        if self.workload.concurrency:
            await self._closed()
        else:
            async with asyncio.TaskGroup() as tasks:
                measuring = tasks.create_task(self.measure())
                tasks.create_task(self._chats(measuring) if self.workload.prompts else self._arrivals(measuring))
        deadline_s = time.perf_counter() + DRAIN_S
        while any(one.asked for one in self.connections) and time.perf_counter() < deadline_s:  # noqa: ASYNC110 - rare
            await asyncio.sleep(0.02)
        for connection in self.connections:
            connection.close()

    async def _closed(self) -> None:
        made = bodies(self.workload)

        def again(connection: Connection, asked: Asked) -> None:
            self.note(asked)
            if not self.ended_s and connection.alive:
                connection.ask(next(made), Asked(time.perf_counter(), again))

        for _ in range(self.workload.concurrency):
            (await self.connect()).ask(next(made), Asked(time.perf_counter(), again))
            if self.workload.streamed:  # or all would end and begin at the same moments
                await asyncio.sleep(0.8 * self.workload.warm_s / self.workload.concurrency)
        await self.measure()

    async def _arrivals(self, measuring: asyncio.Task[None]) -> None:
        made, free, chance = bodies(self.workload), [await self.connect() for _ in range(32)], random.Random(7)

        def back(connection: Connection, asked: Asked) -> None:
            self.note(asked)
            if connection.alive:
                free.append(connection)

        due_s = time.perf_counter()
        while not measuring.done():
            due_s += chance.expovariate(self.workload.rate_per_s)
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            if free or len(self.connections) < OPEN_CONNECTIONS_MAX:
                connection = free.pop() if free else await self.connect()
                connection.ask(next(made), Asked(due_s, back))
            else:
                self.failed += 1

    async def _chats(self, measuring: asyncio.Task[None]) -> None:
        """All turns in the order in which they are due; the plan of chats is the same for every router."""
        free: list[Connection] = []
        due: list[tuple[float, int, Chat]] = []
        plan, numbers = chats(self.workload), count()
        started_s = time.perf_counter()
        heapq.heappush(due, (next_chat := next(plan)).turn(numbers))

        def answered(connection: Connection, asked: Asked) -> None:
            self.note(asked)
            if connection.alive:
                free.append(connection)
            chat: Chat = asked.chat
            if asked.ok and chat.users:
                text = b"".join(_CONTENT.findall(asked.answer)).decode()
                chat.messages.append({"role": "assistant", "content": text})
                chat.due_s = asked.end_s - started_s + chat.pauses.pop()
                heapq.heappush(due, chat.turn(numbers))
            asked.answer = b""

        while not measuring.done():
            due_s, _, chat = due[0]
            wait_s = started_s + due_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(min(wait_s, 0.002))
                continue
            heapq.heappop(due)
            if chat is next_chat:
                heapq.heappush(due, (next_chat := next(plan)).turn(numbers))
            chat.messages.append({"role": "user", "content": chat.users.pop()})
            connection = free.pop() if free else await self.connect()
            connection.ask(body(self.workload, chat.messages), Asked(started_s + due_s, answered, chat=chat))

    def figures(self) -> dict[str, Any]:
        """What it came to."""
        done = self.done
        seconds = self.ended_s - self.begun_s
        engines = Counter(one.engine for one in done if one.engine >= 0)
        tokens = sum(one.tokens for one in done)
        prompt = sum(one.prompt_tokens for one in done)
        return {
            "requests": len(done),
            "failed": self.failed,
            "requests_per_s": len(done) / seconds,
            "tokens_per_s": tokens / seconds,
            "first_ms": quantiles([one.first_s - one.due_s for one in done]),
            "end_ms": quantiles([one.end_s - one.due_s for one in done]),
            "cached_share": sum(one.cached_tokens for one in done) / prompt if prompt else None,
            "busiest_to_mean": max(engines.values()) / (engines.total() / 8) if engines else None,
            "cpu_s": self.cpu_s,
            "cpu_ms_per_request": 1e3 * self.cpu_s / len(done) if done else None,
            "tokens_per_cpu_s": tokens / self.cpu_s if self.cpu_s and tokens else None,
            "resident_mib": self.resident_mib,
        }


@dataclass
class Chat:
    """One chat."""

    due_s: float
    messages: list[dict[str, str]]
    users: list[str]
    pauses: list[float]

    def turn(self, numbers: Iterator[int]) -> tuple[float, int, "Chat"]:
        return self.due_s, next(numbers), self


def chats(workload: Workload) -> Iterator[Chat]:
    """Chats in order of their beginning."""
    chance, words = random.Random(1), Words(2)
    systems = [words.text(workload.words) for _ in range(workload.prompts)]
    weights = list(accumulate(1 / rank for rank in range(1, workload.prompts + 1)))
    due_s = 0.0
    while True:
        due_s += chance.expovariate(workload.rate_per_s)
        turns = chance.randint(3, 6)
        system = chance.choices(systems, cum_weights=weights)[0]
        users = [words.text(chance.randint(20, 100)) for _ in range(turns)]
        pauses = [chance.expovariate(1.0) for _ in range(turns)]
        yield Chat(due_s, [{"role": "system", "content": system}], users, pauses)


def quantiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    return {
        name: round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    }


async def main(workload: Workload, targets: str, pid: int) -> None:
    load = Load(workload, cycle(targets.split(",")), pid)
    gc.freeze()
    gc.disable()
    await load.run()
    print(orjson.dumps(load.figures()).decode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", type=decode, required=True)
    parser.add_argument("--targets", required=True)
    parser.add_argument("--pid", type=int, default=0)
    given = parser.parse_args()
    uvloop.run(main(given.workload, given.targets, given.pid))
