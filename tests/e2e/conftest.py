"""The end-to-end harness: one cluster with the chart installed for the session, a namespace for each test.

    def test_x(system, namespace, serve, load):
        service = serve(...)                     # applies a ModelService, waits until it is ready
        with load(service, rate_rps=5) as run:   # every request is counted good, bad or abandoned
            ...

When a test fails, the logs of every program and every pod are kept under build/e2e/<test>/.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from forebay_api.objective import Objective
from forebay_cli.load import Workload
from forebay_cli.system import ROOT, NodeOptions, System, simulated_nodes
from forebay_localcluster.cluster import Cluster
from tests.support.background_load import BackgroundLoad, loading

BUILD = ROOT / "build" / "e2e"
OBJECTIVE = Objective(ttft_s=2.0, tpot_s=0.1, target=0.95)


@dataclass(frozen=True)
class Service:
    """A model service of one test."""

    name: str
    namespace: str
    model: str


def model_service(name: str, model: str, **spec: Any) -> dict[str, Any]:
    """A small ModelService; keyword arguments replace parts of its spec."""
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": model, "source": "hf://meta-llama/Llama-3.1-8B-Instruct"},
            "engine": {"maxModelLen": 16384, "args": ["--max-num-seqs", "8"]},
            "objective": {"ttft": "2s", "tpot": "100ms", "target": "0.95"},
            "pools": [{"name": "mixed", "accelerator": "h100-sxm", "replicas": {"min": 1, "max": 4}}],
            "autoscaling": {"mode": "Off", "scaleDownStabilization": "5s"},
            "rollout": {"drainTimeout": "20s"},
            **spec,
        },
    }


@pytest.fixture(scope="session")
def system() -> Iterator[System]:
    """Forebay, installed by its chart on a cluster of the real programs with two simulated nodes."""
    with Cluster.temporary("e2e", extras=simulated_nodes(NodeOptions(engine_startup_s=0.5))) as cluster:
        installed = System(cluster)
        installed.install()
        installed.router_url()
        yield installed


@pytest.fixture
def namespace(system: System, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, deleted afterwards with all that is in it."""
    name = "t-" + request.node.name.removeprefix("test_").replace("_", "-").split("[")[0][:40].strip("-")
    system.cluster.kubectl("create", "namespace", name)
    yield name
    system.cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def serve(system: System, namespace: str) -> Callable[..., Service]:
    """Apply a ModelService and wait until it is ready."""

    def apply(name: str = "llama", *, wait: bool = True, **spec: Any) -> Service:
        service = Service(name=name, namespace=namespace, model=f"{name}-{namespace}")
        system.apply_object(model_service(name, service.model, **spec), namespace=namespace)
        if wait:
            system.wait_ready(name, namespace=namespace)
        return service

    return apply


@pytest.fixture
def load(system: System) -> Callable[..., Any]:
    """A load on a service for the length of a block."""

    def start(service: Service, *, rate_rps: float = 4.0, output_tokens: int = 64, prompt_words: int = 150) -> Any:
        workload = Workload(model=service.model, output_tokens=output_tokens, prompt_words=prompt_words)
        return loading(system.router_url(), workload, objective=OBJECTIVE, rate_rps=rate_rps)

    return start


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Keep the logs of a failed test."""
    outcome = yield
    report = outcome.get_result()
    system = getattr(item, "funcargs", {}).get("system")
    if report.when == "call" and report.failed and isinstance(system, System):
        kept = BUILD / item.name
        shutil.rmtree(kept, ignore_errors=True)
        for folder in ("logs", "nodes"):
            shutil.copytree(
                system.cluster.data / folder,
                kept / folder,
                ignore=lambda _folder, files: [one for one in files if not one.endswith((".log", "pods")) and "_" not in one
                                               and not one.startswith("node-")],
                dirs_exist_ok=True,
            )  # fmt: skip
        (kept / "objects.json").write_text(
            json.dumps(system.get("msvc,wp,deploy,pods,events", "--all-namespaces"), indent=1), encoding="utf-8"
        )
        report.sections.append(("logs", f"kept under {kept.relative_to(ROOT)}"))


__all__ = ["BackgroundLoad", "Service", "model_service"]
