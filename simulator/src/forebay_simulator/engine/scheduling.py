"""What goes into the scheduler and comes out of it: limits, the timer it asks, steps, leases, the cache's journal."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from forebay_simulator.engine.request import Request
from forebay_simulator.engine.waiting import Policy


class StepTimer(Protocol):
    """Says how long one engine step takes on the modelled accelerator."""

    def step_seconds(
        self,
        *,
        decode_sequences: int,
        decode_context_tokens: int,
        prefill_tokens: int,
        prefill_attention: int,
    ) -> float:
        """Return seconds. `prefill_attention` is the sum over chunks of (end^2 - start^2), in tokens squared."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one engine, named after vLLM's flags."""

    block_size: int
    """Tokens per KV block."""
    usable_blocks: int
    """KV blocks without the null block."""
    max_sequences: int
    """Requests that can run at once (max-num-seqs)."""
    max_batched_tokens: int
    """Token budget of a step (max-num-batched-tokens)."""
    chunked_prefill: bool = True
    prefix_caching: bool = True
    policy: Policy = Policy.FCFS
    max_adapters: int = 0
    """LoRA adapters that can run at once; 0: adapters are not limited."""
    lease_s: float = 30.0
    """How long the blocks of a request with `hold_after_finish` stay held (kv_lease_duration)."""
    records_events: bool = False
    """Keep a journal of what the prefix cache stores and evicts (for KV events)."""


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks [first, last) of a request became findable."""

    request: Request
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One block with this content was taken for other content."""

    block_hash: Hashable


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """All content was forgotten."""


CacheEvent = BlocksStored | BlockRemoved | CacheCleared


@dataclass(slots=True)
class Counters:
    """Sums since the start, in vLLM's units (tokens, unless the name says otherwise)."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    external_queries: int = 0
    external_hits: int = 0
    preemptions: int = 0
    """Requests preempted."""


@dataclass(slots=True)
class Step:
    """What one engine step computes. `work` pairs each request with its number of tokens."""

    work: list[tuple[Request, int]] = field(default_factory=list)
    fetches: list[Request] = field(default_factory=list)
    """Requests that got blocks and now wait for KV from another engine; they are not part of the step."""
    preempted: list[Request] = field(default_factory=list)
    started_s: float = 0.0
    duration_s: float = 0.0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """Blocks of a finished request that another engine may still fetch."""

    request: Request
    block_ids: tuple[int, ...]
    expires_s: float
