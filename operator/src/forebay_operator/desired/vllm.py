"""vLLM's command line and environment for one worker: the only place that knows its flags.

- `--shutdown-timeout` is the drain time: after SIGTERM the engine finishes what it has and refuses the rest.
- `--enable-prompt-tokens-details` makes answers carry `cached_tokens`, by which the router corrects its prefix index.
- Every worker publishes what its KV cache holds (`--kv-events-config`), which the router matches prompts with. Each data-parallel
  rank takes the next port, so replays begin above the last rank's. Where engines bind to the pod's own address, several pods may
  share a network: then ports are any free ones, under VLLM_HOST_IP. Routers read the real ones from /kv_event_sources.
- Prefill and decode workers move KV blocks with the NIXL connector. Its side channel must listen on the pod's own address
  (it defaults to localhost), and `kv_load_failure_policy: recompute` turns a lost prefill worker into a slower answer
  instead of an error.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, Final

from forebay_api.durations import parse_duration_s
from forebay_api.engine import Engine, EnvironmentVariable
from forebay_api.modelservice import Parallelism, Role
from forebay_api.names import ENGINE_PORT, KV_EVENTS_PORT, NIXL_PORT
from forebay_api.workerpool import WorkerPoolSpec
from forebay_operator.desired.volumes import Source, cache_path

COMMAND: Final = ("vllm", "serve")
POD_IP: Final = "$(POD_IP)"
EVERY_ADDRESS: Final = ("0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, not bound
KV_ROLES: Final = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


def build_arguments(spec: WorkerPoolSpec, *, host: str, source: Source, adapters: Sequence[Source]) -> list[str]:
    """Arguments after the command; the user's own come last."""
    engine = spec.engine
    arguments = [
        source.argument,
        *("--served-model-name", spec.model.name),
        *("--host", host),
        *("--port", str(ENGINE_PORT)),
        *_model_arguments(engine),
        *_parallel_arguments(spec.pool.parallelism),
        *("--shutdown-timeout", str(drain_timeout_s(spec))),
        "--enable-prompt-tokens-details",
        *("--kv-events-config", _kv_events_config(spec.pool.parallelism, host)),
    ]
    if source.argument.startswith(("s3://", "gs://")):
        arguments += ["--load-format", "runai_streamer"]
    if spec.pool.role in KV_ROLES:
        arguments += ["--kv-transfer-config", _kv_transfer_config(spec.pool.role)]
    if engine.speculative:
        drafted = engine.speculative
        config = {"method": drafted.method, "model": drafted.model, "num_speculative_tokens": drafted.tokens}
        arguments += ["--speculative-config", _json({key: value for key, value in config.items() if value is not None})]
    if engine.lora_adapters:
        named = zip(engine.lora_adapters, adapters, strict=True)
        modules = [f"{adapter.name}={located.argument}" for adapter, located in named]
        arguments += ["--enable-lora", "--lora-modules", *modules]
    return [*arguments, *engine.args]


def build_environment(spec: WorkerPoolSpec) -> list[dict[str, Any]]:
    """Environment of the engine; POD_IP first, since arguments and later variables refer to it."""
    environment: list[dict[str, Any]] = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
        {"name": "HF_HOME", "value": cache_path(spec.model)},
        {"name": "VLLM_HOST_IP", "value": POD_IP},
    ]
    if spec.pool.role in KV_ROLES:
        environment += [
            {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": POD_IP},
            {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(NIXL_PORT)},
        ]
    chosen = {variable.name for variable in spec.engine.env}
    ours = [variable for variable in environment if variable["name"] not in chosen]
    return ours + [_variable(variable) for variable in spec.engine.env]


def drain_timeout_s(spec: WorkerPoolSpec) -> int:
    """Whole seconds that a worker has to finish its requests."""
    return math.ceil(parse_duration_s(spec.rollout.drain_timeout))


def _model_arguments(engine: Engine) -> list[str]:
    values = {
        "--max-model-len": engine.max_model_len,
        "--quantization": engine.quantization,
        "--kv-cache-dtype": engine.kv_cache_dtype,
    }
    return [text for flag, value in values.items() if value is not None for text in (flag, str(value))]


def _parallel_arguments(parallelism: Parallelism) -> list[str]:
    arguments = ["--tensor-parallel-size", str(parallelism.tensor)]
    if parallelism.pipeline > 1:
        arguments += ["--pipeline-parallel-size", str(parallelism.pipeline)]
    if parallelism.data > 1:
        arguments += ["--data-parallel-size", str(parallelism.data)]
    return arguments


def _kv_transfer_config(role: Role) -> str:
    return _json(
        {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[role], "kv_load_failure_policy": "recompute"},
    )


def replay_port(parallelism: Parallelism) -> int:
    """Where the first rank answers requests for past KV events."""
    return KV_EVENTS_PORT + parallelism.data


def _kv_events_config(parallelism: Parallelism, host: str) -> str:
    ports = (KV_EVENTS_PORT, replay_port(parallelism)) if host in EVERY_ADDRESS else (0, 0)
    return _json(
        {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{ports[0]}",
            "replay_endpoint": f"tcp://*:{ports[1]}",
        }
    )


def _variable(variable: EnvironmentVariable) -> dict[str, Any]:
    if variable.value_from is None:
        return {"name": variable.name, "value": variable.value or ""}
    source = variable.value_from.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"name": variable.name, "valueFrom": source}


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
