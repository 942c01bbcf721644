"""One request as the scheduler sees it: counts of tokens, the identity of its blocks, and where it stands.

The scheduler never sees a token. It asks a request's `BlockIdentity` for the hash of a block when that block becomes
full, so the engine process hashes real token ids while a fleet simulation hands over the ids of its trace.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class Phase(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    """In the queue, never run or preempted."""
    FETCHING = "fetching"
    """Holds blocks into which a remote prefill's KV is being loaded."""
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a request ended, in vLLM's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class BlockIdentity(Protocol):
    """Names the full blocks of a request's prompt and output."""

    def block_hash(self, index: int) -> Hashable:
        """Return the hash of block `index` together with everything before it; asked for full blocks only."""
        ...


@dataclass(slots=True, eq=False)
class Request:
    """A request and its state. The first block of fields is given, the rest is the scheduler's."""

    request_id: str
    prompt_tokens: int
    output_tokens_max: int
    """The request finishes with reason length when it has produced this many."""
    blocks: BlockIdentity
    arrival_s: float
    """Virtual time of arrival: the order within one priority."""
    priority: int = 0
    """Smaller runs first, under the priority policy only."""
    natural_output_tokens: int | None = None
    """The request finishes with reason stop when it has produced this many; None: it never stops by itself."""
    remote_prefill: bool = False
    """Its prompt's KV is fetched from another engine instead of being computed."""
    hold_after_finish: bool = False
    """Its blocks stay held under a lease after it finished, for another engine to fetch."""
    reports_hits: bool = False
    """Blocks found in the prefix cache are noted in the journal as if they were stored now."""
    adapter: str | None = None
    """LoRA adapter, of which only some can run at a time."""

    phase: Phase = Phase.WAITING
    finish_reason: FinishReason | None = None
    computed_tokens: int = 0
    """Tokens whose KV is in `block_ids`."""
    output_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)
    registered_blocks: int = 0
    """How many of its first blocks are known to the prefix cache."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at the first admission."""
    fetched_tokens: int = 0
    """Prompt tokens loaded from another engine."""
    lookup_counted: bool = False
    """The prefix cache is asked at each admission and counted at the first."""
    preemptions: int = 0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finished_s: float | None = None

    @property
    def total_tokens(self) -> int:
        """Prompt and output so far."""
        return self.prompt_tokens + self.output_tokens

    @property
    def finished(self) -> bool:
        """Whether the request has left the scheduler."""
        return self.phase is Phase.FINISHED
