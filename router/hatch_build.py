"""Puts the compiled hot modules into a wheel when FOREBAY_COMPILE=1; otherwise the wheel is pure Python.

FOREBAY_COMPILE=1 pip wheel ./router --no-deps       needs a C compiler and Python's headers

What `make compiled-router` has made is taken where it is up to date.
"""

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WANTED = os.environ.get("FOREBAY_COMPILE") == "1"


class CompilingHook(BuildHookInterface[Any]):
    """Adds extensions, and the tag of the platform that they are for."""

    PLUGIN_NAME = "custom"
    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """What a build needs besides hatchling: the compiler, and the packages whose types it reads."""
        if not WANTED:
            return []
        read = [one for one in self.metadata.core.dependencies if not one.startswith("forebay-")]
        return ["mypy>=1.18", "setuptools>=77", *read]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is written. An editable one stays interpreted: its sources change."""
        if not WANTED or version == "editable":
            return
        spec = importlib.util.spec_from_file_location("compiling", Path(self.root) / "compiling.py")
        assert spec is not None
        assert spec.loader is not None
        compiling = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compiling)
        folder = Path(self.root).parent / "build" / "compiled"
        if not compiling.up_to_date(folder):
            lacking = compiling.missing()
            if lacking is not None:
                raise SystemExit(f"FOREBAY_COMPILE=1, but {lacking}")
            # Removed by `finalize`, or with this object when the build fails.
            self._scratch = tempfile.TemporaryDirectory()
            folder = Path(self._scratch.name) / "compiled"
            compiling.compile_into(folder)
        for extension in folder.rglob("*.so"):
            build_data["force_include"][str(extension)] = str(extension.relative_to(folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatchling's
        """Called after the wheel was written."""
        if self._scratch is not None:
            self._scratch.cleanup()
