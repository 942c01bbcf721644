"""Every test, in four runs of pytest: `make test`, and with `--again` what CI runs.

    plain      on more processes than there are cores: those that need no cluster,
    tables     and beside them the many that put objects to an API server or render charts, one after the other
    cluster    then, one after another: the others on real Kubernetes programs,
    e2e        and beside them those that drive the whole system; neither takes a core for long

Each run has a pytest cache of its own under build/test, so that none writes over what another one knows of its failures.
Further arguments go to every run; one that finds nothing to do is then fine, unless that is so of all.

How a run ended decides, not only which tests failed: one that died, was interrupted, could not collect or ran nothing has
tests that nobody saw, and no repetition makes up for these. With `--again`, failed tests of runs that went through are run once
more, alone: these machines are shared, and a test of a deadline can meet a neighbour's load. One that fails twice fails all.

Status: 0 when every test passed, at once or again, else 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PASSED, FAILED, NOTHING = 0, 1, 5
"""pytest's exit codes for a run that went through, and for one that had no test; all others say that it did not go through."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of pytest."""

    name: str
    marks: str
    """Which tests."""
    spread: tuple[str, ...] = ()
    """How they are spread over cores."""


PROCESSES = len(os.sched_getaffinity(0)) * 3 // 2
"""More than there are cores: many tests wait for a process or a clock rather than compute."""
PLAIN = Run(
    "plain",
    "not cluster and not e2e and not real_engine and not bench",
    ("-q", "-n", str(PROCESSES), "--dist", "worksteal"),
)
TABLES = Run("tables", "cluster and tables and not e2e and not real_engine and not bench")
CLUSTER = Run("cluster", "cluster and not tables and not e2e and not real_engine and not bench")
END_TO_END = Run("e2e", "e2e and not real_engine and not bench")
TURNS = ((PLAIN, TABLES), (CLUSTER, END_TO_END))
"""One turn after the other; the runs of a turn go side by side."""


class Verdict(Enum):
    """What all runs come to."""

    PASSED = "passed"
    FAILED = "some tests failed"
    BROKEN = "a run did not go through"


def verdict(codes: Sequence[int], *, chosen: bool) -> Verdict:
    """Of pytest's exit codes. `chosen`: arguments choose among the tests, so that a run may have none."""
    harmless = {PASSED, FAILED} | ({NOTHING} if chosen else set())
    if any(code not in harmless for code in codes) or all(code == NOTHING for code in codes):
        return Verdict.BROKEN
    return Verdict.FAILED if FAILED in codes else Verdict.PASSED


def main(arguments: Sequence[str], *, root: Path = ROOT, turns: Sequence[Sequence[Run]] = TURNS) -> int:
    """Run all, and what failed once more if asked to."""
    again = "--again" in arguments
    given = [one for one in arguments if one != "--again"]
    shutil.rmtree(root / "build" / "test", ignore_errors=True)
    codes: dict[Run, int] = {}
    for turn in turns:
        with ThreadPoolExecutor(len(turn)) as pool:
            going = {
                run: pool.submit(run_pytest, root, run, [*run.spread, *given], label=len(turn) > 1) for run in turn
            }
            codes |= {run: one.result() for run, one in going.items()}
    for run, code in codes.items():
        print(f"== {run.name}: pytest ended with {code}", flush=True)
    found = verdict(list(codes.values()), chosen=bool(given))
    if again and found is Verdict.FAILED:
        print("\n== once more, the failed tests alone", flush=True)
        flags = ["--last-failed", "--last-failed-no-failures", "none", *given]
        repeated = [run_pytest(root, run, flags) for run, code in codes.items() if code == FAILED]
        found = Verdict.PASSED if all(code == PASSED for code in repeated) else Verdict.FAILED
    print(f"== {found.value}", flush=True)
    return 0 if found is Verdict.PASSED else 1


def run_pytest(root: Path, run: Run, flags: Sequence[str], *, label: bool = False) -> int:
    """The exit code of pytest, or -signal. With `label` each line bears the run's name, for there are others beside it."""
    cache = root / "build" / "test" / run.name
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", "-m", run.marks, *flags]
    if not label:
        return subprocess.run(command, cwd=root, check=False).returncode
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{run.name:>7} | {line}", end="", flush=True)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
