"""Accelerators: memory, bandwidth, FLOP/s, links and a planning price.

Memory is what CUDA or ROCm reports as the device's total, which is what the engine takes its share of. FLOP/s are
dense (without sparsity). `docs/capacity-model.md` gives the source of every number. Prices are round planning figures
per GPU-hour, not quotes: give your own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from forebay_capacity.dtypes import Dtype
from forebay_capacity.errors import UnknownAcceleratorError

GIB = 1024**3
LARGE_MEMORY_BYTES = 70 * GIB
"""Memory from which vLLM takes a GPU for a large one."""
MAX_SEQUENCES = 1024
"""vLLM's default `--max-num-seqs` on large GPUs."""
MAX_SEQUENCES_SMALL = 256
"""And on the others, A100s among them."""
BATCHED_TOKENS = 8192
"""vLLM's default `--max-num-batched-tokens` for serving on large GPUs: the token budget of a step."""
BATCHED_TOKENS_SMALL = 2048
"""And on the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One GPU of a type."""

    name: str
    title: str
    memory_bytes: float
    """Total memory the driver reports."""
    bandwidth_bytes_per_s: float
    """Peak memory bandwidth."""
    bf16_flops_per_s: float
    """Peak dense BF16 matrix FLOP/s."""
    fp8_flops_per_s: float | None
    """Peak dense FP8 matrix FLOP/s; None where FP8 weights run as BF16."""
    link_bytes_per_s: float
    """To the other GPUs of its node, each way."""
    network_bytes_per_s: float = 50e9
    """To other nodes, each way: one 400 Gb/s NIC a GPU unless stated."""
    gpus_per_node: int = 8
    matrix_share: float = 1.0
    """Share of the calibrated matrix speed that its software reaches; the calibration is an H100's."""
    price_usd_per_hour: float
    """Planning price of one GPU-hour."""

    def flops_per_s(self, dtype: Dtype | str) -> float:
        """Peak matrix FLOP/s with weights of this format."""
        if Dtype(dtype).compute is Dtype.FP8 and self.fp8_flops_per_s is not None:
            return self.fp8_flops_per_s
        return self.bf16_flops_per_s

    @property
    def is_large(self) -> bool:
        """Whether vLLM starts with its larger limits of a batch (`EngineArgs.get_batch_defaults` in vllm/engine/arg_utils.py)."""
        return self.memory_bytes >= LARGE_MEMORY_BYTES and "a100" not in self.name

    @property
    def sequences_default(self) -> int:
        """Sequences that an engine runs at once, for each lane, when `--max-num-seqs` is not given."""
        return MAX_SEQUENCES if self.is_large else MAX_SEQUENCES_SMALL

    @property
    def tokens_default(self) -> int:
        """Token budget of a step when `--max-num-batched-tokens` is not given."""
        return BATCHED_TOKENS if self.is_large else BATCHED_TOKENS_SMALL

    def at_price(self, usd_per_hour: float) -> Accelerator:
        """The same at another price."""
        return replace(self, price_usd_per_hour=usd_per_hour)


ACCELERATORS: dict[str, Accelerator] = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator(
            name="h100-sxm",
            title="NVIDIA H100 SXM 80GB",
            memory_bytes=79.2 * GIB,
            bandwidth_bytes_per_s=3.35e12,
            bf16_flops_per_s=989e12,
            fp8_flops_per_s=1979e12,
            link_bytes_per_s=450e9,
            price_usd_per_hour=3.0,
        ),
        Accelerator(
            name="h100-pcie",
            title="NVIDIA H100 PCIe 80GB",
            memory_bytes=79.2 * GIB,
            bandwidth_bytes_per_s=2.0e12,
            bf16_flops_per_s=756e12,
            fp8_flops_per_s=1513e12,
            link_bytes_per_s=64e9,
            network_bytes_per_s=25e9,
            price_usd_per_hour=2.5,
        ),
        Accelerator(
            name="h200",
            title="NVIDIA H200 SXM 141GB",
            memory_bytes=139.8 * GIB,
            bandwidth_bytes_per_s=4.8e12,
            bf16_flops_per_s=989e12,
            fp8_flops_per_s=1979e12,
            link_bytes_per_s=450e9,
            price_usd_per_hour=3.8,
        ),
        Accelerator(
            name="b200",
            title="NVIDIA B200 SXM 180GB",
            memory_bytes=178.35 * GIB,
            bandwidth_bytes_per_s=7.67e12,
            bf16_flops_per_s=2250e12,
            fp8_flops_per_s=4500e12,
            link_bytes_per_s=900e9,
            price_usd_per_hour=5.5,
        ),
        Accelerator(
            name="a100-80gb",
            title="NVIDIA A100 SXM 80GB",
            memory_bytes=79.15 * GIB,
            bandwidth_bytes_per_s=2.039e12,
            bf16_flops_per_s=312e12,
            fp8_flops_per_s=None,
            link_bytes_per_s=300e9,
            network_bytes_per_s=25e9,
            price_usd_per_hour=1.8,
        ),
        Accelerator(
            name="l40s",
            title="NVIDIA L40S 48GB",
            memory_bytes=44.4 * GIB,
            bandwidth_bytes_per_s=864e9,
            bf16_flops_per_s=362e12,
            fp8_flops_per_s=733e12,
            link_bytes_per_s=32e9,
            network_bytes_per_s=12.5e9,
            price_usd_per_hour=1.2,
        ),
        Accelerator(
            name="mi300x",
            title="AMD Instinct MI300X 192GB",
            memory_bytes=191.98 * GIB,
            bandwidth_bytes_per_s=5.3e12,
            bf16_flops_per_s=1307e12,
            fp8_flops_per_s=2615e12,
            link_bytes_per_s=448e9,
            matrix_share=0.4,
            price_usd_per_hour=3.0,
        ),
    )
}

_ALIASES = {
    "h100": "h100-sxm",
    "h100-sxm5": "h100-sxm",
    "h100-80gb": "h100-sxm",
    "h200-sxm": "h200",
    "b200-sxm": "b200",
    "a100": "a100-80gb",
    "a100-sxm": "a100-80gb",
    "a100-sxm-80gb": "a100-80gb",
}


def accelerator_of(name: str) -> Accelerator:
    """The accelerator of this name; `UnknownAcceleratorError` lists close names."""
    key = name.strip().lower().replace("_", "-").removeprefix("nvidia-").removeprefix("amd-")
    key = _ALIASES.get(key, key)
    found = ACCELERATORS.get(key)
    if found is None:
        raise UnknownAcceleratorError("accelerator", name, ACCELERATORS, "")
    return found
