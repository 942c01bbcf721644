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

`hatch_build.py` puts the same extensions into a wheel.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
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
    "speed",
    "sse",
    "table",
    "upstream",
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
    launcher = fresh / PROGRAM
    launcher.write_text(LAUNCHER.format(python=sys.executable))
    launcher.chmod(0o755)
    (fresh / DIGEST).write_text(made_of)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def build(scratch: Path) -> None:
    """Compile the package in the current directory, in place. In a process of its own: setuptools changes it for good."""
    import setuptools  # noqa: PLC0415 - mypyc looks whether it is loaded
    from mypyc.build import mypycify  # noqa: PLC0415 - needed here only

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
