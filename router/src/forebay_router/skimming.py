"""Reading a long JSON body without its long texts. Pure.

Of a prompt of 200 KB the router needs the hashes, and of the rest a few small fields. A parser looks at each byte and makes
a text of all, which costs more than any other part of the router's work. So the strings are found by their quotes, which the C
library does at the speed of memory; from those of `TEXT_MIN_BYTES` on the content is cut out, a marker put in its place, and what
remains, some hundred bytes, goes to the parser. The texts stay where they are, in the body.

    {"messages":[{"role":"user","content":"a long prompt"}]}    the body
    {"messages":[{"role":"user","content":"<marker 0>"}]}       the outline, and marker 0 -> (body, 39, 52)

Why the outline is what the parser would make of the body, but for the markers. A string ends at the first quote with an even
number of backslashes before it, whatever else it holds, so both find the same strings as long as nothing outside of strings is
wrong; and that stands in the outline, where the parser finds it. A marker holds neither quote nor backslash, and nobody outside
this process can guess one, so no text of a client's is taken for one. Keys are not cut: of two that are equal the last counts.

Only what stands in a body as it is meant can be cut out: a text with escapes is left to the parser, which is the quickest at
undoing them. What the parser would have refused in the others: bytes that are no UTF-8 are looked for here. Control characters
are not; the engine refuses those in its own words.

None of it is done where it does not pay: with too many quotes for what is cut out, and with whatever is odd.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from forebay_router.bodies import Body, source_of

TEXT_MIN_BYTES: Final = 4096
Piece = tuple[bytes, int, int]
"""Some bytes, and where in them it begins and ends."""

_MARK: Final = f"cut {secrets.token_urlsafe(18)} "
_MARKER_CHARS: Final = len(_MARK) + 6
_markers: Final = re.compile(rb"%b\d{6}" % re.escape(_MARK.encode())).finditer
_TEXTS_MAX: Final = 100_000
_QUOTES_FREE: Final = 96
_BYTES_PER_QUOTE: Final = 512
"""To find a quote takes as long as parsing 200 bytes; of those that are cut out so many have to come on each."""
_QUOTE: Final = b'"'
_BACKSLASH: Final = b"\\"
_BACKSLASH_CODE: Final = 0x5C
_RUN_MAX: Final = 64
"""Backslashes in a row that are counted."""
_SPACE_MAX: Final = 64
"""Bytes behind a string within which its comma, bracket or colon must come."""
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Skimmed:
    """A body in two parts."""

    outline: Any
    """Its value, with a marker for each text that was cut out."""
    texts: dict[str, Piece]
    """The texts by their markers, in UTF-8."""


def is_marker(text: str) -> bool:
    """It stands for another text."""
    return len(text) == _MARKER_CHARS and text.startswith(_MARK)


def restored(json: bytes, texts: Mapping[str, Piece]) -> bytes:
    """What was written of an outline, with the texts in the places of their markers."""
    made: list[bytes | memoryview] = []
    at = 0
    for marker in _markers(json):
        data, start, stop = texts[marker[0].decode()]
        made += (json[at : marker.start()], memoryview(data)[start:stop])
        at = marker.end()
    made.append(json[at:])
    return b"".join(made)


def skim(body: Body) -> Skimmed | None:
    """Cut the long texts out of a body; None where the whole of it has to be parsed, be it to tell what is wrong."""
    data, start = source_of(body)
    spans = _long_texts(data, start)
    if not spans or not _are_utf8(data, spans):
        return None
    rest: list[bytes] = []
    texts: dict[str, Piece] = {}
    at = start
    for opening, closing in spans:
        marker = f"{_MARK}{len(texts):06d}"
        rest += (data[at:opening], marker.encode())
        texts[marker] = data, opening, closing
        at = closing
    rest.append(data[at:])
    try:
        return Skimmed(orjson.loads(b"".join(rest)), texts)
    except orjson.JSONDecodeError:
        return None


def _long_texts(data: bytes, start: int) -> list[Span] | None:
    """Where the long strings without escapes begin and end; None where that is not worth while, or not clear."""
    found: list[Span] = []
    quotes, cut_bytes = 0, 0
    opening = data.find(_QUOTE, start) + 1
    while opening:
        closing = data.find(_QUOTE, opening)
        quotes += 2
        while closing > 0 and data[closing - 1] == _BACKSLASH_CODE:
            run = data[max(opening, closing - _RUN_MAX) : closing]
            backslashes = len(run) - len(run.rstrip(_BACKSLASH))
            if backslashes == _RUN_MAX or quotes > _allowed(cut_bytes):
                return None
            if not backslashes & 1:
                break
            closing = data.find(_QUOTE, closing + 1)
            quotes += 1
        if closing < 0:
            return None
        if closing - opening >= TEXT_MIN_BYTES and data.find(_BACKSLASH, opening, closing) < 0:
            if data[closing + 1 : closing + 1 + _SPACE_MAX].lstrip()[:1] in {b":", b""}:
                return None
            found.append((opening, closing))
            cut_bytes += closing - opening
        if quotes > _allowed(cut_bytes) or len(found) > _TEXTS_MAX:
            return None
        opening = data.find(_QUOTE, closing + 1) + 1
    return found


def _allowed(cut_bytes: int) -> int:
    """Quotes that may be looked for."""
    return _QUOTES_FREE + cut_bytes // _BYTES_PER_QUOTE


def _are_utf8(data: bytes, spans: list[Span]) -> bool:
    """Whether these parts are UTF-8."""
    if data.isascii():
        return True
    try:
        for opening, closing in spans:
            data[opening:closing].decode()
    except UnicodeDecodeError:
        return False
    return True
