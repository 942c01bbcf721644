"""What is asked of the routers."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from tests.bench.routers.engines import EngineSettings


@dataclass(frozen=True)
class Workload:
    """One way of asking. `concurrency` for a closed loop, `rate_per_s` for an open one (of chats where `prompts` is set)."""

    name: str
    what: str
    engine: EngineSettings = field(default_factory=EngineSettings)
    concurrency: int = 0
    rate_per_s: float = 0.0
    words: int = 8
    output_tokens: int = 1
    streamed: bool = False
    prompts: int = 0
    """Shared system prompts of `words` words each."""
    warm_s: float = 1.0
    seconds: float = 3.0
    split: bool = False
    """Half of the engines prefill, half decode."""

    def encode(self) -> str:
        return orjson.dumps(asdict(self)).decode()


def decode(text: str) -> Workload:
    """The workload that was encoded."""
    fields = orjson.loads(text)
    return Workload(**{**fields, "engine": EngineSettings(**fields["engine"])})


WORKLOADS = (
    Workload("tiny", "tiny requests, 16 at a time", concurrency=16),
    Workload("arrivals", "tiny requests, 500 a second at random times", rate_per_s=500.0),
    Workload(
        "streams", "256 streams of 128 tokens, one token every 10 ms", EngineSettings(step_s=0.01),
        concurrency=256, words=40, output_tokens=128, streamed=True, warm_s=2.0,
    ),
    Workload(
        "chats", "chats of 3 to 6 turns over 64 system prompts of 2,000 words (Zipf), 40 new chats a second",
        EngineSettings(0.005, 22e-6, 0.008, 1200),
        rate_per_s=40.0, words=2000, output_tokens=48, streamed=True, prompts=64, warm_s=7.0, seconds=13.0,
    ),
    Workload("long", "prompts of 32,000 words, each new, 8 at a time", concurrency=8, words=32_000),
    Workload("pairs", "tiny requests, 16 at a time, prefill and decode on different engines", concurrency=16, split=True),
)  # fmt: skip


class Words:
    """Made-up words, used about as unevenly as real ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        syllables = [a + b for a in "bcdfghjklmnprstvw" for b in ("a", "e", "i", "o", "u", "ea")]
        made = random.Random(1)
        self._all = ["".join(made.choices(syllables, k=made.choice((1, 2, 2, 3, 3)))) for _ in range(4000)]
        self._weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(len(self._all))))

    def text(self, words: int) -> str:
        return " ".join(self._random.choices(self._all, cum_weights=self._weights, k=words))


def body(workload: Workload, messages: list[dict[str, str]]) -> bytes:
    """A request's body."""
    fields: dict[str, Any] = {"model": "mock", "messages": messages, "max_tokens": workload.output_tokens}
    if workload.streamed:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    return orjson.dumps(fields)


def bodies(workload: Workload) -> Iterator[bytes]:
    """Bodies without end. A number at the start of each makes it new from there on; texts repeat: making them takes long."""
    words = Words(2)
    made = [
        body(workload, [{"role": "user", "content": "@@@@@@@@ " + words.text(workload.words)}]).split(b"@@@@@@@@")
        for _ in range(40 if workload.words > 1000 else 1000)
    ]
    start = random.Random().randrange(10**7)
    for number, (before, behind) in zip(itertools.count(start), itertools.cycle(made), strict=False):
        yield b"%b%08d%b" % (before, number, behind)
