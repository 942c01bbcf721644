r"""Text to token ids, exactly as the model's tokenizer does it, at the price of the text that is new.

Tokenising costs about 1 ms for 3 KB, and most of a prompt has been seen before (the turns of a chat resend its history). So a
text is cut into pieces of about `PIECE_CHARS`, and the ids of each piece are remembered by a digest of its text. What is left to
tokenise is what no earlier prompt had, which is at most what the engines must compute: one core keeps up with the prefill of
dozens of GPUs.

Cutting must not change the tokens. A byte-level BPE tokenizer first cuts a text into words by a regular expression and then
merges bytes within each word, so a cut between two words is safe. Two such places are the same in the expressions of GPT-2,
Llama 3, Qwen and their like, whatever follows and precedes:

    letter | space letter      "the| router"
    mark newline | letter      "end.\n|The"      (one newline only)

and a cut depends on the text before it alone, so prompts with a common start have common pieces. A tokenizer that is not
byte-level, or that treats the start of a text specially, or has an added token across such a place, is never cut. On top of that
the first `CHECKS` texts that were cut are tokenised whole as well; one difference and this tokenizer is not cut any more.

Not thread-safe; the owner runs it in one thread. Only the library's batch calls let other threads run meanwhile: `encode` holds
the interpreter for as long as it takes.
"""

import json
import logging
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tokenizers import Tokenizer
from xxhash import xxh3_128_digest

log = logging.getLogger(__name__)

PIECE_CHARS: Final = 2048
CHECKS: Final = 32
CHECK_CHARS_MAX: Final = 200_000
_CUT: Final = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])|(?<=[^\s]\n)(?=[A-Za-z])")
_PIECE_BYTES: Final = 200
"""Of a remembered piece besides its ids: dictionary entry, digest, array."""


def is_cuttable(spec: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json describes a tokenizer whose texts may be cut."""
    normalizer = spec.get("normalizer")
    if normalizer is not None and normalizer.get("type") not in {"NFC", None}:
        return False
    if (spec.get("model") or {}).get("type") != "BPE" or not _is_byte_level(spec.get("pre_tokenizer") or {}):
        return False
    return not any(
        token.get("lstrip") or token.get("rstrip") or token.get("single_word") or _CUT.search(token["content"])
        for token in spec.get("added_tokens") or ()
    )


def _is_byte_level(pre_tokenizer: Mapping[str, Any]) -> bool:
    kind = pre_tokenizer.get("type")
    if kind == "ByteLevel":
        return not pre_tokenizer.get("add_prefix_space", True)
    if kind == "Sequence":
        parts = pre_tokenizer.get("pretokenizers") or []
        return (
            bool(parts)
            and _is_byte_level(parts[-1])
            and all(one.get("type") in {"Split", "Digits"} for one in parts[:-1])
        )
    return False


def pieces_of(text: str) -> list[str]:
    """A text, cut."""
    made = []
    start = 0
    while len(text) - start > PIECE_CHARS:
        found = _CUT.search(text, start + PIECE_CHARS)
        if found is None or found.start() == len(text):
            break
        made.append(text[start : found.start()])
        start = found.start()
    made.append(text[start:])
    return made


@dataclass(slots=True)
class Memory:
    """Token ids of pieces, the longest unused forgotten first; shared by all tokenizers."""

    bytes_max: int
    size_bytes: int = 0
    kept: dict[bytes, "array[int]"] = field(default_factory=dict)

    def get(self, key: bytes) -> "array[int] | None":
        """The ids of a piece, if they are known."""
        ids = self.kept.pop(key, None)
        if ids is not None:
            self.kept[key] = ids
        return ids

    def put(self, key: bytes, ids: "array[int]") -> None:
        """Remember a piece."""
        if key not in self.kept:
            self.kept[key] = ids
            self.size_bytes += _size(ids)
        while self.size_bytes > self.bytes_max:
            self.size_bytes -= _size(self.kept.pop(next(iter(self.kept))))


def _size(ids: "array[int]") -> int:
    return _PIECE_BYTES + ids.itemsize * len(ids)


class Encoder:
    """One model's tokenizer."""

    def __init__(self, definition: str, memory: Memory) -> None:
        """`definition` is the text of a tokenizer.json; raises ValueError for one that cannot be read."""
        try:
            self.tokenizer = Tokenizer.from_str(definition)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"not a tokenizer.json: {error}") from error
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.memory = memory
        self.cuts = is_cuttable(json.loads(definition))
        self.salt = xxh3_128_digest(definition.encode())
        self.checks = CHECKS
        self.new_chars = 0
        """Characters tokenised so far, checks left out."""
        self.known_chars = 0
        """Characters whose tokens were remembered."""
        self.before, self.after = self._frame()

    def _frame(self) -> tuple["array[int]", "array[int]"]:
        """The tokens that are put around a prompt."""
        plain = self.tokenizer.encode("a", add_special_tokens=False).ids
        framed = self.tokenizer.encode("a", add_special_tokens=True).ids
        for at in range(len(framed) - len(plain) + 1):
            if framed[at : at + len(plain)] == plain:
                return array("I", framed[:at]), array("I", framed[at + len(plain) :])
        raise ValueError("the tokenizer changes a text when it adds special tokens")

    def encode(self, text: str, *, framed: bool) -> "array[int]":
        """The token ids of a text, with the tokenizer's own start and end tokens if `framed`."""
        pieces = pieces_of(text) if self.cuts else [text]
        ids = self._join(pieces)
        if len(pieces) > 1 and self.checks and len(text) <= CHECK_CHARS_MAX:
            ids = self._check(text, ids)
        return self.before + ids + self.after if framed else ids

    def _join(self, pieces: Sequence[str]) -> "array[int]":
        keys = [xxh3_128_digest(self.salt + piece.encode()) for piece in pieces]
        known = [self.memory.get(key) for key in keys]
        missing = [at for at, ids in enumerate(known) if ids is None]
        made = self.tokenizer.encode_batch_fast([pieces[at] for at in missing], add_special_tokens=False)
        ids = array("I")
        for at, encoding in zip(missing, made, strict=True):
            fresh = known[at] = array("I", encoding.ids)
            self.memory.put(keys[at], fresh)
            self.new_chars += len(pieces[at])
        for one in known:
            assert one is not None
            ids += one
        self.known_chars += sum(map(len, pieces)) - sum(len(pieces[at]) for at in missing)
        return ids

    def _check(self, text: str, cut: "array[int]") -> "array[int]":
        """Compare with the text as a whole."""
        self.checks -= 1
        (encoding,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)
        whole = array("I", encoding.ids)
        if whole != cut:
            log.warning("this tokenizer's texts cannot be cut; they are tokenised whole from now on")
            self.cuts = False
        return whole
