"""Volumes: what their files contain and how they are replaced."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from forebay_simulator.node.environment import PodFacts, Sources
from forebay_simulator.node.errors import ApiNotFoundError, PodConfigError
from forebay_simulator.node.launch_protocol import Mount
from forebay_simulator.node.pods import parse_pod
from forebay_simulator.node.volume_files import File, volume_files, volume_objects, volume_tokens
from forebay_simulator.node.volumes import PodVolumes, write_files

from .manifests import container, pod

FACTS = PodFacts(pod(), "127.1.0.2", "127.1.0.1", {"cpu": "192"})
SOURCES = Sources(config_maps={"cm": {"a": b"1", "b": b"2"}}, secrets={"sec": {"pw": b"s3cret"}})
TOKEN_VOLUME = {
    "name": "kube-api-access",
    "projected": {
        "defaultMode": 0o640,
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "cm", "items": [{"key": "a", "path": "deep/ca.crt", "mode": 0o600}]}},
            {"secret": {"name": "sec"}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ],
    },
}


def contents(volume: dict) -> dict[str, tuple[bytes, int]]:
    files = volume_files(volume, sources=SOURCES, facts=FACTS)
    return {path: (file.content, file.mode) for path, file in files.items()}


def test_a_config_map_shows_every_key_or_the_items():
    assert contents({"name": "v", "configMap": {"name": "cm"}}) == {"a": (b"1", 0o644), "b": (b"2", 0o644)}
    some = {"name": "v", "configMap": {"name": "cm", "items": [{"key": "b", "path": "x/y"}], "defaultMode": 0o400}}
    assert contents(some) == {"x/y": (b"2", 0o400)}


def test_a_secret_is_named_by_secret_name():
    volume = {"name": "v", "secret": {"secretName": "sec"}}
    assert contents(volume) == {"pw": (b"s3cret", 0o644)}
    assert volume_objects(volume) == (frozenset(), {"sec"})


def test_a_projected_volume_joins_its_sources():
    assert contents(TOKEN_VOLUME) == {
        "deep/ca.crt": (b"1", 0o600),
        "pw": (b"s3cret", 0o640),
        "namespace": (b"default", 0o640),
    }
    assert volume_objects(TOKEN_VOLUME) == ({"cm"}, {"sec"})
    (token,) = volume_tokens(TOKEN_VOLUME)
    assert (token.path, token.lifetime_s, token.mode) == ("token", 3607, 0o640)


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"name": "v", "configMap": {"name": "gone"}}, 'configmap "gone" not found'),
        ({"name": "v", "secret": {"secretName": "gone"}}, 'secret "gone" not found'),
        ({"name": "v", "configMap": {"name": "cm", "items": [{"key": "z", "path": "z"}]}}, "has no key z"),
        ({"name": "v", "projected": {"sources": [{"clusterTrustBundle": {}}]}}, "clusterTrustBundle is not supported"),
    ],
)
def test_what_is_missing_is_named(volume: dict, message: str):
    with pytest.raises(PodConfigError, match=message):
        contents(volume)


def test_what_is_optional_may_be_missing():
    assert contents({"name": "v", "configMap": {"name": "gone", "optional": True}}) == {}


def test_files_are_replaced_in_one_step_and_old_ones_go(tmp_path: Path):
    write_files(tmp_path, {"a": File(b"1"), "deep/b": File(b"2", 0o600)}, version="..1")
    assert (tmp_path / "deep" / "b").read_bytes() == b"2"
    assert (tmp_path / "deep" / "b").stat().st_mode & 0o777 == 0o600
    reader = (tmp_path / "..data").resolve()
    write_files(tmp_path, {"a": File(b"changed")}, version="..2")
    assert (tmp_path / "a").read_bytes() == b"changed"
    assert not (tmp_path / "deep").exists()
    assert not reader.exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["..2", "..data", "a"]


class ApiWithObjects:
    """The part of the API that volumes read."""

    def __init__(self) -> None:
        self.config_map: dict[str, str] | None = {"a": "1"}
        self.tokens = 0

    async def get(self, path: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        if path.endswith("/configmaps/cm") and self.config_map is not None:
            return {"data": self.config_map, "binaryData": {"bin": base64.b64encode(b"\xff").decode()}}
        if path.endswith("/secrets/sec"):
            return {"data": {"pw": base64.b64encode(b"s3cret").decode()}}
        raise ApiNotFoundError(404, path)

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == "/api/v1/namespaces/default/serviceaccounts/default/token"
        assert body["spec"]["boundObjectRef"]["uid"] == "uid-1"
        self.tokens += 1
        return {"status": {"token": f"token-{self.tokens}", "expirationTimestamp": "1970-01-01T01:00:00Z"}}


class TestPodVolumes:
    def make(self, tmp_path: Path) -> None:
        self.api = ApiWithObjects()
        volumes = [TOKEN_VOLUME, {"name": "scratch", "emptyDir": {}}, {"name": "cm", "configMap": {"name": "cm"}}]
        self.pod = parse_pod(pod(volumes=volumes))
        self.folder = tmp_path
        self.volumes = PodVolumes(tmp_path, self.api)  # type: ignore[arg-type]

    async def fill(self, now_s: float) -> str:
        await self.volumes.fill(self.pod, FACTS, now_s=now_s)
        return (self.folder / "kube-api-access" / "token").read_text()

    async def test_tokens_are_replaced_at_eighty_percent_of_their_life(self, tmp_path: Path):
        self.make(tmp_path)
        assert await self.fill(0) == "token-1"
        assert await self.fill(2879) == "token-1"
        assert await self.fill(2881) == "token-2"

    async def test_a_changed_config_map_shows_and_a_vanished_one_leaves_the_last(self, tmp_path: Path):
        self.make(tmp_path)
        await self.fill(0)
        assert (tmp_path / "cm" / "bin").read_bytes() == b"\xff"
        self.api.config_map = {"a": "changed"}
        await self.fill(1)
        assert (tmp_path / "cm" / "a").read_text() == "changed"
        self.api.config_map = None
        with pytest.raises(PodConfigError, match="not found"):
            await self.fill(2)
        assert (tmp_path / "cm" / "a").read_text() == "changed"

    async def test_mounts_follow_the_container(self, tmp_path: Path):
        self.make(tmp_path)
        await self.fill(0)
        described = container(
            volumeMounts=[
                {"name": "cm", "mountPath": "/etc/cm"},
                {"name": "cm", "mountPath": "/etc/one", "subPath": "a"},
                {"name": "scratch", "mountPath": "/data", "subPathExpr": "$(POD)/x"},
                {"name": "scratch", "mountPath": "/ro", "readOnly": True},
            ]
        )
        mounts = self.volumes.mounts(self.pod, described, {"POD": "web-0"})
        assert mounts[0] == Mount(str(tmp_path / "cm"), "/etc/cm", read_only=True)
        assert Path(mounts[1].source).read_text() == "1"  # noqa: ASYNC240
        assert mounts[2] == Mount(str(tmp_path / "scratch" / "web-0" / "x"), "/data", read_only=False)
        assert (tmp_path / "scratch" / "web-0" / "x").is_dir()
        assert mounts[3].read_only

    @pytest.mark.parametrize("path", ["../../other-pod", "/etc"])
    async def test_a_path_that_leaves_the_volume_is_refused(self, tmp_path: Path, path: str):
        self.make(tmp_path)
        await self.fill(0)
        described = container(volumeMounts=[{"name": "scratch", "mountPath": "/data", "subPathExpr": "$(WHERE)"}])
        with pytest.raises(PodConfigError, match=f'volume "scratch" comes to {path}'):
            self.volumes.mounts(self.pod, described, {"WHERE": path})
