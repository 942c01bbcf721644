"""The processes of pods on simulated nodes."""

import os
import signal

import psutil


def pids_of_pod(name: str) -> list[int]:
    """Processes whose HOSTNAME is the pod's name, parents first, as a kubelet names a container's host."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOSTNAME") == name:
                found.append((process.create_time(), process.pid))
        except (psutil.Error, OSError):
            continue
    return [pid for _, pid in sorted(found)]


def kill_pod_process(name: str) -> None:
    """SIGKILL the main process of a pod."""
    (first, *_) = pids_of_pod(name)
    os.kill(first, signal.SIGKILL)
