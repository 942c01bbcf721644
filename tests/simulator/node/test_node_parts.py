"""Images, allotments, logs, launch plans, settings: the smaller pure parts."""

import os
import sys
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_simulator.node.allotments import AddressPool, Devices
from forebay_simulator.node.container_logs import begin_log, bound_logs, prune_logs
from forebay_simulator.node.errors import (
    AddressesExhaustedError,
    DevicesExhaustedError,
    ImageUnknownError,
    PodConfigError,
    SettingsError,
)
from forebay_simulator.node.images import Image, load_table
from forebay_simulator.node.launch_plan import (
    LaunchFolders,
    container_devices,
    hostname,
    image_environment,
    interpreter_folders,
    plan_launch,
    uncovered,
)
from forebay_simulator.node.launch_protocol import Mount
from forebay_simulator.node.pods import find_obstacles, parse_pod
from forebay_simulator.node.settings import parse_arguments

from .manifests import container, pod, probe

PLACEHOLDERS = {
    "python": "/venv/bin/python",
    "bin": "/venv/bin",
    "accelerator": "h100-sxm",
    "engine-speed": "2",
    "engine-startup-s": "0.5",
}
MINIMAL = ["--name", "node-0", "--kubeconfig", "k", "--data", "d"]
FOLDERS = LaunchFolders(log_file=Path("log"), root=Path("root"), hosts=Path("hosts"), termination=Path("end"))


class TestImages:
    @pytest.mark.parametrize(
        ("reference", "program"),
        [
            ("forebay/router:0.1.0", ["/venv/bin/python", "-m", "forebay_router"]),
            ("ghcr.io/forebay/operator@sha256:abc", ["/venv/bin/python", "-m", "forebay_operator"]),
            ("localhost:5000/forebay/autoscaler:dev", ["/venv/bin/python", "-m", "forebay_autoscaler"]),
            ("vllm/vllm-openai:v0.32.0", ["/venv/bin/python", "-m", "forebay_simulator.engine", "serve"]),
            ("docker.io/library/busybox", ["sh"]),
            ("busybox:1.36", ["sh"]),
        ],
    )
    def test_the_packaged_table_knows(self, reference: str, program: list[str]):
        image = load_table(None, PLACEHOLDERS).find(reference)
        assert image.program(image.command({})) == program

    def test_the_engine_learns_its_accelerator(self):
        image = load_table(None, PLACEHOLDERS).find("vllm/vllm-openai:v0.32.0")
        assert image.environment["FOREBAY_SIM_ACCELERATOR"] == "h100-sxm"
        assert image.environment["FOREBAY_SIM_SPEED"] == "2"

    def test_an_unknown_image_is_named_with_the_fix(self):
        with pytest.raises(ImageUnknownError, match=r'"nginx".*--config'):
            load_table(None, PLACEHOLDERS).find("nginx")

    @pytest.mark.parametrize(
        ("given_fields", "command"),
        [
            ({}, ["entry", "default"]),
            ({"args": ["mine"]}, ["entry", "mine"]),
            ({"command": ["other"]}, ["other"]),
            ({"command": ["other"], "args": ["mine"]}, ["other", "mine"]),
        ],
    )
    def test_command_and_args_replace_the_image_s(self, given_fields: dict, command: list[str]):
        assert Image("x", entrypoint=("entry",), arguments=("default",)).command(given_fields) == command

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("images: 3", "images must be a list"),
            ("images: [{}]", r"images\[0\].image must be a name"),
            ("images: [{image: x, entrypoints: []}]", "unknown entrypoints"),
            ("images: [{image: x, entrypoint: sh}]", r"images\[0\].entrypoint must be a list"),
            ("images: [{image: x, pullSeconds: soon}]", r"images\[0\].pullSeconds must be a number of seconds"),
            ("[", "--config"),
        ],
    )
    def test_a_bad_table_is_refused_by_field(self, tmp_path: Path, text: str, message: str):
        (tmp_path / "images.yaml").write_text(text)
        with pytest.raises(SettingsError, match=message):
            load_table(tmp_path / "images.yaml", {})


class TestAllotments:
    def test_addresses_go_round_before_one_is_used_again(self):
        pool = AddressPool(IPv4Network("127.9.0.0/29"))
        assert pool.node == "127.9.0.1"
        first = pool.take()
        pool.give_back(first)
        assert [pool.take() for _ in range(5)] == ["127.9.0.3", "127.9.0.4", "127.9.0.5", "127.9.0.6", "127.9.0.2"]
        with pytest.raises(AddressesExhaustedError, match="--address-range"):
            pool.take()

    def test_a_preferred_address_is_kept_when_it_is_free(self):
        pool = AddressPool(IPv4Network("127.9.0.0/24"))
        assert pool.take("127.9.0.77") == "127.9.0.77"
        assert pool.take("127.9.0.77") != "127.9.0.77"
        assert pool.take("10.0.0.1") == "127.9.0.3"

    @given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 4)), max_size=30))
    def test_no_gpu_has_two_holders(self, requests: list[tuple[str, int]]):
        devices = Devices(8)
        held: dict[str, tuple[int, ...]] = {}
        for holder, count in requests:
            if holder in held:
                devices.give_back(holder)
                del held[holder]
                continue
            try:
                held[holder] = devices.take(holder, count)
            except DevicesExhaustedError:
                assert count > devices.free
            everything = [index for indices in held.values() for index in indices]
            assert len(everything) == len(set(everything)) == 8 - devices.free

    @pytest.mark.parametrize(("written", "gpus"), [("8", 8), ("1k", 1000), (2, 2)])
    def test_gpus_are_counted_in_any_notation(self, written: str | int, gpus: int):
        assert parse_pod(pod(container(resources={"limits": {"nvidia.com/gpu": written}}))).gpus == gpus

    def test_containers_share_the_pod_s_gpus_without_overlap(self):
        limits = [{"limits": {"nvidia.com/gpu": count}} for count in ("4", "1", "2")]
        described = parse_pod(
            pod(
                container("a", resources=limits[1]),
                container("b", resources=limits[2]),
                initContainers=[container("init", resources=limits[0])],
            )
        )
        assert described.gpus == 4
        shares = {item.name: container_devices(described, (3, 4, 5, 6), item) for item in described.containers}
        assert shares == {"init": (3, 4, 5, 6), "a": (3,), "b": (4, 5)}


class TestObstacles:
    @pytest.mark.parametrize(
        ("raw", "message"),
        [
            (pod(volumes=[{"name": "h", "hostPath": {"path": "/"}}]), 'volume "h" is a hostPath.*use emptyDir'),
            (pod(volumes=[{"name": "p", "persistentVolumeClaim": {}}]), "persistentVolumeClaim"),
            (pod(container(livenessProbe={"grpc": {"port": 1}})), "has a grpc livenessProbe.*use httpGet"),
            (pod(container(readinessProbe=probe(httpGet={"port": "web"}))), 'no port named "web".*add it to ports'),
        ],
    )
    def test_are_named_with_the_fix(self, raw: dict, message: str):
        (found,) = find_obstacles(raw)
        assert __import__("re").search(message, found)

    def test_an_ordinary_pod_has_none(self):
        raw = pod(
            container(ports=[{"name": "web", "containerPort": 8}], readinessProbe=probe(httpGet={"port": "web"})),
            volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "x"}}],
        )
        assert find_obstacles(raw) == ()
        assert parse_pod(raw).containers[0].probes


class TestLaunchPlan:
    def plan(self, raw_container: dict, image: Image | None = None, volumes: tuple[Mount, ...] = ()):
        described = parse_pod(pod(raw_container))
        return plan_launch(
            7,
            described,
            described.containers[0],
            image=image or Image("x", programs={"vllm": ("/py", "-m", "engine")}),
            environment={"PORT": "8000"},
            volumes=volumes,
            folders=FOLDERS,
        )

    def test_arguments_are_expanded_and_the_program_replaced(self):
        start = self.plan(container(command=["vllm", "serve"], args=["--port", "$(PORT)"]))
        assert start.argv == ("/py", "-m", "engine", "serve", "--port", "8000")

    def test_security_settings_are_honoured(self):
        start = self.plan(
            container(securityContext={"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False})
        )
        assert start.read_only_root
        assert not start.new_privileges

    def test_the_pod_s_hosts_and_termination_message_are_bound(self):
        targets = {item.target: item.source for item in self.plan(container(terminationMessagePath="/tmp/end")).mounts}
        assert targets == {"/etc/hosts": "hosts", "/tmp/end": "end"}

    def test_no_command_at_all_is_refused(self):
        with pytest.raises(PodConfigError, match="give the container a command"):
            self.plan(container(command=[]))

    def test_a_volume_does_not_hide_the_interpreter(self):
        folders = interpreter_folders()
        top = "/" + folders[0].split("/")[1]
        assert Mount(folders[0], folders[0]) in uncovered(folders, [Mount("/v", top)])
        assert uncovered(folders, [Mount("/v", top, read_only=True), Mount("/v", "/nowhere")]) == ()

    def test_a_daemon_that_searches_the_root_still_finds_its_folders(self):
        assert interpreter_folders(["/", *sys.path]) == interpreter_folders(sys.path)

    def test_images_bring_nothing_of_the_agent_s_environment(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("KUBECONFIG", "/secret")
        environment = image_environment(parse_pod(pod()))
        assert set(environment) <= {"PATH", "HOME", "HOSTNAME", "LANG", "PYTHONUNBUFFERED", "VIRTUAL_ENV"}
        assert environment["HOSTNAME"] == "web-0"

    def test_a_long_name_makes_a_host_name_that_linux_takes(self):
        raw = pod()
        raw["metadata"]["name"] = "a" * 62 + "-bcd"
        assert hostname(parse_pod(raw)) == "a" * 62


class TestLogs:
    def test_the_last_run_s_log_is_kept(self, tmp_path: Path):
        begin_log(tmp_path / "pod", "main").write_text("first")
        begin_log(tmp_path / "pod", "main").write_text("second")
        assert (tmp_path / "pod" / "main.previous.log").read_text() == "first"
        assert (tmp_path / "pod" / "main.log").read_text() == "second"

    def test_a_large_log_is_emptied_under_a_writer_that_appends(self, tmp_path: Path):
        path = begin_log(tmp_path / "pod", "main")
        with path.open("ab", buffering=0) as writer:
            writer.write(b"x" * 100)
            bound_logs(tmp_path, bytes_max=50)
            writer.write(b"after")
        assert path.read_bytes() == b"after"
        assert (tmp_path / "pod" / "main.log.1").read_bytes() == b"x" * 100

    def test_logs_of_the_newest_pods_are_kept(self, tmp_path: Path):
        for age, name in enumerate(["new", "old", "older", "living"]):
            (tmp_path / name).mkdir()
            os.utime(tmp_path / name, (1000 - age, 1000 - age))
        prune_logs(tmp_path, {tmp_path / "living"}, kept=1)
        assert {folder.name for folder in tmp_path.iterdir()} == {"new", "living"}


class TestSettings:
    def test_ranges_come_from_the_name_and_stay_in_loopback(self):
        one, other = parse_arguments(MINIMAL), parse_arguments(["--name", "node-1", *MINIMAL[2:]])
        assert one.address_range.is_loopback
        assert not one.address_range.overlaps(other.address_range)
        assert not one.address_range.overlaps(one.service_range)

    def test_the_service_range_is_the_last_of_the_sixteen(self):
        settings = parse_arguments([*MINIMAL, "--address-range", "127.22.1.0/24"])
        assert str(settings.service_range) == "127.22.255.0/24"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--address-range", "10.0.0.0/24"], "must be a part of 127.0.0.0/8"),
            (["--address-range", "nonsense"], "nonsense"),
            (["--backoff-base", "ten"], "is no duration"),
            (["--label", "x"], "must be KEY=VALUE"),
        ],
    )
    def test_a_bad_flag_is_refused_by_name(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ):
        with pytest.raises(SystemExit):
            parse_arguments([*MINIMAL, *arguments])
        error = capsys.readouterr().err
        assert message in error
        assert arguments[0] in error

    def test_overlapping_ranges_are_refused(self):
        with pytest.raises(SettingsError, match="--service-range"):
            parse_arguments([*MINIMAL, "--service-proxy", "--address-range", "127.22.0.0/16"])
