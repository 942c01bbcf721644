"""Where the programs are on this machine.

Four places are asked in turn, the first that has a program wins:

1. `FOREBAY_BIN_DIR`: taken as it is, of whatever version. Who sets it means it.
2. `KUBEBUILDER_ASSETS`: envtest's folder. It was set for another project, so only the exactly pinned version counts.
3. `PATH`: likewise, only the exactly pinned version.
4. The cache: `<cache>/programs/<name>-<version>-<key>/<name>`. The folder's name says all, so nothing is run to ask.

A folder in the cache appears by a rename (see `build`), so a program found there is whole.
"""

import enum
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from forebay_localcluster.errors import LocalClusterError, ProgramsMissingError, VersionSkewError
from forebay_localcluster.pins import (
    KUBERNETES,
    VERSION_ARGUMENTS,
    Module,
    Program,
    matches_pin,
    modules_folder,
    parse_version,
    read_modules,
)

VERSION_TIMEOUT_S = 20
"""A program that takes longer to say its version is taken for broken."""


class Source(enum.StrEnum):
    """Where a program was found."""

    BIN_DIR = "FOREBAY_BIN_DIR"
    ENVTEST = "KUBEBUILDER_ASSETS"
    PATH = "PATH"
    CACHE = "cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A program that can be run."""

    program: Program
    path: Path
    version: str
    """Without the leading `v`."""
    source: Source


Programs = Mapping[Program, Located]


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return Forebay's cache folder: `${XDG_CACHE_HOME:-~/.cache}/forebay`."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay"


def cached_path(cache: Path, program: Program, module: Module) -> Path:
    """Return where the cache keeps a program of a module, whether it is there or not."""
    return cache / "programs" / f"{program}-{module.version}-{module.key}" / program


def locate_programs(environment: Mapping[str, str] = os.environ) -> Programs:
    """Return every program of the local cluster; raise `ProgramsMissingError` or `VersionSkewError`."""
    found = find_programs(read_modules(modules_folder()), environment)
    missing = [program for program in Program if program not in found]
    if missing:
        raise ProgramsMissingError(missing)
    refuse_skew(found)
    return found


def find_programs(modules: Iterable[Module], environment: Mapping[str, str]) -> dict[Program, Located]:
    """Return those programs of the modules that are on this machine, asking them in parallel for their versions."""
    wanted = [(program, module) for module in modules for program in module.recipe.packages]
    with ThreadPoolExecutor(max_workers=4) as pool:
        found = pool.map(lambda pair: _find(pair[0], pair[1], environment), wanted)
    return {located.program: located for located in found if located}


def refuse_skew(found: Programs) -> None:
    """Raise `VersionSkewError` unless all Kubernetes programs are of one minor release."""
    versions = {str(name): found[name].version for name in KUBERNETES if name in found}
    minors = {tuple(version.split(".")[:2]) for version in versions.values()}
    if len(minors) > 1:
        raise VersionSkewError(versions)


def ask_version(program: Program, path: Path) -> str | None:
    """Return the version a program prints about itself; None when it prints none or cannot be run."""
    arguments = VERSION_ARGUMENTS.get(program, ("--version",))
    try:
        answer = subprocess.run(  # noqa: S603 -- a program of ours or one the user named
            [path, *arguments], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stdout) if answer.returncode == 0 else None


def _find(program: Program, module: Module, environment: Mapping[str, str]) -> Located | None:
    own = environment.get(Source.BIN_DIR)
    if own and (path := _executable(Path(own) / program)):
        version = ask_version(program, path)
        if version is None:
            raise LocalClusterError(f"FOREBAY_BIN_DIR: {path} does not say its version; replace or remove it")
        return Located(program=program, path=path, version=version, source=Source.BIN_DIR)
    for source, folders in (
        (Source.ENVTEST, environment.get("KUBEBUILDER_ASSETS")),
        (Source.PATH, environment.get("PATH")),
    ):
        path = _executable_on(folders, program)
        version = ask_version(program, path) if path else None
        if path and version and matches_pin(program, found=version, pinned=module.version):
            return Located(program=program, path=path, version=version, source=source)
    path = _executable(cached_path(cache_folder(environment), program, module))
    return Located(program=program, path=path, version=module.version, source=Source.CACHE) if path else None


def _executable(path: Path) -> Path | None:
    return path.absolute() if path.is_file() and os.access(path, os.X_OK) else None


def _executable_on(folders: str | None, program: Program) -> Path | None:
    found = shutil.which(program, path=folders) if folders else None
    return Path(found).absolute() if found else None
