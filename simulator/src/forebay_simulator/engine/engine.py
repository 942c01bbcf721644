"""One engine: model, scheduler, tokeniser, metrics, connector and adapters, put together from the settings."""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Sequence
from typing import Any

from forebay_simulator.engine.adapters import Adapters
from forebay_simulator.engine.block_hash import BlockHasher, TokenSequence
from forebay_simulator.engine.bodies import Options, too_long
from forebay_simulator.engine.core import EngineCore
from forebay_simulator.engine.errors import DRAINING, ENGINE_DEAD, bad_request, busy, internal
from forebay_simulator.engine.families import When
from forebay_simulator.engine.generation import Generation, Listener, RemotePrefill
from forebay_simulator.engine.kv_events import EventPublisher
from forebay_simulator.engine.metrics import Metrics
from forebay_simulator.engine.model import ServedModel
from forebay_simulator.engine.recorder import Recorder
from forebay_simulator.engine.request import Request
from forebay_simulator.engine.responses import Style, json_text
from forebay_simulator.engine.scheduler import Scheduler
from forebay_simulator.engine.settings import VERSION, EngineSettings
from forebay_simulator.engine.text import Answer, Vocabulary, natural_length, prompt_seed
from forebay_simulator.engine.tokens import Tokenizer
from forebay_simulator.engine.transfer import Transfer, compatibility_hash, read_params


class Engine:
    """Accepts checked requests and runs them. Construct inside a running loop."""

    def __init__(self, settings: EngineSettings, model: ServedModel) -> None:
        self.settings = settings
        self.model = model
        self.started_unix_s = time.time()
        self.tokenizer = Tokenizer(model.shape.vocabulary)
        vocabulary = Vocabulary(self.tokenizer)
        self.style = Style(
            vocabulary=vocabulary,
            words=tuple(json_text(word) for word in vocabulary.words),
            fingerprint=f"vllm-{VERSION}-{zlib.crc32(repr(settings).encode()):08x}",
            block_size=model.scheduler.block_size,
            details=settings.prompt_tokens_details,
            request_metrics=settings.per_request_metrics,
            stream_interval=settings.stream_interval,
        )
        self.hasher = BlockHasher(
            algorithm=settings.hash_algorithm, block_size=model.scheduler.block_size, seed=settings.hash_seed
        )
        self.metrics = Metrics(
            model=settings.name,
            created_s=self.started_unix_s,
            extras=_extras(settings),
            info=cache_info(settings, model),
        )
        if settings.lora_enabled:
            self.metrics.adapters_max = settings.max_loras
            self.metrics.adapters["", ""] = self.started_unix_s
        recorder = Recorder(self.metrics, connector=settings.transfer is not None)
        speed = settings.simulation.speed
        self.core = EngineCore(Scheduler(model.scheduler, model.timer), vocabulary, recorder, speed=speed)
        self.adapters = Adapters(settings)
        self.events: EventPublisher | None = None
        if settings.events.enabled and settings.events.publisher == "zmq":
            self.events = EventPublisher(settings.events, self.core.scheduler)
            self.core.on_step = self.events.publish
        self.transfer: Transfer | None = None
        if settings.transfer is not None:
            compatibility = compatibility_hash(model, settings.kv_cache_dtype)
            self.transfer = Transfer(settings.transfer, self.core, model, compatibility=compatibility, speed=speed)

    async def open(self) -> None:
        """Open the sockets beside HTTP. Raises OSError."""
        if self.events is not None:
            self.events.open()
        if self.transfer is not None:
            await self.transfer.listen()

    async def close(self) -> None:
        """Close them."""
        if self.transfer is not None:
            await self.transfer.close()
        if self.events is not None:
            await self.events.close()

    # ---- accepting

    def check_prompt(self, tokens: Sequence[int]) -> None:
        """Raise `ApiError` for a prompt that cannot be served."""
        limit = self.model.max_model_len
        if len(tokens) > limit - 1:
            raise too_long(len(tokens), limit)
        highest = max(tokens, default=0)
        if highest >= self.model.shape.vocabulary or min(tokens, default=0) < 0:
            raise bad_request(f"Token id {highest} is out of vocabulary")

    def admit(self, prompts: Sequence[Sequence[int]], choices: int) -> None:
        """Raise `ApiError` when the engine takes no more: it drains, it is dead, or a queue limit is reached."""
        if self.core.dead:
            raise internal(ENGINE_DEAD)
        if self.core.draining:
            raise internal(DRAINING)
        generations = self.core.generations
        limit = self.settings.max_num_queued_reqs
        if limit is not None and len(generations) + len(prompts) * choices > limit:
            self.core.recorder.rejected("max_num_queued_reqs")
            raise busy(
                "The engine is currently busy and cannot accept new requests. Please try again later or on a "
                "different instance."
            )
        limit = self.settings.max_num_queued_tokens
        if limit is not None and generations:
            backlog = sum(max(0, g.request.prompt_tokens - g.request.computed_tokens) for g in generations.values())
            if backlog + sum(map(len, prompts)) > limit:
                self.core.recorder.rejected("max_num_queued_tokens")
                raise busy(
                    "The engine has reached its prefill token backlog limit. Please try again later or on a different "
                    "instance."
                )

    def prepare(
        self, prompt: list[int], options: Options, listener: Listener, *, response_id: str, index: int
    ) -> Generation:
        """Make a generation that is not running yet. Raises `InvalidParamsError` for a fatal hand-over."""
        adapter = self.adapters.find(options.model)
        limit = self.model.max_model_len - len(prompt)
        output_max = limit if options.max_tokens is None else min(options.max_tokens, limit)
        seed = prompt_seed(prompt, seed=self.settings.simulation.seed, adapter=adapter.name if adapter else None)
        natural = None
        if options.max_tokens is None and not options.ignores_end:
            median = self.settings.simulation.output_tokens
            natural = max(options.min_tokens, natural_length(seed, median=median))
        remote, holds = self._hand_over(options)
        sequence = TokenSequence(
            prompt, self.hasher, adapter=(adapter.name, adapter.path) if adapter else None, salt=options.cache_salt
        )
        sequence.adapter_number = adapter.number if adapter else None
        sequence.session = options.session
        request = Request(
            request_id=f"{response_id}-{uuid.uuid4().hex[:8]}",
            prompt_tokens=len(prompt),
            output_tokens_max=output_max,
            blocks=sequence,
            arrival_s=self.core.now(),
            priority=options.priority,
            natural_output_tokens=natural,
            remote_prefill=remote is not None,
            hold_after_finish=holds,
            adapter=adapter.name if adapter else None,
            reports_hits=options.full_cache_report,
        )
        return Generation(
            request=request,
            tokens=sequence,
            answer=Answer(seed + index),
            listener=listener,
            index=index,
            stop=options.stop,
            min_tokens=options.min_tokens,
            echoes_stop=options.echoes_stop,
            remote=remote,
            prefills_for_remote=holds,
        )

    def _hand_over(self, options: Options) -> tuple[RemotePrefill | None, bool]:
        params = options.kv_transfer
        if self.transfer is None or not params:
            return None, False
        if params.get("do_remote_prefill"):
            return read_params(params), False
        return None, bool(params.get("do_remote_decode"))

    def submit(self, generation: Generation) -> None:
        """Start a prepared generation."""
        if generation.remote is not None and self.transfer is not None:
            self.transfer.expect(generation)
        self.core.submit(generation)


def _extras(settings: EngineSettings) -> frozenset[When]:
    extras = set()
    if settings.transfer is not None:
        extras.add(When.NIXL)
        if settings.transfer.consumes:
            extras.add(When.CONSUMER)
    if settings.kv_cache_metrics:
        extras.add(When.BLOCK_METRICS)
    return frozenset(extras)


def cache_info(settings: EngineSettings, model: ServedModel) -> dict[str, str]:
    """Return the labels of vllm:cache_config_info."""
    block_size = model.scheduler.block_size
    blocks = model.total_blocks
    values: dict[str, object] = {
        "_block_size_resolved": True,
        "block_size": block_size,
        "cache_dtype": settings.kv_cache_dtype,
        "cache_hit_alignment_tokens": None,
        "effective_attention_block_size": block_size,
        "enable_mamba_shared_prefix_checkpoint": False,
        "enable_prefix_caching": settings.prefix_caching,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "hash_block_size": None,
        "is_attention_free": False,
        "kv_cache_dtype_skip_layers": [],
        "kv_cache_layout": None,
        "kv_cache_max_concurrency": blocks * block_size / model.max_model_len,
        "kv_cache_memory_bytes": settings.kv_cache_memory_bytes,
        "kv_cache_size_tokens": blocks * block_size,
        "kv_offloading_backend": "native",
        "kv_offloading_size": None,
        "kv_sharing_fast_prefill": False,
        "mamba_block_size": None,
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_page_size_padded": None,
        "mamba_ssm_cache_dtype": "float32",
        "num_cpu_blocks": None,
        "num_gpu_blocks": blocks,
        "num_gpu_blocks_override": settings.num_gpu_blocks_override,
        "prefix_cache_retention_interval": 0,
        "prefix_caching_hash_algo": settings.hash_algorithm.value,
        "prefix_match_unit": None,
        "replayssm_buffer_len": 16,
        "skip_page_size_padded": None,
        "sliding_window": None,
        "swa_bounded_replay": True,
        "use_kda_recoverssm": False,
        "use_replayssm": False,
        "user_specified_block_size": settings.block_size is not None,
    }
    return {name: str(value) for name, value in values.items()}


def with_lease(generation: Generation, transfer: Transfer | None) -> dict[str, Any] | None:
    """Return the `kv_transfer_params` of a finished prefill leg's answer."""
    if transfer is None or not generation.prefills_for_remote:
        return None
    return transfer.answer_params(generation.request)
