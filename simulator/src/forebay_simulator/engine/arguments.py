"""The command line of `vllm serve`, read into `EngineSettings`.

Flags that an operator of this engine writes are checked as vLLM checks them: a wrong value ends the process with
argparse's message and status 2. Flags that make no difference to a simulated engine (`--dtype`, `--enforce-eager`, ...)
are accepted silently, flags nobody knows with a warning, since a command line is written for the real engine first.
Underscores equal dashes in flag names, and `--kv-transfer-config.kv_role X` sets one key of a JSON flag, as in vLLM.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec
import orjson

from forebay_simulator.engine.block_hash import DEFAULT_SEED, HashAlgorithm
from forebay_simulator.engine.settings import (
    VERSION,
    EngineSettings,
    EventSettings,
    SimulationSettings,
    TransferSettings,
)
from forebay_simulator.engine.waiting import Policy

_SCALES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_IGNORED_SWITCHES = (
    "enforce-eager", "trust-remote-code", "disable-log-requests", "disable-log-stats", "enable-log-requests",
    "disable-uvicorn-access-log", "async-scheduling", "enable-expert-parallel", "enable-sleep-mode",
    "disable-hybrid-kv-cache-manager", "disable-custom-all-reduce", "disable-frontend-multiprocessing",
)  # fmt: skip
_IGNORED_VALUES = (
    "dtype", "tokenizer", "tokenizer-mode", "revision", "download-dir", "load-format", "generation-config", "seed",
    "distributed-executor-backend", "uvicorn-log-level", "chat-template", "swap-space", "cpu-offload-gb", "attention-backend",
    "compilation-config", "hf-overrides", "override-generation-config", "reasoning-parser", "max-lora-rank",
    "max-parallel-loading-workers", "root-path", "middleware", "allowed-origins", "api-server-count", "speculative-config",
)  # fmt: skip
_HELP = """
Simulation only (each also as an environment variable):
  --sim-accelerator NAME    FOREBAY_SIM_ACCELERATOR    GPU whose timing and memory are modelled (h100-sxm)
  --sim-speed FACTOR        FOREBAY_SIM_SPEED          steps, transfers and start-up take 1/FACTOR of the time (1)
  --sim-startup-s SECONDS   FOREBAY_SIM_STARTUP_S      delay before the port opens (0)
  --sim-seed N              FOREBAY_SIM_SEED           other seeds give other answers (0)
  --sim-output-tokens N     FOREBAY_SIM_OUTPUT_TOKENS  median length of answers without max_tokens (256)

Also read: VLLM_NIXL_SIDE_CHANNEL_HOST, VLLM_NIXL_SIDE_CHANNEL_PORT, VLLM_API_KEY, VLLM_SERVER_DEV_MODE,
VLLM_ALLOW_RUNTIME_LORA_UPDATING, VLLM_HTTP_TIMEOUT_KEEP_ALIVE, VLLM_HOST_IP, VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES,
PYTHONHASHSEED.

Answers: a request with max_tokens gets exactly that many words, drawn from its prompt; one without gets a natural length.
"""


def human_integer(text: str) -> int:
    """Read 1000, 16k (16,000), 16K (16,384), 25.6k."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)", text.strip())
    if match is None or ("." in text and not match[2]):
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")
    return int(float(match[1]) * _SCALES.get(match[2], 1)) if match[2] else int(match[1])


def _model_len(text: str) -> int | None:
    return None if text in ("auto", "-1") else _positive(text)


def _positive(text: str) -> int:
    value = human_integer(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def _port(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from None
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"must be between 0 and 65535, got {text}")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid float value: {text!r}") from None
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 or more, got {text}")
    return value


def _factor(text: str) -> float:
    value = _seconds(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _share(text: str) -> float:
    value = _seconds(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, got {text}")
    return value


def _object(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to <function loads>: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"a JSON object is needed, got {text}")
    return value


def _adapter(text: str) -> tuple[str, str]:
    if text.startswith("{"):
        value = _object(text)
        if not isinstance(value.get("name"), str) or not isinstance(value.get("path"), str):
            raise argparse.ArgumentTypeError(f"a LoRA module needs name and path, got {text}")
        return value["name"], value["path"]
    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise argparse.ArgumentTypeError(f"Invalid format for --lora-modules: {text}, expected name=path")
    return name, path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vllm serve",
        description=f"A simulated vLLM {VERSION} engine: same command line, same wire contract, no GPU.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    switch = argparse.BooleanOptionalAction
    add = parser.add_argument
    add("model_tag", nargs="?", help="model: preset, repository, or folder with config.json")
    add("--model")
    add("--served-model-name", nargs="+")
    add("--host")
    add("--port", type=_port, default=8000)
    add("--max-model-len", type=_model_len, default=None)
    add("--tensor-parallel-size", "-tp", type=_positive, default=1)
    add("--pipeline-parallel-size", "-pp", type=_positive, default=1)
    add("--data-parallel-size", "-dp", type=_positive, default=1)
    add("--block-size", type=_positive)
    add("--gpu-memory-utilization", type=_share, default=0.92)
    add("--num-gpu-blocks-override", type=_positive)
    add("--kv-cache-memory-bytes", type=_positive)
    add("--kv-cache-dtype", choices=["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"], default="auto")
    add("--quantization", "-q")
    add("--max-num-seqs", type=_positive)
    add("--max-num-batched-tokens", type=_positive)
    add("--max-num-queued-reqs", type=_positive)
    add("--max-num-queued-tokens", type=_positive)
    add("--enable-chunked-prefill", action=switch, default=True)
    add("--enable-prefix-caching", action=switch, default=True)
    add("--prefix-caching-hash-algo", choices=[algorithm.value for algorithm in HashAlgorithm], default="sha256")
    add("--scheduling-policy", choices=[policy.value for policy in Policy], default="fcfs")
    add("--stream-interval", type=_positive, default=1)
    add("--shutdown-timeout", type=_seconds, default=0.0)
    add("--api-key", nargs="+", default=[])
    add("--sse-keep-alive-interval", type=_factor)
    add("--enable-lora", action=switch, default=False)
    add("--lora-modules", nargs="+", type=_adapter, default=[])
    add("--max-loras", type=_positive, default=1)
    add("--tool-call-parser")
    for name in (
        "enable-prompt-tokens-details", "enable-request-id-headers", "enable-server-load-tracking",
        "enable-force-include-usage", "enable-per-request-metrics", "kv-cache-metrics", "enable-auto-tool-choice",
        "enable-scale-out",
    ):  # fmt: skip
        add(f"--{name}", action=switch, default=False)
    add("--kv-transfer-config", type=_object)
    add("--kv-events-config", type=_object)
    for name in _IGNORED_SWITCHES:
        add(f"--{name}", action=switch, help=argparse.SUPPRESS)
    for name in _IGNORED_VALUES:
        add(f"--{name}", help=argparse.SUPPRESS)
    return parser


def _add_simulation(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    defaults = SimulationSettings()
    for name, kind, default in (
        ("accelerator", str, defaults.accelerator),
        ("speed", _factor, defaults.speed),
        ("startup-s", _seconds, defaults.startup_s),
        ("seed", int, defaults.seed),
        ("output-tokens", _positive, defaults.output_tokens),
    ):
        variable = "FOREBAY_SIM_" + name.upper().replace("-", "_")
        # A string default goes through the type, so a wrong environment value is refused like a wrong flag.
        value = environment.get(variable, str(default))
        parser.add_argument(f"--sim-{name}", type=kind, default=value, help=argparse.SUPPRESS)


def parse_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[EngineSettings, tuple[str, ...]]:
    """Read what follows `serve`. Returns settings and the flags that were not understood; exits on a wrong value."""
    parser = _parser()
    _add_simulation(parser, environment)
    plain, keys = _split_json_keys(_with_dashes(arguments))
    found, unknown = parser.parse_known_args(plain)
    model = found.model_tag or found.model
    if not model:
        parser.error("the following arguments are required: model_tag")
    if found.data_parallel_size > 1:
        parser.error("argument --data-parallel-size: data parallel ranks are not simulated, run several engines")
    transfer = _transfer(_merged(found.kv_transfer_config, keys, "kv-transfer-config"), environment, parser)
    events = _events(_merged(found.kv_events_config, keys, "kv-events-config"), environment, parser)
    key = environment.get("VLLM_API_KEY")
    settings = EngineSettings(
        model=model,
        served_names=tuple(found.served_model_name or [model]),
        host=found.host,
        port=found.port,
        max_model_len=found.max_model_len,
        tensor=found.tensor_parallel_size,
        pipeline=found.pipeline_parallel_size,
        block_size=found.block_size,
        gpu_memory_utilization=found.gpu_memory_utilization,
        num_gpu_blocks_override=found.num_gpu_blocks_override,
        kv_cache_memory_bytes=found.kv_cache_memory_bytes,
        kv_cache_dtype=found.kv_cache_dtype,
        quantization=found.quantization,
        max_num_seqs=found.max_num_seqs,
        max_num_batched_tokens=found.max_num_batched_tokens,
        max_num_queued_reqs=found.max_num_queued_reqs,
        max_num_queued_tokens=found.max_num_queued_tokens,
        chunked_prefill=found.enable_chunked_prefill,
        prefix_caching=found.enable_prefix_caching,
        hash_algorithm=HashAlgorithm(found.prefix_caching_hash_algo),
        hash_seed=_hash_seed(environment),
        policy=Policy(found.scheduling_policy),
        stream_interval=found.stream_interval,
        lora_modules=tuple(found.lora_modules),
        lora_enabled=found.enable_lora,
        max_loras=found.max_loras,
        runtime_lora=_truth(environment, "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        shutdown_timeout_s=found.shutdown_timeout,
        api_keys=tuple(found.api_key) or ((key,) if key else ()),
        keep_alive_s=_environment_seconds(environment, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", 5.0, parser),
        sse_keep_alive_s=found.sse_keep_alive_interval,
        prompt_tokens_details=found.enable_prompt_tokens_details,
        request_id_headers=found.enable_request_id_headers,
        load_tracking=found.enable_server_load_tracking,
        force_include_usage=found.enable_force_include_usage,
        per_request_metrics=found.enable_per_request_metrics,
        kv_cache_metrics=found.kv_cache_metrics,
        tool_parser=found.enable_auto_tool_choice and found.tool_call_parser is not None,
        scale_out=found.enable_scale_out,
        dev_mode=_truth(environment, "VLLM_SERVER_DEV_MODE"),
        transfer=transfer,
        events=events,
        simulation=SimulationSettings(
            accelerator=found.sim_accelerator,
            speed=found.sim_speed,
            startup_s=found.sim_startup_s,
            seed=found.sim_seed,
            output_tokens=found.sim_output_tokens,
        ),
    )
    return settings, tuple(flag for flag in unknown if flag.startswith("-"))


def _with_dashes(arguments: Sequence[str]) -> list[str]:
    """Write flag names with dashes; keys after a dot and values keep their underscores."""
    result = []
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            flag, dot, key = name.partition(".")
            result.append(flag.replace("_", "-") + dot + key + equals + value)
        else:
            result.append(argument)
    return result


def _split_json_keys(arguments: Sequence[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Take `--flag.key.key value` out of the arguments."""
    plain: list[str] = []
    keys: dict[str, dict[str, Any]] = {}
    rest = iter(arguments)
    for argument in rest:
        match = re.fullmatch(r"--([a-z-]+)\.([\w.]+)(?:=(.*))?", argument, re.DOTALL)
        if match is None:
            plain.append(argument)
            continue
        value = match[3] if match[3] is not None else next(rest, "")
        at = keys.setdefault(match[1], {})
        *outer, last = match[2].split(".")
        for key in outer:
            at = at.setdefault(key, {})
        try:
            at[last] = orjson.loads(value)
        except orjson.JSONDecodeError:
            at[last] = value
    return plain, keys


def _merged(whole: dict[str, Any] | None, keys: dict[str, dict[str, Any]], flag: str) -> dict[str, Any] | None:
    return {**(whole or {}), **keys[flag]} if flag in keys else whole


def _transfer(
    config: dict[str, Any] | None, environment: Mapping[str, str], parser: argparse.ArgumentParser
) -> TransferSettings | None:
    if config is None or config.get("kv_connector") is None:
        return None
    _choose(parser, "kv_connector", config.get("kv_connector"), ("NixlConnector",))
    role = _choose(parser, "kv_role", config.get("kv_role"), ("kv_producer", "kv_consumer", "kv_both"))
    policy = _choose(
        parser, "kv_load_failure_policy", config.get("kv_load_failure_policy", "fail"), ("fail", "recompute")
    )
    extra = config.get("kv_connector_extra_config") or {}
    if not isinstance(extra, dict):
        parser.error("argument --kv-transfer-config: kv_connector_extra_config must be a JSON object")
    try:
        lease_s = _factor(str(extra.get("kv_lease_duration", 30.0)))
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --kv-transfer-config: kv_connector_extra_config.kv_lease_duration: {error}")
    return TransferSettings(
        produces=role in ("kv_producer", "kv_both"),
        consumes=role in ("kv_consumer", "kv_both"),
        recomputes_on_failure=policy == "recompute",
        lease_s=lease_s,
        host=environment.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost"),
        port=_environment_port(environment, "VLLM_NIXL_SIDE_CHANNEL_PORT", 5600, parser),
        enforces_compatibility=bool(extra.get("enforce_handshake_compat", True)),
    )


def _choose(parser: argparse.ArgumentParser, key: str, value: object, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        parser.error(f"argument --kv-transfer-config: {key} must be one of {', '.join(allowed)}, got {value!r}")
    return str(value)


def _events(
    config: dict[str, Any] | None, environment: Mapping[str, str], parser: argparse.ArgumentParser
) -> EventSettings:
    if config is None:
        return EventSettings()
    known = {
        "enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint", "buffer_steps", "hwm", "max_queue_size", "topic"
    }  # fmt: skip
    strange = sorted(set(config) - known)
    if strange:
        parser.error(f"argument --kv-events-config: Unexpected keyword argument {', '.join(strange)}")
    enabled = bool(config.get("enable_kv_cache_events", False))
    publisher = config.get("publisher") or ("zmq" if enabled else "null")
    if publisher not in ("zmq", "null"):
        parser.error(f"argument --kv-events-config: publisher must be zmq or null, got {publisher!r}")
    plain = {key: config[key] for key in known - {"enable_kv_cache_events", "publisher"} if key in config}
    integers = _truth(environment, "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", default=True)
    host = environment.get("VLLM_HOST_IP") or None
    found = {"enabled": enabled, "publisher": publisher, "integer_hashes": integers, "host": host, **plain}
    try:
        return msgspec.convert(found, EventSettings)
    except msgspec.ValidationError as error:
        parser.error(f"argument --kv-events-config: {error}")


def _hash_seed(environment: Mapping[str, str]) -> str:
    seed = environment.get("PYTHONHASHSEED", "")
    return seed if seed and seed != "random" else DEFAULT_SEED


def _truth(environment: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    value = environment.get(name)
    return default if value is None else value.strip().lower() in ("1", "true")


def _environment_port(environment: Mapping[str, str], name: str, default: int, parser: argparse.ArgumentParser) -> int:
    try:
        return _port(environment.get(name, str(default)))
    except argparse.ArgumentTypeError as error:
        return _refuse(parser, name, error)


def _environment_seconds(
    environment: Mapping[str, str], name: str, default: float, parser: argparse.ArgumentParser
) -> float:
    try:
        return _seconds(environment.get(name, str(default)))
    except argparse.ArgumentTypeError as error:
        return _refuse(parser, name, error)


def _refuse(parser: argparse.ArgumentParser, name: str, error: argparse.ArgumentTypeError) -> NoReturn:
    parser.error(f"environment variable {name}: {error}")
