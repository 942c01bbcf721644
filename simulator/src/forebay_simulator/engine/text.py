"""What the simulated model says: words drawn by a generator seeded with the prompt.

The same prompt (token ids, adapter, salt aside) with the same seed gives the same words in every process, so an answer
is the same whether one engine computes it, or one prefills and another decodes, or it is computed twice after a failure.

A request that sets `max_tokens` gets exactly that many tokens, unless a stop string ends it. One that sets none gets a
natural length, drawn once from the prompt: log-normal, median `natural_median`, sigma 0.8, and ends with reason stop.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Sequence

from forebay_simulator.engine.tokens import Tokenizer

_TEXT = (
    "the water of a river runs to the basin and waits there until each turbine asks for its share so that no "
    "wheel stands still while another one drowns it is held by the gate for a short time then falls through the "
    "long pipe and turns into light for the town below where people read their letters at night when rain comes "
    "early the keeper opens two gates at once and writes down how high the lake has grown since morning he knows "
    "that a full basin feeds all wheels but an empty basin feeds none thus he plans ahead counts what flows in "
    "measures what flows out and keeps the rest ready for those who will need power soon every stream finds its "
    "way if the path is clear and no stone blocks the canal from the dam "
)
WORDS = tuple(dict.fromkeys(_TEXT.split()))
"""What answers are made of, each once."""
_MULTIPLIER = 6364136223846793005
_INCREMENT = 1442695040888963407
_MASK = (1 << 64) - 1
_SIGMA = 0.8


class Vocabulary:
    """The words answers are made of, with their token ids and their JSON text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.words: list[str] = [f" {word}" for word in (WORDS * (256 // len(WORDS) + 1))[:256]]
        encoded = [tokenizer.encode(word) for word in self.words]
        assert all(len(ids) == 1 for ids in encoded), "every word of an answer is one token"
        self.ids: list[int] = [ids[0] for ids in encoded]


def prompt_seed(prompt: Sequence[int], *, seed: int, adapter: str | None = None) -> int:
    """Return the 64-bit seed of an answer."""
    content = array("Q", prompt).tobytes()
    name = (adapter or "").encode()
    low = zlib.crc32(content, seed & 0xFFFFFFFF)
    high = zlib.crc32(name + low.to_bytes(4, "big"), len(prompt))
    return (high << 32 | low) & _MASK


class Answer:
    """An endless stream of words; each `next` gives an index into the vocabulary."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = (seed * _MULTIPLIER + _INCREMENT) & _MASK

    def next(self) -> int:
        """Draw the next word's index, 0 to 255."""
        self._state = state = (self._state * _MULTIPLIER + _INCREMENT) & _MASK
        return state >> 56


def natural_length(seed: int, *, median: int) -> int:
    """Draw how many tokens an answer has when the request sets no limit: at least 1."""
    first, second = Answer(seed ^ 0x5DEECE66D), Answer(seed ^ 0xB5026F5AA96619E9)
    uniform = (first.next() * 256 + first.next() + 0.5) / 65536
    angle = (second.next() * 256 + second.next()) / 65536 * 2 * math.pi
    normal = math.sqrt(-2 * math.log(uniform)) * math.cos(angle)
    return max(1, round(median * math.exp(_SIGMA * normal)))
