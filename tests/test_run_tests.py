"""CI's runs of pytest: what they end with decides, and a run that nobody saw the end of is never green."""

from __future__ import annotations

import importlib.util
import sys
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest
from _pytest.mark.expression import Expression

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "run_tests.py"


@pytest.fixture(scope="module")
def runs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_tests", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("codes", "chosen", "expected"),
    [
        ((0, 0, 0), False, "PASSED"),
        ((0, 1, 0), False, "FAILED"),
        ((1, 1, 1), False, "FAILED"),
        ((0, 5, 0), False, "BROKEN"),  # a run of the whole suite that finds no test
        ((0, 5, 5), True, "PASSED"),
        ((5, 1, 5), True, "FAILED"),
        ((5, 5, 5), True, "BROKEN"),
        ((1, 2, 0), False, "BROKEN"),  # interrupted, or errors while collecting
        ((1, 3, 0), True, "BROKEN"),  # an internal error
        ((1, 4, 0), False, "BROKEN"),  # a wrong argument
        ((1, -9, 0), False, "BROKEN"),  # killed
        ((1, 7, 0), False, "BROKEN"),  # a test ended the process
    ],
)
def test_a_run_that_did_not_go_through_breaks_all(runs, codes, chosen, expected):
    assert runs.verdict(codes, chosen=chosen).name == expected


@pytest.mark.parametrize(
    "marks", [set(some) for count in range(4) for some in combinations(("cluster", "tables", "e2e"), count)]
)
def test_every_test_is_in_one_run(runs, marks):
    """Of those that need no real engine and measure nothing; `tables` is said of tests on clusters only."""
    of = [
        run.name
        for turn in runs.TURNS
        for run in turn
        if Expression.compile(run.marks).evaluate(lambda name: name in marks)
    ]
    assert len(of) == 1


FLAKY = """
from pathlib import Path
def test_that_fails_once():
    mark = Path(__file__).with_name("been-here")
    there = mark.exists()
    mark.touch()
    assert there
"""
PASSING = "def test_that_passes(): pass\n"
FAILING = "def test_that_fails(): assert False\n"
DYING = "import os\ndef test_that_ends_the_process(): os._exit(7)\ndef test_that_nobody_sees(): assert False\n"


@pytest.mark.parametrize(
    ("texts", "flags", "status", "told"),
    [
        ((FLAKY, PASSING), ["--again"], 0, "== passed"),
        ((FLAKY, PASSING), [], 1, "== some tests failed"),
        ((FLAKY, FAILING), ["--again"], 1, "== some tests failed"),
        ((FLAKY, DYING), ["--again"], 1, "== a run did not go through"),
        ((FLAKY, ""), ["--again"], 1, "== a run did not go through"),
        ((PASSING, PASSING), ["first"], 0, "== passed"),
    ],
)
def test_failures_are_repeated_and_losses_are_not(runs, tmp_path, capfd, monkeypatch, texts, flags, status, told):  # noqa: PLR0917  # fixtures
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # none is needed, and they take a second to load
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = one\n    two\n")
    for name, mark, text in zip(("first", "second"), ("one", "two"), texts, strict=True):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"test_{name}.py").write_text(f"import pytest\npytestmark = pytest.mark.{mark}\n{text}")
    turns = ((runs.Run("first", "one"), runs.Run("second", "two")),)
    assert runs.main(flags, root=tmp_path, turns=turns) == status
    assert told in capfd.readouterr().out
