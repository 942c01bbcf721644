"""Dynamo in an environment of its own, in a cache outside the checkout: made once, 1 GB or less, needs no GPU.

ai-dynamo, ai-dynamo-runtime 1.6.1    router, planner, mocker and the replay that ties them together
aisimulate, a development build       its simulator; the release that 1.6.1 asks for, 0.13.0, is a stub
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

RELEASE = "1.6.1"
WITHOUT_DEPENDENCIES = (
    f"ai-dynamo=={RELEASE}",
    f"ai-dynamo-runtime=={RELEASE}",
    "aisimulate==0.13.0.dev202610270000000085",
)
DEPENDENCIES = (
    "pydantic", "numpy", "msgspec", "pyyaml", "filterpy", "pmdarima", "scipy", "scikit-learn", "pandas", "prophet",
    "kubernetes", "prometheus-client", "prometheus-api-client", "aiohttp", "httpx", "fastapi", "uvicorn", "uvloop",
    "plotly", "grpcio", "protobuf",
)  # fmt: skip
"""What replay and planner import; the whole list would bring torch and CUDA."""
TIMEOUT_S = 3600.0


def home() -> Path:
    """Where the environment is."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "forebay" / f"dynamo-{RELEASE}"


def install() -> Path:
    """The interpreter of the environment, made where it is missing."""
    python = home() / "venv" / "bin" / "python"
    ready = home() / ".ready"
    if not ready.exists():
        print(f"installing Dynamo {RELEASE} into {home()}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", home() / "venv"], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", *WITHOUT_DEPENDENCIES], check=True)
        subprocess.run([*pip, *DEPENDENCIES], check=True)
        ready.touch()
    return python


def replay(python: Path, job: dict[str, Any]) -> dict[str, float]:
    """The figures of one replay; RuntimeError with the end of its log where it fails."""
    done = subprocess.run(
        [python, Path(__file__).with_name("drive.py")],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(Path.home()), "DYN_LOG": "error"},
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"Dynamo's replay failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(lines[-1])
    return found
