"""What a demo shows: a sample, the engine behind it, and the load.

With the simulated engine the load steps up and down, so that pools follow. A real vLLM on this machine's CPU is there to
show that a token of a real engine streams through the whole system; its two workers get a steady trickle.
"""

import importlib.resources
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml

from forebay_api.modelservice import ModelService
from forebay_api.objective import Objective
from forebay_cli.errors import CliError
from forebay_cli.load import Stage, Workload
from forebay_cli.system import ROOT, NodeOptions

LOCAL: Final = ROOT / "deploy" / "local"
SAMPLE: Final = LOCAL / "demo.yaml"
REAL_SAMPLE: Final = LOCAL / "demo-real-engine.yaml"
REAL_IMAGES: Final = LOCAL / "images-real-engine.yaml"
WRITTEN: Final = ROOT / "build" / "demo"
STEPS: Final = (
    Stage(rate_rps=3, duration_s=10),
    Stage(rate_rps=9, duration_s=16),
    Stage(rate_rps=16, duration_s=24),
    Stage(rate_rps=2, duration_s=28),
)
TRICKLE: Final = (Stage(rate_rps=1.5, duration_s=20),)


class EngineChoice(StrEnum):
    """What runs in the worker pods."""

    SIMULATED = "simulated"
    REAL = "real"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One demo."""

    file: Path
    """The ModelService to apply."""
    name: str
    objective: Objective
    workload: Workload
    stages: tuple[Stage, ...]
    nodes: NodeOptions
    ready_timeout_s: float


def _read(file: Path) -> tuple[str, str, Objective]:
    body: Mapping[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    service = ModelService.model_validate(body)
    return body["metadata"]["name"], service.spec.model.name, service.spec.objective.to_objective()


def simulated(sample: Path) -> Scenario:
    """Any ModelService on the simulated engine, under a load that steps up and down."""
    name, model, objective = _read(sample)
    return Scenario(
        file=sample,
        name=name,
        objective=objective,
        workload=Workload(model=model),
        stages=STEPS,
        nodes=NodeOptions(),
        ready_timeout_s=90.0,
    )


def _images(vllm: str) -> Path:
    """The packaged table of images, with a real vLLM in front."""
    packaged = yaml.safe_load(importlib.resources.files("forebay_simulator.node").joinpath("images.yaml").read_text())
    own = yaml.safe_load(REAL_IMAGES.read_text(encoding="utf-8").replace("@VLLM@", vllm))
    WRITTEN.mkdir(parents=True, exist_ok=True)
    made = WRITTEN / REAL_IMAGES.name
    made.write_text(yaml.safe_dump({"images": own["images"] + packaged["images"]}), encoding="utf-8")
    return made


def _written(template: Path, placeholder: str, value: str) -> Path:
    """A copy of a template with its one machine-specific word filled in."""
    WRITTEN.mkdir(parents=True, exist_ok=True)
    made = WRITTEN / template.name
    made.write_text(template.read_text(encoding="utf-8").replace(placeholder, value), encoding="utf-8")
    return made


def real(environment: Mapping[str, str] = os.environ) -> Scenario:
    """Two workers of a real vLLM; FOREBAY_REAL_VLLM and FOREBAY_REAL_MODEL say where it and its model are."""
    try:
        vllm, model_folder = environment["FOREBAY_REAL_VLLM"], environment["FOREBAY_REAL_MODEL"]
    except KeyError as error:
        raise CliError(
            f"{error.args[0]} is not set: run `make real-engine`, then `make demo ENGINE=real` sets it itself"
        ) from error
    if not Path(vllm).exists():
        raise CliError(
            f"there is no {vllm} (FOREBAY_REAL_VLLM): run `make real-engine` first; it takes about 3 minutes"
        )
    name, model, objective = _read(REAL_SAMPLE)
    return Scenario(
        file=_written(REAL_SAMPLE, "/models/tiny", model_folder),
        name=name,
        objective=objective,
        workload=Workload(model=model, prompt_words=60, shared_words=40, output_tokens=24),
        stages=TRICKLE,
        nodes=NodeOptions(images=_images(vllm)),
        ready_timeout_s=180.0,
    )
