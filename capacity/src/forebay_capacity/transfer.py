"""How long moving KV cache between workers takes.

    T = latency + KV bytes of the tokens / (bandwidth per GPU)

Every GPU of a tensor-parallel group sends its own part over its own NIC, so the bytes per GPU count. Transfers that
overlap with prefill layer by layer hide all but the last layer's share; the model does not assume that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_capacity.dtypes import Dtype
from forebay_capacity.errors import require_not_negative, require_positive

if TYPE_CHECKING:
    from forebay_capacity.architecture import ModelShape

TRANSFER_LATENCY_S = 1e-3
"""Fixed cost of one transfer (handshake done): an assumption, published figures run from 10 us to milliseconds."""


def transfer_seconds(
    shape: ModelShape,
    tokens: int,
    *,
    bandwidth_bytes_per_s: float,
    tensor: int = 1,
    kv: Dtype | str = Dtype.BF16,
    latency_s: float = 0.0,
) -> float:
    """Seconds to move the KV cache of so many tokens, with `bandwidth_bytes_per_s` for each GPU."""
    require_positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
    require_not_negative("tokens", tokens)
    require_not_negative("latency_s", latency_s)
    return latency_s + shape.kv_bytes(tokens, kv, tensor=tensor) / bandwidth_bytes_per_s
