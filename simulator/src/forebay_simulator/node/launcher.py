"""The launcher: a small process beside the node agent that starts, signals and reaps the containers' processes.

Why a process of its own: it stays single-threaded and small, so that it can fork, change namespaces and execute in a
few milliseconds (a start of the interpreter per container would take tens), and it can end everything when the agent dies.

The launcher is process 1 of a process namespace that holds the node's processes and nothing else. Each container gets,
as from a container runtime, its own process, mount and host-name namespaces within; its main process is process 1 in there:
a signal that it has no handler for does nothing (but SIGKILL), and when it ends the kernel ends every process that it left.
Whichever way the agent dies, the launcher sees the end of its socket and ends; whichever way the launcher ends, the
kernel ends every process of the namespace.

A forked child tells how its start goes on a pipe: first the process number that the machine knows it by, then an error
text, if any. `execve` closes the pipe, hence its end without a text means "the program runs".

Without root the launcher enters a user namespace in which it may mount. Standard library only.
"""

import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from forebay_simulator.node.container_root import enter_root
from forebay_simulator.node.launch_protocol import (
    Execute,
    Exited,
    Ready,
    Report,
    Request,
    Signal,
    Start,
    Started,
    StartFailed,
    Unusable,
    decode,
    encode,
)
from forebay_simulator.node.system_calls import (
    Namespace,
    enter_user_namespace,
    forbid_new_privileges,
    join,
    set_hostname,
    unshare,
)

_READ_BYTES = 1 << 16
_FAILED_START_EXIT_CODE = 127
_RESET_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)


@dataclass(slots=True)
class _Child:
    id: int
    process_id: int  # in the launcher's process namespace
    pipe: int
    text: bytes = b""
    machine_process_id: int = 0
    announced: bool = False


class Launcher:
    """Serves one agent over `channel` until the agent closes it."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._buffer = b""
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._own_process_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self._wake_reader, self._wake_writer = os.pipe()

    def serve(self) -> None:
        """Run until the agent's end of the channel closes."""
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        self._selector.register(self._channel, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        try:
            self._report(Ready())
            while self._serve_once():
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass  # the agent is gone

    def _serve_once(self) -> bool:
        for key, _ in self._selector.select():
            if key.fileobj is self._channel:
                if not self._receive():
                    return False
            elif key.fd == self._wake_reader:
                with suppress(BlockingIOError):
                    os.read(self._wake_reader, _READ_BYTES)
                self._reap()
            elif isinstance(key.data, _Child) and key.data.pipe >= 0:  # reaping it may have read it to its end just now
                self._read_pipe(key.data)
        return True

    def _report(self, report: Report) -> None:
        self._channel.sendall(encode(report))

    def _receive(self) -> bool:
        data = self._channel.recv(_READ_BYTES)
        if not data:
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._handle(decode(line))
        return True

    def _handle(self, request: Request) -> None:
        try:
            match request:
                case Start():
                    self._fork(request)
                case Execute():
                    self._fork(request)
                case Signal():
                    self._signal(request)
        except OSError as error:
            self._report(StartFailed(request.id, str(error)))

    def _signal(self, request: Signal) -> None:
        child = self._children.get(request.id)
        if child is None:
            return
        # Not reaped yet, so the number can't belong to another process.
        if request.number == signal.SIGKILL:
            # What a probe's command has started is to end with it; the group exists once the child has made it.
            with suppress(ProcessLookupError):
                os.killpg(child.process_id, signal.SIGKILL)
        os.kill(child.process_id, request.number)

    def _fork(self, request: Start | Execute) -> None:
        inside = None
        if isinstance(request, Execute):
            inside = self._children.get(request.inside)
            if inside is None or not inside.machine_process_id:
                self._report(StartFailed(request.id, "the container is not running"))
                return
        reader, writer = os.pipe()
        try:
            process_id = self._fork_in_process_namespace(request, inside, writer)
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        child = _Child(id=request.id, process_id=process_id, pipe=reader)
        self._children[request.id] = child
        self._selector.register(reader, selectors.EVENT_READ, child)

    def _fork_in_process_namespace(self, request: Start | Execute, inside: _Child | None, pipe: int) -> int:
        if inside is None:
            unshare(Namespace.PROCESS)
        else:
            namespace = os.open(f"/proc/{inside.machine_process_id}/ns/pid", os.O_RDONLY)
            join(namespace, Namespace.PROCESS)
            os.close(namespace)
        try:
            process_id = os.fork()
        finally:
            # Runs in the child too, where it fails or does nothing: a process can't leave its namespace.
            with suppress(OSError):
                join(self._own_process_namespace, Namespace.PROCESS)
        if process_id == 0:
            _become(request, inside, pipe)
        return process_id

    def _read_pipe(self, child: _Child) -> None:
        data = os.read(child.pipe, _READ_BYTES)
        child.text += data
        if not child.machine_process_id and b"\n" in child.text:
            number, child.text = child.text.split(b"\n", 1)
            child.machine_process_id = int(number)
        if data:
            return
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        child.pipe = -1
        if child.text or not child.machine_process_id:
            self._report(StartFailed(child.id, child.text.decode(errors="replace") or "killed while starting"))
        else:
            child.announced = True
            self._report(Started(child.id, child.machine_process_id))

    def _reap(self) -> None:
        by_process_id = {child.process_id: child for child in self._children.values()}
        while self._children:
            process_id, status = os.waitpid(-1, os.WNOHANG)
            if process_id == 0:
                return
            child = by_process_id.get(process_id)
            if child is None:
                continue  # an orphan that a probe's process left
            while child.pipe >= 0:
                self._read_pipe(child)
            del self._children[child.id]
            if child.announced:
                self._report(_exited(child.id, status))


def _exited(identifier: int, status: int) -> Exited:
    if os.WIFSIGNALED(status):
        return Exited(identifier, code=None, signal=os.WTERMSIG(status))
    return Exited(identifier, code=os.WEXITSTATUS(status), signal=None)


def _become(request: Start | Execute, inside: _Child | None, pipe: int) -> None:
    """Turn the forked child into the requested program. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for number in _RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        # The machine's /proc is still in place: the number is the one that the machine knows.
        os.write(pipe, os.readlink(b"/proc/self") + b"\n")  # noqa: PTH115 - no pathlib in the forked child
        _open_standard_streams(request.log_file)
        if isinstance(request, Start):
            _enter_new_container(request)
        elif inside is not None:
            _enter_running_container(inside.machine_process_id)
        _change_directory(request.working_directory)
        _execute(request)
    except Exception as error:  # noqa: BLE001 - whatever it is must reach the pod's status
        _fail(pipe, str(error))
    finally:
        os._exit(_FAILED_START_EXIT_CODE)


def _execute(request: Start | Execute) -> NoReturn:
    program = request.argv[0]
    try:
        os.execvpe(program, request.argv, dict(request.environment))  # noqa: S606 - no shell is the point
    except FileNotFoundError as error:
        where = "" if "/" in program else " in $PATH"
        raise OSError(f'exec: "{program}": executable file not found{where}') from error
    except OSError as error:
        raise OSError(f'exec: "{program}": {error.strerror}') from error


def _fail(pipe: int, text: str) -> None:
    with suppress(OSError):
        os.write(pipe, text.encode())


def _open_standard_streams(log_file: str) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _enter_new_container(request: Start) -> None:
    unshare(Namespace.MOUNT | Namespace.HOSTNAME)
    set_hostname(request.hostname)
    enter_root(request.root_directory, request.mounts, read_only=request.read_only_root)
    if not request.new_privileges:
        forbid_new_privileges()


def _enter_running_container(machine_process_id: int) -> None:
    process = f"/proc/{machine_process_id}"
    root = os.open(f"{process}/root", os.O_PATH | os.O_DIRECTORY)
    mounts = os.open(f"{process}/ns/mnt", os.O_RDONLY)
    hostname = os.open(f"{process}/ns/uts", os.O_RDONLY)
    join(mounts, Namespace.MOUNT)
    join(hostname, Namespace.HOSTNAME)
    os.fchdir(root)
    os.chroot(".")


def _change_directory(path: str) -> None:
    try:
        os.chdir(path)
    except FileNotFoundError:
        # An image brings its working directory along; the machine may have no such folder.
        os.chdir("/")


def main() -> None:
    """Serve the agent on the socket whose descriptor number is the first argument.

    The second is the agent's lock: held open here too, it is free when neither agent nor launcher is left.
    """
    channel = socket.socket(fileno=int(sys.argv[1]))
    for descriptor in map(int, sys.argv[1:]):
        os.set_inheritable(descriptor, False)
    try:
        _gain_mount_rights()
        unshare(Namespace.PROCESS)
    except OSError as error:
        channel.sendall(
            encode(Unusable(f"{error}; run as root, or allow unprivileged user namespaces on this machine"))
        )
        return
    if os.fork() == 0:
        Launcher(channel).serve()


def _gain_mount_rights() -> None:
    if os.geteuid() == 0:
        with suppress(PermissionError):
            unshare(Namespace.MOUNT)
            return
    enter_user_namespace()


if __name__ == "__main__":
    main()
