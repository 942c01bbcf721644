"""From a parsed request to chained hashes of its prompt's content. No tokenising, no template.

What makes the engine's prompt (roles, texts, tool descriptions, images, token ids) is written into one run of bytes in the order
in which chat templates put it, so two prompts share a start of these bytes exactly when they share a start of tokens (give or
take one token at the end). The bytes are cut into blocks and hashed in a chain:

    hash[0] = xxh3(block 0, seed=root)      hash[i] = xxh3(block i, seed=hash[i-1])

A hash therefore stands for everything before it: two prompts that agree in hash[i] agree in all blocks up to i. The root hashes
what keeps engines from sharing blocks although the text is equal: the model or adapter name, cache_salt, a template of the
client's own, the multimedia options. The salt itself is never kept.

Blocks grow with their position: `BLOCK_MIN_BYTES` at the start, then 1/64 of what precedes, so that a match is told to within
1.6 % of the prompt and a prompt of 100,000 tokens has about 400 blocks. Only full blocks count.

Tools are written first. Some templates put them behind the system prompt; then two prompts that differ in tools only are told to
share less than they do, never more.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import orjson
from xxhash import xxh3_64_intdigest

from forebay_router.serialising import serialise
from forebay_router.skimming import Piece, is_marker

BLOCK_MIN_BYTES: Final = 128
_LONG_CHARS: Final = 8 * 1024
"""A text of this length or more is not copied to be joined with what stands around it."""
_BLOCKS_PER_OCTAVE: Final = 64
_CONTENT_MAX_BYTES: Final = 256 * 1024 * 1024


def _ends() -> tuple[int, ...]:
    """Where each block ends, up to the largest content."""
    ends = [BLOCK_MIN_BYTES * count for count in range(1, _BLOCKS_PER_OCTAVE + 1)]
    while ends[-1] < _CONTENT_MAX_BYTES:
        size = ends[-1] // _BLOCKS_PER_OCTAVE
        ends += [ends[-1] + size * count for count in range(1, _BLOCKS_PER_OCTAVE + 1)]
    return tuple(ends)


ENDS: Final = _ends()
"""Bytes up to the end of each block."""
SIZES: Final = (ENDS[0], *(end - start for start, end in pairwise(ENDS)))
"""Bytes of each block. One object a size, so a table of sizes costs a pointer an entry."""


@dataclass(frozen=True, slots=True)
class Content:
    """A prompt as the index sees it."""

    hashes: "array[int]"
    """One a full block, chained: 64-bit numbers as such, since prompts are kept and as objects they take four times as much."""
    size_bytes: int
    """Of the whole content, the last, partial block included."""
    token_ids: Sequence[int] | None = None
    """The prompt in the model's tokens, where they are known: the client sent them, or they were made of its text."""
    of_ids: bool = False
    """The client sent token ids: they are the content, four bytes each."""
    salt: bytes | None = None
    """Digest of cache_salt, for the token path; None without one."""

    def bytes_of(self, blocks: int) -> int:
        """Bytes of the first blocks."""
        return ENDS[blocks - 1] if blocks else 0


def chain(content: bytes, root: int) -> "array[int]":
    """Hashes of the full blocks of some content."""
    return chain_of((_whole(content),), root)[0]


def chain_of(pieces: Iterable[Piece], root: int) -> tuple["array[int]", int]:
    """Hashes of the full blocks of the content that these pieces are, one after the other; and its size in bytes."""
    ends, digest = ENDS, xxh3_64_intdigest  # names of a module are looked up each time, some hundred times here
    made: list[int] = []
    last, before, held = root, 0, b""
    for data, begin, stop in pieces:
        start, skipped = begin, before - begin
        before += stop - begin
        if held and len(made) < len(ends):
            end = ends[len(made)] - skipped
            if end > stop:
                held += data[start:stop]
                continue
            last = digest(held + data[start:end], last)
            made.append(last)
            start = end
        for block in range(len(made), len(ends)):
            end = ends[block] - skipped
            if end > stop:
                break
            last = digest(data[start:end], last)
            made.append(last)
            start = end
        held = data[start:stop]
    return array("Q", made), before


def _whole(data: bytes) -> Piece:
    return data, 0, len(data)


def _pieces(texts: Sequence[str], cut: dict[str, Piece]) -> list[Piece]:
    """The bytes of texts: of short ones joined, of long ones as they are, of those that were cut out where they stood."""
    made: list[Piece] = []
    short: list[str] = []
    for text in texts:
        was_cut = bool(cut) and is_marker(text)
        if was_cut or len(text) >= _LONG_CHARS:
            made += (_whole("".join(short).encode()), cut.pop(text) if was_cut else _whole(text.encode()))
            short = []
        else:
            short.append(text)
    made.append(_whole("".join(short).encode()))
    return made


_CHAT_ROOT: Final = ("chat_template", "chat_template_kwargs", "documents", "reasoning_effort", "mm_processor_kwargs")
"""Fields that change how the whole prompt is written."""


def content_of(fields: Mapping[str, Any], cut: dict[str, Piece] | None = None) -> Content | None:
    """The content of a generation request's JSON body, or None where there is none that an engine would cache.

    `cut`: texts that were cut out of the body (`skimming`), by the markers in their places; those that are content are taken out
    of it. Where one is left the body has to be read as a whole. Raises TooDeepError.
    """
    pieces: list[Piece] | None
    token_ids: tuple[int, ...] | None = None
    cut = {} if cut is None else cut
    if "messages" in fields:
        pieces = _chat(fields.get("system"), fields["messages"], fields.get("tools"), cut)
    elif "prompt" in fields:
        pieces, token_ids = _prompt(fields["prompt"], cut)
    elif "input" in fields:
        pieces = _responses(fields, cut)
    else:
        return None
    if pieces is None or cut:
        return None
    salt = fields.get("cache_salt")
    digest = _digest(salt) if salt else None
    hashes, size = chain_of(pieces, _root(fields, digest, ids=token_ids is not None))
    return Content(hashes, size, token_ids, token_ids is not None, digest)


def _digest(value: Any) -> bytes:
    return xxh3_64_intdigest(_bytes(value)).to_bytes(8, "big")


def _bytes(value: Any) -> bytes:
    """Any JSON value as bytes; equal values give equal bytes."""
    if isinstance(value, str):
        return value.encode()
    return serialise(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


def _root(fields: Mapping[str, Any], salt: bytes | None, *, ids: bool) -> int:
    root = xxh3_64_intdigest(_bytes(fields.get("model") or ""), ids)
    if salt is not None:
        root = xxh3_64_intdigest(salt, root)
    for name in _CHAT_ROOT:
        value = fields.get(name)
        if value is not None:
            root = xxh3_64_intdigest(name.encode() + _bytes(value), root)
    return root


def _chat(system: Any, messages: Any, tools: Any, cut: dict[str, Piece]) -> list[Piece] | None:
    """Roles and contents in order; a message's other fields (tool calls, names) behind its content."""
    if not isinstance(messages, list):
        return None
    parts: list[str] = []
    if tools:
        parts += ("\0tools\0", _bytes(tools).decode())
    if system is not None:
        parts.append("\0system\0")
        _write(system, parts, cut)
    for message in messages:
        if not isinstance(message, dict):
            return None
        parts += ("\0", _bytes(message.get("role")).decode(), "\0")
        _write(message.get("content"), parts, cut)
        if len(message) > 2 or "content" not in message:
            _write_rest(message, parts)
    return _pieces(parts, cut)


def _write_rest(message: Mapping[str, Any], parts: list[str]) -> None:
    rest = {key: value for key, value in message.items() if key not in {"role", "content"} and value is not None}
    if rest:
        parts += ("\0", _bytes(rest).decode())


def _write(content: Any, parts: list[str], cut: dict[str, Piece]) -> None:
    """Text as it is; anything else (an image, a sound) by the hash of what it holds."""
    if isinstance(content, str):
        parts.append(content)
    elif isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                parts.append(text)
            else:
                parts += ("\0part\0", f"{_identity(part, cut):016x}")
    elif content is not None:
        parts.append(_bytes(content).decode())


def _identity(part: Any, cut: dict[str, Piece]) -> int:
    """The hash of a part: of its address or data where there is one, since serialising megabytes would cost more."""
    payload = _payload(part)
    if cut and isinstance(payload, str) and is_marker(payload):
        data, start, stop = cut.pop(payload)
        return xxh3_64_intdigest(memoryview(data)[start:stop])
    return xxh3_64_intdigest(_bytes(payload))


def _payload(part: Any) -> Any:
    if isinstance(part, dict):
        for value in part.values():
            if isinstance(value, dict):
                for inner in (value.get("url"), value.get("data")):
                    if isinstance(inner, str):
                        return inner
    return part


def _prompt(prompt: Any, cut: dict[str, Piece]) -> tuple[list[Piece] | None, tuple[int, ...] | None]:
    """A completion's prompt: text or token ids; of several prompts the first."""
    if isinstance(prompt, str):
        return _pieces((prompt,), cut), None
    if not isinstance(prompt, Sequence) or not prompt:
        return None, None
    if isinstance(prompt[0], str):
        return _pieces((prompt[0],), cut), None
    if isinstance(prompt[0], list):
        prompt = prompt[0]
    try:
        return [_whole(array("I", prompt).tobytes())], tuple(prompt)
    except (TypeError, OverflowError):
        return None, None


def _responses(fields: Mapping[str, Any], cut: dict[str, Piece]) -> list[Piece] | None:
    """The responses API: instructions are a system message, input a text or a list of messages."""
    given = fields["input"]
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if isinstance(messages, list):
        messages = [one for one in messages if isinstance(one, dict)]
    return _chat(fields.get("instructions"), messages, fields.get("tools"), cut)
