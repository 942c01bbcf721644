"""The Linux system calls that the launcher needs and Python 3.11 lacks: mounts, namespaces, prctl.

Standard library only: the launcher starts without site-packages. Every failure is an OSError that names the
call and its object.
"""

import ctypes
import enum
import errno
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_PR_SET_NO_NEW_PRIVS = 38


class Namespace(enum.IntFlag):
    """CLONE_NEW* flags."""

    MOUNT = 0x00020000
    HOSTNAME = 0x04000000
    USER = 0x10000000
    PROCESS = 0x20000000


class MountFlag(enum.IntFlag):
    """MS_* flags."""

    READ_ONLY = 1
    NO_SETUID = 2
    NO_DEVICES = 4
    NO_EXECUTION = 8
    REMOUNT = 32
    BIND = 4096
    RECURSIVE = 16384
    UNBINDABLE = 1 << 17
    PRIVATE = 1 << 18


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def mount(
    source: str | None, target: str, *, kind: str | None = None, flags: MountFlag | None = None, options: str = ""
) -> None:
    """Mount a file system, bind a path, or change the flags of a mount."""
    result = _libc.mount(
        _encoded(source), _encoded(target), _encoded(kind), ctypes.c_ulong(int(flags or 0)), _encoded(options or None)
    )
    _check(result, f"mount {source or kind or flags!r} on {target}")


def make_read_only(path: str) -> None:
    """Make the mount at `path` and all mounts below it read-only, other flags kept.

    Before Linux 5.12 only the mount at `path` itself is changed.
    """
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.c_char_p(attributes),
        ctypes.c_size_t(len(attributes)),
    )
    if result != 0 and ctypes.get_errno() == errno.ENOSYS:
        _remount_read_only(path)
        return
    _check(int(result), f"make {path} read-only")


def _remount_read_only(path: str) -> None:
    # A remount replaces all flags, and in a user namespace it may not clear those that were set.
    present = os.statvfs(path).f_flag
    kept = MountFlag(present & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC))
    mount(None, path, flags=MountFlag.REMOUNT | MountFlag.BIND | MountFlag.READ_ONLY | kept)


def unshare(namespaces: Namespace) -> None:
    """Leave the shared namespaces for new ones. A process namespace takes effect for children only."""
    _check(_libc.unshare(ctypes.c_int(int(namespaces))), f"unshare {namespaces!r}")


def join(descriptor: int, namespace: Namespace) -> None:
    """Enter the namespace behind an open file of /proc/.../ns."""
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(int(namespace))), f"join {namespace!r}")


def set_hostname(name: str) -> None:
    """Set the name within the current host name namespace."""
    encoded = os.fsencode(name)
    _check(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))), f"set host name {name}")


def forbid_new_privileges() -> None:
    """No program executed from here on gains rights by set-user-id bits."""
    _check(
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)),
        "forbid new privileges",
    )


def enter_user_namespace() -> None:
    """Give this process the rights to mount within a namespace of its own; user and group ids stay the same.

    A program executed later by a user other than root has none of these rights.
    """
    user, group = os.geteuid(), os.getegid()
    unshare(Namespace.USER | Namespace.MOUNT)
    for path, text in (
        ("/proc/self/setgroups", "deny"),
        ("/proc/self/uid_map", f"{user} {user} 1"),
        ("/proc/self/gid_map", f"{group} {group} 1"),
    ):
        with open(path, "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib costs start-up time
            file.write(text)
