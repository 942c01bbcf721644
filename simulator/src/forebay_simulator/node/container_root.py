"""Builds the file tree that a container's process sees, in the mount namespace of the calling process.

The tree is the machine's own, with the pod's volumes bound to their declared paths. Nothing is created on the machine:

1. The root is a new tmpfs into which every entry of the machine's `/` is bound again (symbolic links are copied).
   The tmpfs is unbindable, or binding the folder that holds it would copy the half-built tree into itself.
2. A mount point that does not exist is made in a *private* folder: the deepest existing ancestor gets a tmpfs of its
   own with its former entries bound again, and the missing folders are made there. `/var/run/secrets/...` is resolved
   inside the new root, so `/var/run -> /run` leads to a private `/run`.
3. With a read-only root, everything so far becomes read-only, as an image does.
4. `/proc` of the container's process namespace, an empty `/dev/shm`, and the volumes are mounted on top.

Volumes are opened before the root changes and bound through `/proc/self/fd`, so their sources need not be visible
inside. Runs in the launcher: standard library only.
"""

# Plain paths, no pathlib: this runs in a forked child, where each import costs every container start.
# ruff: noqa: PTH102, PTH103, PTH112, PTH115, PTH116, PTH118, PTH120, PTH211

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field

from forebay_simulator.node.launch_protocol import Mount
from forebay_simulator.node.system_calls import MountFlag, make_read_only, mount

# Entries that can't be bound again: gone since the listing, not ours to reach, or not bindable.
_SKIPPED_ERRORS = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EINVAL})


@dataclass(slots=True)
class _Root:
    """The root under construction: which folders may be written to without touching the machine."""

    private: set[str] = field(default_factory=lambda: {"/"})
    volumes: list[str] = field(default_factory=list)

    def in_volume(self, path: str) -> bool:
        return any(path.startswith(volume.rstrip("/") + "/") for volume in self.volumes)


def enter_root(root_directory: str, mounts: Sequence[Mount], *, read_only: bool) -> None:
    """Make `root_directory` (an empty folder) the root of this process, with `mounts` in place.

    The process must be in a mount namespace of its own. Raises OSError with the failing mount in its text.
    """
    ordered = sorted(mounts, key=lambda item: item.target.count("/"))
    sources = [os.open(item.source, os.O_PATH) for item in ordered]
    mount(None, "/", flags=MountFlag.RECURSIVE | MountFlag.PRIVATE)
    mount("tmpfs", root_directory, kind="tmpfs", flags=MountFlag.NO_SETUID, options="mode=755")
    mount(None, root_directory, flags=MountFlag.UNBINDABLE)
    _mirror("/", root_directory)
    os.chroot(root_directory)
    os.chdir("/")

    root = _Root()
    for item, source in zip(ordered, sources, strict=True):
        path = os.path.realpath(item.target)
        if not root.in_volume(path):
            _make_mount_point(path, directory=_is_directory(source), root=root)
        root.volumes.append(path)
    if read_only:
        make_read_only("/")
    _mount_system_folders()
    for item, source in zip(ordered, sources, strict=True):
        _bind_volume(item, source, root)


def _mirror(source: str, target: str) -> None:
    """Bind every entry of folder `source` into the empty folder `target`."""
    try:
        entries = list(os.scandir(source))
    except PermissionError:
        return  # a folder that can't be listed has no entry that the container could use
    for entry in entries:
        try:
            _mirror_entry(entry, os.path.join(target, entry.name))
        except OSError as error:
            if error.errno not in _SKIPPED_ERRORS:
                raise


def _mirror_entry(entry: os.DirEntry[str], target: str) -> None:
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), target)
        return
    if entry.is_dir(follow_symlinks=False):
        os.mkdir(target)
    else:
        _touch(target)
    mount(entry.path, target, flags=MountFlag.BIND | MountFlag.RECURSIVE)


def _make_mount_point(path: str, *, directory: bool, root: _Root) -> None:
    if os.path.lexists(path):
        return
    missing: list[str] = []
    ancestor = path
    while not os.path.lexists(ancestor):
        missing.append(ancestor)
        ancestor = os.path.dirname(ancestor)
    if ancestor not in root.private:
        _make_private(ancestor)
        root.private.add(ancestor)
    for folder in reversed(missing[1:]):
        os.mkdir(folder)
        root.private.add(folder)
    if directory:
        os.mkdir(path)
        root.private.add(path)
    else:
        _touch(path)


def _make_private(folder: str) -> None:
    """Cover `folder` with a tmpfs that holds the same entries."""
    mode = stat.S_IMODE(os.stat(folder).st_mode)
    former = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        mount("tmpfs", folder, kind="tmpfs", flags=MountFlag.NO_SETUID, options=f"mode={mode:o}")
        _mirror(f"/proc/self/fd/{former}", folder)
    finally:
        os.close(former)


def _mount_system_folders() -> None:
    unchanging = MountFlag.NO_SETUID | MountFlag.NO_DEVICES | MountFlag.NO_EXECUTION
    # Refused where parts of the machine's /proc are hidden (inside some container runtimes): its own view stays.
    with contextlib.suppress(PermissionError):
        mount("proc", "/proc", kind="proc", flags=unchanging)
    if os.path.isdir("/dev/shm"):  # noqa: S108 - the shared-memory folder itself
        mount("tmpfs", os.path.realpath("/dev/shm"), kind="tmpfs", flags=MountFlag.NO_SETUID, options="mode=1777")  # noqa: S108


def _bind_volume(item: Mount, source: int, root: _Root) -> None:
    path = os.path.realpath(item.target)
    if root.in_volume(path) and not os.path.lexists(path):
        if _is_directory(source):
            os.makedirs(path)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _touch(path)
    mount(f"/proc/self/fd/{source}", path, flags=MountFlag.BIND | MountFlag.RECURSIVE)
    if item.read_only:
        make_read_only(path)
    os.close(source)


def _is_directory(descriptor: int) -> bool:
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
