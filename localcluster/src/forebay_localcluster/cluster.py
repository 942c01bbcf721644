"""A local cluster, as its users see it.

    with Cluster.temporary("e2e", extras=simulated_nodes) as cluster:
        cluster.kubectl("apply", "-f", "model.yaml")
        cluster.kill("kube-apiserver")
        cluster.start_program("kube-apiserver")

A `Cluster` is a name and a folder; making one starts nothing. Everything it knows it reads from the folder or asks the
supervisor, so that several processes can use the same cluster.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from forebay_localcluster.children import kill_strays
from forebay_localcluster.control import Answer, ask
from forebay_localcluster.control_plane import (
    PORT_USERS,
    Settings,
    Site,
    bootstrap_objects,
    plan_control_plane,
)
from forebay_localcluster.errors import ClusterNotRunningError, CommandError, ControlError
from forebay_localcluster.identities import client_request, write_identities, write_kubeconfig
from forebay_localcluster.launch import Heard, kill_supervisor, launch, locked, start_error, wait_until_ended
from forebay_localcluster.layout import Layout, checked_name, clusters_folder
from forebay_localcluster.locate import Programs, locate_programs
from forebay_localcluster.pins import Program
from forebay_localcluster.plan import ExtraProgram, Plan, check_plan, dump_plan, dump_program, load_plan, plan_extra
from forebay_localcluster.ports import LOOPBACK, Claim, claim_number, claim_ports
from forebay_localcluster.scraping import render_scraping

DEFAULT_NAME = "local"
STATUS_TIMEOUT_S = 5.0
START_TIMEOUT_S = 90.0
DOWN_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 300.0

Extras = Callable[["Cluster"], Sequence[ExtraProgram]]
"""Names the caller's own programs, once folder, identities and ports are there and before anything runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStatus:
    """What one program of a running cluster is doing."""

    name: str
    state: str
    """A `children.State`: waiting, starting, ready, done, ended (by itself), killed (by request)."""
    pid: int | None
    started_at: float | None
    """Unix time."""
    version: str
    port: int | None
    memory_bytes: int
    """Resident memory of the program and its child processes."""
    ended: str
    """How its last process ended; empty when none has."""


class Cluster:
    """One local cluster, running or not."""

    def __init__(self, name: str = DEFAULT_NAME, *, data: Path | None = None) -> None:
        self.name = checked_name(name)
        self.layout = Layout((data or clusters_folder() / self.name).absolute())

    @classmethod
    @contextlib.contextmanager
    def temporary(
        cls,
        name: str = "test",
        *,
        settings: Settings | None = None,
        extras: Extras | None = None,
        data: Path | None = None,
        keep: bool = False,
    ) -> Iterator["Cluster"]:
        """Start a cluster that ends with the block, and with this process however that ends.

        Its folder is a temporary one, or `data`; it goes with the cluster unless `keep` or the start failed.
        """
        programs = locate_programs()
        folder = data or Path(tempfile.mkdtemp(prefix=f"forebay-{name}-"))
        cluster = cls(name, data=folder)
        cluster._start(programs, settings or Settings(), extras, _unheard, owned=True, disposable=not keep)
        try:
            yield cluster
        finally:
            cluster.down(keep=keep)

    @property
    def data(self) -> Path:
        """The folder of everything this cluster has."""
        return self.layout.data

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.layout.kubeconfig

    @property
    def prometheus_kubeconfig(self) -> Path:
        """The kubeconfig by which Prometheus finds pods, for a `Settings.scraping` of one's own."""
        return self.layout.kubeconfigs / "prometheus.yaml"

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{LOOPBACK}:{self.port(Program.API_SERVER)}"

    @property
    def prometheus_url(self) -> str:
        """Prometheus' URL."""
        return f"http://{LOOPBACK}:{self.port(Program.PROMETHEUS)}"

    @property
    def number(self) -> int:
        """A number from 1 to 199 that no other running cluster of this machine has; for addresses of its pods."""
        return self._plan().number

    @property
    def running(self) -> bool:
        """Whether everything was started and a supervisor keeps it."""
        try:
            return bool(self._ask({"do": "status"}, timeout_s=STATUS_TIMEOUT_S)["up"])
        except ClusterNotRunningError:
            return False

    def port(self, program: str) -> int:
        """Return the port a program listens on."""
        port = next((planned.port for planned in self._plan().programs if planned.name == program), None)
        if port is None:
            raise ControlError(f"{program} is no listening program of cluster {self.name!r}")
        return port

    def up(self, settings: Settings | None = None, *, extras: Extras | None = None, heard: Heard | None = None) -> bool:
        """Start the cluster, detached from this process; return False when it was up already.

        Data of an earlier start is used. Raises `ProgramsMissingError`, `ClusterStartError`.
        """
        if self.running:
            return False
        self._start(locate_programs(), settings or Settings(), extras, heard or _unheard, owned=False, disposable=False)
        return True

    def down(self, *, keep: bool = False) -> bool:
        """End everything within 10 s and remove the data folder, or `keep` it; return whether anything was running."""
        try:
            self._ask({"do": "stop"}, timeout_s=STATUS_TIMEOUT_S)
            was_up = True
        except (ClusterNotRunningError, ControlError):
            was_up = False
        if not wait_until_ended(self.layout, timeout_s=DOWN_TIMEOUT_S):
            kill_supervisor(self.layout)
            wait_until_ended(self.layout, timeout_s=1)
            was_up = True
        left = kill_strays(self.data)
        if not keep:
            shutil.rmtree(self.data, ignore_errors=True)
        return was_up or left > 0

    def kill(self, program: str) -> None:
        """SIGKILL a program; it stays down until `start_program`."""
        self._ask({"do": "kill", "program": program}, timeout_s=STATUS_TIMEOUT_S)

    def start_program(self, program: str) -> None:
        """Start a program that was killed or has ended, on its old port and data; return when it is ready."""
        self._expect_started(self._ask({"do": "start", "program": program}, timeout_s=START_TIMEOUT_S))

    def add_program(self, extra: ExtraProgram) -> None:
        """Run a further program until the cluster ends; return when it is ready."""
        plan = plan_extra(extra, log=self.layout.log(extra.name), after=_foundations(self._plan()))
        self._expect_started(self._ask({"do": "add", "program": dump_program(plan)}, timeout_s=START_TIMEOUT_S))

    def programs_status(self) -> list[ProgramStatus]:
        """Return what every program is doing; raise `ClusterNotRunningError`."""
        programs = self._ask({"do": "status"}, timeout_s=STATUS_TIMEOUT_S)["programs"]
        return [ProgramStatus(**fields, memory_bytes=_memory_bytes(fields["pid"])) for fields in programs]

    def supervisor_pid(self) -> int:
        """Return the supervisor's process id; raise `ClusterNotRunningError`."""
        return int(self._ask({"do": "status"}, timeout_s=STATUS_TIMEOUT_S)["pid"])

    def issue(self, user: str, groups: Sequence[str] = (), *, file: str | None = None) -> Path:
        """Certify a user of these groups and return the path of a kubeconfig; `file` names it, by default after the user.

        A node is `issue("system:node:NAME", ["system:nodes"])`. Rights are RBAC's matter.
        """
        name = file or user.replace(":", "-").replace("/", "-")
        request = client_request(user, groups)
        return write_kubeconfig(self.layout, name, request, cluster=self.name, server=self.server)

    def environment(self) -> dict[str, str]:
        """Return variables for a process that uses the cluster: this process' own, KUBECONFIG, PATH, helm's folders."""
        helm = {f"HELM_{kind}_HOME": str(self.data / "helm" / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        paths = {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.data / "cache")}
        return {**os.environ, **helm, **paths, "PATH": f"{self.layout.bin}{os.pathsep}{os.environ.get('PATH', '')}"}

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run kubectl as administrator and return what it printed; raise `CommandError`."""
        return self._run(Program.KUBECTL, arguments, stdin=stdin, timeout_s=timeout_s)

    def helm(self, *arguments: str, stdin: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run helm as administrator and return what it printed; raise `CommandError`."""
        return self._run(Program.HELM, arguments, stdin=stdin, timeout_s=timeout_s)

    def _start(
        self,
        programs: Programs,
        settings: Settings,
        extras: Extras | None,
        heard: Heard,
        *,
        owned: bool,
        disposable: bool,
    ) -> None:
        self.layout.make_folders()
        with locked(self.layout) as lock, contextlib.ExitStack() as claimed:
            kill_strays(self.data)
            claims = _claim(claimed, self.name)
            self._prepare(programs, settings, claims)
            plan = replace(self._plan(), owned=owned, disposable=disposable)
            if extras:
                after = _foundations(plan)
                own = [plan_extra(extra, log=self.layout.log(extra.name), after=after) for extra in extras(self)]
                plan = replace(plan, programs=(*plan.programs, *own))
            check_plan(plan)
            self.layout.plan.write_text(dump_plan(plan))
            launch(self.layout, lock=lock, claims=claims, owned=owned, heard=heard)

    def _prepare(self, programs: Programs, settings: Settings, claims: Sequence[Claim]) -> None:
        """Write everything that the programs read, and a first plan."""
        number, *ports = (claim.value for claim in claims)
        site = Site(layout=self.layout, programs=programs, ports=dict(zip(PORT_USERS, ports, strict=True)))
        write_identities(self.layout, cluster=self.name, server=site.server)
        self.layout.bootstrap.write_text(bootstrap_objects())
        scraping = settings.scraping or render_scraping(
            kubeconfig=str(self.prometheus_kubeconfig), scrape_interval_s=settings.scrape_interval_s
        )
        self.layout.scraping.write_text(scraping)
        for program, located in programs.items():
            link = self.layout.bin / program
            link.unlink(missing_ok=True)
            link.symlink_to(located.path)
        control_plane = plan_control_plane(site, settings)
        for planned in control_plane:
            Path(planned.log).unlink(missing_ok=True)
        plan = Plan(name=self.name, number=number, owned=False, disposable=False, programs=control_plane)
        self.layout.plan.write_text(dump_plan(plan))

    def _plan(self) -> Plan:
        try:
            return load_plan(self.layout.plan.read_text())
        except FileNotFoundError as error:
            raise ClusterNotRunningError(self.name) from error

    def _ask(self, request: Answer, *, timeout_s: float) -> Answer:
        if not self.layout.socket.exists():
            raise ClusterNotRunningError(self.name)
        try:
            return ask(self.layout.socket, request, timeout_s=timeout_s)
        except ControlError as error:
            if isinstance(error.__cause__, ConnectionError | FileNotFoundError):  # it is gone, or going
                raise ClusterNotRunningError(self.name) from error
            raise

    def _expect_started(self, answer: Answer) -> None:
        if failed := answer.get("failed"):
            raise start_error(failed)

    def _run(self, program: Program, arguments: Sequence[str], *, stdin: str | None, timeout_s: float) -> str:
        command = [str(self.layout.bin / program), *arguments]
        answer = subprocess.run(  # noqa: S603 -- the pinned kubectl or helm
            command,
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=self.environment(),
        )
        if answer.returncode != 0:
            said = answer.stderr or answer.stdout
            raise CommandError(command=" ".join([program, *arguments]), code=answer.returncode, stderr=said)
        return answer.stdout


def list_clusters(environment: Mapping[str, str] = os.environ) -> list[Cluster]:
    """Return the named clusters of this user that have a data folder, running or not."""
    folders = sorted(clusters_folder(environment).glob("*/plan.json"))
    return [Cluster(folder.parent.name, data=folder.parent) for folder in folders]


def _unheard(_program: str, _state: str) -> None:
    """Ignore how a start goes."""


def _foundations(plan: Plan) -> list[str]:
    """Return what an extra program needs: all that belongs to the control plane."""
    return [planned.name for planned in plan.programs if planned.name in set(Program)]


def _claim(stack: contextlib.ExitStack, name: str) -> list[Claim]:
    """Claim a number and the control plane's ports, until the stack is left and nobody who inherited them lives."""
    claims = [claim_number()]
    stack.callback(claims[0].holder.close)
    ports = claim_ports(len(PORT_USERS), name=name)
    for port in ports:
        stack.callback(port.holder.close)
    return [*claims, *ports]


def _memory_bytes(pid: int | None) -> int:
    if pid is None:
        return 0
    total = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += each.memory_info().rss
    return total
