"""What a supervisor runs: programs, what each needs before it starts, and how one sees that it is ready.

The plan is data, written as JSON by who starts the cluster and read by the supervisor, which therefore knows nothing of
Kubernetes. `after` makes a graph: a program starts when everything it names is ready, and is stopped before it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from forebay_localcluster.errors import LocalClusterError

READY_TIMEOUT_S = 60.0
"""A program that is not ready by then has failed to start; generous, for machines under load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCheck:
    """Ready when a GET answers 200."""

    url: str
    authority: str | None = None
    """Path of the authority that the server's certificate must be signed by."""
    certificate: str | None = None
    key: str | None = None
    """Paths of the client's certificate and key."""


@dataclass(frozen=True, slots=True)
class FileCheck:
    """Ready when a file exists."""

    path: str


@dataclass(frozen=True, slots=True)
class LogCheck:
    """Ready when the program has written a text, in this run."""

    text: str


Check = HttpCheck | FileCheck | LogCheck
_CHECKS: Mapping[str, type[HttpCheck] | type[FileCheck] | type[LogCheck]] = {
    "http": HttpCheck,
    "file": FileCheck,
    "log": LogCheck,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPlan:
    """One program to run."""

    name: str
    argv: tuple[str, ...]
    log: str
    """Path of the file its output goes to."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of the supervisor's own."""
    after: tuple[str, ...] = ()
    """Programs that must be ready first."""
    ready: tuple[Check, ...] = ()
    """All must hold; without any, a program is ready when it runs."""
    runs_once: bool = False
    """Ready when it has ended with 0, rather than while it runs."""
    ready_timeout_s: float = READY_TIMEOUT_S
    stop_grace_s: float = 1.5
    """How long it may take to end after SIGTERM; then it is killed."""
    version: str = ""
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a supervisor needs to know."""

    name: str
    number: int
    """The cluster's number among those that run on this machine."""
    owned: bool
    """Everything ends with the process that started it."""
    disposable: bool
    """The data folder goes when the owner is gone."""
    programs: tuple[ProgramPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraProgram:
    """A program that the caller wants to run beside the control plane, such as a simulated node.

    It starts when the control plane is ready and is ended first. It must end its own children when it is told to end
    (SIGTERM) and let them die with it when it is killed (PR_SET_PDEATHSIG).
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Check | None = None
    version: str = ""
    port: int | None = None
    stop_grace_s: float = 4.0


def plan_extra(extra: ExtraProgram, *, log: Path, after: Iterable[str]) -> ProgramPlan:
    """Return how an extra program is run."""
    return ProgramPlan(
        name=extra.name,
        argv=extra.argv,
        log=str(log),
        environment=extra.environment,
        after=tuple(after),
        ready=(extra.ready,) if extra.ready else (),
        version=extra.version,
        port=extra.port,
        stop_grace_s=extra.stop_grace_s,
    )


def stop_waves(programs: Iterable[ProgramPlan]) -> list[list[str]]:
    """Return the names in the order of ending: nothing ends before all that started after it; a wave ends together."""
    remaining = {program.name: program for program in programs}
    waves: list[list[str]] = []
    while remaining:
        needed = {name for program in remaining.values() for name in program.after}
        wave = [name for name in remaining if name not in needed]
        if not wave:
            raise LocalClusterError(f"programs wait for one another: {sorted(remaining)}")
        waves.append(wave)
        for name in wave:
            del remaining[name]
    return waves


def check_plan(plan: Plan) -> None:
    """Raise `LocalClusterError` unless every program has a name of its own and waits for programs of the plan only."""
    names = [program.name for program in plan.programs]
    for name in names:
        if names.count(name) > 1:
            raise LocalClusterError(f"two programs are named {name!r}; rename one")
    for program in plan.programs:
        if unknown := set(program.after) - set(names):
            raise LocalClusterError(
                f"{program.name} is to start after {', '.join(sorted(unknown))}, which is not planned"
            )
    stop_waves(plan.programs)


def dump_plan(plan: Plan) -> str:
    """Return a plan as JSON."""
    programs = [dump_program(program) for program in plan.programs]
    return json.dumps(asdict(plan) | {"programs": programs}, indent=1)


def load_plan(text: str) -> Plan:
    """Return the plan that `dump_plan` wrote."""
    fields: dict[str, Any] = json.loads(text)
    return Plan(**fields | {"programs": tuple(load_program(program) for program in fields["programs"])})


def dump_program(program: ProgramPlan) -> dict[str, Any]:
    """Return a program of a plan as JSON-able fields."""
    kinds = {check: kind for kind, check in _CHECKS.items()}
    return asdict(program) | {"ready": [{"kind": kinds[type(check)]} | asdict(check) for check in program.ready]}


def load_program(fields: Mapping[str, Any]) -> ProgramPlan:
    """Return the program that `dump_program` wrote."""
    ready = tuple(_load_check(check) for check in fields["ready"])
    sequences = {name: tuple(fields[name]) for name in ("argv", "after")}
    return ProgramPlan(**{**fields, **sequences, "ready": ready})


def _load_check(fields: Mapping[str, Any]) -> Check:
    return _CHECKS[fields["kind"]](**{name: value for name, value in fields.items() if name != "kind"})
