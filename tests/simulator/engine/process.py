"""Simulated engines as real processes, for tests of what a client sees."""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from tests.support.bounds import NEVER_S

START_TIMEOUT_S = NEVER_S
CLIENT = httpx.Client(trust_env=False, timeout=30, limits=httpx.Limits(max_keepalive_connections=0))
"""One client for all: making one takes a tenth of a second."""
MODEL = "llama-3.1-8b"


@dataclass
class EngineProcess:
    """A running engine."""

    process: subprocess.Popen[str]
    port: int
    url: str
    start_s: float

    def get(self, path: str) -> httpx.Response:
        return CLIENT.get(self.url + path)

    def post(self, path: str, body: object = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return CLIENT.post(self.url + path, json=body, headers=named)

    def chat(self, text: str = "hi", **fields: object) -> httpx.Response:
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of this name with these labels."""
        found = 0.0
        for line in self.get("/metrics").text.splitlines():
            if line.startswith(name + "{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                found += float(line.rsplit(" ", 1)[1])
        return found

    def eventually(self, name: str, value: float, timeout_s: float = NEVER_S, **labels: str) -> None:
        """Wait until a metric has a value."""
        deadline = time.monotonic() + timeout_s
        while (last := self.metric(name, **labels)) != value:
            assert time.monotonic() < deadline, f"{name}{labels} is {last}, not {value}, after {timeout_s} s"
            time.sleep(0.02)

    def terminate(self) -> float:
        """Send SIGTERM and return the seconds until the process was gone."""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=NEVER_S)
        return time.monotonic() - begun


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that no other program is given meanwhile; one that sets SO_REUSEADDR, as vLLM does, can still listen on it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


@contextmanager
def running(*flags: str, model: str = MODEL, **environment: str) -> Iterator[EngineProcess]:
    """Start an engine on a free port; it is killed at the end if it still runs."""
    begun = time.monotonic()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "forebay_simulator.engine",
            "serve",
            model,
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            *flags,
        ],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        port = _await_port(process, begun)
        yield EngineProcess(process, port, f"http://127.0.0.1:{port}", time.monotonic() - begun)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stderr.close()


def _await_port(process: subprocess.Popen[str], begun: float) -> int:
    seen = ""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stderr, selectors.EVENT_READ)
        while time.monotonic() < begun + START_TIMEOUT_S:
            if not selector.select(0.2):
                continue
            line = process.stderr.readline()
            seen += line
            if match := re.search(r"Started engine .*:(\d+)$", line.strip()):
                return int(match[1])
            if not line:
                break
    raise AssertionError(f"the engine did not start (exit code {process.poll()}):\n{seen}")
