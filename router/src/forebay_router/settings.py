"""Settings: flags and environment, parsed once into one frozen object.

Every flag has an environment variable, FOREBAY_ROUTER_ and the flag's name in capitals; a flag wins over its variable. A wrong
value ends the start with a sentence that names the flag (or variable) and what to write instead.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_api.modelservice import Role
from forebay_router.access_log import AccessLogMode
from forebay_router.compilation import version_line
from forebay_router.options import ENVIRONMENT_PREFIX, GROUPS, OPTIONS, HostPort, Option, check_scheme
from forebay_router.processes.part import PART_VARIABLE
from forebay_router.protection import ProtectionSettings, protection_settings
from forebay_router.replicas import ReplicaSettings, read_replica_settings


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one router process."""

    listen: HostPort
    control: HostPort
    workers: tuple[tuple[str, Role], ...]
    """Static workers; empty with kubernetes."""
    worker_file: Path | None
    """Lists services and workers; None without it."""
    kubernetes: bool
    namespaces: tuple[str, ...]
    """Watched namespaces; empty is all of them."""
    probe_interval_s: float
    attempts: int
    connect_timeout_s: float
    first_byte_timeout_s: float
    idle_timeout_s: float
    total_timeout_s: float
    hold_timeout_s: float
    hold_limit: int
    hold_bytes: int
    worker_limit: int | None
    index_blocks: int
    """Prompt blocks that the prefix index keeps, over all workers."""
    explain: bool
    kv_events_port: int | None
    """Of static workers."""
    tokenizers: tuple[tuple[str, Path], ...]
    """Model and the folder with its tokenizer files."""
    upstream_idle_s: float
    body_limit_bytes: int
    head_limit_bytes: int
    client_idle_s: float
    client_request_s: float
    shutdown_delay_s: float
    drain_limit_s: float
    cors_origins: tuple[str, ...]
    objective_ttft_s: float
    objective_tpot_s: float
    objective_target: float
    trace_share: float | None
    """Of requests that bring no trace; None turns tracing off."""
    access_log: AccessLogMode
    log_level: str
    protection: ProtectionSettings
    replica: ReplicaSettings


_DESCRIPTION = """Sends each request for a language model to the worker that will answer it in time.

  forebay-router --workers http://10.0.0.1:8000 http://10.0.0.2:8000
  forebay-router --prefill-workers http://10.0.0.1:8000 --decode-workers http://10.0.0.2:8000
  forebay-router --kubernetes --namespace models"""
_EPILOG = f"""Each flag can be given as an environment variable: {ENVIRONMENT_PREFIX} and its name in capitals, with _ for -,
such as {ENVIRONMENT_PREFIX}HOLD_TIMEOUT=10s; several values are separated by spaces. A flag wins over its variable.
TIME is a number with ms, s, m or h. SIZE is a number with KiB, MiB or GiB."""


def _help(option: Option) -> str:
    return option.help + (f" (default: {option.default})" if option.default is not None else "")


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="forebay-router",
        usage="forebay-router (--kubernetes | --workers URL... | --prefill-workers URL... --decode-workers URL... | "
        "--worker-file FILE) [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=40, width=118),
    )
    parser.add_argument(
        "--version", action="version", version=version_line(), help="version, and whether it is compiled"
    )
    for title, options in GROUPS:
        group = parser.add_argument_group(title)
        if title.startswith("Workers"):
            group.add_argument(
                "--kubernetes", action="store_true", help="watch worker pods and model services of a cluster"
            )
        for option in options:
            group.add_argument(
                option.flag,
                metavar=option.metavar,
                help=_help(option).replace("%", "%%"),
                nargs="+" if option.many else None,
            )
    return parser


def _value(option: Option, given: Any, environment: Mapping[str, str]) -> Any:
    """The parsed value of an option; ValueError names where it came from."""
    source = option.flag
    text = given
    if text is None and option.variable in environment:
        source = option.variable
        text = environment[option.variable]
        if option.many:
            text = text.split()
    if text is None:
        text = option.default
    if text is None:
        return () if option.many else None
    try:
        if option.many:
            return tuple(option.parse(item) for item in text)
        return option.parse(text)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def _static_workers(values: Mapping[str, Any]) -> tuple[tuple[str, Role], ...]:
    """Static workers with their roles; ValueError when the kinds are mixed up."""
    mixed, prefill, decode = values["workers"], values["prefill_workers"], values["decode_workers"]
    kinds = [
        flag
        for flag, given in (
            ("--workers", mixed),
            ("--prefill-workers with --decode-workers", prefill or decode),
            ("--worker-file", values["worker_file"]),
            ("--kubernetes", values["kubernetes"]),
        )
        if given
    ]
    if len(kinds) != 1:
        stated = " and ".join(kinds) if kinds else "none"
        raise ValueError(
            "give exactly one of --workers, --prefill-workers with --decode-workers, --worker-file, --kubernetes; "
            f"given: {stated}"
        )
    if prefill and not decode:
        raise ValueError("--prefill-workers needs --decode-workers: add the workers that write the answers")
    if values["namespace"] and not values["kubernetes"]:
        raise ValueError("--namespace works with --kubernetes only: remove it, or add --kubernetes")
    for url in (*mixed, *prefill, *decode):
        check_scheme(url, tls=values["worker_ca_file"] is not None)
    roles = [(url, Role.MIXED) for url in mixed]
    roles += [(url, Role.PREFILL) for url in prefill] + [(url, Role.DECODE) for url in decode]
    return tuple(dict.fromkeys(roles))


def build_settings(values: Mapping[str, Any]) -> Settings:
    """Settings from parsed values; ValueError names a flag and the fix."""
    kubernetes = bool(values["kubernetes"])
    workers = _static_workers(values)
    delay_s = values["shutdown_delay"]
    if values["upstream_idle"] >= 5:
        raise ValueError("--upstream-idle must be below the engine's keep-alive of 5s: write for example 3s")
    return Settings(
        listen=values["listen"],
        control=values["control"],
        workers=workers,
        worker_file=values["worker_file"],
        kubernetes=kubernetes,
        namespaces=values["namespace"],
        probe_interval_s=values["probe_interval"],
        attempts=values["attempts"],
        connect_timeout_s=values["connect_timeout"],
        first_byte_timeout_s=values["first_byte_timeout"],
        idle_timeout_s=values["idle_timeout"],
        total_timeout_s=values["total_timeout"],
        hold_timeout_s=values["hold_timeout"],
        hold_limit=values["hold_limit"],
        hold_bytes=values["hold_bytes"],
        worker_limit=values["worker_limit"],
        index_blocks=values["index_blocks"],
        explain=values["explain"] == "on",
        kv_events_port=values["kv_events_port"],
        tokenizers=values["tokenizer"],
        upstream_idle_s=values["upstream_idle"],
        body_limit_bytes=values["body_limit"],
        head_limit_bytes=values["head_limit"],
        client_idle_s=values["client_idle"],
        client_request_s=values["client_request"],
        shutdown_delay_s=delay_s if delay_s is not None else (5.0 if kubernetes else 0.0),
        drain_limit_s=values["drain_limit"],
        cors_origins=values["cors_origin"],
        objective_ttft_s=values["objective_ttft"],
        objective_tpot_s=values["objective_tpot"],
        objective_target=values["objective_target"],
        trace_share=values["trace_share"],
        access_log=AccessLogMode(values["access_log"]),
        log_level=values["log_level"],
        protection=protection_settings(values),
        replica=read_replica_settings(values),
    )


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings from a command line and an environment; a wrong value ends the program with a sentence (exit code 2)."""
    parser = build_parser()
    given = vars(parser.parse_args(arguments))
    in_environment = environment.get(ENVIRONMENT_PREFIX + "KUBERNETES", "").lower() in {"1", "true", "yes"}
    try:
        values = {option.dest: _value(option, given[option.dest], environment) for option in OPTIONS}
        values["kubernetes"] = given["kubernetes"] or in_environment
        values["part"] = environment.get(PART_VARIABLE)
        return build_settings(values)
    except ValueError as error:
        parser.error(str(error))
