"""Compiles the router's hot modules to machine code with mypyc. Optional: the Python sources are all there is to maintain.

    python router/compiling.py build/compiled      a copy of the package, compiled, with a program beside it that runs it

The copy holds every module as source; of those in `HOT` it holds an extension as well, which Python prefers on import.
Extensions never stand beside the sources of the checkout: an outdated one would run old code. The copy is made in full under
another name and then renamed, so an interrupted run leaves the last one; a digest of what went into it tells whether it is up
to date.

What stays interpreted, and why: modules that a request does not pass through, or only one that is explained, traced, of a key,
tokenized or told to other replicas (`explaining`, `tracing`, `tenancy.quotas`, `tokens`, `mesh`); pydantic models
(`tenancy.keys`); exceptions that are dataclasses (`errors`, `refusal`); generic dataclasses (`pending`, `admission.fair_queue`),
which mypyc cannot make native.

The `__init__` that `dataclass` makes would be interpreted as well, which costs a request more than anything else that is left of
Python: half a microsecond and more for each object. So the compiler is given dataclasses with theirs written out (`with_inits`);
the copy keeps the sources as they are, and since no line moves, tracebacks name the right ones.

`hatch_build.py` puts the same extensions into a wheel.
"""

import argparse
import ast
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
NEIGHBOURS = (HERE.parent / "api" / "src", HERE.parent / "capacity" / "src")
"""Packages of ours whose types are read."""
PACKAGE = "forebay_router"
HOT = [
    "accounting",
    "answer",
    "attempt",
    "backlog",
    "bodies",
    "burst",
    "choose",
    "client",
    "collector",
    "endpoints",
    "fitting",
    "headers",
    "judging",
    "keep_alive",
    "learning",
    "leases",
    "access_log",
    "metrics",
    "parsing",
    "peer",
    "place",
    "placing",
    "predicting",
    "protection",
    "reading",
    "relay",
    "replies",
    "reply",
    "rewriting",
    "router",
    "scoring",
    "serialising",
    "skimming",
    "speed",
    "sse",
    "table",
    "upstream",
    "upstream_connection",
    "usage",
    "worker_access",
    "admission/claim",
    "admission/drain_rate",
    "admission/patience",
    "admission/room",
    "health/breaker",
    "health/guard",
    "index/approximate",
    "index/audit",
    "index/content",
    "index/events",
    "index/holders",
    "index/precise",
    "index/prefix_index",
    "index/recency",
    "index/sessions",
    "index/sharing",
    "index/tree",
    "index/underway",
    "tenancy/gate",
]
"""Modules that each request passes through. They are compiled as one unit, so calls between them are direct."""
OPTIONS = """
[mypy]
python_version = {version}
cache_dir = {cache}
follow_imports = silent
[mypy-httptools.*,looptime.*]
ignore_missing_imports = True
[mypy-aiohttp.*,fastapi.*,jinja2.*,kubernetes.*,opentelemetry.*,prometheus_client.*,starlette.*,tokenizers.*,uvicorn.*,zmq.*]
follow_imports = skip
ignore_missing_imports = True
[mypy-forebay_api.*,forebay_capacity.*]
ignore_missing_imports = True
"""
"""mypy's, which reads the types. Large packages that no hot module uses are not read: that would take minutes."""
LAUNCHER = """#!/bin/sh
# The compiled router. The package beside this file comes first on the import path.
here=$(cd "$(dirname "$0")" && pwd)
PYTHONPATH="$here${{PYTHONPATH:+:$PYTHONPATH}}" exec {python} -m forebay_router "$@"
"""
_FLAGS = ["-fvisibility=hidden", "-fno-plt"]
"""gcc's and clang's: calls between the modules go straight, not through a table. A router that sleeps between two requests finds
little of its code in the caches, and this is a tenth less of it."""
DIGEST = "digest"
PROGRAM = "forebay-router"


def digest() -> str:
    """Of all that a compiled copy is made of."""
    made = hashlib.sha256(sys.version.encode())
    for folder in (SOURCES, *NEIGHBOURS):
        for path in sorted(folder.rglob("*.py")):
            made.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    made.update(Path(__file__).read_bytes())
    return made.hexdigest()


def up_to_date(folder: Path) -> bool:
    """A compiled copy is there, made of what there is now."""
    stamp = folder / DIGEST
    return stamp.is_file() and stamp.read_text() == digest()


def missing() -> str | None:
    """What this machine lacks to compile, in one sentence; None when nothing is missing."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    compiler = os.environ.get("CC", compiler).split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler}); install gcc"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "Python's headers are not there; install them (Debian: python3-dev)"
    for module in ("mypyc", "setuptools"):
        if subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False).returncode:
            return f"the Python package {module} is not installed; run `make setup`"
    return None


def compile_into(folder: Path) -> None:
    """Make the compiled copy in `folder`, which is replaced. Takes minutes; CalledProcessError when a compiler fails."""
    made_of = digest()  # first: what changes meanwhile is not in it
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(
        SOURCES / PACKAGE, fresh / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "*.so"), dirs_exist_ok=True
    )
    with tempfile.TemporaryDirectory() as scratch:
        path = os.pathsep.join(str(one) for one in NEIGHBOURS if one.is_dir())
        subprocess.run(
            [sys.executable, __file__, "--build", scratch],
            cwd=fresh,
            env={**os.environ, "MYPYPATH": path},
            check=True,
            stdout=sys.stderr,
        )
    shutil.rmtree(fresh / "build", ignore_errors=True)  # of setuptools
    for name in HOT:
        shutil.copyfile(SOURCES / PACKAGE / f"{name}.py", fresh / PACKAGE / f"{name}.py")
    launcher = fresh / PROGRAM
    launcher.write_text(LAUNCHER.format(python=sys.executable))
    launcher.chmod(0o755)
    (fresh / DIGEST).write_text(made_of)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


@dataclass(frozen=True, slots=True)
class _Field:
    """A dataclass's field as its `__init__` sees it."""

    name: str
    annotation: str
    default: str | None = None
    made: str | None = None
    """An expression that makes the value where none is given."""
    given: bool = True
    """It is a parameter."""
    keyword: bool = False

    @property
    def parameter(self) -> str:
        """As it stands in the signature."""
        if self.made is not None:
            return f"{self.name}: {self.annotation} | None = None"
        return f"{self.name}: {self.annotation}" + (f" = {self.default}" if self.default is not None else "")

    @property
    def assignment(self) -> str | None:
        """As it stands in the body; None where nothing is to be set."""
        if not self.given:
            made = self.made or self.default
            return None if made is None else f"self.{self.name} = {made}"
        if self.made is not None:
            return f"self.{self.name} = {self.made} if {self.name} is None else {self.name}"
        return f"self.{self.name} = {self.name}"


def with_inits(source: str) -> str:
    """A module whose plain dataclasses have their `__init__` written out, each on the blank line behind its class.

    A class with bases, or with anything that is not understood here, keeps the one that the decorator makes.
    """
    lines = source.split("\n")
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or node.bases or lines[node.end_lineno or 0].strip():
            continue
        decorators = [ast.unparse(one) for one in node.decorator_list]
        methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        fields = list(_fields(node))
        if len(decorators) != 1 or not decorators[0].startswith("dataclass") or "__init__" in methods or None in fields:
            continue
        at = node.decorator_list[0].lineno - 1
        options = decorators[0].removeprefix("dataclass").strip("()")
        lines[at] = f"@dataclass({', '.join(filter(None, ('init=False', options)))})"
        lines[node.end_lineno or 0] = _init_line(
            [one for one in fields if one is not None],
            post="__post_init__" in methods,
            frozen="frozen=True" in options,
        )
    return "\n".join(lines)


def _init_line(fields: list[_Field], *, post: bool, frozen: bool) -> str:
    plain = [one.parameter for one in fields if one.given and not one.keyword]
    keywords = [one.parameter for one in fields if one.given and one.keyword]
    signature = ", ".join(["self", *plain, *(["*", *keywords] if keywords else [])])
    body = [one.assignment for one in fields if one.assignment is not None] + ["self.__post_init__()"] * post
    return f"    def __init__({signature}) -> None: {'; '.join(body) or 'pass'}" + "  # type: ignore[misc]" * frozen


def _fields(node: ast.ClassDef) -> Iterator[_Field | None]:
    """The fields in their order; None for one that is not understood."""
    for one in node.body:
        if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
            continue
        name, value = one.target.id, one.value
        annotation = one.annotation.value if isinstance(one.annotation, ast.Constant) else ast.unparse(one.annotation)
        if not isinstance(annotation, str) or annotation.startswith(("ClassVar", "Final", "InitVar", "KW_ONLY")):
            yield None
        elif not isinstance(value, ast.Call) or ast.unparse(value.func) != "field":
            yield _Field(name, annotation, None if value is None else ast.unparse(value))
        else:
            yield _called_field(name, annotation, value)


def _called_field(name: str, annotation: str, call: ast.Call) -> _Field | None:
    """A field with options: `field(...)`."""
    told = {option.arg: option.value for option in call.keywords}
    factory = told.pop("default_factory", None)
    flags = {key: ast.unparse(told.pop(key)) for key in ("init", "kw_only") if key in told}
    default = ast.unparse(told.pop("default")) if "default" in told else None
    told.pop("repr", None)
    told.pop("compare", None)
    if told or (factory is not None and "None" in annotation):
        return None
    made = None
    if isinstance(factory, ast.Lambda):
        made = f"({ast.unparse(factory.body)})"
    elif factory is not None:
        made = f"{ast.unparse(factory)}()"
    return _Field(
        name,
        annotation,
        default,
        made,
        given=flags.get("init") != "False",
        keyword=flags.get("kw_only") == "True",
    )


def build(scratch: Path) -> None:
    """Compile the package in the current directory, in place. In a process of its own: setuptools changes it for good."""
    import setuptools  # noqa: PLC0415 - mypyc looks whether it is loaded
    from mypyc.build import mypycify  # noqa: PLC0415 - needed here only

    for name in HOT:
        path = Path(PACKAGE, f"{name}.py")
        path.write_text(with_inits(path.read_text()))
    options = scratch / "mypy.ini"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    options.write_text(OPTIONS.format(version=version, cache=scratch / "cache"))
    extensions = mypycify(
        [f"--config-file={options}", *(f"{PACKAGE}/{name}.py" for name in HOT)],
        opt_level="2",
        multi_file=True,
        group_name=PACKAGE,
        target_dir=str(scratch / "c"),
    )
    for extension in extensions:
        extension.extra_compile_args = [*extension.extra_compile_args, *_FLAGS]
    setuptools.setup(
        name=PACKAGE,
        ext_modules=extensions,
        script_args=["-q", "build_ext", "--inplace", f"--build-temp={scratch / 'o'}", f"--parallel={os.cpu_count()}"],
    )


def main() -> None:
    """Make the copy unless it is up to date; prints its program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=HERE.parent / "build" / "compiled")
    parser.add_argument("--build", type=Path, metavar="SCRATCH", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.build is not None:
        build(given.build)
        return
    folder = given.folder.resolve()
    if not up_to_date(folder):
        lacking = missing()
        if lacking is not None:
            raise SystemExit(
                f"the router cannot be compiled here: {lacking}. Interpreted it works all the same, slower."
            )
        print("compiling the router (a minute or two)", file=sys.stderr, flush=True)
        compile_into(folder)
    print(folder / PROGRAM)


if __name__ == "__main__":
    main()
