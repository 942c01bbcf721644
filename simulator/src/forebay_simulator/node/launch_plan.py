"""How a container is launched: from its declaration and what the node knows to one request for the launcher. Pure."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_simulator.node.environment import PodFacts, Sources, compose_environment, expand_all
from forebay_simulator.node.errors import PodConfigError
from forebay_simulator.node.images import Image
from forebay_simulator.node.launch_protocol import Mount, Start
from forebay_simulator.node.pods import Container, ContainerKind, Pod

DEFAULT_TERMINATION_PATH = "/dev/termination-log"
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOSTNAME_CHARACTERS_MAX = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFolders:
    """Where on the machine a container's files are."""

    log_file: Path
    root: Path
    hosts: Path
    termination: Path


def hostname(pod: Pod) -> str:
    """The host name inside the pod."""
    name = pod.raw["spec"].get("hostname") or pod.name
    return str(name)[:_HOSTNAME_CHARACTERS_MAX].rstrip("-.")


def image_environment(pod: Pod) -> dict[str, str]:
    """What every image brings: nothing of the agent's own environment but the interpreter that runs it."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{_SYSTEM_PATH}",
        "HOME": "/",
        "HOSTNAME": hostname(pod),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
    }
    if sys.prefix != sys.base_prefix:
        environment["VIRTUAL_ENV"] = sys.prefix
    return environment


def container_devices(pod: Pod, devices: Sequence[int], container: Container) -> tuple[int, ...]:
    """The share of the pod's GPUs that a container gets; init containers use them before the others do."""
    if container.kind is ContainerKind.INIT:
        return tuple(devices[: container.gpus])
    begin = 0
    for other in pod.containers:
        if other.name == container.name:
            break
        begin += other.gpus if other.kind is not ContainerKind.INIT else 0
    return tuple(devices[begin : begin + container.gpus])


def device_environment(devices: Sequence[int]) -> dict[str, str]:
    """How a program learns its GPUs."""
    listed = ",".join(map(str, devices))
    return {"NVIDIA_VISIBLE_DEVICES": listed, "CUDA_VISIBLE_DEVICES": listed} if devices else {}


def container_environment(
    container: Container, *, image: Image, inherited: Mapping[str, str], sources: Sources, facts: PodFacts
) -> dict[str, str]:
    """The whole environment. Raises PodConfigError."""
    return compose_environment(
        container.raw, inherited={**inherited, **image.environment}, sources=sources, facts=facts
    )


def plan_launch(  # noqa: PLR0913 - one argument a source of the request
    identifier: int,
    pod: Pod,
    container: Container,
    *,
    image: Image,
    environment: Mapping[str, str],
    volumes: Sequence[Mount],
    folders: LaunchFolders,
) -> Start:
    """The request to the launcher. Raises PodConfigError when there is no command."""
    argv = expand_all(image.command(container.raw), environment)
    if not argv:
        raise PodConfigError(
            f'image "{container.image}" has no entrypoint in the image table: give the container a command'
        )
    security = container.raw.get("securityContext") or {}
    mounts = [
        *volumes,
        Mount(str(folders.hosts), "/etc/hosts"),
        Mount(str(folders.termination), container.raw.get("terminationMessagePath") or DEFAULT_TERMINATION_PATH),
    ]
    return Start(
        id=identifier,
        argv=tuple(image.program(argv)),
        environment=dict(environment),
        working_directory=container.raw.get("workingDir") or "/",
        log_file=str(folders.log_file),
        root_directory=str(folders.root),
        mounts=(*mounts, *uncovered(interpreter_folders(), volumes)),
        hostname=hostname(pod),
        read_only_root=bool(security.get("readOnlyRootFilesystem")),
        new_privileges=security.get("allowPrivilegeEscalation", True),
    )


def interpreter_folders(search: Sequence[str] = sys.path) -> tuple[str, ...]:
    """Folders that an image would bring along: the interpreter, its packages, and the checkout.

    The root is none of them, although `python -m` searches the working directory, which is the root for a daemon.
    """
    found = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, *search) if path and Path(path).is_dir()}
    found |= {str(Path(path).absolute()) for path in (sys.prefix, Path(sys.executable).parent)}
    found.discard("/")
    return tuple(sorted(path for path in found if not any(str(other) in found for other in Path(path).parents)))


def uncovered(folders: Sequence[str], volumes: Sequence[Mount]) -> tuple[Mount, ...]:
    """Bind again what a writable volume covers, such as a checkout below /tmp by an emptyDir at /tmp."""
    targets = [volume.target.rstrip("/") for volume in volumes if not volume.read_only]
    return tuple(
        Mount(folder, folder) for folder in folders if any(folder.startswith(f"{target}/") for target in targets)
    )


def termination_policy(container: Mapping[str, Any]) -> bool:
    """Whether the last log lines stand in for a missing termination message."""
    return container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
