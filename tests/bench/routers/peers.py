"""The routers that are compared, and how the others are installed: each into a virtual environment of its own.

Forebay runs compiled (`make compiled-router`), and once more interpreted; where it cannot be compiled, interpreted only.

nginx is the floor of what a proxy costs; it is used when it is on PATH (Debian: nginx-light). The others come from PyPI at the
versions below, once, into $XDG_CACHE_HOME/forebay/peers (~/.cache), outside of the checkout.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

HOME = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "forebay" / "peers"
_ROOT = Path(__file__).parents[3]
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

_NGINX = """worker_processes 1; daemon off; pid {folder}/nginx.pid;
events {{ worker_connections 8192; }}
http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; client_max_body_size 64m; client_body_buffer_size 2m;
  keepalive_requests 1000000000; upstream workers {{ {servers} keepalive 512; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port} backlog=2048; location / {{ proxy_pass http://workers; proxy_http_version 1.1;
    proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout 600s; }} }} }}
"""


@dataclass(frozen=True)
class Place:
    """Where a router is to run."""

    port: int
    metrics_port: int
    workers: tuple[str, ...]
    """URLs."""
    folder: Path

    @property
    def halves(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Prefill and decode workers."""
        half = len(self.workers) // 2
        return self.workers[:half], self.workers[half:]


@dataclass(frozen=True)
class Router:
    """One router in one configuration."""

    name: str
    command: Callable[[Place], list[str]]
    package: str | None = None
    """Pinned requirement, where it comes from PyPI."""
    split: bool = False
    """Prefill and decode apart."""
    compiled: bool = False
    """Ours, compiled."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment_folder(self) -> Path:
        assert self.package is not None
        return HOME / self.package.replace("==", "-")

    def install(self) -> bool:
        """Make it there; False where it cannot be."""
        if self.compiled:
            return compiled_router() is not None
        if self.package is None:
            return self.name != "nginx" or shutil.which("nginx") is not None
        if not (self.environment_folder / "done").exists():
            print(f"installing {self.package} into {self.environment_folder}", flush=True)
            self.environment_folder.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", self.environment_folder], check=True)
            pip = [self.environment_folder / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "install", self.package], check=True)
            (self.environment_folder / "done").touch()
        return True

    def program(self, name: str) -> str:
        return str(self.environment_folder / "bin" / name)


def _nginx(place: Place) -> list[str]:
    servers = " ".join(f"server {url.removeprefix('http://')};" for url in place.workers)
    file = place.folder / "nginx.conf"
    file.write_text(_NGINX.format(folder=place.folder, port=place.port, servers=servers))
    return ["nginx", "-p", str(place.folder), "-c", str(file), "-e", str(place.folder / "nginx.errors")]


@cache
def compiled_router() -> str | None:
    """The program that runs the compiled router, made where it is out of date; None where it cannot be, with a message."""
    made = subprocess.run(
        [sys.executable, _ROOT / "router/compiling.py", _ROOT / "build/compiled"],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    return made.stdout.strip() if made.returncode == 0 else None


def _forebay(name: str, workers: Callable[[Place], list[str]], *, compiled: bool, split: bool = False) -> Router:
    def command(place: Place) -> list[str]:
        program = [str(compiled_router())] if compiled else [sys.executable, "-m", "forebay_router"]
        listen = ["--listen", f"127.0.0.1:{place.port}", "--control", f"127.0.0.1:{place.metrics_port}"]
        return [*program, *listen, *workers(place)]

    return Router(name, command, split=split, compiled=compiled)


def _mixed(place: Place) -> list[str]:
    return ["--workers", *place.workers]


def _pairs(place: Place) -> list[str]:
    return ["--prefill-workers", *place.halves[0], "--decode-workers", *place.halves[1]]


def _rust(place: Place) -> list[str]:
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(place.metrics_port)]
    return ["--host", "127.0.0.1", "--port", str(place.port), *metrics]


VLLM = "vllm-router==0.1.17"
SGLANG = "sglang-router==0.3.2"
SMG = "smg==1.13.0"


def _split_arguments(place: Place) -> list[str]:
    prefill, decode = place.halves
    return [word for url in prefill for word in ("--prefill", url)] + [
        word for url in decode for word in ("--decode", url)
    ]


def _program(package: str, name: str) -> str:
    return Router(name, lambda _: [], package).program(name)


ROUTERS = (
    Router("nginx", _nginx),
    Router(
        "vllm-rr",
        lambda place: [
            _program(VLLM, "vllm-router"), *_rust(place), "--log-level", "warning", "--policy", "round_robin",
            "--worker-urls", *place.workers,
        ],
        VLLM,
    ),
    Router(
        "vllm-ca",
        lambda place: [
            _program(VLLM, "vllm-router"), *_rust(place), "--log-level", "warning", "--policy", "cache_aware",
            "--worker-urls", *place.workers,
        ],
        VLLM,
    ),
    Router(
        "sglang-ca",
        lambda place: [
            _program(SGLANG, "sglang-router"), "launch", *_rust(place), "--log-level", "warn", "--policy", "cache_aware",
            "--worker-urls", *place.workers,
        ],
        SGLANG, environment=_OFFLINE,
    ),
    Router(
        "smg-ca",
        lambda place: [
            _program(SMG, "smg"), "launch", *_rust(place), "--log-level", "warn", "--disable-tokenizer-autoload",
            "--policy", "cache_aware", "--worker-urls", *place.workers,
        ],
        SMG, environment=_OFFLINE,
    ),
    _forebay("forebay", _mixed, compiled=True),
    _forebay("forebay-2", lambda place: [*_mixed(place), "--processes", "2"], compiled=True),
    _forebay("forebay-interpreted", _mixed, compiled=False),
    Router(
        "vllm-pd",
        lambda place: [
            _program(VLLM, "vllm-router"), *_rust(place), "--log-level", "warning", "--policy", "cache_aware",
            "--vllm-pd-disaggregation", *_split_arguments(place),
        ],
        VLLM, split=True,
    ),
    _forebay("forebay-pd", _pairs, compiled=True, split=True),
    _forebay("forebay-pd-interpreted", _pairs, compiled=False, split=True),
)  # fmt: skip
