"""The simulated tokeniser: no vocabulary file, the same ids in every process.

Text is cut by one regular expression into pieces: up to eight letters or digits with the space before them, up to four
other signs with the space before them, or one white-space character. English comes to about 1.3 tokens a word, close to
a real vocabulary. A piece's id is its CRC-32 folded into the vocabulary, above the special tokens. Two properties matter:
cutting is local, so a text that continues another shares all its tokens but the last; and the words that `text` answers
with are cut back into the tokens they were made of, so the next turn of a conversation hits the cache of the last.

Ids are hashes, so decoding works only for pieces this process has seen (others read as U+FFFD), and of two pieces with one
id the first seen wins. Nothing but `/detokenize` and token-id prompts can notice.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence

_PIECE = re.compile(r" ?\w{1,8}| ?[^\w\s]{1,4}|\s")

BEGIN_TURN = 1
END_TURN = 2
_SPECIAL = {BEGIN_TURN: "<|im_start|>", END_TURN: "<|im_end|>"}
SPECIAL_TOKENS = 16
"""Ids below this are special tokens or unused."""

UNKNOWN = "\ufffd"
_MEMORY_PIECES_MAX = 1 << 20
"""Pieces remembered before the memory is dropped and built anew: a bound on a process that runs for months."""


class Tokenizer:
    """Turns text into ids below `vocabulary_size` and back."""

    def __init__(self, vocabulary_size: int) -> None:
        if vocabulary_size <= 2 * SPECIAL_TOKENS:
            raise ValueError(f"vocabulary_size must be above {2 * SPECIAL_TOKENS}, got {vocabulary_size}")
        self.vocabulary_size = vocabulary_size
        self._ids: dict[str, int] = {}
        self._pieces: dict[int, str] = dict(_SPECIAL)

    def encode(self, text: str) -> list[int]:
        """Cut a text into token ids."""
        ids = self._ids
        try:
            return [ids[piece] for piece in _PIECE.findall(text)]
        except KeyError:
            return [self._learn(piece) for piece in _PIECE.findall(text)]

    def encode_chat(self, messages: Iterable[tuple[str, str]], *, answer_follows: bool = True) -> list[int]:
        """Cut a conversation of (role, text) turns, in the ChatML template."""
        tokens: list[int] = []
        newline = self.encode("\n")
        for role, text in messages:
            tokens += [BEGIN_TURN, *self.encode(role), *newline, *self.encode(text), END_TURN, *newline]
        if answer_follows:
            tokens += [BEGIN_TURN, *self.encode("assistant"), *newline]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Join the pieces of token ids."""
        return "".join(self.pieces(tokens))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the piece of each id."""
        return [self._pieces.get(token, UNKNOWN) for token in tokens]

    def _learn(self, piece: str) -> int:
        known = self._ids.get(piece)
        if known is not None:
            return known
        if len(self._ids) >= _MEMORY_PIECES_MAX:
            self._ids.clear()
            self._pieces = dict(_SPECIAL)
        token = SPECIAL_TOKENS + zlib.crc32(piece.encode()) % (self.vocabulary_size - SPECIAL_TOKENS)
        self._ids[piece] = token
        self._pieces.setdefault(token, piece)
        return token
