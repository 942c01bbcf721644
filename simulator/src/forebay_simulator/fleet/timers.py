"""Step times of other simulators, for comparisons in which both sides must have the same engine.

`MockerTimer` is a fit of the default timing of Dynamo's mocker, in milliseconds:

    prefill of a chunk of N tokens    4.21e-7 N^2 + 0.01518 N + 16.5          no cost for earlier context
    decode                            5.74 + 54.01 x - 25.74 x^2              x: share of the KV cache that decodes, at most 1;
                                                                              no dependence on the batch

A step with both takes the sum; the original never mixes them in the runs that were fitted. The attention argument is not
used: its square is of the chunk alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOCKER_BLOCK_TOKENS = 64
MOCKER_BLOCKS = 16384
MOCKER_SEQUENCES = 256
MOCKER_BATCHED_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class MockerTimer:
    """Fitted to Dynamo's mocker."""

    kv_tokens: int = MOCKER_BLOCKS * MOCKER_BLOCK_TOKENS

    def step_seconds(
        self,
        *,
        decode_sequences: int,
        decode_context_tokens: int,
        prefill_tokens: int = 0,
        prefill_attention: int = 0,  # noqa: ARG002  (see above)
    ) -> float:
        """Seconds of one step."""
        milliseconds = 0.0
        if prefill_tokens:
            milliseconds += 4.21e-7 * prefill_tokens**2 + 0.01518 * prefill_tokens + 16.5
        if decode_sequences:
            share = _at_most_one(decode_context_tokens / self.kv_tokens)
            milliseconds += 5.74 + 54.01 * share - 25.74 * (share * share)
        return milliseconds / 1000


def _at_most_one(share: float) -> float:
    """Also of an array of shares: a stride asks for the times of many steps at once."""
    return np.minimum(share, 1.0) if isinstance(share, np.ndarray) else min(1.0, share)
