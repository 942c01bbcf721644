"""`forebay cluster` as a person types it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from forebay_cli import cluster as commands
from forebay_cli.__main__ import app
from forebay_localcluster.cluster import Cluster, ProgramStatus
from forebay_localcluster.errors import ClusterNotRunningError, NoSuchLogError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("FOREBAY_CLUSTER", raising=False)
    return tmp_path


@pytest.fixture
def cluster(state: Path) -> Cluster:
    """A cluster that left its logs and runs no more."""
    cluster = Cluster("local")
    cluster.layout.make_folders()
    cluster.layout.log("etcd").write_text("".join(f"line {number}\n" for number in range(100)))
    folder = cluster.layout.nodes / "node-0" / "pods" / "default_llama-1"
    folder.mkdir(parents=True)
    (folder / "engine.log").write_text("[engine] speaks\n")
    return cluster


@pytest.mark.parametrize("command", ["up", "down", "status", "list", "logs", "env", "kill", "start", "build"])
def test_every_command_is_in_the_help_and_has_its_own(command: str):
    assert command in run("cluster", "--help").output
    assert run("cluster", command, "--help").exit_code == 0


def test_without_a_command_the_help_is_shown():
    assert "Usage" in run("cluster").output
    assert "Usage" in run().output


def test_an_expected_failure_is_a_sentence_and_not_a_stack_trace(state: Path):
    environment = os.environ | {"XDG_STATE_HOME": str(state)}
    command = [sys.executable, "-m", "forebay_cli", "cluster", "status", "--name", "none"]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert answer.returncode == 1
    assert answer.stderr == "error: cluster 'none' is not up. Start it: forebay cluster up --name none\n"
    assert answer.stdout == ""


@pytest.mark.parametrize("arguments", [("status",), ("env",), ("kill", "etcd"), ("start", "etcd"), ("logs",)])
def test_what_needs_a_cluster_says_so(state: Path, arguments: tuple[str, ...]):
    with pytest.raises(ClusterNotRunningError, match="forebay cluster up --name local"):
        run("cluster", *arguments)


def test_down_of_what_is_not_up_is_no_error(state: Path):
    answer = run("cluster", "down")
    assert answer.exit_code == 0
    assert "was not up" in answer.output


def test_the_cluster_s_name_may_come_from_the_environment(state: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FOREBAY_CLUSTER", "other")
    assert "Cluster other was not up" in run("cluster", "down").output


def test_logs_begin_with_the_last_lines(cluster: Cluster):
    assert run("cluster", "logs", "etcd", "--tail", "2").output == "line 98\nline 99\n"


def test_a_pod_s_log_is_printed_as_it_is(cluster: Cluster):
    assert run("cluster", "logs", "llama").output == "[engine] speaks\n"


def test_logs_without_a_name_list_what_there_is(cluster: Cluster):
    output = run("cluster", "logs").output
    assert "etcd" in output
    assert "default/llama-1/engine" in output


def test_an_unknown_log_is_answered_with_those_there_are(cluster: Cluster):
    with pytest.raises(NoSuchLogError, match="default/llama-1, etcd"):
        run("cluster", "logs", "kubelet")


def program(**fields: object) -> ProgramStatus:
    given = {"name": "etcd", "state": "ready", "pid": 7, "started_at": 0.0, "version": "1", "port": 1, "ended": ""}
    return ProgramStatus(**given | {"memory_bytes": 3 << 20} | fields)


@pytest.mark.parametrize(
    ("status", "state", "since"),
    [
        (program(), "ready", "1m40s"),
        (program(state="ended", pid=None, ended="exit code 2"), "ended: exit code 2", ""),
        (program(state="killed", pid=None, ended="killed by SIGKILL"), "killed", ""),
        (program(state="done", pid=None, ended="exit code 0"), "done", ""),
    ],
)
def test_a_row_tells_how_a_program_is(status: ProgramStatus, state: str, since: str):
    row = commands._row(status, now=100.0)
    assert f"]{state}[" in row[1]
    assert row[2] == since


@pytest.mark.parametrize(("seconds", "text"), [(5, "5s"), (65, "1m5s"), (3700, "1h1m"), (90_000, "1d1h")])
def test_an_age_is_short(seconds: int, text: str):
    assert commands._age(seconds) == text


@pytest.fixture
def running(state: Path) -> Iterator[None]:
    yield
    Cluster("local").down()


@pytest.mark.cluster
def test_a_session_from_up_to_down(running: None, state: Path):
    up = run("cluster", "up", "--nodes", "0")
    assert "Cluster local is up (" in up.output
    assert "is up already" in run("cluster", "up").output
    assert "ready" in run("cluster", "status").output
    programs = {each["name"]: each for each in json.loads(run("cluster", "status", "--json").output)}
    assert programs["kube-apiserver"]["state"] == "ready"
    assert "up" in run("cluster", "list").output
    exported = run("cluster", "env").output
    named = subprocess.run(
        ["bash", "-c", f"{exported} kubectl get namespace default -o name"], capture_output=True, text=True, check=True
    )
    assert named.stdout == "namespace/default\n"
    assert f"export PROMETHEUS_URL=http://127.0.0.1:{programs['prometheus']['port']}\n" in exported
    assert "killed kube-scheduler" in run("cluster", "kill", "kube-scheduler").output
    assert "kube-scheduler is ready" in run("cluster", "start", "kube-scheduler").output
    assert "Cluster local is down" in run("cluster", "down").output
    assert "no clusters" in run("cluster", "list").output
