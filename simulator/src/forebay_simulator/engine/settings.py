"""The engine's settings, fixed once at start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from forebay_simulator.engine.block_hash import DEFAULT_SEED, HashAlgorithm
from forebay_simulator.engine.waiting import Policy

Count = Annotated[int, msgspec.Meta(ge=0)]
VERSION = "0.32.0"
"""The vLLM version whose wire contract is spoken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """Prefill/decode hand-over (`--kv-transfer-config` with NixlConnector)."""

    produces: bool
    consumes: bool
    recomputes_on_failure: bool
    """kv_load_failure_policy "recompute"; with "fail" the request fails."""
    lease_s: float
    host: str
    """VLLM_NIXL_SIDE_CHANNEL_HOST: what other engines connect to."""
    port: int
    enforces_compatibility: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSettings:
    """KV events (`--kv-events-config`)."""

    enabled: bool = False
    publisher: str = "null"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: Count = 10_000
    hwm: Count = 100_000
    max_queue_size: Count = 100_000
    topic: str = ""
    integer_hashes: bool = True
    """VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES."""
    host: str | None = None
    """VLLM_HOST_IP: what `*` in an endpoint means; None: all interfaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """What exists only because the engine is simulated."""

    accelerator: str = "h100-sxm"
    speed: float = 1.0
    """Steps, transfers and start-up take 1/speed of the time; waits of the protocol keep their length."""
    startup_s: float = 0.0
    """From process start to the port being open, before division by speed."""
    seed: int = 0
    """Other seeds give other answers."""
    output_tokens: int = 256
    """Median length of answers to requests that set no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Everything `vllm serve` was told."""

    model: str
    """As given: a preset's name, a repository, or a folder with a config.json."""
    served_names: tuple[str, ...]
    host: str | None = None
    """None: all interfaces."""
    port: int = 8000
    max_model_len: int | None = None
    """None: what the model is made for."""
    tensor: int = 1
    pipeline: int = 1
    block_size: int | None = None
    gpu_memory_utilization: float = 0.92
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    chunked_prefill: bool = True
    prefix_caching: bool = True
    hash_algorithm: HashAlgorithm = HashAlgorithm.SHA256
    hash_seed: str = DEFAULT_SEED
    policy: Policy = Policy.FCFS
    stream_interval: int = 1
    lora_modules: tuple[tuple[str, str], ...] = ()
    """Adapter names and paths known from the start."""
    lora_enabled: bool = False
    max_loras: int = 1
    runtime_lora: bool = False
    """VLLM_ALLOW_RUNTIME_LORA_UPDATING."""
    shutdown_timeout_s: float = 0.0
    api_keys: tuple[str, ...] = ()
    keep_alive_s: float = 5.0
    sse_keep_alive_s: float | None = None
    prompt_tokens_details: bool = False
    request_id_headers: bool = False
    load_tracking: bool = False
    force_include_usage: bool = False
    per_request_metrics: bool = False
    kv_cache_metrics: bool = False
    tool_parser: bool = False
    """--enable-auto-tool-choice with --tool-call-parser."""
    scale_out: bool = False
    """--enable-scale-out: requests can be rendered to token ids."""
    dev_mode: bool = False
    """VLLM_SERVER_DEV_MODE."""
    transfer: TransferSettings | None = None
    events: EventSettings = field(default_factory=EventSettings)
    simulation: SimulationSettings = field(default_factory=SimulationSettings)

    @property
    def name(self) -> str:
        """The first served name: the label of all metrics."""
        return self.served_names[0]
