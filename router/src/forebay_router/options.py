"""Every flag of the router: its name, how its value is read, its default and its help, in the groups that --help shows."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from forebay_api.durations import parse_duration_s
from forebay_api.names import CONTROL_PORT, MESH_PORT, ROUTER_PORT

ENVIRONMENT_PREFIX = "FOREBAY_ROUTER_"


@dataclass(frozen=True, slots=True)
class HostPort:
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def host_port(text: str) -> HostPort:
    """HOST:PORT or [HOST]:PORT."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not HOST:PORT; write for example 0.0.0.0:8080")
    return HostPort(host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port))  # noqa: S104 - as asked for


def worker_url(text: str) -> str:
    """http://HOST:PORT of a worker, or https://HOST:PORT."""
    parts = urlsplit(text if "//" in text else f"http://{text}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in {"http", "https"} or not parts.hostname or port is None or parts.path not in {"", "/"}:
        raise ValueError(f"{text!r} is not a worker's address; write http://HOST:PORT without a path")
    return f"{parts.scheme}://{parts.netloc}"


def check_scheme(url: str, *, tls: bool) -> None:
    """An address must say what is done: ValueError when it does not."""
    if url.startswith("https:") and not tls:
        raise ValueError(f"{url} asks for TLS: give --worker-ca-file, or write http://")
    if url.startswith("http:") and tls:
        raise ValueError(f"{url} would be spoken to without TLS, but --worker-ca-file is given: write https://")


def peer_address(text: str) -> str:
    """tcp://HOST:PORT of another replica's mesh port."""
    parts = urlsplit(text if "//" in text else f"tcp://{text}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "tcp" or not parts.hostname or not port or parts.path:
        raise ValueError(f"{text!r} is not a peer's address; write tcp://HOST:{MESH_PORT}")
    return f"tcp://{parts.netloc}"


def duration_s(text: str) -> float:
    """A duration above zero, such as 500ms or 2m."""
    seconds = parse_duration_s(text)
    if seconds <= 0:
        raise ValueError(f"{text!r} must be above zero")
    return seconds


def duration_or_zero_s(text: str) -> float:
    """A duration, 0s included."""
    return parse_duration_s(text)


_SIZES = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def size_bytes(text: str) -> int:
    """A size, such as 64MiB."""
    found = re.fullmatch(r"([0-9]+)(KiB|MiB|GiB)?", text)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r} is not a size; write a number with KiB, MiB or GiB, such as 64MiB")
    return int(found[1]) * _SIZES[found[2] or ""]


def count(text: str) -> int:
    """A whole number from 1."""
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number from 1")
    return int(text)


def share(text: str) -> float:
    """A share in (0, 1]."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ValueError(f"{text!r} is not a share; write a number above 0 and at most 1, such as 0.99")
    return value


def model_folder(text: str) -> tuple[str, Path]:
    """MODEL=FOLDER."""
    model, separator, folder = text.partition("=")
    if not separator or not model or not folder:
        raise ValueError(f"{text!r} is not MODEL=FOLDER; write for example llama-3.1-8b=/etc/tokenizers/llama-3.1-8b")
    return model, Path(folder)


def one_of(*choices: str) -> Callable[[str], str]:
    """One of some words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return parse


@dataclass(frozen=True, slots=True)
class Option:
    """One flag."""

    flag: str
    parse: Callable[[str], Any]
    default: str | None
    metavar: str
    help: str
    many: bool = False

    @property
    def dest(self) -> str:
        """Attribute name."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """Environment variable."""
        return ENVIRONMENT_PREFIX + self.dest.upper()


GROUPS: tuple[tuple[str, tuple[Option, ...]], ...] = (
    (
        "Ports",
        (
            Option("--listen", host_port, f"0.0.0.0:{ROUTER_PORT}", "HOST:PORT", "clients: the OpenAI and Anthropic APIs"),
            Option("--control", host_port, f"0.0.0.0:{CONTROL_PORT}", "HOST:PORT", "/healthz /readyz /metrics /state"),
        ),
    ),
    (
        "Workers (give exactly one kind)",
        (
            Option("--workers", worker_url, None, "URL", "workers that prefill and decode", many=True),
            Option("--prefill-workers", worker_url, None, "URL", "workers that compute prompts", many=True),
            Option("--decode-workers", worker_url, None, "URL", "workers that write answers", many=True),
            Option("--worker-file", Path, None, "FILE", "services, pools and workers as YAML or JSON, followed as it changes"),
            Option("--namespace", str, None, "NAME", "with --kubernetes: watch these namespaces only (default: all)", many=True),
            Option("--kv-events-port", count, None, "PORT", "static workers publish KV events there, replays one above"),
            Option("--tokenizer", model_folder, None, "MODEL=FOLDER",
                   "tokenizer files of a model whose workers publish KV events: prompts are then matched exactly", many=True),
            Option("--probe-interval", duration_s, "1s", "TIME", "between health probes of a static worker"),
        ),
    ),
    (
        "Time limits (a ModelService's spec.routing has its own)",
        (
            Option("--connect-timeout", duration_s, "3s", "TIME", "for a connection to a worker"),
            Option("--first-byte-timeout", duration_s, "120s", "TIME", "until a stream begins; then another worker is tried"),
            Option("--idle-timeout", duration_s, "60s", "TIME", "longest silence within an answer"),
            Option("--total-timeout", duration_s, "1h", "TIME", "for a whole request"),
            Option("--hold-timeout", duration_s, "30s", "TIME", "a request may wait while there is no worker; then 503"),
            Option("--upstream-idle", duration_s, "3s", "TIME", "idle worker connections are kept; less than the engine's 5s"),
            Option("--client-idle", duration_s, "75s", "TIME", "idle client connections are kept"),
            Option("--keep-alive", duration_s, None, "TIME", "silence after which a stream gets a comment (default: never)"),
            Option("--client-request", duration_s, "60s", "TIME", "a client may take to send one request"),
        ),
    ),
    (
        "Bounds",
        (
            Option("--attempts", count, "3", "N", "attempts before an answer has begun, on different workers where there are"),
            Option("--hold-limit", count, "4000", "N", "requests that may wait, per model service and priority"),
            Option("--hold-bytes", size_bytes, "256MiB", "SIZE", "of their bodies, per model service and priority"),
            Option("--worker-limit", count, None, "N", "requests in flight on one worker; more wait (default: no limit)"),
            Option("--index-blocks", count, "400000", "N", "entries of the prefix index, 9 to 250 bytes each"),
            Option("--body-limit", size_bytes, "64MiB", "SIZE", "largest request body; above it 413"),
            Option("--bodies-limit", size_bytes, "256MiB", "SIZE", "request bodies held at once, together; above it 503"),
            Option("--head-limit", size_bytes, "64KiB", "SIZE", "largest request line and headers; above it 431"),
        ),
    ),
    (
        "Processes and replicas",
        (
            Option("--processes", count, "1", "N", "processes that share the port; one uses one core"),
            Option("--mesh", host_port, None, "HOST:PORT",
                   f"tell other replicas here what is sent where, such as 0.0.0.0:{MESH_PORT}"),
            Option("--peers", peer_address, None, "ADDRESS",
                   "other replicas' mesh ports; this one's own may be among them", many=True),
            Option("--peer-pods", str, None, "SELECTOR", "with --kubernetes: other replicas are the pods with these labels"),
            Option("--peer-namespace", str, None, "NAME", "namespace of these pods"),
            Option("--replica-name", str, None, "NAME",
                   "tells replicas apart, a pod's name for instance (default: host and mesh port)"),
        ),
    ),
    (
        "Shutdown",
        (
            Option("--shutdown-delay", duration_or_zero_s, None, "TIME",
                   "after SIGTERM, go on accepting while load balancers notice (default: 5s with --kubernetes, else 0s)"),
            Option("--drain-limit", duration_s, "10m", "TIME", "for accepted requests to end after SIGTERM"),
        ),
    ),
    (
        "Keys and certificates (files are followed as they change)",
        (
            Option("--api-keys", Path, None, "PATH", "file or directory of clients' API keys (default: no key is asked for)"),
            Option("--worker-key-file", Path, None, "FILE", "holds the key that workers ask for, the engine's --api-key"),
            Option("--tls-certificate", Path, None, "FILE", "certificate chain of the data port, PEM (default: no TLS)"),
            Option("--tls-key", Path, None, "FILE", "its private key, PEM, without a passphrase"),
            Option("--tls-control", one_of("on", "off"), "off", "on|off", "show the same certificate on the control port"),
            Option("--worker-ca-file", Path, None, "FILE", "speak TLS to workers, whose certificates this authority signed"),
            Option("--worker-tls-name", str, None, "NAME", "name in workers' certificates (default: each one's address)"),
        ),
    ),
    (
        "Objective of static workers (a ModelService has its own)",
        (
            Option("--objective-ttft", duration_s, "500ms", "TIME", "largest time to first token of a good request"),
            Option("--objective-tpot", duration_s, "25ms", "TIME", "largest mean time per output token of a good request"),
            Option("--objective-target", share, "0.99", "SHARE", "share of requests that must be good"),
        ),
    ),
    (
        "Web pages, logs and traces",
        (
            Option("--cors-origin", str, None, "ORIGIN", "web origins that may call the router, or * (default: none)", many=True),
            Option("--explain", one_of("on", "off"), "on", "on|off", "tell the choice to requests with x-forebay-explain: 1"),
            Option("--trace-share", share, None, "SHARE",
                   "share of requests that are traced with OpenTelemetry, to where the OTEL_* variables say (default: off)"),
            Option("--access-log", one_of("off", "errors", "all"), "errors", "off|errors|all", "which requests get a log line"),
            Option("--log-level", one_of("debug", "info", "warning", "error"), "info", "LEVEL", "debug, info, warning or error"),
        ),
    ),
)  # fmt: skip
OPTIONS = tuple(option for _, options in GROUPS for option in options)
