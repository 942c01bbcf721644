"""The supervisor with small programs of the tests' own: what starts when, and that nothing ever outlives it.

Every program here writes a file of its process id, so that a test can say of each process whether it lives.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from forebay_localcluster.cluster import Cluster
from forebay_localcluster.errors import ClusterNotRunningError, ClusterStartError, ControlError, LocalClusterError
from forebay_localcluster.launch import launch, locked
from forebay_localcluster.plan import Check, ExtraProgram, FileCheck, LogCheck, Plan, ProgramPlan, dump_plan
from tests.support.eventually import eventually

SERVING = LogCheck("serving")
SERVE = """
import os, pathlib, signal, sys, time
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
def end(number, frame):
    with open(folder / "ended", "a") as file: file.write(name + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
with open(folder / "started", "a") as file: file.write(name + "\\n")
(folder / f"{name}.pid").write_text(str(os.getpid()))
print("serving", flush=True)
while True: time.sleep(60)
"""
"""Starts, says so, and ends when it is told to."""

STUBBORN = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
(folder / f"{name}.pid").write_text(str(os.getpid()))
print("serving", flush=True)
while True: time.sleep(60)
"""
"""Does not end when it is told to."""

CARELESS = """
import os, pathlib, subprocess, sys, time
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
(folder / f"{name}.child.pid").write_text(str(child.pid))
(folder / f"{name}.pid").write_text(str(os.getpid()))
print("serving", flush=True)
while True: time.sleep(60)
"""
"""Has a child process that it leaves behind when it is killed."""

FORGETFUL = CARELESS.replace("start_new_session=True", "start_new_session=True, env={}")
"""Its child does not even have the environment by which it could be found."""

FAILING = """
import sys
for number in range(100): print("line", number)
print("this is why", file=sys.stderr, flush=True)
sys.exit(3)
"""


class Bench:
    """A cluster of small programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster("bench", data=folder / "data")
        self.cluster.layout.make_folders()

    def program(
        self, name: str, source: str = SERVE, *, after: tuple[str, ...] = (), ready: Check = SERVING
    ) -> ProgramPlan:
        return ProgramPlan(
            name=name,
            argv=(sys.executable, "-c", source, name, str(self.folder)),
            log=str(self.cluster.layout.log(name)),
            after=after,
            ready=(ready,),
            ready_timeout_s=10,
            stop_grace_s=1,
        )

    def start(self, *programs: ProgramPlan, owned: bool = False, disposable: bool = False) -> list[tuple[str, str]]:
        plan = Plan(name="bench", number=1, owned=owned, disposable=disposable, programs=programs)
        self.cluster.layout.plan.write_text(dump_plan(plan))
        heard: list[tuple[str, str]] = []
        with locked(self.cluster.layout) as lock:
            launch(self.cluster.layout, lock=lock, claims=[], owned=owned, heard=lambda *event: heard.append(event))
        return heard

    def pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text())

    def lines(self, file: str) -> list[str]:
        path = self.folder / file
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.cluster.down()


def lives(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def dies(*pids: int) -> None:
    eventually(
        lambda: [pid for pid in pids if lives(pid)], lambda left: not left, within_s=5, what="all end", every_s=0.05
    )


def test_a_program_starts_when_what_it_needs_is_ready(bench: Bench):
    heard = bench.start(
        bench.program("third", after=("second",)), bench.program("second", after=("first",)), bench.program("first")
    )
    assert bench.lines("started") == ["first", "second", "third"]
    assert heard == [(name, state) for name in ("first", "second", "third") for state in ("starting", "ready")]


def test_down_ends_everything_in_the_reverse_order(bench: Bench):
    bench.start(bench.program("a"), bench.program("b", after=("a",)), bench.program("c", after=("b",)))
    pids = [bench.pid(name) for name in "abc"] + [bench.cluster.supervisor_pid()]
    assert bench.cluster.down(keep=True)
    assert not [pid for pid in pids if lives(pid)]
    assert bench.lines("ended") == ["c", "b", "a"]


def test_down_can_be_said_again(bench: Bench):
    bench.start(bench.program("a"))
    assert bench.cluster.down()
    assert not bench.cluster.down()
    assert not bench.cluster.data.exists()


def test_down_kills_who_does_not_end_and_what_was_left_behind(bench: Bench):
    bench.start(bench.program("stubborn", STUBBORN), bench.program("careless", CARELESS))
    pids = [bench.pid(name) for name in ("stubborn", "careless", "careless.child")]
    started = time.monotonic()
    bench.cluster.down()
    assert time.monotonic() - started < 5
    assert not [pid for pid in pids if lives(pid)]


def test_children_of_a_killed_program_are_found_at_the_end(bench: Bench):
    bench.start(bench.program("forgetful", FORGETFUL))
    child = bench.pid("forgetful.child")
    bench.cluster.kill("forgetful")
    assert lives(child), "this program is careless; that is what the test needs"
    bench.cluster.down()
    assert not lives(child)


def test_a_killed_supervisor_leaves_no_program(bench: Bench):
    bench.start(bench.program("a"), bench.program("b", STUBBORN))
    pids = [bench.pid("a"), bench.pid("b")]
    os.kill(bench.cluster.supervisor_pid(), signal.SIGKILL)
    dies(*pids)
    assert not bench.cluster.running


def test_what_a_killed_supervisor_left_is_killed_by_down(bench: Bench):
    bench.start(bench.program("careless", CARELESS))
    child = bench.pid("careless.child")
    os.kill(bench.cluster.supervisor_pid(), signal.SIGKILL)
    dies(bench.pid("careless"))
    assert bench.cluster.down()
    assert not lives(child)


OWNER = """
import sys, time
from pathlib import Path
from tests.localcluster.test_supervisor import Bench, CARELESS
bench = Bench(Path(sys.argv[1]))
bench.start(bench.program("a"), bench.program("careless", CARELESS), owned=True, disposable=True)
print("up", flush=True)
time.sleep(600)
"""


def test_a_killed_owner_takes_everything_along(bench: Bench):
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", OWNER, str(bench.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as owner:
        assert owner.stdout
        assert owner.stdout.readline() == "up\n"
        pids = [bench.pid(name) for name in ("a", "careless", "careless.child")]
        pids.append(bench.cluster.supervisor_pid())
        assert all(lives(pid) for pid in pids)
        owner.kill()
    dies(*pids)
    assert not bench.cluster.data.exists(), "a disposable cluster's data goes too"


def test_a_detached_cluster_outlives_who_started_it(bench: Bench):
    owner = OWNER.replace("owned=True, disposable=True", "owned=False").replace("time.sleep(600)", "")
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", owner, str(bench.folder)], check=True, cwd=root, capture_output=True)
    assert bench.cluster.running
    assert lives(bench.pid("a"))


def test_a_starter_that_dies_meanwhile_leaves_no_half_started_cluster(bench: Bench):
    never = bench.program("a", ready=FileCheck(str(bench.folder / "never")))

    def interrupt(program: str, state: str) -> None:
        eventually(lambda: bench.pid("a"), bool, within_s=10, what="the program runs", every_s=0.02)
        raise KeyboardInterrupt

    bench.cluster.layout.plan.write_text(
        dump_plan(Plan(name="bench", number=1, owned=False, disposable=False, programs=(never,)))
    )
    with pytest.raises(KeyboardInterrupt), locked(bench.cluster.layout) as lock:
        launch(bench.cluster.layout, lock=lock, claims=[], owned=False, heard=interrupt)
    dies(bench.pid("a"))
    assert not bench.cluster.running


def test_a_failed_start_shows_the_program_s_last_lines_and_ends_the_rest(bench: Bench):
    with pytest.raises(ClusterStartError) as failure:
        bench.start(bench.program("good"), bench.program("bad", FAILING, after=("good",)))
    assert failure.value.program == "bad"
    assert failure.value.reason == "ended before it was ready (exit code 3)"
    assert failure.value.last_lines[-2:] == ("line 99", "this is why")
    assert len(failure.value.last_lines) == 20
    assert "import sys" in failure.value.command
    assert not lives(bench.pid("good")), "the error is raised when everything has ended"
    assert not bench.cluster.running


def test_a_program_that_cannot_be_run_is_named(bench: Bench):
    missing = ProgramPlan(name="missing", argv=("/no/such/program",), log=str(bench.cluster.layout.log("missing")))
    with pytest.raises(ClusterStartError, match=r"missing cannot be run \(No such file or directory\)"):
        bench.start(missing)


def test_a_program_that_takes_too_long_is_named_with_its_bound(bench: Bench):
    slow = bench.program("slow", ready=FileCheck("/no/such/file"))
    with pytest.raises(ClusterStartError, match=r"slow was not ready within 0\.5 s"):
        bench.start(replace(slow, ready_timeout_s=0.5))


def test_a_program_that_runs_once_is_ready_when_it_has_ended_well(bench: Bench):
    once = replace(bench.program("once", "print('done')"), runs_once=True, ready=())
    heard = bench.start(once, bench.program("then", after=("once",)))
    assert ("once", "done") in heard
    assert heard.index(("once", "done")) < heard.index(("then", "starting"))


def test_a_killed_program_stays_down_until_it_is_started_again(bench: Bench):
    bench.start(bench.program("a"))
    first = bench.pid("a")
    bench.cluster.kill("a")
    assert not lives(first)
    (killed,) = bench.cluster.programs_status()
    assert (killed.state, killed.pid, killed.ended) == ("killed", None, "killed by SIGKILL")
    bench.cluster.start_program("a")
    (again,) = bench.cluster.programs_status()
    assert again.state == "ready"
    assert again.pid == bench.pid("a") != first


def test_a_program_that_ended_by_itself_is_told_and_not_restarted(bench: Bench):
    bench.start(bench.program("a"))
    os.kill(bench.pid("a"), signal.SIGSEGV)
    (ended,) = eventually(
        bench.cluster.programs_status, lambda seen: seen[0].pid is None, within_s=5, what="its end is seen"
    )
    assert (ended.state, ended.ended) == ("ended", "killed by SIGSEGV")
    assert bench.cluster.running


def test_status_says_since_when_and_with_how_much_memory(bench: Bench):
    before = time.time()
    bench.start(bench.program("a"))
    (status,) = bench.cluster.programs_status()
    assert status.started_at
    assert before <= status.started_at <= time.time()
    assert status.memory_bytes > 1 << 20
    assert status.pid == bench.pid("a")


@pytest.mark.parametrize(
    ("act", "complaint"),
    [
        (lambda cluster: cluster.kill("b"), "no program 'b' in this cluster; there is: a"),
        (lambda cluster: cluster.start_program("a"), "a runs already, pid"),
        (lambda cluster: cluster.add_program(ExtraProgram(name="a", argv=("true",))), "there is a program 'a'"),
        (lambda cluster: cluster.port("a"), "a is no listening program"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(bench: Bench, act: Callable[[Cluster], object], complaint: str):
    bench.start(bench.program("a"))
    with pytest.raises(ControlError, match=complaint):
        act(bench.cluster)


def test_a_program_is_not_started_without_what_it_needs(bench: Bench):
    bench.start(bench.program("a"), bench.program("b", after=("a",)))
    bench.cluster.kill("b")
    bench.cluster.kill("a")
    with pytest.raises(ControlError, match="b needs a; start that first"):
        bench.cluster.start_program("b")


def test_a_program_can_be_added_and_ends_with_the_rest(bench: Bench):
    bench.start(bench.program("a"))
    bench.cluster.add_program(
        ExtraProgram(
            name="extra", argv=(sys.executable, "-c", SERVE, "extra", str(bench.folder)), ready=LogCheck("serving")
        )
    )
    assert [status.name for status in bench.cluster.programs_status()] == ["a", "extra"]
    pid = bench.pid("extra")
    bench.cluster.down()
    assert not lives(pid)


def test_an_added_program_that_fails_leaves_the_cluster_up(bench: Bench):
    bench.start(bench.program("a"))
    with pytest.raises(ClusterStartError, match="this is why"):
        bench.cluster.add_program(
            ExtraProgram(name="bad", argv=(sys.executable, "-c", FAILING), ready=LogCheck("serving"))
        )
    assert bench.cluster.running


def test_two_starters_of_one_folder_do_not_both_start(bench: Bench):
    bench.start(bench.program("a"))
    with (
        pytest.raises(LocalClusterError, match="is being started or ended by someone else"),
        locked(bench.cluster.layout),
    ):
        pytest.fail("the lock was given twice")
    assert bench.cluster.supervisor_pid() == int(bench.cluster.layout.lock.read_text())


def test_a_cluster_that_is_not_up_says_how_to_start_it(tmp_path: Path):
    with pytest.raises(ClusterNotRunningError, match="forebay cluster up --name x"):
        Cluster("x", data=tmp_path / "none").programs_status()


def test_a_long_folder_name_does_not_matter(tmp_path: Path):
    """A Unix socket's path is limited to 107 bytes."""
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)
    bench = Bench(folder)
    try:
        bench.start(bench.program("a"))
        assert bench.cluster.running
    finally:
        bench.cluster.down()
