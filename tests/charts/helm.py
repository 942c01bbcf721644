"""Helm as a test calls it, without a cluster."""

import json
import os
import subprocess
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/forebay"
RELEASE = "forebay"
NAMESPACE = "forebay-system"
TIMEOUT_S = 60
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The chart renders to 5,000 lines, most of them CRDs; libyaml reads them ten times faster where it is there."""


class ChartError(Exception):
    """Helm refused the chart or the values; the text is what it said."""


@dataclass(frozen=True, slots=True)
class Helm:
    """One helm program, with folders of its own."""

    program: Path
    home: Path
    rendered: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What was rendered before: many tests look at the same variants."""

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
        key = json.dumps([values, arguments, str(chart)], sort_keys=True)
        if key not in self.rendered:
            text = self.run("template", RELEASE, str(chart), "--namespace", NAMESPACE, *arguments, values=values)
            self.rendered[key] = [one for one in yaml.load_all(text, Loader=LOADER) if one]
        return deepcopy(self.rendered[key])


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The objects of one kind."""
    return [one for one in objects if one["kind"] == kind]


def of_component(objects: list[dict[str, Any]], kind: str, component: str) -> dict[str, Any]:
    """The one object of a kind that belongs to a component."""
    label = "app.kubernetes.io/component"
    (found,) = [one for one in of_kind(objects, kind) if one["metadata"]["labels"][label] == component]
    return found
