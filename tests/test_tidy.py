"""The repository read as text: what a review forgets to check."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMPONENTS = ("api", "autoscaler", "capacity", "cli", "localcluster", "operator", "router", "simulator")
SOURCES = sorted(path for component in COMPONENTS for path in (ROOT / component / "src").rglob("*.py"))
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400
VAGUE_MODULE_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows or would add."""
    found = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    return [ROOT / name for name in found if name and (ROOT / name).is_file()]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_functions_and_files_are_short(path: Path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= FILE_LINES_MAX, f"{name_of(path)} is over {FILE_LINES_MAX} lines: split it by concern"
    long = [
        f"{node.name} ({length} lines)"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long, f"{name_of(path)}: over {FUNCTION_LINES_MAX} lines: {', '.join(long)}"


def test_modules_are_named_for_what_they_do():
    vague = [name_of(path) for path in SOURCES if path.stem in VAGUE_MODULE_NAMES]
    assert not vague, f"say what these are for: {vague}"


def test_nothing_below_operator_shadows_the_standard_library():
    """A package, test or conftest below operator/ outside src/ would replace the standard library's `operator`."""
    outside = [
        name_of(path)
        for path in (ROOT / "operator").rglob("*.py")
        if not path.is_relative_to(ROOT / "operator" / "src")
    ]
    assert not outside


def test_every_dependency_has_a_reason():
    for component in COMPONENTS:
        text = (ROOT / component / "pyproject.toml").read_text(encoding="utf-8")
        block = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
        assert block, component
        for line in block.group(1).splitlines():
            assert "forebay-" in line or re.search(r"#\s*\S", line), f"{component}/pyproject.toml: why {line.strip()}?"


def test_no_leftover_markers():
    marker = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [name_of(p) for p in SOURCES if marker.search(p.read_text(encoding="utf-8"))]
    assert not found, f"finish these, or file an issue: {found}"


def test_the_lock_names_no_download_address():
    assert "://" not in (ROOT / "requirements.lock").read_text(encoding="utf-8")


def test_relative_links_of_the_documents_lead_somewhere():
    link = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")
    broken = [
        f"{name_of(path)} -> {target}"
        for path in tracked("*.md")
        for target in link.findall(path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert not broken
