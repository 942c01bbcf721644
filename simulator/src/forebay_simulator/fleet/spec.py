"""What a fleet is made of: pools of equal workers on accelerators, limits of the router, and the objective."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_api.schedules import Schedule
from forebay_capacity.accelerators import accelerator_of
from forebay_capacity.dtypes import kv_dtype
from forebay_capacity.worker import Parallelism, Worker
from forebay_router.discovery.seeds import seed_of_timer
from forebay_router.speed import Seed
from forebay_simulator.engine.model import ServedModel, load_model, read_shape
from forebay_simulator.engine.scheduling import StepTimer
from forebay_simulator.engine.settings import EngineSettings, SimulationSettings
from forebay_simulator.fleet.timers import (
    MOCKER_BATCHED_TOKENS,
    MOCKER_BLOCK_TOKENS,
    MOCKER_BLOCKS,
    MOCKER_SEQUENCES,
    MockerTimer,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One worker's engine, as `vllm serve` would be told."""

    model: str = "llama-3.1-8b"
    accelerator: str = "h100-sxm"
    tensor: int = 1
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    block_tokens: int = 16
    """Tokens of a KV block. Larger ones simulate faster; with ids of 512 tokens nothing but rounding is lost."""
    memory_utilization: float = 0.9
    max_sequences: int | None = None
    max_batched_tokens: int | None = None
    max_model_len: int | None = None
    blocks: int | None = None
    """Usable KV blocks instead of what the memory gives."""
    prefix_caching: bool = True
    timer: StepTimer | None = None
    """Other step times than the capacity model's."""
    free_transfers: bool = False
    """KV moves between workers in no time."""

    @property
    def settings(self) -> EngineSettings:
        """The engine's settings."""
        return EngineSettings(
            model=self.model,
            served_names=(self.model,),
            tensor=self.tensor,
            quantization=self.quantization,
            kv_cache_dtype=self.kv_cache_dtype,
            block_size=self.block_tokens,
            gpu_memory_utilization=self.memory_utilization,
            num_gpu_blocks_override=None if self.blocks is None else self.blocks + 1,
            max_num_seqs=self.max_sequences,
            max_num_batched_tokens=self.max_batched_tokens,
            max_model_len=self.max_model_len,
            prefix_caching=self.prefix_caching,
            simulation=SimulationSettings(accelerator=self.accelerator),
        )

    def served(self) -> ServedModel:
        """What the engine makes of it; StartupError where it would not start."""
        return _served(self)

    def seed(self) -> Seed:
        """What the capacity model tells the router of such a worker."""
        served = self.served()
        kv_tokens = served.scheduler.usable_blocks * served.scheduler.block_size
        step_tokens = served.scheduler.max_batched_tokens
        return seed_of_timer(served.timer, kv_tokens=kv_tokens, step_tokens=step_tokens)  # type: ignore[arg-type]

    def worker(self) -> Worker:
        """The same for the capacity model."""
        kv = "bf16" if self.kv_cache_dtype == "auto" else self.kv_cache_dtype
        return Worker(
            read_shape(self.model),
            accelerator_of(self.accelerator),
            Parallelism(tensor=self.tensor),
            self.quantization,
            kv_dtype(kv),
            self.memory_utilization,
            batched_tokens=self.max_batched_tokens,
        )


@lru_cache(maxsize=64)
def _served(spec: EngineSpec) -> ServedModel:
    served = load_model(spec.settings)
    if spec.timer is not None:
        served = replace(served, timer=spec.timer)
    if spec.free_transfers:
        served = replace(served, transfer_latency_s=0.0, transfer_bytes_per_s=float("inf"))
    return served


def mocker_engine(block_tokens: int = MOCKER_BLOCK_TOKENS, *, prefix_caching: bool = True) -> EngineSpec:
    """The engine of Dynamo's simulator as fitted in timers.py: for runs beside it, not for sizing.

    Where prompts share nothing, large blocks and no prefix cache change no time and simulate six times faster.
    """
    return EngineSpec(
        block_tokens=block_tokens,
        blocks=MOCKER_BLOCKS * MOCKER_BLOCK_TOKENS // block_tokens,
        prefix_caching=prefix_caching,
        max_sequences=MOCKER_SEQUENCES,
        max_batched_tokens=MOCKER_BATCHED_TOKENS,
        timer=MockerTimer(),
        free_transfers=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """Equal workers of one role."""

    name: str
    role: Role
    replicas: int
    """Ready at the beginning."""
    replicas_min: int = 1
    replicas_max: int = 64
    engine: EngineSpec = field(default_factory=EngineSpec)
    startup_s: tuple[float, float] = (60.0, 60.0)
    """A new worker is ready after a time drawn uniformly between these."""
    spare: int = 0
    """Warm spares, as `replicas.spare` of a ModelService's pool."""
    schedules: tuple[Schedule, ...] = ()
    """Times with a larger least number, as `replicas.schedules`; a run begins when `AutoscalerSpec.begins_s` says."""
    price_per_hour: float | None = None
    """Of one accelerator, as `pricePerHour` of an AcceleratorClass."""

    @property
    def gpus(self) -> int:
        """Accelerators of one worker."""
        return self.engine.tensor

    @property
    def price_of_worker(self) -> float | None:
        """Of one worker for an hour; None when its accelerator has no price."""
        return None if self.price_per_hour is None else self.price_per_hour * self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """One model service and the hardware below it."""

    pools: tuple[PoolSpec, ...]
    objective: Objective
    gpus: int | None = None
    """Accelerators that exist; None: as many as are asked for."""
    budget_gpus: int | None = None
    """What the autoscaler may use."""
    hold_s: float = 30.0
    """Longest wait of a request for a worker, as the router has it."""
    hold_max: int = 4000
    """Most requests that wait."""
    first_byte_s: float = 120.0
    """Longest wait of a request for room on workers, as the router has it."""
    attempts_max: int = 3
    drain_max_s: float = 600.0
    """Requests of a leaving worker that take longer are cut off."""
    seeds_known: bool = True
    """The router knows the speed of its workers from the capacity model before it has measured any."""
    routers: int = 1
    """Replicas of the router; each request comes to one of them."""
    mesh_delay_s: float | None = 0.001
    """From a router's telling to the others' hearing; None: they do not tell."""
    expected_output_tokens: int = 256
    """The router's guess of an answer's length."""

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block: the same in all pools, which hand KV to each other."""
        return self.pools[0].engine.block_tokens

    def sized(self, **replicas: int) -> FleetSpec:
        """The same fleet with other numbers of workers at the beginning."""
        pools = tuple(replace(pool, replicas=replicas.get(pool.name, pool.replicas)) for pool in self.pools)
        return replace(self, pools=pools)
