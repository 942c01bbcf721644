"""Whether a worker holds its weights and one request of maximal length.

The engine refuses to start otherwise, after minutes of pulling an image and loading weights. So the operator asks here
first and reports the answer as the `Fits` condition. Three answers: yes, no (with what would make it fit), and unknown:
a model whose shape is not known, or engine flags that this model does not understand, must not keep a working service
from starting. The name that a model is served under is no proof either: quantised weights of a repository that is not known are
often served under the name of the original. So by that name alone the answer is never no.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from forebay_capacity.accelerators import GIB, Accelerator, accelerator_of
from forebay_capacity.dtypes import Dtype, kv_dtype, weights_dtype
from forebay_capacity.errors import CapacityError, UnknownModelError
from forebay_capacity.memory import BLOCK_TOKENS, kv_bytes_of_sequence, kv_tokens_of
from forebay_capacity.shapes import shape_of
from forebay_capacity.worker import ENGINE_UTILIZATION, Parallelism, Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forebay_api.acceleratorclass import AcceleratorClassSpec
    from forebay_api.modelservice import ModelServiceSpec, Pool
    from forebay_capacity.architecture import ModelShape

TENSOR_SIZES = (1, 2, 4, 8, 16)
"""Tensor parallelism that a spec can ask for."""

MEMORY_FLAGS = frozenset({"--cpu-offload-gb", "--kv-cache-memory-bytes", "--hf-overrides"})
"""Engine flags by which a model may fit that seems too large."""


class Verdict(StrEnum):
    """The answer."""

    FITS = "Fits"
    TOO_SMALL = "TooSmall"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Fit:
    """An answer with its reason."""

    verdict: Verdict
    message: str
    """A sentence for a person: the numbers, and what to change when it does not fit."""
    kv_tokens: int = 0
    """Tokens of KV cache of a worker; 0 when unknown."""


def check_worker(worker: Worker, request_tokens: int) -> Fit:
    """Whether the worker holds its weights and one request of this many tokens."""
    budget = worker.utilization * worker.accelerator.memory_bytes
    if worker.kv_room_bytes <= 0:
        return Fit(
            Verdict.TOO_SMALL,
            f"{_subject(worker)} does not fit: weights of {_gib(worker.weight_bytes_per_gpu)} and "
            f"{_gib(worker.reserve_bytes)} of working memory on each GPU exceed the {_gib(budget)} that the engine "
            f"takes of a {worker.accelerator.title}; {_fix(worker, request_tokens, None)}",
        )
    tokens = kv_tokens_of(worker)
    if kv_bytes_of_sequence(worker, request_tokens) > worker.kv_room_bytes:
        longest = longest_request(worker)
        return Fit(
            Verdict.TOO_SMALL,
            f"{_subject(worker)} leaves {_gib(worker.kv_room_bytes)} for KV cache, enough for one request of "
            f"{longest:,} tokens and not for maxModelLen {request_tokens:,}; "
            f"{_fix(worker, request_tokens, longest)}",
            tokens,
        )
    return Fit(
        Verdict.FITS,
        f"{_subject(worker)}: weights {_gib(worker.weight_bytes_per_gpu)} on each GPU, room for {tokens:,} tokens of "
        f"KV cache, {tokens // request_tokens:,} requests of {request_tokens:,} tokens at once",
        tokens,
    )


def longest_request(worker: Worker) -> int:
    """Tokens of the longest request a worker holds, in whole blocks; windowed layers make it longer than the KV room."""
    low, high = 0, 1 << 20
    while low < high:
        middle = (low + high + 1) // 2
        fits = kv_bytes_of_sequence(worker, middle * BLOCK_TOKENS) <= worker.kv_room_bytes
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * BLOCK_TOKENS


def fits(spec: ModelServiceSpec, pool: Pool, accelerator: AcceleratorClassSpec) -> Fit:
    """Whether a worker of this pool can start, from the resources as users write them; never raises."""
    try:
        worker = worker_of_pool(spec, pool, accelerator)
    except UnknownModelError as error:
        return Fit(
            Verdict.UNKNOWN, f"the shape of {spec.model.source} is not known, so memory was not checked: {error}"
        )
    except CapacityError as error:
        return Fit(Verdict.UNKNOWN, f"memory was not checked: {error}")
    request_tokens = spec.engine.max_model_len or worker.shape.max_context_tokens
    fit = check_worker(worker, request_tokens)
    doubt = _doubt(spec) if fit.verdict is Verdict.TOO_SMALL else None
    return replace(fit, verdict=Verdict.UNKNOWN, message=f"{doubt}, {fit.message}") if doubt else fit


def worker_of_pool(spec: ModelServiceSpec, pool: Pool, accelerator: AcceleratorClassSpec) -> Worker:
    """The worker that a pool asks for; `CapacityError` when a value is not understood."""
    shape = _shape(spec.model.source, spec.model.name)
    return Worker(
        shape=shape,
        accelerator=accelerator_of_class(accelerator),
        parallelism=Parallelism(
            tensor=pool.parallelism.tensor, pipeline=pool.parallelism.pipeline, data=pool.parallelism.data
        ),
        weights=None if spec.engine.quantization is None else weights_dtype(spec.engine.quantization),
        kv=kv_dtype("bf16" if spec.engine.kv_cache_dtype in {None, "auto"} else str(spec.engine.kv_cache_dtype)),
        utilization=engine_utilization(spec.engine.args),
        batched_tokens=engine_tokens(spec.engine.args),
    )


def accelerator_of_class(accelerator: AcceleratorClassSpec) -> Accelerator:
    """The accelerator that an AcceleratorClass describes: known hardware, with its own memory and price if given."""
    known = accelerator_of(accelerator.hardware)
    if accelerator.memory is not None:
        known = replace(known, memory_bytes=_quantity_bytes(accelerator.memory))
    if accelerator.price_per_hour is not None:
        known = replace(known, price_usd_per_hour=float(accelerator.price_per_hour))
    return known


_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "m": 1e-3}


def _quantity_bytes(quantity: str) -> float:
    """Bytes of a Kubernetes quantity, which the resource's own rules have checked."""
    number = quantity.rstrip("".join(_UNITS))
    return float(number) * _UNITS.get(quantity[len(number) :], 1)


def _shape(source: str, name: str) -> ModelShape:
    """By where the weights come from, else by the served name: a mirror in a bucket keeps the model's shape."""
    try:
        return shape_of(source)
    except UnknownModelError:
        return shape_of(name)


def _doubt(spec: ModelServiceSpec) -> str | None:
    """Why a model that seems too large may fit all the same; None when nothing speaks for it."""
    try:
        shape_of(spec.model.source)
    except UnknownModelError:
        return f"the shape of {spec.model.source} is not known; if it is {spec.model.name} as published"
    flags = [argument.replace("_", "-").partition("=")[0] for argument in spec.engine.args]
    found = next((flag for flag in flags if flag in MEMORY_FLAGS), None)
    return f"not counting what {found} changes" if found else None


def engine_utilization(arguments: Sequence[str]) -> float:
    """The share of memory that an engine with these flags takes."""
    try:
        return float(_value_of("--gpu-memory-utilization", arguments) or ENGINE_UTILIZATION)
    except ValueError:
        return ENGINE_UTILIZATION  # the engine will say what is wrong with it


def engine_sequences(arguments: Sequence[str]) -> int | None:
    """Most concurrent sequences of an engine with these flags; None for its default, or where the flag is no such number."""
    return _number_of("--max-num-seqs", arguments)


def engine_tokens(arguments: Sequence[str]) -> int | None:
    """Token budget of a step of an engine with these flags; None for its default, or where the flag is no such number."""
    return _number_of("--max-num-batched-tokens", arguments)


def _number_of(flag: str, arguments: Sequence[str]) -> int | None:
    text = _value_of(flag, arguments) or ""
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """What a flag is given, `--flag value` or `--flag=value`, underscores for hyphens as vLLM takes them."""
    for index, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name.replace("_", "-") == flag:
            return value or (arguments[index + 1] if index + 1 < len(arguments) else None)
    return None


def _subject(worker: Worker) -> str:
    shape = worker.shape.name
    dtype = Dtype(worker.weights or worker.shape.native).upper()
    gpus = worker.parallelism.gpus
    place = f"one {worker.accelerator.name}" if gpus == 1 else f"{gpus} x {worker.accelerator.name}"
    return f"{shape} ({dtype}) on {place}"


def _fix(worker: Worker, request_tokens: int, longest: int | None) -> str:
    options = []
    if longest is not None and longest >= BLOCK_TOKENS:
        options.append(f"lower engine.maxModelLen to {longest:,}")
    larger = _smallest_tensor(worker, request_tokens)
    if larger is not None:
        options.append(f"raise parallelism.tensor to {larger}")
    if worker.weights is Dtype.BF16:
        options.append("use quantised weights (engine.quantization: fp8)")
    if worker.kv is Dtype.BF16 and longest is not None:
        options.append("halve the cache (engine.kvCacheDtype: fp8)")
    if larger is None:
        options.append("use an accelerator with more memory")
    return ", or ".join(options)


def _smallest_tensor(worker: Worker, request_tokens: int) -> int | None:
    """The smallest larger tensor parallelism that holds one such request."""
    for candidate in _with_tensor(worker, (size for size in TENSOR_SIZES if size > worker.parallelism.tensor)):
        if candidate.kv_room_bytes >= kv_bytes_of_sequence(candidate, request_tokens):
            return candidate.parallelism.tensor
    return None


def _with_tensor(worker: Worker, sizes: Iterable[int]) -> Iterable[Worker]:
    for size in sizes:
        if worker.shape.heads % size == 0:
            yield replace(worker, parallelism=replace(worker.parallelism, tensor=size))


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.1f} GiB"
