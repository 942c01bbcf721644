"""Does it fit, and how many tokens of KV cache are left.

    KV tokens = (utilization * memory - weights per GPU - reserve) / KV bytes per token per GPU

rounded down to whole blocks. The engine refuses to start unless one request of maximal length fits, so that is what
`check_memory` asks too, and its reason says what would make it fit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from forebay_capacity.dtypes import Dtype
from forebay_capacity.worker import UTILIZATION, Parallelism, Worker

if TYPE_CHECKING:
    from forebay_capacity.accelerators import Accelerator
    from forebay_capacity.architecture import ModelShape

BLOCK_TOKENS = 16
"""Tokens of one KV block in vLLM."""


def kv_tokens(
    shape: ModelShape,
    accelerator: Accelerator,
    *,
    tensor: int = 1,
    weights: Dtype | str | None = None,
    kv: Dtype | str = Dtype.BF16,
    utilization: float = UTILIZATION,
) -> int:
    """Tokens of KV cache of a worker with tensor parallelism only; 0 when the weights do not fit."""
    return kv_tokens_of(Worker(shape, accelerator, Parallelism(tensor=tensor), weights, kv, utilization))


def kv_tokens_of(worker: Worker) -> int:
    """Tokens of KV cache of a worker, all data ranks, in whole blocks; 0 when the weights do not fit."""
    tokens = max(0.0, worker.kv_room_bytes) / worker.kv_bytes_per_token
    return int(tokens) // BLOCK_TOKENS * BLOCK_TOKENS * worker.parallelism.data


def kv_bytes_of_sequence(worker: Worker, context_tokens: int) -> float:
    """KV bytes that one sequence takes on the fullest GPU, in whole blocks, windowed layers capped."""
    blocks = math.ceil(context_tokens / BLOCK_TOKENS)
    kept = worker.shape.kv_bytes(blocks * BLOCK_TOKENS, worker.kv, tensor=worker.parallelism.tensor)
    return kept * worker.stage_layers / worker.shape.layers


def sequences_at(worker: Worker, context_tokens: int) -> int:
    """Sequences of this length that a worker holds at once."""
    per_rank = int(max(0.0, worker.kv_room_bytes) // kv_bytes_of_sequence(worker, context_tokens))
    return per_rank * worker.parallelism.data
