"""How long one engine step takes.

One step runs the model once over m = B + p tokens: B sequences that decode one token each, and p prefill tokens. With
all weights streamed from memory once and every kernel at its own bound, in seconds:

    T = max(W / (bw * a) + m * s,  K * (g * L + m * F / (peak * c)))     matrices: memory bound or compute bound
      + L * (d + B * q) + KV / (bw * b)                                 decode attention: launch, bookkeeping, cache
      + K * S * f / (peak * e)                                          prefill attention
      + 2 L * (l + m * h * 2 * r / link)                                all-reduce, with tensor parallelism
      + o                                                               the engine's own work between steps

W bytes streamed (no embedding table; of the experts those that m tokens touch), F FLOPs per token of the layers'
matrices, KV cached bytes of all decoding sequences, S = sum(n_end^2 - n_start^2) over prefill chunks, f FLOPs per
token-squared, L layers, h hidden size. The letters a..s are a `Calibration`: shares of the peak and fixed costs,
fitted to kernel tables of one H100 (see docs/capacity-model.md) and applied to other accelerators as shares of their
own peaks. K stretches compute-bound work from short bursts at boost clock (1.0) to a running engine (1.45).
`ROOFLINE` sets every share to 1 and every fixed cost to 0: no engine is faster.

For Llama 3.1 8B, BF16, on one H100 SXM the calibrated form is, in ms and with KV in GB,
max(5.6 + 0.005 m, K (0.6 + 0.0178 m)) + 0.45 + 0.004 B + KV / 3.0 + K 3.95e-7 S + 1.5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from forebay_capacity.dtypes import Dtype
from forebay_capacity.worker import Parallelism, Worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay_capacity.accelerators import Accelerator
    from forebay_capacity.architecture import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What a matrix product reaches of the peak, by weight format."""

    bandwidth: float
    compute: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How far real kernels stay below the roofline. Shares are of the peak; costs are in seconds."""

    name: str
    matrices: Mapping[Dtype, Shares]
    activation_share: float
    """Slope of a memory-bound step in m, as a share of the compute slope."""
    matrix_launch_s: float
    """Fixed cost of a layer's matrices when compute bound."""
    attention_launch_s: float
    """Fixed cost of a layer's attention."""
    attention_sequence_s: float
    """Cost of one more decoding sequence in a layer's attention, apart from its cache."""
    cache_bandwidth: float
    """Share of bandwidth at which decode attention reads the cache."""
    attention_compute: float
    """Share of BF16 FLOP/s that attention reaches."""
    all_reduce_s: float
    """Fixed cost of one all-reduce."""
    link_share: float
    """Share of the link's bandwidth that an all-reduce reaches."""
    stage_s: float
    """Fixed cost of handing activations to the next pipeline stage."""
    overhead_s: float
    """The engine's own work in each step."""
    slowdown: float
    """K: compute-bound work in a running engine against short bursts."""
    ideal: bool = False
    """The hardware alone: software shares are ignored, and an untied embedding table counts as read in each step, as
    the customary decode floor has it."""


CALIBRATED = Calibration(
    name="calibrated",
    matrices=MappingProxyType(
        {
            Dtype.BF16: Shares(bandwidth=0.80, compute=0.793),
            Dtype.FP8: Shares(bandwidth=0.66, compute=0.57),
            Dtype.INT4: Shares(bandwidth=0.66, compute=0.793),
            Dtype.MXFP4: Shares(bandwidth=0.66, compute=0.793),
        }
    ),
    activation_share=0.28,
    matrix_launch_s=0.6e-3 / 32,
    attention_launch_s=0.45e-3 / 32,
    attention_sequence_s=0.004e-3 / 32,
    cache_bandwidth=3.0 / 3.35,
    attention_compute=0.671,
    all_reduce_s=5e-6,
    link_share=0.36,
    stage_s=20e-6,
    overhead_s=1.5e-3,
    slowdown=1.45,
)
"""A running vLLM engine. Fitted on an H100; FP8 too; INT4, MXFP4 and other accelerators by the same shares."""

_PEAK = Shares(bandwidth=1.0, compute=1.0)
ROOFLINE = Calibration(
    name="roofline",
    matrices=MappingProxyType(dict.fromkeys(Dtype, _PEAK)),
    activation_share=0.0,
    matrix_launch_s=0.0,
    attention_launch_s=0.0,
    attention_sequence_s=0.0,
    cache_bandwidth=1.0,
    attention_compute=1.0,
    all_reduce_s=0.0,
    link_share=1.0,
    stage_s=0.0,
    overhead_s=0.0,
    slowdown=1.0,
    ideal=True,
)
"""Every kernel at the hardware's peak: the customary lower bound."""


class Times(Protocol):
    """Says how long a step takes. Grows in every argument."""

    def step_seconds(
        self,
        *,
        decode_sequences: float,
        decode_context_tokens: float,
        prefill_tokens: float = 0,
        prefill_attention: float = 0,
    ) -> float:
        """Seconds of one step; see `StepTimer`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimer:
    """The coefficients of one worker's step time, in seconds."""

    stream_s: float
    """Streaming the weights that every step reads."""
    experts_s: float
    """Streaming all routed experts on a GPU."""
    expert_miss: float
    """Chance that one token does not visit a given expert; 1 without experts."""
    stream_per_token_s: float
    matrix_s: float
    matrix_per_token_s: float
    fixed_s: float
    """Attention launches, all-reduce latency, engine overhead, pipeline hand-overs."""
    per_sequence_s: float
    cache_per_token_s: float
    """Reading one cached token in the full-attention layers."""
    window_per_token_s: float
    """Reading one cached token in the windowed layers."""
    window_tokens: int
    """The window; 0 without windowed layers."""
    attention_per_pair_s: float
    """Prefill attention per token squared, full-attention layers."""
    window_attention_per_pair_s: float
    transfer_per_token_s: float
    """All-reduce and expert exchange."""
    cache_bytes_per_token: float = field(default=0.0)
    """KV bytes a cached token takes on a GPU, for reports."""

    def step_seconds(
        self,
        *,
        decode_sequences: float,
        decode_context_tokens: float,
        prefill_tokens: float = 0,
        prefill_attention: float = 0,
    ) -> float:
        """Seconds of one step.

        `decode_context_tokens` is the sum of the contexts of the sequences that decode; `prefill_attention` the sum
        of n_end^2 - n_start^2 over the prefill chunks, with n the position in the prompt (cached tokens count as
        already passed). Windowed layers see min(context, window) of the mean sequence, an upper bound.
        """
        tokens = decode_sequences + prefill_tokens
        if tokens <= 0:
            return 0.0
        stream = self.stream_s + self.stream_per_token_s * tokens
        if self.experts_s:
            stream += self.experts_s * (1.0 - self.expert_miss**tokens)
        matrix = self.matrix_s + self.matrix_per_token_s * tokens
        seconds = (
            max(matrix, stream)
            + self.fixed_s
            + self.per_sequence_s * decode_sequences
            + self.cache_per_token_s * decode_context_tokens
            + self.attention_per_pair_s * prefill_attention
            + self.transfer_per_token_s * tokens
        )
        if self.window_tokens:
            window = self.window_tokens
            seconds += self.window_per_token_s * min(decode_context_tokens, decode_sequences * window)
            pairs = min(prefill_attention, 2.0 * window * prefill_tokens)
            seconds += self.window_attention_per_pair_s * pairs
        return seconds


def step_timer(
    shape: ModelShape,
    accelerator: Accelerator,
    *,
    tensor: int = 1,
    weights: Dtype | str | None = None,
    kv: Dtype | str = Dtype.BF16,
    calibration: Calibration = CALIBRATED,
) -> StepTimer:
    """The timer of a worker with tensor parallelism only; `weights` None means as published."""
    return timer_of(Worker(shape, accelerator, Parallelism(tensor=tensor), weights, kv), calibration)


def timer_of(worker: Worker, calibration: Calibration = CALIBRATED) -> StepTimer:
    """The timer of a worker.

    With pipeline stages the result is the time of one micro-batch through all stages; with data ranks the tokens
    are those of one rank, and all ranks are taken to be equally loaded. Either way it is the time of one lane
    (`Worker.lanes`).
    """
    shape, accelerator = worker.shape, worker.accelerator
    weights, tensor = Dtype(worker.weights or shape.native), worker.parallelism.tensor
    shares = calibration.matrices[weights]
    bandwidth = accelerator.bandwidth_bytes_per_s
    software = 1.0 if calibration.ideal else accelerator.matrix_share
    attention_flops = accelerator.bf16_flops_per_s * calibration.attention_compute * software
    slowdown = calibration.slowdown
    matrix_per_token_s = _matrix_per_token_s(worker, shares.compute * software)
    attention_s = shape.attention_flops_per_pair / 2 / tensor / attention_flops
    cache_s = _cache_layer_s(worker, bandwidth * calibration.cache_bandwidth, attention_flops)
    windowed = shape.window.layers if shape.window else 0
    fixed_s, transfer_s = _communication_s(worker, calibration)
    return StepTimer(
        stream_s=_streamed_bytes(worker, calibration) / (bandwidth * shares.bandwidth),
        experts_s=_expert_bytes(worker) / (bandwidth * shares.bandwidth),
        expert_miss=_expert_miss(worker),
        stream_per_token_s=matrix_per_token_s * calibration.activation_share,
        matrix_s=slowdown * calibration.matrix_launch_s * shape.layers,
        matrix_per_token_s=slowdown * matrix_per_token_s,
        fixed_s=calibration.attention_launch_s * shape.layers + calibration.overhead_s + fixed_s,
        per_sequence_s=calibration.attention_sequence_s * shape.layers,
        cache_per_token_s=cache_s * (shape.layers - windowed),
        window_per_token_s=cache_s * windowed,
        window_tokens=shape.window.tokens if shape.window else 0,
        attention_per_pair_s=slowdown * attention_s * (shape.layers - windowed),
        window_attention_per_pair_s=slowdown * attention_s * windowed,
        transfer_per_token_s=transfer_s,
        cache_bytes_per_token=worker.kv_bytes_per_token,
    )


def _streamed_bytes(worker: Worker, calibration: Calibration) -> float:
    shape, tensor = worker.shape, worker.parallelism.tensor
    layers = shape.attention_parameters + shape.dense_mlp_parameters
    tables = shape.embedding_parameters + shape.vectors
    if calibration.ideal:
        tables += shape.head_parameters
    return (shape.layer_bytes_per_weight(worker.weights) * layers + 2 * tables) / tensor


def _expert_bytes(worker: Worker) -> float:
    per_weight = worker.shape.expert_bytes_per_weight(worker.weights)
    return per_weight * worker.shape.expert_parameters / worker.expert_gpus


def _expert_miss(worker: Worker) -> float:
    experts = worker.shape.experts
    if experts is None:
        return 1.0
    return float((1 - experts.active / experts.total) ** worker.parallelism.data)


def _matrix_per_token_s(worker: Worker, share: float) -> float:
    """Seconds at the reachable FLOP/s for one token of a data rank.

    The experts of a layer serve the tokens of all data ranks, on all their GPUs: the two factors cancel.
    """
    shape, accelerator = worker.shape, worker.accelerator
    expert_peak = accelerator.flops_per_s(Dtype(worker.weights or shape.native))
    layer_peak = accelerator.bf16_flops_per_s if shape.layer_bytes_per_weight(worker.weights) == 2 else expert_peak
    always = 2.0 * (shape.attention_parameters + shape.dense_mlp_parameters) / layer_peak
    experts = 2.0 * shape.active_expert_parameters / expert_peak
    return (always + experts) / worker.parallelism.tensor / share


def _cache_layer_s(worker: Worker, bandwidth: float, attention_flops: float) -> float:
    """Seconds for one cached token in one layer: bytes, or with latent attention the FLOPs on them if longer."""
    tensor, latent = worker.parallelism.tensor, worker.shape.latent
    read_s = worker.shape.kv_bytes_per_token_layer(worker.kv, tensor=tensor) / bandwidth
    if latent is None:
        return read_s
    # Absorbed form: every head multiplies the whole latent vector, for scores and for values.
    flops = 2.0 * worker.shape.heads * (2 * latent.kv_rank + latent.rope_size) / tensor
    return max(read_s, flops / attention_flops)


def _communication_s(worker: Worker, calibration: Calibration) -> tuple[float, float]:
    """Fixed seconds a step, and seconds a token, of moving activations between GPUs."""
    shape, parallelism = worker.shape, worker.parallelism
    link = worker.accelerator.link_bytes_per_s * calibration.link_share
    activation_bytes = 2.0 * shape.hidden
    fixed_s = per_token_s = 0.0
    if parallelism.tensor > 1:
        fixed_s += 2 * shape.layers * calibration.all_reduce_s
        ring = 2 * (parallelism.tensor - 1) / parallelism.tensor
        per_token_s += 2 * shape.layers * activation_bytes * ring / link
    if shape.experts is not None and parallelism.data > 1:
        # Each token travels to its experts and back; with slices it goes to every rank instead.
        copies = min(shape.experts.active, worker.expert_gpus - 1) if parallelism.expert else parallelism.data - 1
        fixed_s += 2 * shape.experts.layers * calibration.all_reduce_s
        per_token_s += 2 * shape.experts.layers * activation_bytes * copies / parallelism.tensor / link
    if parallelism.pipeline > 1:
        fixed_s += (parallelism.pipeline - 1) * calibration.stage_s
        fixed_s += (parallelism.pipeline - 1) * calibration.overhead_s
        per_token_s += (parallelism.pipeline - 1) * activation_bytes / worker.accelerator.network_bytes_per_s
    return fixed_s, per_token_s
