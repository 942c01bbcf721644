"""What tells whether the router runs compiled, and the list of what is compiled."""

import importlib.util
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import httpx

from forebay_router.compilation import compiled, version_line
from tests.router.harness import routed
from tests.router.scripted import hello, workers

SCRIPT = Path(__file__).parents[2] / "router" / "compiling.py"


def compiling():
    spec = importlib.util.spec_from_file_location("compiling", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_hot_module_is_there_and_runs_as_the_rest():
    """All of them are extensions, or none is: a mix would mean an old copy."""
    for name in compiling().HOT:
        spec = find_spec("forebay_router." + name.replace("/", "."))
        assert spec is not None, f"router/compiling.py lists {name}, which is not there"
        assert spec.origin.endswith(".py") is not compiled(), name


def test_no_extension_stands_beside_the_sources():
    assert not list((SCRIPT.parent / "src").rglob("*.so")), "remove these: they run instead of the sources"


def test_machine_without_a_compiler_is_told_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    ended = subprocess.run([sys.executable, SCRIPT, tmp_path / "made"], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "there is no C compiler (no-such-compiler); install gcc" in ended.stderr
    assert not (tmp_path / "made").exists()


async def test_state_and_version_tell_whether_it_is_compiled():
    assert version_line().endswith("(compiled)" if compiled() else "(interpreted)")
    async with workers(hello) as [worker], routed(worker) as router, httpx.AsyncClient() as client:
        assert (await client.get(router.control + "/state")).json()["compiled"] is compiled()
