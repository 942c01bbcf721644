"""The measured tables, read: kernel times of one H100 (vLLM 0.24.0) and a run of vLLM 0.11.0 under load.

tests/data/capacity/README.md says where they come from.
"""

import csv
import gzip
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data" / "capacity"


def rows(name: str) -> list[dict[str, str]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True)
class Point:
    """One sum of kernels: a decode batch at a context, or the prefill of one prompt."""

    batch: int
    context: int
    seconds: float


class KernelTable:
    """Kernel times by operation; values between measured sizes are linear in between."""

    def __init__(self, *, model: str, layers: int, tensor: int, heads: tuple[int, int], weights: str = "bf16"):
        self.layers, self.tensor, self.hidden = layers, tensor, 8192 if layers == 80 else 4096
        self._tables: dict[tuple[str, ...], dict] = defaultdict(dict)
        for row in rows("h100_sxm_vllm0240_kernels.csv.gz"):
            key = (row["op"], row["model"], row["tp"], row["dtype"], row["heads_q"], row["heads_kv"], row["gpus"])
            size = int(row["tokens_or_batch"] or row["bytes"])
            self._tables[key][(size, int(row["context"])) if row["context"] else size] = float(row["latency_ms"]) / 1e3
        here, split = (model, str(tensor)), (str(heads[0] // tensor), str(heads[1] // tensor))
        self._matrices = self._tables["gemm_all_layers", *here, weights, "", "", ""]
        self._head = self._tables["lm_head", *here, "bf16", "", "", ""]
        self._decode = self._tables["decode_attn_per_layer", "", "", "bf16", *split, ""]
        self._prefill = self._tables["prefill_attn_per_layer", "", "", "bf16", *split, ""]
        self._reduce = self._tables["all_reduce_vllm_graph", "", "", "bf16", "", "", str(tensor)]

    def decode_points(self, *, batch_max: int, tokens_max: int) -> Iterator[Point]:
        """Every measured batch and context that fits into the KV cache."""
        for (batch, context), attention in sorted(self._decode.items()):
            if batch <= batch_max and batch * context <= tokens_max:
                yield Point(batch, context, self._rest(batch, sampled=batch) + self.layers * attention)

    def prefill_points(self, lengths: tuple[int, ...]) -> Iterator[Point]:
        """The prefill of one prompt in one step, attention measured up to 16k tokens."""
        for tokens in lengths:
            attention = _linear({n: s for (b, n), s in self._prefill.items() if b == 1}, tokens)
            yield Point(1, tokens, self._rest(tokens, sampled=1) + self.layers * attention)

    def _rest(self, tokens: int, *, sampled: int) -> float:
        seconds = _linear(self._matrices, tokens) + _linear(self._head, sampled)
        if self.tensor > 1:
            seconds += 2 * self.layers * _linear(self._reduce, tokens * self.hidden * 2)
        return seconds


def _linear(table: dict[int, float], at: int) -> float:
    sizes = sorted(table)
    index = min(max(bisect_left(sizes, at), 1), len(sizes) - 1)
    low, high = sizes[index - 1], sizes[index]
    return table[low] + (table[high] - table[low]) * (at - low) / (high - low)


@dataclass(frozen=True)
class Stage:
    """One stage of the measured run."""

    variant: str
    number: int
    rate: float
    """Requests served per second."""
    offered: float
    """Requests sent per second."""
    input_tokens: float
    output_tokens: float
    cached_tokens: int
    slots: int
    concurrency: float
    tpot_s: float

    @property
    def name(self) -> str:
        return f"{self.variant} {self.number}"


def measured_stages() -> list[Stage]:
    """Four configurations of vLLM's current engine; speculative decoding and the old engine are left out."""
    stages = []
    for row in rows("h100_llama31_8b_vllm0110_measured.csv.gz"):
        variant = row["variant"].removeprefix("vllm").lstrip("+") or "plain"
        if variant in {"eagle", "v0_engine"}:
            continue
        # The variant called quantization behaved like the cached one, throughput included: the flag was inert.
        cached = variant in {"chunking_and_prefix_caching", "quantization"}
        stages.append(
            Stage(
                variant=variant,
                number=int(row["stage"].removeprefix("stage_")),
                rate=float(row["completed_rps"]),
                offered=float(row["requested_rps"]),
                input_tokens=float(row["in_tokens_mean"]),
                output_tokens=float(row["out_tokens_mean"]),
                cached_tokens=128 if cached else 0,
                slots=192 if variant == "batch_size" else 128,
                concurrency=float(row["mean_decode_concurrency"]),
                tpot_s=float(row["tpot_from_e2e_mean_s"]),
            )
        )
    return stages
