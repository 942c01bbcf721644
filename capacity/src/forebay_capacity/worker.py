"""A worker: one engine replica of a model on some GPUs, and what of the model each of its GPUs holds.

A worker is `data` ranks of `pipeline` stages of `tensor` GPUs. Tensor parallelism splits every matrix. Pipeline
parallelism splits the layers. Data parallelism inside a worker makes sense for mixtures of experts only: attention is
repeated on every rank, the experts are spread over all `tensor * data` GPUs (by expert with `expert`, by slice
without); a dense model is replicated by adding workers instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay_capacity.accelerators import GIB, Accelerator
from forebay_capacity.architecture import ModelShape
from forebay_capacity.dtypes import Dtype, kv_dtype, weights_dtype
from forebay_capacity.errors import ImpossibleError, require_not_negative, require_share

RESERVE_BYTES = 2.0 * GIB
"""Activations, CUDA graphs and the like, per GPU: an assumption that meets what vLLM reports for 8B on an H100."""

UTILIZATION = 0.9
"""Share of the accelerator's memory that an engine takes, for planning: vLLM's long-standing default."""

ENGINE_UTILIZATION = 0.92
"""The same as vLLM 0.32 has it when `--gpu-memory-utilization` is not given."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How one worker spreads over GPUs."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False
    """Whole experts on each GPU instead of slices of every expert."""

    @property
    def gpus(self) -> int:
        """GPUs of one worker."""
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        """Short form, such as `TP4 PP2`; `TP1` when there is no parallelism."""
        parts = [f"TP{self.tensor}"]
        parts += [f"PP{self.pipeline}"] if self.pipeline > 1 else []
        parts += [f"DP{self.data}"] if self.data > 1 else []
        parts += ["EP"] if self.expert else []
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Worker:
    """One engine replica. Construction checks that the combination can exist (`ImpossibleError`)."""

    shape: ModelShape
    accelerator: Accelerator
    parallelism: Parallelism = Parallelism()
    weights: Dtype | str | None = None
    """Format of the weights; None means as published."""
    kv: Dtype | str = Dtype.BF16
    utilization: float = UTILIZATION
    reserve_bytes: float = RESERVE_BYTES
    batched_tokens: int | None = None
    """Token budget of a step, as its engine is told; None for vLLM's default on the accelerator."""

    def __post_init__(self) -> None:
        chosen = self.shape.native if self.weights is None else weights_dtype(self.weights)
        object.__setattr__(self, "weights", chosen)
        object.__setattr__(self, "kv", kv_dtype(self.kv))
        require_share("utilization", self.utilization)
        require_not_negative("reserve_bytes", self.reserve_bytes)
        _check_parallelism(self.shape, self.parallelism)
        if chosen is Dtype.MXFP4 and self.shape.experts is None:
            raise ImpossibleError(
                "weights", f"mxfp4 applies to experts and {self.shape.name} has none", "use int4, fp8 or bf16"
            )

    @property
    def step_tokens(self) -> int:
        """Token budget of a step."""
        return self.accelerator.tokens_default if self.batched_tokens is None else self.batched_tokens

    @property
    def lanes(self) -> int:
        """Batches in flight at once: each data rank runs its own, and each pipeline stage another."""
        return self.parallelism.pipeline * self.parallelism.data

    @property
    def expert_gpus(self) -> int:
        """GPUs that one layer's experts are spread over."""
        return self.parallelism.tensor * self.parallelism.data

    @property
    def stage_layers(self) -> int:
        """Layers on the fullest pipeline stage."""
        return -(-self.shape.layers // self.parallelism.pipeline)

    @property
    def weight_bytes_per_gpu(self) -> float:
        """Bytes of weights on the fullest GPU (pipeline stages are balanced by layers, tables on the outer ones)."""
        shape = self.shape
        layer_share = self.stage_layers / shape.layers
        repeated = shape.layer_bytes_per_weight(self.weights) * (
            shape.attention_parameters + shape.dense_mlp_parameters
        )
        experts = shape.expert_bytes_per_weight(self.weights) * shape.expert_parameters
        tables = 2 * (shape.embedding_parameters + shape.head_parameters + shape.vectors)
        if self.parallelism.pipeline > 1:
            tables = 2 * shape.embedding_parameters
        tensor = self.parallelism.tensor
        return layer_share * (repeated / tensor + experts / self.expert_gpus) + tables / tensor

    @property
    def kv_bytes_per_token(self) -> float:
        """KV bytes of one token on the fullest GPU, inside every window."""
        per_layer = self.shape.kv_bytes_per_token_layer(self.kv, tensor=self.parallelism.tensor)
        return self.stage_layers * per_layer

    @property
    def kv_room_bytes(self) -> float:
        """Bytes left for KV on the fullest GPU; negative when the weights do not fit."""
        return self.utilization * self.accelerator.memory_bytes - self.weight_bytes_per_gpu - self.reserve_bytes


def _check_parallelism(shape: ModelShape, parallelism: Parallelism) -> None:
    for field in ("tensor", "pipeline", "data"):
        value = getattr(parallelism, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ImpossibleError(field, f"{value!r} is not a number of GPUs", "use a whole number of 1 or more")
    if shape.heads % parallelism.tensor:
        divisors = [str(n) for n in (1, 2, 4, 8, 16) if shape.heads % n == 0]
        raise ImpossibleError(
            "tensor",
            f"{parallelism.tensor} does not divide the {shape.heads} attention heads of {shape.name}",
            f"use one of {', '.join(divisors)}",
        )
    if parallelism.pipeline > shape.layers:
        raise ImpossibleError(
            "pipeline",
            f"{parallelism.pipeline} stages for the {shape.layers} layers of {shape.name}",
            f"use {shape.layers} or fewer",
        )
    if shape.experts is None and (parallelism.data > 1 or parallelism.expert):
        field = "data" if parallelism.data > 1 else "expert"
        raise ImpossibleError(
            field,
            f"{shape.name} has no experts to spread",
            "add replicas instead" if field == "data" else "leave expert parallelism off",
        )
    if parallelism.expert and shape.experts is not None:
        _check_expert_spread(shape.experts.total, parallelism)


def _check_expert_spread(experts: int, parallelism: Parallelism) -> None:
    gpus = parallelism.tensor * parallelism.data
    if gpus > experts:
        raise ImpossibleError(
            "expert", f"{gpus} GPUs for {experts} experts", "lower tensor or data, or leave expert parallelism off"
        )
