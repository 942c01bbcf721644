"""The log files of containers: `<pods>/<namespace>_<pod>/<container>.log`, the run before as `.previous.log`.

A program writes into its file directly; a file that has grown too large is copied to `.log.1` and emptied, which the
program does not notice since it appends. Folders of pods that have gone are kept for a look back, the newest of them.
"""

import logging
import shutil
from collections.abc import Collection
from pathlib import Path

LOG_BYTES_MAX = 64 * 1024 * 1024
_FOLDERS_KEPT = 200

log = logging.getLogger(__name__)


def log_folder(pods: Path, namespace: str, name: str) -> Path:
    """The folder of a pod's logs."""
    return pods / f"{namespace}_{name}"


def begin_log(folder: Path, container: str) -> Path:
    """The file for a new run; the last run's becomes the previous one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{container}.log"
    if path.exists():
        path.replace(folder / f"{container}.previous.log")
    path.touch()
    return path


def bound_logs(pods: Path, *, bytes_max: int = LOG_BYTES_MAX) -> None:
    """Empty every log that is too large, keeping one copy."""
    for path in pods.glob("*/*.log"):
        try:
            if path.stat().st_size <= bytes_max:
                continue
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            with path.open("r+b") as file:
                file.truncate(0)
        except OSError as error:
            log.warning("can't bound %s: %s", path, error)


def prune_logs(pods: Path, living: Collection[Path], *, kept: int = _FOLDERS_KEPT) -> None:
    """Delete the oldest folders of pods that have gone, beyond the newest `kept`."""
    gone = [folder for folder in pods.iterdir() if folder.is_dir() and folder not in living]
    gone.sort(key=lambda folder: folder.stat().st_mtime)
    for folder in gone[: max(0, len(gone) - kept)]:
        shutil.rmtree(folder, ignore_errors=True)
