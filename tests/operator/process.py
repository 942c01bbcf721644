"""An operator as a process of its own, against a real API server, with no more rights than the chart gives it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

START_TIMEOUT_S = 60.0


@dataclass
class OperatorProcess:
    """One running operator."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    refused_at_start: float = 0
    """Calls that an API server refused before it had read the rights it goes by, as it does for a moment when it begins anew."""

    def refused(self) -> float:
        """Calls that the API server refused for want of a right, those told of apart."""
        return self.metric("forebay_operator_api_errors_total", code="403") - self.refused_at_start

    def ready(self) -> dict[str, Any]:
        """What /readyz says."""
        answer: dict[str, Any] = httpx.get(f"http://127.0.0.1:{self.port}/readyz", trust_env=False, timeout=5).json()
        return answer

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series with these labels."""
        page = httpx.get(f"http://127.0.0.1:{self.port}/metrics", trust_env=False, timeout=5).text
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(one in line for one in wanted))

    def lines(self) -> list[dict[str, Any]]:
        """The log, one object a line."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextmanager
def running(
    kubeconfig: Path, folder: Path, *, port: int, name: str = "op", until_ready: bool = True, **variables: str
) -> Iterator[OperatorProcess]:
    """An operator that ends with the block. Short times, so that tests are."""
    environment = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "FOREBAY_CONTROL": f"127.0.0.1:{port}",
        "FOREBAY_IDENTITY": name,
        "FOREBAY_LEASE_NAMESPACE": "default",
        "FOREBAY_WORKER_HOST": "$(POD_IP)",
        "FOREBAY_PROBE_PERIOD": "1s",
        "FOREBAY_PRESTOP_DELAY": "1s",
        **variables,
    }
    log = folder / f"{name}-{port}.log"
    with log.open("wb") as written:
        command = [sys.executable, "-m", "forebay_operator"]
        process = subprocess.Popen(command, env=environment, stdout=written, stderr=subprocess.STDOUT)
        try:
            made = OperatorProcess(process, port, log)
            _wait_until(made, "ready" if until_ready else "answering")
            yield made
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _wait_until(operator: OperatorProcess, state: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert operator.process.poll() is None, operator.log.read_text()
        try:
            if operator.ready()["ready"] or state == "answering":
                return
        except (httpx.HTTPError, ValueError):
            pass
        time.sleep(0.1)
    raise AssertionError(f"not {state} within {START_TIMEOUT_S:g} s: {operator.log.read_text()}")
