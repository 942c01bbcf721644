"""The image of the compiled router, laid out by its Dockerfile's COPY lines without a container engine.

The router's sources are compiled as the image's stage does it, but for two small modules only: all of them take minutes.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.charts.test_documents import ROOT, stage
from tests.router.test_compilation import compiling

MISSING = compiling().missing()
HOT = ("headers", "fitting")
IMPORTED = "import forebay_router.headers as a, forebay_router.fitting as b; print(a.__file__, b.__file__, sep='\\n')"


def build_context(folder: Path) -> Path:
    """What the ignore file lets in. Its lines name what is let in; the first ignores all, the last our caches."""
    first, *let_in, last = (ROOT / "deploy/images/Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert (first, last) == ("*", "**/__pycache__")
    for line in let_in:
        for source in ROOT.glob(line.removeprefix("!")):
            copy(source, folder / source.relative_to(ROOT))
    return folder


def copy(source: Path, target: Path) -> None:
    """As COPY does it: a folder's content, or a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def lay_out(name: str, root: Path, others: dict[str, Path]) -> Path:
    """Run the COPY lines of a stage, those from stages that are not among `others` left out. "" is the build context."""
    for line in re.findall(r"^COPY (.+)$", stage(name), re.MULTILINE):
        words = line.split()
        other = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else ""
        if other not in others:
            continue
        *patterns, target = words
        for pattern in patterns:
            found = list(others[other].glob(pattern.removeprefix("/")))
            assert found, f"COPY {line}: nothing is there"
            for source in found:
                inside = source.is_file() and target.endswith("/")
                copy(source, root / target.removeprefix("/") / (source.name if inside else ""))
    return root


@pytest.mark.slow
@pytest.mark.timeout(300)  # ten seconds of CPU, more of a busy machine's
@pytest.mark.skipif(MISSING is not None, reason=f"needs a C compiler: {MISSING}")
def test_the_image_holds_all_that_the_compiled_router_imports(tmp_path: Path):
    context = build_context(tmp_path / "context")
    made = lay_out("router-compiled", tmp_path / "compiled", {"": context})
    assert "\nRUN python /build/router/compiling.py /opt/compiled\n" in stage("router-compiled")
    script = made / "build/router/compiling.py"
    text, replaced = re.subn(
        r"^HOT = \[.*?^\]$", f"HOT = {list(HOT)}", script.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    assert replaced == 1
    script.write_text(text)
    subprocess.run([sys.executable, script, made / "opt/compiled"], check=True, capture_output=True)

    image = lay_out("router", tmp_path / "image", {"": context, "router-compiled": made})
    path = image / "opt/forebay/src"
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTED], env={"PYTHONPATH": str(path)}, capture_output=True, text=True, check=True
    )
    files = [Path(line) for line in ended.stdout.split()]
    assert [one.parent for one in files] == [path / "forebay_router"] * 2
    assert {one.suffix for one in files} == {".so"}
