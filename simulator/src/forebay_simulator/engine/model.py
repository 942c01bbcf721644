"""What the engine serves: a model's shape on an accelerator, and the limits that follow, as vLLM derives them.

    KV blocks = KV bytes left beside the weights / bytes of a block, or the override
    the engine starts only if one request of max_model_len fits (n tokens need ceil(n / block size) blocks)

Defaults follow vLLM on the modelled GPU: 8,192 batched tokens and 1,024 sequences from 70 GiB of memory on (A100 apart),
2,048 and 256 below; 16 tokens a block.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from forebay_capacity.accelerators import GIB, Accelerator, accelerator_of
from forebay_capacity.dtypes import Dtype
from forebay_capacity.errors import CapacityError
from forebay_capacity.shapes import ModelShape, shape_from_config, shape_of
from forebay_capacity.steptime import timer_of
from forebay_capacity.transfer import TRANSFER_LATENCY_S
from forebay_capacity.worker import Parallelism, Worker
from forebay_simulator.engine.errors import StartupError
from forebay_simulator.engine.scheduling import SchedulerConfig, StepTimer
from forebay_simulator.engine.settings import EngineSettings

DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model on a GPU, ready to be scheduled."""

    shape: ModelShape
    root: str
    """The path string given: part of the compatibility hash between prefill and decode."""
    timer: StepTimer
    scheduler: SchedulerConfig
    max_model_len: int
    kv_bytes_per_token: float
    """Per GPU."""
    transfer_latency_s: float
    transfer_bytes_per_s: float
    """Per GPU, over the network between nodes."""
    tensor: int

    @property
    def total_blocks(self) -> int:
        """With the null block, as vLLM counts them."""
        return self.scheduler.usable_blocks + 1

    def transfer_seconds(self, tokens: int) -> float:
        """Return how long the KV of so many tokens takes from a prefill to a decode engine."""
        return self.transfer_latency_s + tokens * self.kv_bytes_per_token / self.transfer_bytes_per_s


def read_shape(source: str) -> ModelShape:
    """Read a folder's config.json, or a preset by name. Raises `StartupError`."""
    path = Path(source) / "config.json"
    try:
        if path.is_file():
            return shape_from_config(json.loads(path.read_text(encoding="utf-8")), name=source)
        return shape_of(source)
    except (CapacityError, ValueError, OSError) as error:  # not JSON, or not even text: ValueError
        raise StartupError(f"cannot read model {source!r}: {error}") from error


def load_model(settings: EngineSettings) -> ServedModel:
    """Work out what the engine can do. Raises `StartupError` where vLLM refuses to start."""
    shape = read_shape(settings.model)
    try:
        accelerator = accelerator_of(settings.simulation.accelerator)
        kv = Dtype.FP8 if settings.kv_cache_dtype.startswith("fp8") else Dtype.BF16
        parallelism = Parallelism(tensor=settings.tensor, pipeline=settings.pipeline)
        utilization = settings.gpu_memory_utilization
        worker = Worker(shape, accelerator, parallelism, settings.quantization, kv, utilization)
    except CapacityError as error:
        raise StartupError(str(error)) from error
    block_size = settings.block_size or DEFAULT_BLOCK_SIZE
    max_model_len = _max_model_len(settings, shape)
    sequences, batched = _batch_limits(settings, accelerator, max_model_len)
    return ServedModel(
        shape=shape,
        root=settings.model,
        timer=timer_of(worker),
        scheduler=SchedulerConfig(
            block_size=block_size,
            usable_blocks=_usable_blocks(settings, worker, block_size, max_model_len),
            max_sequences=sequences,
            max_batched_tokens=batched,
            chunked_prefill=settings.chunked_prefill,
            prefix_caching=settings.prefix_caching,
            policy=settings.policy,
            max_adapters=settings.max_loras if settings.lora_enabled else 0,
            lease_s=settings.transfer.lease_s if settings.transfer else 30.0,
            records_events=settings.events.enabled,
        ),
        max_model_len=max_model_len,
        kv_bytes_per_token=worker.kv_bytes_per_token,
        transfer_latency_s=TRANSFER_LATENCY_S,
        transfer_bytes_per_s=accelerator.network_bytes_per_s,
        tensor=settings.tensor,
    )


def _max_model_len(settings: EngineSettings, shape: ModelShape) -> int:
    asked = settings.max_model_len
    if asked is not None and asked > shape.max_context_tokens:
        raise StartupError(
            f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
            f"(max_position_embeddings={shape.max_context_tokens} in model's config.json)"
        )
    return asked or shape.max_context_tokens


def _batch_limits(settings: EngineSettings, accelerator: Accelerator, max_model_len: int) -> tuple[int, int]:
    sequences = settings.max_num_seqs or accelerator.sequences_default
    batched = settings.max_num_batched_tokens
    if batched is None:
        batched = max(accelerator.tokens_default, sequences)
        if not settings.chunked_prefill:
            batched = max(batched, max_model_len)
    if batched < sequences:
        raise StartupError(
            f"max_num_batched_tokens ({batched}) must be greater than or equal to max_num_seqs ({sequences})."
        )
    if batched < max_model_len and not settings.chunked_prefill:
        raise StartupError(
            f"max_num_batched_tokens ({batched}) is smaller than max_model_len ({max_model_len}). This effectively "
            "limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. "
            "Please increase max_num_batched_tokens or decrease max_model_len."
        )
    return sequences, batched


def _usable_blocks(settings: EngineSettings, worker: Worker, block_size: int, max_model_len: int) -> int:
    block_bytes = worker.kv_bytes_per_token * block_size
    room = settings.kv_cache_memory_bytes or worker.kv_room_bytes
    if settings.num_gpu_blocks_override:
        room = settings.num_gpu_blocks_override * block_bytes
    elif room < block_bytes:
        raise StartupError(
            f"No available memory for the cache blocks: the weights of {worker.shape.name} take "
            f"{worker.weight_bytes_per_gpu / GIB:.1f} GiB of a GPU with {worker.accelerator.memory_bytes / GIB:.1f} GiB. "
            "Try increasing `gpu_memory_utilization` or `tensor_parallel_size` when initializing the engine."
        )
    usable = int(room / block_bytes + 1e-6) - 1
    needed = -(-max_model_len // block_size)
    if usable < needed:
        raise StartupError(
            f"To serve at least one request with the models's max seq len ({max_model_len}), "
            f"({needed * block_bytes / GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache "
            f"memory ({max(usable, 0) * block_bytes / GIB:.2f} GiB). Based on the available memory, the estimated maximum "
            f"model length is {max(usable, 0) * block_size}. Try increasing `gpu_memory_utilization` or decreasing "
            "`max_model_len` when initializing the engine."
        )
    return usable
