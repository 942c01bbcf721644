"""Pools grow and shrink, by the autoscaler and by hand, and no request fails for it."""

import json
import time

import pytest
from rich.console import Console

from forebay_cli.decisions import fetch
from forebay_cli.replay_history import replay_history
from forebay_cli.system import System
from tests.e2e.conftest import Service
from tests.support.eventually import always, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def pool_of(system: System, service: Service, pool: str = "mixed") -> dict:
    return system.get("workerpool", f"{service.name}-{pool}", namespace=service.namespace)


def wanted(system: System, service: Service) -> int:
    return pool_of(system, service)["spec"]["replicas"]


def ready(system: System, service: Service) -> int:
    return pool_of(system, service).get("status", {}).get("ready", 0)


def test_a_pool_follows_the_load_and_no_request_fails(system, serve, load, namespace, tmp_path):
    """And every decision can be made again from what the autoscaler recorded of it."""
    service: Service = serve(
        engine={"args": ["--max-num-seqs", "4"]},
        autoscaling={"mode": "Auto", "scaleDownStabilization": "10s"},
    )
    with load(service, rate_rps=14, output_tokens=96) as run:
        eventually(lambda: wanted(system, service), lambda n: n >= 2, within_s=40, what="the pool grows")
        eventually(lambda: ready(system, service), lambda n: n >= 2, within_s=40, what="the new worker serves")
        run.wait_for(60)
    eventually(lambda: wanted(system, service), lambda n: n == 1, within_s=90, what="the pool shrinks again")
    assert run.report.failed == 0, run.report.errors()
    reasons = system.cluster.kubectl(
        "get", "events", "-n", namespace, "--field-selector", "involvedObject.kind=ModelService"
    )
    assert "forebay-autoscaler" in system.cluster.kubectl("get", "events", "-n", namespace, "-o", "yaml")
    assert "→" in reasons
    query = {"namespace": namespace, "model_service": service.name, "limit": "1000"}
    decisions = fetch(None, system.cluster.kubeconfig, query)
    assert len({tuple(pool["desired"] for pool in one["decision"]["pools"]) for one in decisions}) > 1
    record = tmp_path / "decisions.json"
    record.write_text(json.dumps(decisions))
    assert replay_history(record, Console()), "each comes out again, to the last bit"


def test_scale_works_by_hand_when_autoscaling_is_off(system, serve, load):
    service: Service = serve()
    with load(service, rate_rps=4) as run:
        system.cluster.kubectl("scale", f"wp/{service.name}-mixed", "-n", service.namespace, "--replicas=3")
        eventually(lambda: ready(system, service), lambda n: n == 3, within_s=40, what="three workers are ready")
        run.wait_for(20)
        system.cluster.kubectl("scale", f"wp/{service.name}-mixed", "-n", service.namespace, "--replicas=1")
        eventually(
            lambda: pool_of(system, service)["status"],
            lambda s: (s.get("ready"), s.get("replicas")) == (1, 1),
            within_s=60,
            what="one worker is left",
        )
        always(lambda: wanted(system, service), lambda n: n == 1, for_s=3, what="nobody changes the number")
    assert run.report.failed == 0, run.report.errors()


def test_applying_the_service_again_does_not_move_the_number(system, serve):
    """C119: a re-applied resource must not throw an autoscaled or hand-scaled pool back."""
    service: Service = serve()
    system.cluster.kubectl("scale", f"wp/{service.name}-mixed", "-n", service.namespace, "--replicas=2")
    eventually(lambda: ready(system, service), lambda n: n == 2, within_s=40, what="two workers are ready")
    serve(rollout={"drainTimeout": "21s"})
    always(lambda: wanted(system, service), lambda n: n == 2, for_s=5, what="still two workers")


def repairs(system: System) -> float:
    import httpx

    answer = httpx.get(
        f"{system.cluster.prometheus_url}/api/v1/query",
        params={"query": "sum(forebay_operator_drift_repairs_total)"},
        timeout=5,
    ).json()
    result = answer["data"]["result"]
    return float(result[0]["value"][1]) if result else -1.0


def test_a_foreign_edit_of_a_deployment_is_repaired_and_counted(system, serve):
    service: Service = serve()
    before = eventually(
        lambda: repairs(system), lambda n: n >= 0, within_s=20, what="the counter is exported from the start"
    )
    deployment = ("deployment", f"{service.name}-mixed", "-n", service.namespace)
    system.cluster.kubectl(
        "patch", *deployment, "--type=json", "-p",
        '[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "foreign/engine:v0"}]',
    )  # fmt: skip
    begun = time.monotonic()
    eventually(
        lambda: system.cluster.kubectl("get", *deployment, "-o", "jsonpath={.spec.template.spec.containers[0].image}"),
        lambda image: image.startswith("vllm/"),
        within_s=10,
        what="the image is ours again",
    )
    print(f"repaired after {time.monotonic() - begun:.1f} s")
    eventually(lambda: repairs(system), lambda n: n > before, within_s=20, what="the repair is counted")
