"""Settings: command line first, then environment (FOREBAY_*), then default; parsed once into a frozen object."""

import argparse
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

from forebay_api.durations import parse_duration_s
from forebay_api.names import AUTOSCALER_MANAGER, CONTROL_PORT
from forebay_autoscaler.policy import Tuning

SERVICE_ACCOUNT_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
ATTAINMENT_WINDOWS: Final = 5
STATUS_INTERVAL_MIN_S: Final = 5.0
STATE_MAPS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one process. Times in seconds."""

    prometheus_url: str
    prometheus_token_file: str | None
    prometheus_ca_file: str | None
    namespaces: tuple[str, ...]
    """Watched namespaces; all when empty."""
    control_host: str
    control_port: int
    interval_s: float
    attainment_window_s: float
    stale_after_s: float
    status_interval_s: float
    timeout_s: float
    """Longest time of one call to Prometheus or the API server."""
    tuning: Tuning
    elects: bool
    lease_name: str
    lease_namespace: str
    identity: str
    wake_interval_s: float
    kubeconfig: str | None
    state_maps: int
    """ConfigMaps that states are saved in; 0 saves none."""
    state_interval_s: float
    history: int
    history_file: str | None
    history_file_megabytes: int
    log_level: str


@dataclass(frozen=True, slots=True)
class _Option:
    flag: str
    default: str | None
    parse: Callable[[str], object]
    help: str
    metavar: str

    @property
    def variable(self) -> str:
        return "FOREBAY_" + self.flag.removeprefix("--").replace("-", "_").upper()


def _duration(text: str) -> float:
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be longer than zero")
    return seconds


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 0.0.0.0:{CONTROL_PORT}")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 (a pod's port is reached from outside it)


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL such as http://prometheus.monitoring:9090")
    return text


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) > STATE_MAPS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {STATE_MAPS_MAX}")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.replace(",", " ").split() if name)


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise argparse.ArgumentTypeError(f"{text!r} is none of DEBUG, INFO, WARNING, ERROR")
    return text.upper()


_OPTIONS: Final = (
    _Option(
        "--prometheus-url", None, _url, "Prometheus, Thanos or Mimir that scrapes router and workers (required)", "URL"
    ),
    _Option(
        "--prometheus-token-file",
        None,
        str,
        "file with a bearer token for Prometheus, read anew for each request",
        "FILE",
    ),
    _Option("--prometheus-ca-file", None, str, "certificate authority of Prometheus", "FILE"),
    _Option("--namespaces", "", _names, "namespaces to work in, separated by commas; all when empty", "NAMES"),
    _Option(
        "--control",
        f"0.0.0.0:{CONTROL_PORT}",
        _address,
        "address of /healthz, /readyz, /metrics and /decisions",
        "HOST:PORT",
    ),
    _Option("--interval", "10s", _duration, "time between two decisions", "TIME"),
    _Option("--rate-window", "1m", _duration, "window of rates; at least four scrape intervals", "TIME"),
    _Option(
        "--burst-window", "35s", _duration, "short window that sees a step early; at least two scrape intervals", "TIME"
    ),
    _Option(
        "--attainment-window",
        None,
        _duration,
        "window of attainment and goodput in status; five rate windows by default",
        "TIME",
    ),
    _Option("--stale-after", "1m", _duration, "age at which data is not acted on any more", "TIME"),
    _Option(
        "--drain-horizon",
        None,
        _duration,
        "time in which waiting requests should be worked off; a quarter of the rate window by default",
        "TIME",
    ),
    _Option(
        "--status-interval",
        None,
        _duration,
        "shortest time between two status writes for changed numbers alone; the interval by default, at least 5s",
        "TIME",
    ),
    _Option("--timeout", "5s", _duration, "longest time of one call to Prometheus or the API server", "TIME"),
    _Option("--leader-election", "true", _switch, "whether replicas elect the one that acts", "BOOL"),
    _Option("--lease-name", AUTOSCALER_MANAGER, str, "name of the election's Lease", "NAME"),
    _Option("--lease-namespace", None, str, "namespace of the Lease; the pod's own by default", "NAME"),
    _Option(
        "--identity", None, str, "unique name of this replica; the pod's name, or the host's with a random part", "NAME"
    ),
    _Option(
        "--wake-interval",
        "2s",
        _duration,
        "while a pool sleeps, time between two looks at what routers hold, asked of themselves; routers in the Lease's namespace",
        "TIME",
    ),
    _Option("--kubeconfig", None, str, "kubeconfig file, outside a cluster", "FILE"),
    _Option(
        "--state-maps",
        "1",
        _count,
        "ConfigMaps beside the Lease that hold what was learnt, one for about 70 model services; 0 saves nothing",
        "NUMBER",
    ),
    _Option("--state-interval", "30s", _duration, "shortest time between two writes of one of them", "TIME"),
    _Option("--history", "2000", _positive, "decisions kept for /decisions", "NUMBER"),
    _Option(
        "--history-file",
        None,
        str,
        "file that each decision is appended to with its inputs, for `forebay replay --from-history`; none by default",
        "FILE",
    ),
    _Option(
        "--history-file-megabytes", "64", _positive, "most that the file and the one before it take together", "NUMBER"
    ),
    _Option("--log-level", "INFO", _level, "DEBUG, INFO, WARNING or ERROR", "LEVEL"),
)


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings from arguments and environment. Exits with status 2 and a sentence when one is missing or wrong."""
    parser = build_parser(environment)
    given = vars(parser.parse_args(arguments))
    if given["prometheus_url"] is None:
        parser.error(
            "--prometheus-url (or FOREBAY_PROMETHEUS_URL) is required, such as http://prometheus.monitoring:9090"
        )
    if given["burst_window"] > given["rate_window"]:
        parser.error("--burst-window must not be longer than --rate-window")
    host, port = given["control"]
    return Settings(
        prometheus_url=given["prometheus_url"],
        prometheus_token_file=given["prometheus_token_file"],
        prometheus_ca_file=given["prometheus_ca_file"],
        namespaces=given["namespaces"],
        control_host=host,
        control_port=port,
        interval_s=given["interval"],
        attainment_window_s=given["attainment_window"] or ATTAINMENT_WINDOWS * given["rate_window"],
        stale_after_s=given["stale_after"],
        status_interval_s=given["status_interval"] or max(STATUS_INTERVAL_MIN_S, given["interval"]),
        timeout_s=given["timeout"],
        tuning=Tuning(
            rate_window_s=given["rate_window"],
            burst_window_s=given["burst_window"],
            drain_horizon_s=given["drain_horizon"] or given["rate_window"] / 4,
            startup_s=2 * given["rate_window"],
        ),
        elects=given["leader_election"],
        lease_name=given["lease_name"],
        lease_namespace=given["lease_namespace"] or _own_namespace(),
        identity=given["identity"] or environment.get("POD_NAME") or f"{socket.gethostname()}-{uuid4().hex[:8]}",
        wake_interval_s=given["wake_interval"],
        kubeconfig=given["kubeconfig"],
        state_maps=given["state_maps"],
        state_interval_s=given["state_interval"],
        history=given["history"],
        history_file=given["history_file"],
        history_file_megabytes=given["history_file_megabytes"],
        log_level=given["log_level"],
    )


def build_parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """The command line; values in the environment become defaults and are checked like arguments."""
    parser = argparse.ArgumentParser(
        prog="forebay-autoscaler",
        description="Resizes the worker pools of ModelServices so that requests meet their objective at the fewest GPU-hours.",
        epilog="Times are written as in a spec: 500ms, 2.5s, 1m30s. Each option may be given as an environment variable.",
    )
    for option in _OPTIONS:
        shown = f" [{option.variable}" + (f", default {option.default}]" if option.default else "]")
        parser.add_argument(
            option.flag,
            type=option.parse,
            default=environment.get(option.variable) or option.default,
            help=option.help + shown,
            metavar=option.metavar,
        )
    return parser


def _own_namespace() -> str:
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text().strip()
    except OSError:
        return "default"


def documented_options() -> list[tuple[str, str, str | None, str]]:
    """Flag, environment variable, default and meaning of every option; the documentation is tested against it."""
    return [(option.flag, option.variable, option.default, option.help) for option in _OPTIONS]


def environment_of_process() -> Mapping[str, str]:
    """The process's environment, read in this one place."""
    return os.environ
