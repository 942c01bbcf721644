"""Where answers come from: the captures, a simulated engine, or a real vLLM (marker real_engine).

A test asks its source and asserts on the answer; it does not know which source it has. A real engine is found by
FOREBAY_REAL_VLLM (the `vllm` program) and FOREBAY_REAL_MODEL (a tiny model's folder), as `make real-engine` sets up.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.simulator.engine.process import CLIENT, EngineProcess, reserved_port, running

from .captured import Answer, captured

NAME = "tiny-llama"
BLOCK_SIZE = 32
MAX_MODEL_LEN = 2048
REAL_START_TIMEOUT_S = 400.0
"""The first start after an installation compiles and reads everything; later ones take 20 s."""
FLAGS = (
    "--served-model-name", NAME, "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "8",
    "--block-size", str(BLOCK_SIZE), "--num-gpu-blocks-override", "256",
    "--enable-prompt-tokens-details", "--enable-server-load-tracking", "--enable-request-id-headers",
)  # fmt: skip
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_HOST_IP": "127.0.0.1"}
EVENTS = '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:0","replay_endpoint":"tcp://*:0","topic":"kv@test"}'
_WORDS = (
    "question",
    "engine",
    "answer",
    "year",
    "system",
    "server",
    "queue",
    "user",
    "message",
    "router",
    "people",
    "cache",
)


def words(count: int, seed: object = None) -> str:
    """Return a text of so many words, another one each time unless a seed is given."""
    chosen = random.Random(seed if seed is not None else time.time_ns())
    return " ".join(chosen.choice(_WORDS) for _ in range(count))


@dataclass
class Ask:
    """One request, and where its captured answer is."""

    file: str
    number: int
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"
    raw: bytes | None = None


class Source:
    """Answers requests."""

    kind = ""

    def ask(self, ask: Ask) -> Answer:
        raise NotImplementedError


class CapturedSource(Source):
    """Answers from the files."""

    kind = "captured"

    def ask(self, ask: Ask) -> Answer:
        found = captured(ask.file)[ask.number]
        assert (found.method, found.path) == (ask.method, ask.path), "the test names another exchange"
        return found.answer


class LiveSource(Source):
    """Answers from a running engine."""

    def __init__(self, kind: str, engine: EngineProcess) -> None:
        self.kind = kind
        self.engine = engine

    def ask(self, ask: Ask) -> Answer:
        headers = dict(ask.headers)
        content = ask.raw
        if ask.method == "POST" and content is None:
            response = CLIENT.post(self.engine.url + ask.path, json=ask.body, headers=headers)
        else:
            response = CLIENT.request(ask.method, self.engine.url + ask.path, content=content, headers=headers)
        return Answer(response.status_code, dict(response.headers), response.text.strip("\n"))


@contextmanager
def simulated(*flags: str, **environment: str) -> Iterator[EngineProcess]:
    """Start a simulated engine with the captures' flags and these."""
    with running(*FLAGS, *flags, **{**ENVIRONMENT, "FOREBAY_SIM_SPEED": "10", **environment}) as engine:
        yield engine


@contextmanager
def real(*flags: str, **environment: str) -> Iterator[EngineProcess]:
    """Start a real engine with the captures' flags and these."""
    program, model = os.environ.get("FOREBAY_REAL_VLLM"), os.environ.get("FOREBAY_REAL_MODEL")
    if not program or not model:
        pytest.skip("no real engine: set FOREBAY_REAL_VLLM and FOREBAY_REAL_MODEL (see `make real-engine`)")
    tiny = (
        "--dtype", "float32", "--kv-cache-memory-bytes", "64M", "--enforce-eager", "--seed", "0",
        "--generation-config", "vllm", "--distributed-executor-backend", "uni",
    )  # fmt: skip
    offline = {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOOPBACK_IP": "127.0.0.1", "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "UCX_NET_DEVICES": "lo",
    }  # fmt: skip
    # Seconds pass before it binds its port: another program that got the port meanwhile would answer in its place.
    with reserved_port() as port, tempfile.TemporaryDirectory() as scratch:
        process = subprocess.Popen(
            [program, "serve", model, "--host", "127.0.0.1", "--port", str(port), *FLAGS, *tiny, *flags],
            env={**os.environ, **offline, "TMPDIR": scratch, **ENVIRONMENT, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        try:
            engine = EngineProcess(process, port, f"http://127.0.0.1:{port}", 0.0)
            _await_health(engine)
            yield engine
        finally:
            _stop(process)


def _await_health(engine: EngineProcess) -> None:
    begun = time.monotonic()
    while True:
        assert engine.process.poll() is None, f"vllm ended with {engine.process.returncode}"
        assert time.monotonic() < begun + REAL_START_TIMEOUT_S, "vllm is not ready"
        try:
            if engine.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the engine's core is a process of its own
        process.wait()


STARTERS = {"simulated": simulated, "real": real}
ALL = ["captured", "simulated", pytest.param("real", marks=[pytest.mark.real_engine, pytest.mark.timeout(500)])]
LIVE = ALL[1:]
