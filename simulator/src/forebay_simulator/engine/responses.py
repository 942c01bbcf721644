"""Answers in OpenAI's shapes, whole or streamed, byte for byte as vLLM writes them.

A streamed chunk is three pieces of bytes, a head fixed per choice, the word as JSON text and a tail, joined once for each
token, so the cost of a token is one join and one write. Words are put into JSON text when the engine starts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from forebay_simulator.engine.bodies import Options
from forebay_simulator.engine.errors import ApiError
from forebay_simulator.engine.generation import Generation
from forebay_simulator.engine.server import Exchange
from forebay_simulator.engine.text import Vocabulary

DONE = b"data: [DONE]\n\n"


def json_text(text: str) -> bytes:
    """Return the text as the inside of a JSON string."""
    return orjson.dumps(text)[1:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What differs between the two endpoints."""

    chat: bool

    @property
    def prefix(self) -> str:
        """Start of response ids."""
        return "chatcmpl-" if self.chat else "cmpl-"

    @property
    def object(self) -> str:
        """The object name of a whole answer."""
        return "chat.completion" if self.chat else "text_completion"

    @property
    def chunk_object(self) -> str:
        """The object name of a chunk."""
        return "chat.completion.chunk" if self.chat else "text_completion"


CHAT = Dialect(chat=True)
COMPLETION = Dialect(chat=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How this engine answers, from its flags."""

    vocabulary: Vocabulary
    words: tuple[bytes, ...]
    """The vocabulary's words as the inside of JSON strings."""
    fingerprint: str
    block_size: int
    details: bool
    """--enable-prompt-tokens-details."""
    request_metrics: bool
    stream_interval: int


@dataclass(slots=True, kw_only=True)
class Response:
    """One request's answer: its generations and where they go."""

    exchange: Exchange
    dialect: Dialect
    style: Style
    options: Options
    response_id: str
    model: str
    include_usage: bool
    created: int = field(default_factory=lambda: int(time.time()))
    generations: list[Generation] = field(default_factory=list)
    transfer_params: dict[str, Any] | None = None
    """The `kv_transfer_params` of a prefill leg's answer."""
    open_choices: int = 0

    # ---- usage

    def usage(self, *, generations: Sequence[Generation] | None = None) -> dict[str, Any]:
        """Return token counts so far; those of a prompt with several choices count once."""
        some = self.generations if generations is None else generations
        prompts = {id(generation.tokens.prompt): generation.request.prompt_tokens for generation in some}
        prompt = sum(prompts.values())
        completion = sum(generation.request.output_tokens for generation in some)
        return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}

    def cache_details(self, *, multimodal: bool) -> dict[str, Any] | None:
        """Return what usage says of the cache, None when the flag is off."""
        if not self.style.details:
            return None
        cached = sum(generation.reported_cached_tokens for generation in self.generations)
        details: dict[str, Any] = {"cached_tokens": cached}
        if self.dialect.chat:
            details["created_cache_tokens"] = sum(self._created_tokens(generation) for generation in self.generations)
        elif multimodal:
            details["created_cache_tokens"] = None
        if multimodal:
            details["multimodal_tokens"] = None
        return details

    def _created_tokens(self, generation: Generation) -> int:
        request = generation.request
        if request.fetched_tokens or request.first_scheduled_s is None:
            return 0
        whole = request.prompt_tokens // self.style.block_size * self.style.block_size
        return max(0, whole - request.cached_tokens)


class WholeAnswer:
    """Collects the words of every choice and answers once."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self._words: list[list[int]] = [[] for _ in range(response.open_choices)]

    def on_token(self, generation: Generation, word: int) -> None:
        """Keep the word."""
        self._words[generation.index].append(word)

    def on_finish(self, generation: Generation, word: int | None) -> None:
        """Answer when the last choice ends."""
        if word is not None:
            self._words[generation.index].append(word)
        response = self._response
        response.open_choices -= 1
        if response.open_choices == 0:
            response.exchange.reply(200, orjson.dumps(self._body()))

    def on_error(self, _generation: Generation, error: ApiError) -> None:
        """Answer with the first error."""
        self._response.exchange.reply(error.status, error.body())

    def _body(self) -> dict[str, Any]:
        response = self._response
        usage = response.usage()
        usage["prompt_tokens_details"] = response.cache_details(multimodal=True)
        usage["completion_tokens_details"] = None
        body: dict[str, Any] = {
            "id": response.response_id,
            "object": response.dialect.object,
            "created": response.created,
            "model": response.model,
            "choices": [self._choice(generation) for generation in response.generations],
            "service_tier": None,
            "system_fingerprint": response.style.fingerprint,
            "usage": usage,
        }
        prompt_ids = response.generations[0].tokens.prompt if response.options.returns_token_ids else None
        if response.dialect.chat:
            body |= {"prompt_logprobs": None, "prompt_token_ids": prompt_ids, "prompt_text": None}
        body |= {"kv_transfer_params": response.transfer_params, "ec_transfer_params": None}
        body["metrics"] = request_metrics(response.generations[0]) if response.style.request_metrics else None
        return body

    def _choice(self, generation: Generation) -> dict[str, Any]:
        vocabulary = self._response.style.vocabulary
        words = self._words[generation.index]
        text = generation.text if generation.stop else "".join([vocabulary.words[word] for word in words])
        ids = [vocabulary.ids[word] for word in words] if self._response.options.returns_token_ids else None
        ends = {
            "logprobs": None,
            "finish_reason": generation.reason,
            "stop_reason": generation.stop_found,
            "token_ids": ids,
        }
        if self._response.dialect.chat:
            message = {
                "role": "assistant",
                "content": text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            }
            return {"index": generation.index, "message": message, **ends, "routed_experts": None}
        prompt_ids = generation.tokens.prompt if ids is not None else None
        more = {"prompt_logprobs": None, "prompt_token_ids": prompt_ids, "routed_experts": None}
        return {"index": generation.index, "text": text, **ends, **more}


def request_metrics(generation: Generation) -> dict[str, Any]:
    """Return the `metrics` of --enable-per-request-metrics."""
    request = generation.request
    first, last, scheduled = request.first_token_s, request.last_token_s, request.first_scheduled_s
    if first is None or last is None or scheduled is None:
        return {}
    decode_s = last - first
    whole_s = last - request.arrival_s
    return {
        "time_to_first_token_ms": (first - request.arrival_s) * 1000,
        "generation_time_ms": decode_s * 1000,
        "queue_time_ms": (scheduled - request.arrival_s) * 1000,
        "mean_itl_ms": decode_s * 1000 / (request.output_tokens - 1) if request.output_tokens > 1 else None,
        "tokens_per_second": request.output_tokens / whole_s if whole_s > 0 else None,
        "speculative_decoding": None,
    }


class StreamedAnswer:
    """Writes each token when it comes; merges tokens for clients that read slowly."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self._continuous = response.options.continuous_usage
        self._ids = response.options.returns_token_ids
        self._begun: set[int] = set()
        self._pending: dict[int, list[int]] = {}
        """Words not written yet, by choice."""
        self._emitted: dict[int, int] = {}
        """Characters written, by choice, where stop strings are looked for."""
        response.exchange.on_writable = self._flush_all
        name = orjson.dumps(response.model).decode()
        identity = orjson.dumps(response.response_id).decode()
        self._head = (
            f'data: {{"id":{identity},"object":"{response.dialect.chunk_object}","created":{response.created},'
            f'"model":{name},"choices":['
        ).encode()
        text = '"delta":{"content":"' if response.dialect.chat else '"text":"'
        self._heads = [self._head + f'{{"index":{index},{text}'.encode() for index in range(response.open_choices)]
        if response.dialect.chat:
            self._tail = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        else:
            tail = (
                '","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}'
            )
            self._tail = tail.encode() + b"\n\n"
        self._plain = not self._continuous and not self._ids and response.style.stream_interval == 1

    # ---- what the engine tells

    def on_token(self, generation: Generation, word: int) -> None:
        """Write the word, or keep it for later."""
        exchange = self._response.exchange
        index = generation.index
        if (
            self._plain
            and index in self._begun
            and not generation.stop
            and index not in self._pending
            and exchange.writable
        ):
            exchange.write(b"".join((self._heads[index], self._response.style.words[word], self._tail)))
            return
        pending = self._pending.setdefault(index, [])
        pending.append(word)
        due = generation.request.output_tokens == 1 or len(pending) >= self._response.style.stream_interval
        if due and exchange.writable:
            self._flush(generation)

    def on_finish(self, generation: Generation, word: int | None) -> None:
        """Write the last chunk of a choice, and with the last choice the end of the stream."""
        response = self._response
        pending = self._pending.pop(generation.index, [])
        if word is not None:
            pending.append(word)
        response.open_choices -= 1
        last = response.open_choices == 0
        never_ran = word is None and generation.request.output_tokens == 0
        data = self._beginning(generation)
        if not never_ran:  # a request aborted in the queue ends without a word on why, as in vLLM
            data += self._chunk(generation, pending, final=True, last=last)
        if not last:
            response.exchange.write(data)
            return
        if response.include_usage:
            data += self._usage_chunk()
        response.exchange.end(data + DONE)

    def on_error(self, _generation: Generation, error: ApiError) -> None:
        """End the stream with an error event. Its status, 200, is long sent."""
        self._response.exchange.end(error.event() + DONE)

    # ---- chunks

    def _flush_all(self) -> None:
        for generation in self._response.generations:
            if self._pending.get(generation.index) and self._response.exchange.writable:
                self._flush(generation)

    def _flush(self, generation: Generation) -> None:
        pending = self._pending.pop(generation.index)
        data = self._beginning(generation)
        chunk = self._chunk(generation, pending, final=False, last=False)
        if data or chunk:
            self._response.exchange.write(data + chunk)

    def _beginning(self, generation: Generation) -> bytes:
        """Return the chunk that names the role, once for each choice of a chat."""
        index = generation.index
        if index in self._begun:
            return b""
        self._begun.add(index)
        if not self._response.dialect.chat:
            return b""
        usage = self._usage_field(generation, completion=0) if self._continuous else b""
        ids = orjson.dumps(generation.tokens.prompt) if self._ids else b"null"
        return (
            self._head
            + b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]%b,'
            b'"prompt_token_ids":%b,"prompt_text":null}\n\n' % (index, usage, ids)
        )

    def _chunk(self, generation: Generation, words: list[int], *, final: bool, last: bool) -> bytes:
        response = self._response
        style = response.style
        if generation.stop:
            content = json_text(self._released_text(generation, final=final))
            if not content and not final:
                return b""
        else:
            content = b"".join([style.words[word] for word in words])
        reason = b'"%b"' % (generation.reason or "").encode() if final else b"null"
        stop = orjson.dumps(generation.stop_found) if final else b"null"
        ids = orjson.dumps([style.vocabulary.ids[word] for word in words]) if self._ids else b"null"
        head = self._heads[generation.index]
        if response.dialect.chat:
            stop_field = b',"stop_reason":%b' % stop if final else b""
            choice = b'"},"logprobs":null,"finish_reason":%b%b,"token_ids":%b}]' % (reason, stop_field, ids)
        else:
            first = self._ids and generation.request.output_tokens == len(words)
            prompt_ids = orjson.dumps(generation.tokens.prompt) if first else b"null"
            choice = b'","logprobs":null,"finish_reason":%b,"stop_reason":%b,"prompt_token_ids":%b,"token_ids":%b}]' % (
                reason, stop, prompt_ids, ids,
            )  # fmt: skip
        usage = self._usage_field(generation) if self._continuous else b""
        fingerprint = self._fingerprint() if last and not response.include_usage else b""
        return b"".join((head, content, choice, usage, fingerprint, b"}\n\n"))

    def _released_text(self, generation: Generation, *, final: bool) -> str:
        """Return the text that may be written now, holding back what could become a stop string."""
        emitted = self._emitted.get(generation.index, 0)
        end = len(generation.text) if final else max(emitted, len(generation.text) - generation.held_back)
        self._emitted[generation.index] = end
        return generation.text[emitted:end]

    def _usage_field(self, generation: Generation, completion: int | None = None) -> bytes:
        usage = self._response.usage(generations=[generation])
        if completion is not None:
            usage |= {"total_tokens": usage["prompt_tokens"] + completion, "completion_tokens": completion}
        usage["completion_tokens_details"] = None
        return b',"usage":' + orjson.dumps(usage)

    def _usage_chunk(self) -> bytes:
        usage = self._response.usage()
        details = self._response.cache_details(multimodal=False)
        if details is not None:
            usage["prompt_tokens_details"] = details
        return self._head + b'],"usage":' + orjson.dumps(usage) + self._fingerprint() + b"}\n\n"

    def _fingerprint(self) -> bytes:
        return b',"system_fingerprint":"%b"' % self._response.style.fingerprint.encode()
