"""What makes a run of the tests, and of CI, pass and fail: the real scripts before a pytest that ends as it is told."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STUB = """#!/usr/bin/env bash
echo "$@" >> calls
read -r status < statuses
sed -i 1d statuses
exit "$status"
"""
PASSED, FAILED, CRASHED, USAGE, NONE_CHOSEN = 0, 1, 134, 4, 5


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def ended(folder: Path, script: str, statuses: list[int], *arguments: str) -> tuple[int, list[str]]:
    """A script's status, and with what it called pytest."""
    for name in ("scripts/test.sh", ".ci/run"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    program(folder / ".venv/bin/python", STUB)
    program(folder / "scripts/check.sh", "#!/bin/sh\n")
    program(folder / "bin/make", "#!/bin/sh\n")
    (folder / "statuses").write_text("".join(f"{one}\n" for one in statuses))
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        [folder / script, *arguments], env={"PATH": path}, capture_output=True, text=True, check=False, timeout=60
    )
    calls = folder / "calls"
    return done.returncode, calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ([PASSED, PASSED], 0),
        ([FAILED, PASSED], 1),
        ([PASSED, FAILED], 1),
        ([NONE_CHOSEN, PASSED], 0),
        ([PASSED, NONE_CHOSEN], 0),
        ([NONE_CHOSEN, FAILED], 1),
        ([NONE_CHOSEN, NONE_CHOSEN], 2),
        ([CRASHED, PASSED], 2),
        ([CRASHED, FAILED], 2),
        ([FAILED, CRASHED], 2),
        ([USAGE, USAGE], 2),
    ],
)
def test_a_run_passes_where_all_that_was_chosen_passed(tmp_path, statuses, status):
    found, calls = ended(tmp_path, "scripts/test.sh", statuses, "tests/capacity")
    assert found == status
    assert len(calls) == 2
    assert all(call.endswith("tests/capacity") for call in calls)


@pytest.mark.parametrize(
    ("statuses", "status", "runs"),
    [
        ([PASSED, PASSED], 0, 2),
        ([FAILED, PASSED, PASSED], 0, 3),
        ([FAILED, PASSED, FAILED], 1, 3),
        ([FAILED, CRASHED], 2, 2),
        ([CRASHED, PASSED], 2, 2),
    ],
)
def test_ci_repeats_failed_tests_and_never_a_run_that_broke_off(tmp_path, statuses, status, runs):
    """A run that dies leaves no list of what it had still to do."""
    (tmp_path / ".pytest_cache").mkdir()
    found, calls = ended(tmp_path, ".ci/run", statuses)
    assert found == status
    assert len(calls) == runs
    assert not (tmp_path / ".pytest_cache").exists(), "failures of an earlier run are not this one's"
    if runs == 3:
        assert "--last-failed" in calls[-1]
