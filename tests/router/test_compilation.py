"""What tells whether the router runs compiled, and the list of what is compiled."""

import dataclasses
import importlib.util
import inspect
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import httpx

from forebay_router.compilation import compiled, version_line
from tests.router.harness import routed
from tests.router.scripted import hello, workers
from tests.support.bounds import NEVER_S

SCRIPT = Path(__file__).parents[2] / "router" / "compiling.py"


def compiling():
    spec = importlib.util.spec_from_file_location("compiling", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for it
    spec.loader.exec_module(module)
    return module


DATACLASSES = """
from collections import deque
from dataclasses import dataclass, field
from typing import Final

@dataclass(frozen=True, slots=True)
class Plain:
    \"\"\"Frozen.\"\"\"

    one: int
    other: "str | None" = None
    \"\"\"Told in quotes.\"\"\"


@dataclass
class Made:
    needed: int
    items: deque[int] = field(default_factory=lambda: deque(maxlen=2))
    names: dict[str, int] = field(default_factory=dict)
    late: int = field(kw_only=True, default=5)
    derived: int = field(init=False)
    counted: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.derived = self.needed * 2


@dataclass(slots=True)
class Fixed:
    kind: Final = 3
    size: int = 0


@dataclass
class Child(Plain if False else object):
    size: int = 0


where = inspect_line()
"""
"""Some that are written out, and two that are not understood."""


def run(source: str) -> dict:
    names = {"inspect_line": lambda: inspect.currentframe().f_back.f_lineno, "__name__": "made"}
    sys.modules["made"] = type(sys)("made")
    exec(compile(source, "made.py", "exec"), names)
    return names


def test_inits_that_are_written_out_do_what_those_of_dataclass_do():
    """And no line moves."""
    plain, written = run(DATACLASSES), run(compiling().with_inits(DATACLASSES))
    assert plain["where"] == written["where"]
    for name, arguments, named in (
        ("Made", (4,), {"late": 7}),
        ("Made", (4, [1], {"a": 1}), {}),
        ("Fixed", (), {"size": 2}),
        ("Child", (2,), {}),
    ):
        one, other = (names[name](*arguments, **named) for names in (plain, written))
        assert dataclasses.asdict(one) == dataclasses.asdict(other)
    assert written["Made"](1).items.maxlen == 2
    assert written["Made"](1).names is not written["Made"](1).names
    assert list(inspect.signature(written["Plain"]).parameters) == ["one", "other"]  # only compiled it may set them
    own = {name for name in ("Plain", "Made", "Fixed", "Child") if not written[name].__dataclass_params__.init}
    assert own == {"Plain", "Made"}


def test_every_hot_module_can_be_given_to_the_compiler_with_inits_written_out():
    """Most of their dataclasses are: what is not costs each request half a microsecond."""
    made = compiling()
    written = left = 0
    for name in made.HOT:
        source = (SCRIPT.parent / "src" / "forebay_router" / f"{name}.py").read_text()
        changed = made.with_inits(source)
        compile(changed, name, "exec")
        assert source.count("\n") == changed.count("\n")
        written += changed.count("@dataclass(init=False")
        left += changed.count("@dataclass") - changed.count("@dataclass(init=False")
    assert written > 50
    assert left < 10


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
    async with workers(hello) as [worker], routed(worker) as router, httpx.AsyncClient(timeout=NEVER_S) as client:
        assert (await client.get(router.control + "/state")).json()["compiled"] is compiled()
