"""Which programs the local cluster is made of, and which version of each.

The pins are the Go modules below `deploy/local/`: `go.mod` says the version, `go.sum` what the source must hash to. There
is no second list of versions: what `--version` must say, the `-ldflags` that make it say so, and the key of the cache
(a hash of go.mod, go.sum and the flags) are all derived from those two files here. Everything is pure but the reading.

Versions are written without the leading `v`. Prometheus numbers its module apart from its releases (module v0.316.0 is
release 3.16.0), so a released binary is recognised by either spelling.
"""

import enum
import hashlib
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forebay_localcluster.errors import LocalClusterError

GO_FLAGS = "-mod=readonly -buildvcs=false"


class Program(enum.StrEnum):
    """A program of the local cluster, by the name of its executable."""

    ETCD = "etcd"
    API_SERVER = "kube-apiserver"
    CONTROLLER_MANAGER = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    KUBECTL = "kubectl"
    HELM = "helm"
    PROMETHEUS = "prometheus"


KUBERNETES = (Program.API_SERVER, Program.CONTROLLER_MANAGER, Program.SCHEDULER, Program.KUBECTL)

VERSION_ARGUMENTS: Mapping[Program, tuple[str, ...]] = {
    Program.KUBECTL: ("version", "--client"),
    Program.HELM: ("version", "--template", "helm {{.Version}}"),
}
"""How to ask a program for its version, where `--version` is not the way."""

_VERSION_LINE = re.compile(
    r"^(?:etcd Version: |Kubernetes v|Client Version: v|helm v|prometheus, version )(\d+\.\d+\.\d+[\w.+-]*)",
    re.MULTILINE,
)
_REQUIREMENT = re.compile(r"^\s*(?:require\s+)?(\S+)\s+v(\S+)", re.MULTILINE)
_GO_DIRECTIVE = re.compile(r"^go (\d+(?:\.\d+)+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One Go module below `deploy/local/` and the commands that are built from it."""

    folder: str
    """The module's folder below `deploy/local/`."""
    requirement: str
    """The required module whose version is the programs' version."""
    packages: Mapping[Program, str]
    """The package of each command."""
    version_variable: str | None
    """The variable that `-ldflags -X` sets to the version; None where the source has its version."""
    version_prefix: str = ""
    """What stands before the version in that variable."""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A recipe with what its go.mod and go.sum say."""

    recipe: Recipe
    path: Path
    """The module's folder."""
    version: str
    """The programs' version."""
    go_minimum: tuple[int, ...]
    """The oldest Go that may build it."""
    key: str
    """Changes with everything that changes the built programs: sources, flags, platform."""


RECIPES = (
    Recipe(
        folder="etcd",
        requirement="go.etcd.io/etcd/server/v3",
        packages={Program.ETCD: "go.etcd.io/etcd/server/v3"},
        version_variable=None,
    ),
    Recipe(
        folder="kubernetes",
        requirement="k8s.io/kubernetes",
        packages={name: f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES},
        version_variable="k8s.io/component-base/version.gitVersion",
        version_prefix="v",
    ),
    Recipe(
        folder="helm",
        requirement="helm.sh/helm/v4",
        packages={Program.HELM: "helm.sh/helm/v4/cmd/helm"},
        version_variable="helm.sh/helm/v4/internal/version.version",
        version_prefix="v",
    ),
    Recipe(
        folder="prometheus",
        requirement="github.com/prometheus/prometheus",
        packages={Program.PROMETHEUS: "github.com/prometheus/prometheus/cmd/prometheus"},
        version_variable="github.com/prometheus/common/version.Version",
        # Of all service discoveries only Kubernetes', and no web pages: the API is whole.
        tags=("netgo", "remove_all_sd", "enable_kubernetes_sd"),
    ),
)


def modules_folder() -> Path:
    """Return the folder of the pinned modules in this checkout."""
    folder = Path(__file__).resolve().parents[3] / "deploy" / "local"
    if not folder.is_dir():
        raise LocalClusterError(
            f"no pinned programs at {folder}: the local cluster works from a checkout of Forebay only"
        )
    return folder


def read_modules(folder: Path) -> tuple[Module, ...]:
    """Read every pinned module below `folder`."""
    return tuple(
        build_module(
            recipe,
            path=folder / recipe.folder,
            go_mod=(folder / recipe.folder / "go.mod").read_text(),
            go_sum=(folder / recipe.folder / "go.sum").read_text(),
        )
        for recipe in RECIPES
    )


def build_module(recipe: Recipe, *, path: Path, go_mod: str, go_sum: str) -> Module:
    """Derive version, oldest Go and cache key from a module's two files."""
    version = required_version(go_mod, recipe.requirement)
    parts = (go_mod, go_sum, GO_FLAGS, linker_flags(recipe, version), *recipe.tags, platform.machine())
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return Module(recipe=recipe, path=path, version=version, go_minimum=go_directive(go_mod), key=digest[:12])


def required_version(go_mod: str, module: str) -> str:
    """Return the version, without `v`, at which a go.mod requires `module`."""
    for name, version in _REQUIREMENT.findall(go_mod):
        if name == module:
            return str(version)
    raise LocalClusterError(f"go.mod does not require {module}; add it with: go get {module}")


def go_directive(go_mod: str) -> tuple[int, ...]:
    """Return the oldest Go a go.mod accepts, such as (1, 26, 7)."""
    found = _GO_DIRECTIVE.search(go_mod)
    return parse_numbers(found.group(1)) if found else (1,)


def parse_numbers(version: str) -> tuple[int, ...]:
    """Return the leading dotted numbers of a version for comparison: `1.26.7` and `1.27rc1` give (1, 26, 7) and (1, 27)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in found.group().split(".")) if found else ()


def linker_flags(recipe: Recipe, version: str) -> str:
    """Return `-ldflags`: no symbols, no debug information, and the version the program reports."""
    flags = ["-s", "-w"]
    if recipe.version_variable:
        flags += ["-X", f"{recipe.version_variable}={recipe.version_prefix}{version}"]
    if Program.API_SERVER in recipe.packages:
        major, minor, *_ = version.split(".")
        package = "k8s.io/component-base/version"
        flags += ["-X", f"{package}.gitMajor={major}", "-X", f"{package}.gitMinor={minor}"]
        flags += ["-X", f"{package}.gitTreeState=clean"]
    return " ".join(flags)


def parse_version(output: str) -> str | None:
    """Return the version in what a program printed about itself, without `v`; None when there is none."""
    found = _VERSION_LINE.search(output)
    return found.group(1) if found else None


def matches_pin(program: Program, *, found: str, pinned: str) -> bool:
    """Say whether a version found is exactly the pinned one."""
    return found == pinned or (program is Program.PROMETHEUS and found == release_of_module(pinned))


def release_of_module(version: str) -> str:
    """Return the release number of a Prometheus module version: 0.316.0 is release 3.16.0."""
    zero, series, patch = version.split(".", 2)
    return f"{int(series) // 100}.{int(series) % 100}.{patch}" if zero == "0" else version
