"""The launcher with real processes: what a container sees, what the machine keeps, and what ends with what."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from forebay_simulator.node.errors import LauncherGoneError, ProgramError
from forebay_simulator.node.launch_protocol import Mount, Start
from forebay_simulator.node.processes import Exit, Processes
from tests.support.bounds import NEVER_S

ENVIRONMENT = {"PATH": os.environ["PATH"], "GREETING": "hello"}


class Machine:
    """Starts containers under a temporary folder."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self.processes = processes
        self.folder = folder

    async def start(self, script: str, **fields) -> tuple[int, int]:
        """The id and the machine's process number of a shell that runs `script`."""
        identifier = self.processes.new_id()
        root = self.folder / f"root-{identifier}"
        root.mkdir()
        request = Start(
            id=identifier,
            argv=fields.pop("argv", ("sh", "-c", script)),
            environment=ENVIRONMENT,
            working_directory=fields.pop("working_directory", "/"),
            log_file=str(self.folder / f"log-{identifier}"),
            root_directory=str(root),
            hostname="pod-1",
            **fields,
        )
        return identifier, await self.processes.start(request)

    async def run(self, script: str, **fields) -> tuple[Exit, str]:
        """How a shell ended and what it printed."""
        identifier, _ = await self.start(script, **fields)
        async with asyncio.timeout(NEVER_S):
            ended = await self.processes.wait(identifier)
        return ended, (self.folder / f"log-{identifier}").read_text()

    def volume(self, name: str, **files: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        for file, content in files.items():
            (folder / file).write_text(content)
        return folder


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    async with Processes(tmp_path / "scratch", lock) as processes:
        yield Machine(processes, tmp_path)
    os.close(lock)


def running(*argv: str) -> bool:
    return any(process.info["cmdline"] == list(argv) for process in psutil.process_iter(["cmdline"]))


def top_folders() -> set[str]:
    return {entry.name for entry in Path("/").iterdir()}


def wait_gone(*process_ids: int) -> None:
    deadline_s = time.monotonic() + NEVER_S
    while any(psutil.pid_exists(number) for number in process_ids):
        assert time.monotonic() < deadline_s, f"still there: {process_ids}"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("exit 0", Exit(0, None)),
        ("exit 3", Exit(3, None)),
        ("sh -c 'kill -9 $$'; exit $?", Exit(137, None)),
    ],
)
async def test_exit_codes_come_back(machine: Machine, script: str, ended: Exit):
    assert (await machine.run(script))[0] == ended


async def test_a_container_has_its_own_host_name_processes_and_environment(machine: Machine):
    _, printed = await machine.run("hostname; echo $$; echo $GREETING; env | wc -l; ls /proc | grep -c '^[0-9]'")
    name, process_id, greeting, variables, processes = printed.split()
    assert (name, process_id, greeting) == ("pod-1", "1", "hello")
    assert int(variables) <= 4, "PATH, GREETING, and what the shell adds"
    assert int(processes) <= 4, "its own processes only"


async def test_volumes_are_where_they_are_declared_and_nothing_is_made_on_the_machine(machine: Machine):
    secret = machine.volume("secret", token="s3cret")
    scratch = machine.volume("empty")
    hosts = machine.folder / "hosts"
    hosts.write_text("127.0.0.1 here\n")
    mounts = (
        Mount(str(secret), "/var/run/secrets/forebay.test/serviceaccount", read_only=True),
        Mount(str(scratch), "/forebay-test/deep/data"),
        Mount(str(hosts), "/etc/hosts"),
        Mount(str(hosts), "/dev/forebay-test-log"),
    )
    before = top_folders()
    ended, printed = await machine.run(
        "cat /var/run/secrets/forebay.test/serviceaccount/token /etc/hosts;"
        "echo made > /forebay-test/deep/data/file; echo told > /dev/forebay-test-log;"
        "touch /var/run/secrets/forebay.test/serviceaccount/x || echo refused;"
        "test -c /dev/null && test -e /usr/bin/env && echo intact",
        mounts=mounts,
    )
    assert ended == Exit(0, None), printed
    assert printed.startswith("s3cret127.0.0.1 here\n")
    assert "refused" in printed
    assert "intact" in printed
    assert (scratch / "file").read_text() == "made\n"
    assert hosts.read_text() == "told\n"
    assert top_folders() == before
    for path in ("/var/run/secrets/forebay.test", "/dev/forebay-test-log"):
        assert not os.path.lexists(path)  # noqa: ASYNC240


async def test_a_volume_within_a_volume(machine: Machine):
    outer, inner = machine.volume("outer"), machine.volume("inner", file="inside")
    _, printed = await machine.run(
        "cat /forebay-test/a/b/file",
        mounts=(Mount(str(inner), "/forebay-test/a/b"), Mount(str(outer), "/forebay-test")),
    )
    assert printed == "inside"


async def test_a_read_only_root_takes_writes_to_volumes_only(machine: Machine):
    volume = machine.volume("volume")
    _, printed = await machine.run(
        "for path in /x /usr/x /var/x /forebay-test/v/x /dev/shm/x; do"
        " (echo > $path) 2>/dev/null && echo $path; done; echo > /dev/null && echo device",
        mounts=(Mount(str(volume), "/forebay-test/v"),),
        read_only_root=True,
    )
    assert printed.split() == ["/forebay-test/v/x", "/dev/shm/x", "device"]


async def test_the_working_directory_is_entered_and_a_missing_one_is_the_root(machine: Machine):
    assert (await machine.run("pwd", working_directory="/usr"))[1] == "/usr\n"
    assert (await machine.run("pwd", working_directory="/forebay-missing"))[1] == "/\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("forebay-no-such-program",), r'exec: "forebay-no-such-program": executable file not found in \$PATH'),
        (("/etc",), 'exec: "/etc": Permission denied'),
    ],
)
async def test_a_program_that_can_t_be_executed_says_why(machine: Machine, argv: tuple[str, ...], message: str):
    with pytest.raises(ProgramError, match=message):
        await machine.start("", argv=argv)


async def test_a_missing_volume_says_which(machine: Machine):
    with pytest.raises(ProgramError, match="/forebay-gone"):
        await machine.start("true", mounts=(Mount("/forebay-gone", "/x"),))


async def test_the_end_of_the_main_process_ends_every_other(machine: Machine):
    identifier, main = await machine.start("setsid sleep 1000 & sleep 0.2; exit 7")
    children = psutil.Process(main).children(recursive=True)
    async with asyncio.timeout(NEVER_S):
        while not children:
            children = psutil.Process(main).children(recursive=True)
            await asyncio.sleep(0.01)
        assert await machine.processes.wait(identifier) == Exit(7, None)
    wait_gone(*(child.pid for child in children))


async def test_signals_reach_the_main_process_as_they_would_in_a_container(machine: Machine):
    polite, _ = await machine.start("trap 'exit 4' TERM; while :; do sleep 0.01; done")
    deaf, _ = await machine.start("while :; do sleep 0.01; done")
    await asyncio.sleep(0.1)
    for identifier in (polite, deaf):
        await machine.processes.signal(identifier, signal.SIGTERM)
    async with asyncio.timeout(NEVER_S):
        assert await machine.processes.wait(polite) == Exit(4, None)
    await machine.processes.signal(deaf, signal.SIGKILL)
    async with asyncio.timeout(NEVER_S):
        assert await machine.processes.wait(deaf) == Exit(None, signal.SIGKILL), "process 1 has no default for SIGTERM"


class TestCommandsInside:
    async def capture(self, machine: Machine, inside: int, script: str, timeout_s: float = 5):
        return await machine.processes.capture(
            inside, ("sh", "-c", script), environment=ENVIRONMENT, directory="/", timeout_s=timeout_s
        )

    async def test_see_the_container(self, machine: Machine):
        volume = machine.volume("volume", file="inside")
        identifier, _ = await machine.start("sleep 1000", mounts=(Mount(str(volume), "/forebay-test"),))
        captured = await self.capture(
            machine, identifier, "hostname; cat /forebay-test/file; kill -0 1 && echo; exit 5"
        )
        assert captured.output == "pod-1\ninside\n"
        assert captured.exit == Exit(5, None)

    async def test_are_killed_when_they_take_too_long(self, machine: Machine):
        identifier, _ = await machine.start("sleep 1000")
        with pytest.raises(TimeoutError):
            await self.capture(machine, identifier, "sleep 1001", timeout_s=0.2)
        assert not running("sleep", "1001")

    async def test_need_a_running_container(self, machine: Machine):
        identifier, _ = await machine.start("exit 0")
        await machine.processes.wait(identifier)
        with pytest.raises(ProgramError, match="not running"):
            await self.capture(machine, identifier, "true")


async def test_a_cancelled_start_leaves_nothing(machine: Machine):
    start = asyncio.create_task(machine.start("exec sleep 1002"))
    await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not running("sleep", "1002")


async def test_a_process_that_nobody_waits_for_any_more_is_ended(machine: Machine):
    identifier, main = await machine.start("exec sleep 1004")
    waiting = asyncio.create_task(machine.processes.wait(identifier))
    await asyncio.sleep(0)
    assert psutil.pid_exists(main)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not running("sleep", "1004")


def launcher_of(main: int) -> int:
    parent = psutil.Process(main).parent()
    assert parent is not None
    assert "forebay_simulator.node.launcher" in " ".join(parent.cmdline())
    return parent.pid


async def test_without_its_launcher_no_process_is_left_and_the_agent_knows(machine: Machine):
    identifier, main = await machine.start("setsid sleep 1000 & sleep 1000")
    os.kill(launcher_of(main), signal.SIGKILL)
    with pytest.raises(LauncherGoneError):
        await machine.processes.wait(identifier)
    with pytest.raises(LauncherGoneError):
        await machine.processes.failed()
    wait_gone(main)


AGENT = """
import asyncio, os, sys
from pathlib import Path
from forebay_simulator.node.launch_protocol import Start
from forebay_simulator.node.processes import Processes

async def main():
    folder = Path(sys.argv[1])
    (folder / "root").mkdir()
    script = ("sh", "-c", "setsid sleep 1000 & sleep 1000")
    start = Start(1, script, dict(os.environ), "/", str(folder / "log"), str(folder / "root"), hostname="pod-1")
    async with Processes(folder / "scratch", os.open(folder / "lock", os.O_CREAT | os.O_RDWR)) as processes:
        print(await processes.start(start), flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_a_killed_agent_leaves_no_process(tmp_path: Path):
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    main = int(agent.stdout.readline())
    everything = [main, launcher_of(main), *(child.pid for child in psutil.Process(main).children(recursive=True))]
    agent.kill()
    agent.wait()
    agent.stdout.close()
    wait_gone(*everything)


async def test_starting_is_fast(machine: Machine):
    begun_s = time.monotonic()
    for _ in range(5):
        await machine.start("sleep 1000")
    assert (time.monotonic() - begun_s) / 5 < 0.5  # about 15 ms on a machine that has nothing else to do


async def test_processes_that_end_at_once_do_not_disturb_the_launcher(machine: Machine):
    """The end of a start and the end of its process may be seen in one round, in either order."""
    for _ in range(5):
        ended = await asyncio.gather(*(machine.run("", argv=("true",)) for _ in range(20)))
        assert {result for result, _ in ended} == {Exit(0, None)}
