"""The builder, with a stand-in for Go that writes what it is asked for, fails, or takes its time."""

import fcntl
import json
import shlex
import sys
import threading
from pathlib import Path

import pytest

from forebay_localcluster.build import BuildProgress, ensure_programs, go_build, lanes, telling_lines
from forebay_localcluster.errors import BuildError, ToolchainError
from forebay_localcluster.golang import Toolchain, build_toolchain, find_go, install_go, installed_go
from forebay_localcluster.locate import Source
from forebay_localcluster.pins import KUBERNETES, Program, modules_folder, read_modules
from forebay_localcluster.progress import PlainProgress, progress_line
from tests.localcluster.golden import Compare

MODULES = read_modules(modules_folder())
GO = """\
#!{python}
import json, os, pathlib, sys
arguments = sys.argv[1:]
if arguments[:2] == ["env", "GOVERSION"]:
    print("go{version}")
elif arguments[0] == "env":
    print(json.dumps({{"GOCACHE": os.environ.get("GOCACHE", "/nowhere"), "GOMODCACHE": "/nowhere"}}))
elif arguments[0] == "build":
    output, *packages = arguments[arguments.index("-o") + 1:]
    sys.stderr.write("go: downloading example.com/x v1.0.0\\nexample.com/x\\n")
    if {broken!r} in packages:
        sys.exit("# example.com/y\\ny.go:3:1: undefined: frobnicate")
    for package in packages:
        name = pathlib.Path(output, package.rpartition("/")[2]) if output.endswith("/") else pathlib.Path(output)
        name.write_text("#!/bin/sh\\n")
        name.chmod(0o755)
    with open({record!r}, "a") as record:
        print(json.dumps([os.getcwd(), os.environ["GOTOOLCHAIN"], os.environ["CGO_ENABLED"], arguments]), file=record)
"""


def stand_in_for_go(folder: Path, *, version: str = "1.30.1", broken: str = "none") -> Path:
    folder.mkdir(exist_ok=True)
    go = folder / "go"
    go.write_text(GO.format(python=sys.executable, version=version, broken=broken, record=str(folder / "record")))
    go.chmod(0o755)
    return go


def environment(tmp_path: Path) -> dict[str, str]:
    return {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}


def ignore(_progress: BuildProgress) -> None:
    pass


def test_what_is_missing_is_built_once_into_the_cache(tmp_path: Path):
    stand_in_for_go(tmp_path / "bin")
    reported: list[BuildProgress] = []
    programs = ensure_programs(reported.append, environment(tmp_path))
    assert set(programs) == set(Program)
    assert {located.source for located in programs.values()} == {Source.CACHE}
    assert set(reported[-1].done) == set(Program)
    assert reported[-1].total == len(Program)
    builds = [json.loads(line) for line in (tmp_path / "bin" / "record").read_text().splitlines()]
    assert len(builds) == len(MODULES), "one go build a module"
    assert {toolchain for _, toolchain, _, _ in builds} == {"local"}
    assert {cgo for _, _, cgo, _ in builds} == {"0"}
    ensure_programs(ignore, environment(tmp_path))
    assert len((tmp_path / "bin" / "record").read_text().splitlines()) == len(MODULES), "nothing was built again"


def test_only_what_is_missing_is_built(tmp_path: Path):
    stand_in_for_go(tmp_path / "bin")
    programs = ensure_programs(ignore, environment(tmp_path))
    programs[Program.SCHEDULER].path.unlink()
    (tmp_path / "bin" / "record").unlink()
    assert ensure_programs(ignore, environment(tmp_path))[Program.SCHEDULER].path.exists()
    (build,) = (tmp_path / "bin" / "record").read_text().splitlines()
    assert "kube-scheduler" in build
    assert "kubectl" not in build


def test_a_failed_build_shows_what_the_compiler_said(tmp_path: Path):
    stand_in_for_go(tmp_path / "bin", broken="helm.sh/helm/v4/cmd/helm")
    with pytest.raises(BuildError) as failure:
        ensure_programs(ignore, environment(tmp_path))
    assert failure.value.programs == (Program.HELM,)
    assert failure.value.last_lines == ("# example.com/y", "y.go:3:1: undefined: frobnicate")
    assert "undefined: frobnicate" in str(failure.value)
    assert not list((tmp_path / "cache" / "forebay" / "programs").glob("helm-*")), "no half-built program is left"
    assert not list((tmp_path / "cache" / "forebay" / "programs").glob(".build-*"))


def test_a_second_builder_waits_and_then_finds_everything_built(tmp_path: Path):
    stand_in_for_go(tmp_path / "bin")
    reported: list[str] = []
    waiting = threading.Event()

    def report(progress: BuildProgress) -> None:
        reported.append(progress.detail)
        waiting.set()

    programs = tmp_path / "cache" / "forebay" / "programs"
    programs.mkdir(parents=True)
    with (programs / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=ensure_programs, args=(report, environment(tmp_path)))
        second.start()
        assert waiting.wait(10)
    second.join(10)
    assert not second.is_alive()
    assert reported[0] == "waiting for another build on this machine"


def test_own_caches_are_dropped_after_the_build(tmp_path: Path):
    go = stand_in_for_go(tmp_path / "bin")
    toolchain = build_toolchain(go, tmp_path / "cache" / "forebay", environment(tmp_path))
    assert toolchain.own_caches == tuple(tmp_path / "cache" / "forebay" / "go" / name for name in ("build", "modules"))
    for own in toolchain.own_caches:
        own.mkdir(parents=True)
    ensure_programs(ignore, environment(tmp_path))
    assert not any(own.exists() for own in toolchain.own_caches)


def test_the_user_s_own_cache_is_used_where_there_is_one(tmp_path: Path):
    go = stand_in_for_go(tmp_path / "bin")
    (tmp_path / "mine").mkdir()
    toolchain = build_toolchain(go, tmp_path, environment(tmp_path) | {"GOCACHE": str(tmp_path / "mine")})
    assert toolchain.environment["GOCACHE"] == str(tmp_path / "mine")
    assert toolchain.own_caches == (tmp_path / "go" / "modules",)


@pytest.mark.parametrize(
    ("version", "usable"), [("1.25.9", False), ("1.26.0", False), ("1.26.7", True), ("1.27rc1", True)]
)
def test_go_on_path_is_used_when_every_module_may_be_built_with_it(version: str, usable: bool, tmp_path: Path):  # noqa: FBT001
    go = stand_in_for_go(tmp_path, version=version)
    assert find_go(MODULES, {"PATH": str(tmp_path)}) == (go if usable else None)


def test_the_wheel_s_go_is_kept_by_its_version(tmp_path: Path):
    assert installed_go(tmp_path) == tmp_path / "go" / "1.27.3" / "go" / "bin" / "go"


def test_build_commands_are_as_recorded(same_as_golden: Compare):
    toolchain = Toolchain(go=Path("/go/bin/go"), version="1.27.3", environment={}, own_caches=())
    commands = [go_build(toolchain, module, tuple(module.recipe.packages), output=Path("/out")) for module in MODULES]
    same_as_golden("build-commands.txt", "".join(f"{shlex.join(command)}\n" for command in commands))


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 1), (4, 1), (8, 2), (64, 3)])
def test_a_small_machine_builds_one_module_at_a_time(cores: int, expected: int):
    assert lanes(cores) == expected


def test_the_telling_lines_begin_at_the_first_complaint():
    noise = "".join(f"example.com/p{number}\n" for number in range(100))
    assert telling_lines(f"{noise}# example.com/q\nq.go:1: bad\nexample.com/r\n")[:2] == [
        "# example.com/q",
        "q.go:1: bad",
    ]
    downloads = "go: downloading x v1\n" * 50
    assert telling_lines(f"go: y: no such host\n{downloads}") == ["go: y: no such host"]
    assert len(telling_lines(noise)) <= 30


def progress(done: int, *, elapsed_s: float, building: tuple[Program, ...] = KUBERNETES) -> BuildProgress:
    return BuildProgress(
        total=7, done=tuple(Program)[:done], building=building, detail="412 packages compiled", elapsed_s=elapsed_s
    )


def test_a_line_says_what_is_built_n_of_m_and_for_how_long():
    line = progress_line(progress(1, elapsed_s=125.9, building=(Program.HELM,)))
    assert line == "[1/7] building helm: 412 packages compiled (2:05)"


def test_plain_progress_speaks_at_changes_and_every_thirty_seconds():
    lines: list[str] = []
    now = 0.0
    plain = PlainProgress(write=lines.append, clock=lambda: now)
    for second in range(65):
        now = float(second)
        plain(progress(1, elapsed_s=second))
    assert [line.rpartition("(")[2] for line in lines] == ["0:00)", "0:30)", "1:00)"]
    plain(progress(2, elapsed_s=65))
    assert lines[-1].startswith("[2/7]")


UV = """\
#!{python}
import pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
assert "--require-hashes" in sys.argv
if {fails}:
    sys.exit("error: no route to the index")
(target / "go" / "bin").mkdir(parents=True)
(target / "go" / "bin" / "go").write_text("")
"""


def stand_in_for_uv(folder: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    (folder / "uv").write_text(UV.format(python=sys.executable, fails=fails))
    (folder / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_go_is_installed_once_with_its_hashes_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stand_in_for_uv(tmp_path, monkeypatch, fails=False)
    go = install_go(tmp_path / "cache")
    assert go.exists()
    stand_in_for_uv(tmp_path, monkeypatch, fails=True)
    assert install_go(tmp_path / "cache") == go


def test_go_that_cannot_be_installed_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stand_in_for_uv(tmp_path, monkeypatch, fails=True)
    with pytest.raises(ToolchainError, match="no route to the index"):
        install_go(tmp_path / "cache")
    assert not installed_go(tmp_path / "cache").exists()
