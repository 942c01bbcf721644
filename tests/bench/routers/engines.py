"""Mock engines: what a router sees of eight inference engines, in one process and at almost no cost.

    prefill   one prompt after another: `first_token_s` + tokens that are not cached x `prefill_token_s`
    decode    each sequence gets one token every `step_s`, all of an engine's in one go
    cache     the `cache_blocks` blocks of prompt text used last, as chained hashes; 0: prompts are not even parsed

A token is `TOKEN_BYTES` characters of text. Answers look like vLLM's, with `cached_tokens`; a request that asks for a handover
gets `kv_transfer_params`. Loopback only. `POST /settings` changes an engine and empties it.
"""

import argparse
import asyncio
import gc
import json
import re
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

import uvloop

TOKEN_BYTES = 7
BLOCK_BYTES = 16 * TOKEN_BYTES
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:\s*chunked", re.IGNORECASE)
_MAX_TOKENS = re.compile(rb'"max(?:_completion)?_tokens"\s*:\s*(\d+)')
_STREAM = re.compile(rb'"stream"\s*:\s*true')
_USAGE = re.compile(rb'"include_usage"\s*:\s*true')
_TRANSFER = (
    b',"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[1,2],'
    b'"remote_engine_id":"mock","remote_host":"127.0.0.1","remote_port":1,"tp_size":1}'
)
_MODELS = (
    b'{"object":"list","data":[{"id":"mock","object":"model","created":1700000000,"owned_by":"vllm","root":"mock"}]}'
)
_INFO = json.dumps(
    {"model_path": "mock", "tokenizer_path": "mock", "served_model_name": "mock", "model_id": "mock", "is_generation": True,
     "tp_size": 1, "dp_size": 1, "version": "0", "disaggregation_mode": "null"}
).encode()  # fmt: skip
_WORDS = [f" {a}{b}{c}".encode() for a in "bcdfghjklm" for b in "aeiou" for c in "nprst"]


@dataclass(frozen=True)
class EngineSettings:
    """How fast an engine is and what it remembers."""

    first_token_s: float = 0.0
    prefill_token_s: float = 0.0
    step_s: float = 0.0
    cache_blocks: int = 0

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass
class Sequence:
    """One request."""

    connection: "Connection | None"
    streamed: bool
    usage: bool
    transfer: bool
    prompt_tokens: int
    cached_tokens: int
    text: str
    asked: int
    made: int = 0

    def usage_json(self) -> bytes:
        return (
            b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}'
            % (self.prompt_tokens, self.prompt_tokens + self.made, self.made, self.cached_tokens)
        )

    def word(self, at: int) -> bytes:
        return _WORDS[(self.prompt_tokens * 7 + at * 13) % len(_WORDS)]


_HEAD = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"mock","choices":'
_TOKEN = _HEAD + b'[{"index":0,"delta":{"content":"%b"},"logprobs":null,"finish_reason":%b}]}\n\n'


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Engine:
    """One engine."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        self.loop = loop
        self.reset(EngineSettings())

    def reset(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.cache: OrderedDict[int, None] = OrderedDict()
        self.free_s = 0.0
        self.running: list[Sequence] = []
        self.stepping = False

    # -- cache --------------------------------------------------------------------------------------------------------

    def _remember(self, text: str) -> int:
        """Put a prompt into the cache; how many of its tokens were there. Heads are more recent than tails."""
        chain, last = [], 0
        for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
            last = hash((last, text[start : start + BLOCK_BYTES]))
            chain.append(last)
        held = 0
        while held < len(chain) and chain[held] in self.cache:
            held += 1
        for block in reversed(chain):
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > self.settings.cache_blocks:
            self.cache.popitem(last=False)
        return held * (BLOCK_BYTES // TOKEN_BYTES)

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(self, connection: "Connection", body: bytes) -> None:
        settings = self.settings
        ends = body if len(body) < 2048 else body[:1024] + body[-1024:]
        limit = _MAX_TOKENS.search(ends)
        text, size, cached = "", len(body), 0
        if settings.cache_blocks:
            messages = json.loads(body)["messages"]
            text = "".join(f"<{one['role']}>{one['content']}" for one in messages)
            size, cached = len(text), self._remember(text)
        streamed = _STREAM.search(ends) is not None
        sequence = connection.sequence = Sequence(
            connection,
            streamed,
            streamed and _USAGE.search(ends) is not None,
            b'"do_remote_decode":true' in ends.replace(b" ", b""),
            size // TOKEN_BYTES,
            cached,
            text,
            int(limit[1]) if limit else 16,
        )
        cost_s = settings.first_token_s + (sequence.prompt_tokens - cached) * settings.prefill_token_s
        if cost_s <= 0:
            self._begin(sequence)
            return
        self.free_s = max(self.loop.time(), self.free_s) + cost_s
        self.loop.call_at(self.free_s, self._begin, sequence)

    def _begin(self, sequence: Sequence) -> None:
        if sequence.connection is None:
            return
        if sequence.streamed:
            sequence.connection.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nx-engine: %d\r\n"
                b"transfer-encoding: chunked\r\n\r\n" % self.number
            )
        if self.settings.step_s <= 0:
            while sequence.made < sequence.asked:
                self._step_one(sequence)
            return
        self._step_one(sequence)
        if sequence.made < sequence.asked:
            self.running.append(sequence)
            if not self.stepping:
                self.stepping = True
                self.loop.call_later(self.settings.step_s, self._step, self.loop.time() + self.settings.step_s)

    def _step(self, due_s: float) -> None:
        for sequence in self.running:
            self._step_one(sequence)
        self.running = [one for one in self.running if one.connection is not None and one.made < one.asked]
        if self.running:
            next_s = max(due_s + self.settings.step_s, self.loop.time())
            self.loop.call_at(next_s, self._step, next_s)
        else:
            self.stepping = False

    def _step_one(self, sequence: Sequence) -> None:
        """One token."""
        connection = sequence.connection
        if connection is None:
            return
        word = sequence.word(sequence.made)
        sequence.made += 1
        last = sequence.made >= sequence.asked
        if sequence.streamed:
            connection.write(_chunk(_TOKEN % (word, b'"length"' if last else b"null")))
        if last:
            self._end(sequence, connection)

    def _end(self, sequence: Sequence, connection: "Connection") -> None:
        if sequence.streamed:
            usage = _chunk(_HEAD + b'[],"usage":%b}\n\n' % sequence.usage_json()) if sequence.usage else b""
            connection.write(usage + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        else:
            content = b"".join([sequence.word(at) for at in range(sequence.made)])
            connection.answer(
                200,
                b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"mock","choices":[{"index":0,'
                b'"message":{"role":"assistant","content":"%b"},"logprobs":null,"finish_reason":"length"}],"usage":%b%b}'
                % (content, sequence.usage_json(), _TRANSFER if sequence.transfer else b""),
            )
        if sequence.text and sequence.made > 1:
            self._remember(sequence.text + b"".join([sequence.word(at) for at in range(sequence.made)]).decode())
        sequence.connection = connection.sequence = None
        connection.go_on()


class Connection(asyncio.Protocol):
    """One connection of a router."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sequence: Sequence | None = None
        self._buffer = b""
        self._needed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self.write = self._transport.write

    def connection_lost(self, _error: Exception | None) -> None:
        if self.sequence is not None:
            self.sequence.connection = None

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if self.sequence is None and len(self._buffer) >= self._needed:
            self.go_on()

    def go_on(self) -> None:
        """Serve the next request, when all of it is here."""
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        head = buffer[:end]
        length = _LENGTH.search(head)
        total = end + (int(length[1]) if length else 0)
        if _CHUNKED.search(head):
            raise ValueError("a mock engine reads no chunked requests")
        if len(buffer) < total:
            self._needed = total
            return
        self._needed = 0
        self._buffer = buffer[total:]
        method, path, _ = head.split(b" ", 2)
        if path == b"/v1/chat/completions":
            self.engine.submit(self, buffer[end:total])
        else:
            self._other(method, path.partition(b"?")[0], buffer[end:total])

    def answer(self, status: int, body: bytes) -> None:
        self.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\nx-engine: %d\r\ncontent-length: %d\r\n\r\n%b"
            % (status, self.engine.number, len(body), body)
        )

    def _other(self, _method: bytes, path: bytes, body: bytes) -> None:
        """What routers ask besides."""
        if path in {b"/health", b"/health_generate", b"/ping"}:
            self.answer(200, b"{}")
        elif path == b"/v1/models":
            self.answer(200, _MODELS)
        elif path in {b"/get_model_info", b"/model_info", b"/server_info", b"/get_server_info"}:
            self.answer(200, _INFO)
        elif path == b"/settings":
            self.engine.reset(EngineSettings(**json.loads(body)))
            self.answer(200, b"{}")
        elif path.endswith(b"/render"):  # as vLLM by default: routers that ask for token ids get none
            self.answer(403, b'{"error":{"message":"Scale-out endpoints are disabled","code":403}}')
        else:
            self.answer(404, b'{"error":{"message":"not found","code":404}}')
        if self._buffer:
            self.go_on()


async def serve(ports: list[int]) -> None:
    """An engine on each port, until ended."""
    loop = asyncio.get_running_loop()
    for number, port in enumerate(ports):
        engine = Engine(number, loop)
        await loop.create_server(lambda engine=engine: Connection(engine), "127.0.0.1", port, backlog=2048)
    gc.freeze()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ports", type=int, nargs="+", required=True)
    uvloop.run(serve(parser.parse_args().ports))
