"""What is run and with which configuration, as recorded."""

import shlex
from pathlib import Path

import pytest

from forebay_localcluster.control_plane import (
    PORT_USERS,
    Settings,
    Site,
    bootstrap_objects,
    plan_control_plane,
)
from forebay_localcluster.errors import LocalClusterError
from forebay_localcluster.layout import Layout, checked_name, clusters_folder
from forebay_localcluster.locate import Located, Source
from forebay_localcluster.pins import Program
from forebay_localcluster.plan import HttpCheck, Plan, ProgramPlan, check_plan
from forebay_localcluster.scraping import render_scraping
from tests.localcluster.golden import Compare

SITE = Site(
    layout=Layout(Path("/data")),
    programs={
        name: Located(program=name, path=Path("/bin") / name, version="1.2.3", source=Source.CACHE) for name in Program
    },
    ports={name: 20_200 + number for number, name in enumerate(PORT_USERS)},
)


def described(program: ProgramPlan) -> str:
    command, *flags = program.argv
    ready = [check.url for check in program.ready if isinstance(check, HttpCheck)]
    lines = [command, *(f"  {shlex.quote(flag)}" for flag in flags)]
    lines += [f"  # after {', '.join(program.after) or 'nothing'}; ready: {' '.join(ready) or 'when it has ended'}"]
    return "\n".join(lines)


def test_command_lines_are_as_recorded(same_as_golden: Compare):
    programs = plan_control_plane(SITE, Settings())
    same_as_golden("command-lines.txt", "\n\n".join(described(program) for program in programs) + "\n")


def test_scraping_is_as_recorded(same_as_golden: Compare):
    same_as_golden("prometheus.yml", render_scraping(kubeconfig="/data/prometheus.yaml", scrape_interval_s=2.0))


def test_the_cluster_s_own_objects_are_as_recorded(same_as_golden: Compare):
    same_as_golden("bootstrap.yaml", bootstrap_objects())


def test_further_flags_come_last():
    programs = plan_control_plane(SITE, Settings(flags={"kube-apiserver": ("--v=4",)}))
    assert next(program for program in programs if program.name == "kube-apiserver").argv[-1] == "--v=4"


def test_flags_for_a_program_that_does_not_run_are_refused():
    with pytest.raises(LocalClusterError, match=r"settings\.flags: this cluster runs no kubelet"):
        plan_control_plane(SITE, Settings(flags={"kubelet": ("--v=4",)}))


def test_a_cluster_without_prometheus_plans_nothing_for_it():
    names = [program.name for program in plan_control_plane(SITE, Settings(prometheus=False))]
    assert names == ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]


@pytest.mark.parametrize("settings", [Settings(), Settings(prometheus=False)])
def test_every_plan_can_work(settings: Settings):
    programs = plan_control_plane(SITE, settings)
    check_plan(Plan(name="x", number=1, owned=False, disposable=False, programs=programs))
    assert sum(program.stop_grace_s for program in programs) < 10, "down is to end within 10 s"


@pytest.mark.parametrize("name", ["local", "a", "e2e-1", "x" * 40])
def test_a_name_is_a_name(name: str):
    assert checked_name(name) == name


@pytest.mark.parametrize("name", ["", "Local", "a_b", "../x", "-a", "a-", "x" * 41])
def test_what_cannot_be_a_folder_is_no_name(name: str):
    with pytest.raises(LocalClusterError, match="lower-case letters"):
        checked_name(name)


def test_clusters_are_kept_where_the_desktop_s_rules_say(tmp_path: Path):
    assert clusters_folder({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "forebay" / "clusters"
    assert clusters_folder({}) == Path.home() / ".local" / "state" / "forebay" / "clusters"
