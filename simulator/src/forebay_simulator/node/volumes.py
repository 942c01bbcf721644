"""The volumes of one pod as folders on the machine, kept up to date while the pod lives.

Files that come from objects are written as a kubelet writes them, so that a reader never sees half an update:

    volume/..<n>/token      the files of one version
    volume/..data           link to the version in force, replaced in one rename
    volume/token            link to ..data/token
"""

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay_simulator.node.api import Api
from forebay_simulator.node.environment import PodFacts, expand
from forebay_simulator.node.errors import PodConfigError
from forebay_simulator.node.launch_protocol import Mount
from forebay_simulator.node.objects import Token, read_sources, request_token
from forebay_simulator.node.pods import Pod
from forebay_simulator.node.volume_files import File, Files, has_files, volume_files, volume_objects, volume_tokens

_DATA = "..data"


class PodVolumes:
    """The volumes of one pod under `folder`."""

    def __init__(self, folder: Path, api: Api) -> None:
        self._folder = folder
        self._api = api
        self._tokens: dict[tuple[str, str], Token] = {}
        self._written: dict[str, Files] = {}
        self._versions = itertools.count(1)

    async def fill(self, pod: Pod, facts: PodFacts, *, now_s: float) -> None:
        """Bring every volume up to date. Raises PodConfigError and ApiError; what was there stays."""
        volumes = pod.raw["spec"].get("volumes") or []
        config_maps: set[str] = set()
        secrets: set[str] = set()
        for volume in volumes:
            names = volume_objects(volume)
            config_maps |= names[0]
            secrets |= names[1]
        sources = await read_sources(self._api, pod.namespace, config_maps=config_maps, secrets=secrets)
        for volume in volumes:
            folder = self._folder / volume["name"]
            make_folder(folder)
            if has_files(volume):
                files = volume_files(volume, sources=sources, facts=facts)
                files |= await self._token_files(pod, volume, now_s=now_s)
                self._write(volume["name"], folder, files)

    async def _token_files(self, pod: Pod, volume: Mapping[str, Any], *, now_s: float) -> Files:
        files: Files = {}
        for wanted in volume_tokens(volume):
            key = (volume["name"], wanted.path)
            token = self._tokens.get(key)
            if token is None or now_s >= token.replace_at_s:
                token = self._tokens[key] = await request_token(self._api, pod, wanted, now_s=now_s)
            files[wanted.path] = File(token.text.encode(), wanted.mode)
        return files

    def _write(self, name: str, folder: Path, files: Files) -> None:
        if self._written.get(name) != files:
            write_files(folder, files, version=f"..{next(self._versions)}")
            self._written[name] = files

    def mounts(self, pod: Pod, container: Mapping[str, Any], environment: Mapping[str, str]) -> list[Mount]:
        """How a container's volumes are bound; a missing subPath folder of an emptyDir is made. Raises PodConfigError."""
        by_name = {volume["name"]: volume for volume in pod.raw["spec"].get("volumes") or []}
        mounts = []
        for declared in container.get("volumeMounts") or []:
            source = self._folder / declared["name"]
            sub_path = declared.get("subPath") or expand(declared.get("subPathExpr", ""), environment)
            if sub_path:
                source = source / _checked(sub_path, declared["name"])
                if not source.exists():
                    source.mkdir(parents=True)
            from_objects = has_files(by_name[declared["name"]])
            read_only = from_objects or bool(declared.get("readOnly"))
            mounts.append(Mount(str(source.resolve()), declared["mountPath"], read_only))
        return mounts

    def remove(self) -> None:
        """Delete every volume."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _checked(sub_path: str, volume: str) -> str:
    """A path within the volume; the API server has seen `subPath`, but not what `subPathExpr` comes to."""
    if sub_path.startswith("/") or ".." in Path(sub_path).parts:
        raise PodConfigError(f'subPathExpr of volume "{volume}" comes to {sub_path}: give a path within the volume')
    return sub_path


def make_folder(folder: Path) -> None:
    """Make a folder that any user may write to, as an emptyDir is."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)


def write_files(folder: Path, files: Files, *, version: str) -> None:
    """Put `files` in force in one step and drop what was there before."""
    data = folder / version
    for path, file in files.items():
        target = data / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(file.mode)
    data.mkdir(exist_ok=True)
    link = folder / f"{_DATA}-next"
    link.unlink(missing_ok=True)
    link.symlink_to(version)
    link.replace(folder / _DATA)
    _link_entries(folder, {path.split("/", 1)[0] for path in files})
    for former in folder.iterdir():
        if former.name.startswith("..") and former.name not in {_DATA, version}:
            shutil.rmtree(former)


def _link_entries(folder: Path, names: set[str]) -> None:
    for entry in folder.iterdir():
        if entry.is_symlink() and entry.name != _DATA and entry.name not in names:
            entry.unlink()
    for name in names:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path(_DATA) / name)
