"""All models' tokenizers, off the loop.

A prompt is tokenised before its worker is chosen, for models whose tokenizer files were given and only while some worker
publishes KV events: without them token ids match nothing. One thread does it, since the tokenizer lets the loop run meanwhile;
short stretches of Python (a template, the pieces of a text) do not, hence a shorter switch interval.

A request waits for its tokens at most `WAIT_S`, and not at all behind `QUEUE_MAX` others: then it is matched by what was sent, as
without a tokenizer, and its pieces are remembered for the next turn. What was tokenised, given up or refused by a template is
counted.
"""

import asyncio
import logging
import sys
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from forebay_router.endpoints import Dialect
from forebay_router.index.precise import PreciseIndex
from forebay_router.parsing import ParsedRequest
from forebay_router.tokens.encoder import Memory
from forebay_router.tokens.folder import ModelTokens, load
from forebay_router.tokens.prompts import NotTokenisableError, prompt_of

log = logging.getLogger(__name__)

_DIALECTS: Final = frozenset({Dialect.CHAT, Dialect.COMPLETION})
WAIT_S: Final = 0.1
QUEUE_MAX: Final = 64
SWITCH_INTERVAL_S: Final = 0.0005
MEMORY_MAX_BYTES: Final = 64 * 1024 * 1024
"""Of remembered pieces: about 50 MB of text."""


@dataclass(slots=True)
class Counts:
    """For the metrics; since the start."""

    exact: int = 0
    """Prompts whose tokens are known."""
    other: int = 0
    """Prompts that only the engine can tokenise: images, a template of the client's own, several prompts."""
    late: int = 0
    """Prompts whose tokens came too late, or that found the queue full."""


@dataclass(slots=True)
class Tokenizers:
    """Tokenizers by model name."""

    models: Mapping[str, ModelTokens]
    index: PreciseIndex
    """Nothing is tokenised while it knows of no worker."""
    counts: Counts = field(default_factory=Counts)
    wait_s: float = WAIT_S
    _queued: int = 0
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "tokenizer"))

    @classmethod
    def load(cls, folders: Mapping[str, Path], index: PreciseIndex) -> "Tokenizers":
        """Read the files of each model; raises ValueError, which names the file and the fix."""
        memory = Memory(MEMORY_MAX_BYTES)
        models = {name: load(folder, memory) for name, folder in folders.items()}
        if models:
            sys.setswitchinterval(SWITCH_INTERVAL_S)
        return cls(models, index)

    def wants(self, parsed: ParsedRequest, models: Sequence[str]) -> bool:
        """A request's prompt can be tokenised here. `models` are the names of its service, of which one has the tokenizer."""
        content = parsed.content
        return (
            content is not None
            and content.token_ids is None
            and not parsed.tokens_told
            and bool(self.index.ranks)
            and parsed.endpoint.dialect in _DIALECTS
            and any(name in self.models for name in models)
        )

    async def tell(self, parsed: ParsedRequest, models: Sequence[str]) -> None:
        """Add the tokens of a request's prompt, as the engine will make them, if they are known in time."""
        fields, content = parsed.fields, parsed.content
        assert fields is not None
        assert content is not None
        tokens = next(self.models[name] for name in models if name in self.models)
        ids = await self._token_ids(tokens, fields)
        parsed.tokens_told = True
        if ids is not None:
            parsed.content = replace(content, token_ids=ids)

    async def _token_ids(self, tokens: ModelTokens, fields: Mapping[str, Any]) -> "array[int] | None":
        if self._queued >= QUEUE_MAX:
            self.counts.late += 1
            return None
        self._queued += 1
        made = asyncio.get_running_loop().run_in_executor(self._thread, self._make, tokens, fields)
        made.add_done_callback(self._note_done)
        done, _ = await asyncio.wait((made,), timeout=self.wait_s)
        if not done:
            self.counts.late += 1
            return None
        ids = made.result()
        if ids is None:
            self.counts.other += 1
        else:
            self.counts.exact += 1
        return ids

    def _note_done(self, made: "asyncio.Future[array[int] | None]") -> None:
        self._queued -= 1
        if not made.cancelled():
            made.exception()  # told where it was waited for, else of no more interest

    @staticmethod
    def _make(tokens: ModelTokens, fields: Mapping[str, Any]) -> "array[int] | None":
        """In the thread. Whatever goes wrong here costs a prediction, never a request."""
        try:
            prompt = prompt_of(fields, tokens)
            return tokens.encoder.encode(prompt.text, framed=prompt.framed)
        except NotTokenisableError:
            return None
        except Exception:  # the boundary of the thread
            log.exception("a prompt could not be tokenised")
            return None

    def close(self) -> None:
        """End the thread; what waits for it is given up."""
        self._thread.shutdown(wait=False, cancel_futures=True)
