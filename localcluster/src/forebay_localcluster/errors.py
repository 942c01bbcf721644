"""What can go wrong with the local cluster, as one tree.

- `LocalClusterError`
  - `ProgramsMissingError`: programs are neither on this machine nor in the cache
  - `VersionSkewError`: the Kubernetes programs found are of different releases
  - `BuildError`: a program could not be built
  - `ToolchainError`: no usable Go, and none could be installed
  - `ClusterStartError`: a program of the cluster did not become ready
  - `ClusterNotRunningError`: the request needs a running cluster
  - `ControlError`: the supervisor refused a request
  - `CommandError`: kubectl or helm ended with an error
  - `NoFreePortError`: no port is left in the range
  - `NoSuchLogError`: no program and no pod goes by that name

Each text says what to do next; each class carries its facts as fields.
"""

from collections.abc import Sequence
from pathlib import Path


class LocalClusterError(Exception):
    """An expected failure of the local cluster; its text is meant for a person."""


class ProgramsMissingError(LocalClusterError):
    """Programs are neither on this machine nor in the cache."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"not on this machine: {', '.join(names)}. Build them once: forebay cluster build")
        self.names = tuple(names)


class VersionSkewError(LocalClusterError):
    """The Kubernetes programs found are of different releases and may not work with one another."""

    def __init__(self, versions: dict[str, str]) -> None:
        found = ", ".join(f"{name} {version}" for name, version in versions.items())
        super().__init__(
            f"Kubernetes programs of different releases: {found}. "
            "Put a complete set into FOREBAY_BIN_DIR, or unset it to use the pinned one."
        )
        self.versions = versions


class BuildError(LocalClusterError):
    """A program could not be built; `last_lines` is what the compiler said."""

    def __init__(self, *, programs: Sequence[str], command: str, last_lines: Sequence[str]) -> None:
        said = "\n".join(f"    {line}" for line in last_lines) or "    (no output)"
        super().__init__(f"building {', '.join(programs)} failed:\n{said}\n  command: {command}")
        self.programs = tuple(programs)
        self.command = command
        self.last_lines = tuple(last_lines)


class ToolchainError(LocalClusterError):
    """No Go that is new enough, and none could be installed."""


class ClusterStartError(LocalClusterError):
    """A program of the cluster did not become ready; everything that had been started has been ended."""

    def __init__(self, *, program: str, reason: str, command: str, last_lines: Sequence[str], log: Path) -> None:
        said = "\n".join(f"    {line}" for line in last_lines) or "    (it wrote nothing)"
        super().__init__(f"{program} {reason}. Its last lines:\n{said}\n  command: {command}\n  log: {log}")
        self.program = program
        self.reason = reason
        self.command = command
        self.last_lines = tuple(last_lines)
        self.log = log


class ClusterNotRunningError(LocalClusterError):
    """The request needs a running cluster, and this one is not up."""

    def __init__(self, name: str) -> None:
        super().__init__(f"cluster {name!r} is not up. Start it: forebay cluster up --name {name}")
        self.name = name


class ControlError(LocalClusterError):
    """The supervisor refused a request, or did not answer within its bound."""


class CommandError(LocalClusterError):
    """kubectl or helm ended with an error."""

    def __init__(self, *, command: str, code: int, stderr: str) -> None:
        super().__init__(f"{command} ended with {code}: {stderr.strip() or '(no message)'}")
        self.command = command
        self.code = code
        self.stderr = stderr


class NoFreePortError(LocalClusterError):
    """No port is left in the range that clusters take theirs from."""


class NoSuchLogError(LocalClusterError):
    """No program and no pod of this cluster goes by that name."""

    def __init__(self, query: str, known: Sequence[str]) -> None:
        super().__init__(f"nothing logs as {query!r}. There is: {', '.join(known) or '(nothing yet)'}")
        self.query = query
        self.known = tuple(known)
