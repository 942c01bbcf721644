"""Helm as a test calls it, without a cluster."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/forebay"
RELEASE = "forebay"
NAMESPACE = "forebay-system"
TIMEOUT_S = 60


class ChartError(Exception):
    """Helm refused the chart or the values; the text is what it said."""


@dataclass(frozen=True, slots=True)
class Helm:
    """One helm program, with folders of its own."""

    program: Path
    home: Path

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """What helm prints; ChartError with what it complained about."""
        given = () if values is None else ("--values", "-")
        folders = {f"HELM_{kind}_HOME": str(self.home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        done = subprocess.run(
            [str(self.program), *arguments, *given],
            input="" if values is None else yaml.safe_dump(dict(values)),
            env={**os.environ, **folders, "KUBECONFIG": os.devnull},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise ChartError(done.stderr + done.stdout)
        return done.stdout

    def template(self, values: Mapping[str, Any], *arguments: str, chart: Path = CHART) -> list[dict[str, Any]]:
        """The rendered objects, hooks included."""
        text = self.run("template", RELEASE, str(chart), "--namespace", NAMESPACE, *arguments, values=values)
        return [one for one in yaml.safe_load_all(text) if one]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The objects of one kind."""
    return [one for one in objects if one["kind"] == kind]


def of_component(objects: list[dict[str, Any]], kind: str, component: str) -> dict[str, Any]:
    """The one object of a kind that belongs to a component."""
    label = "app.kubernetes.io/component"
    (found,) = [one for one in of_kind(objects, kind) if one["metadata"]["labels"][label] == component]
    return found
