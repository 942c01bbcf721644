"""The status tells what is, also when those who know it are gone."""

from typing import Any

import httpx
import pytest
import yaml

from forebay_api.conditions import find_condition
from forebay_api.names import AUTOSCALER_CONDITIONS, METRICS_FRESH, SCALING_ACTIVE, WORKERS_HEALTHY
from forebay_cli.system import RELEASE_NAMESPACE, ROOT, System
from tests.e2e.conftest import Service
from tests.support.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

ALERTS = sorted((ROOT / "charts" / "forebay" / "files").glob("alerts*.yaml"))
GONE_WITHIN_S = 60 + 5 + 15
"""After the last renewal, the pause between two looks, and a busy machine."""


def status(system: System, service: Service) -> dict[str, Any]:
    found: dict[str, Any] = system.get("msvc", service.name, namespace=service.namespace)["status"]
    return found


def told(system: System, service: Service) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition."""
    return {one["type"]: (one["status"], one["reason"]) for one in status(system, service)["conditions"]}


def set_autoscalers(system: System, replicas: int) -> None:
    system.cluster.kubectl(
        "scale", "deployment", "forebay-autoscaler", f"--replicas={replicas}", "-n", RELEASE_NAMESPACE
    )


def test_a_dead_autoscaler_leaves_no_old_word_behind_and_a_living_one_has_it_back(system, serve, load):
    service: Service = serve(autoscaling={"mode": "Auto"})
    silent: Service = serve("silent", autoscaling={"mode": "Off"})
    with load(service, rate_rps=3):
        eventually(
            lambda: status(system, service),
            lambda seen: "attainment" in seen and find_condition(seen["conditions"], METRICS_FRESH)["status"] == "True",
            within_s=60,
            what="attainment is measured",
        )
    set_autoscalers(system, 0)
    try:
        seen = eventually(
            lambda: told(system, service),
            lambda seen: all(seen[name] == ("Unknown", "AutoscalerGone") for name in AUTOSCALER_CONDITIONS),
            within_s=GONE_WITHIN_S,
            what="the autoscaler is known to be gone",
        )
        assert seen["Ready"][0] == "True", "what the operator knows is as it was"
        now = status(system, service)
        assert "attainment" not in now
        assert "goodputPerSecond" not in now
        assert all("desired" not in pool and pool["ready"] == 1 for pool in now["pools"])
        message = find_condition(now["conditions"], SCALING_ACTIVE)["message"]
        lease = system.get("lease", "forebay-autoscaler", namespace=RELEASE_NAMESPACE)
        assert lease["spec"]["renewTime"] in message
        eventually(
            lambda: told(system, silent),
            lambda seen: not set(AUTOSCALER_CONDITIONS) & set(seen),
            within_s=10,
            what="nothing is said where nobody scales",
        )
        events = system.get("events", namespace=service.namespace)["items"]
        assert [one for one in events if one["reason"] == "AutoscalerGone"]
    finally:
        set_autoscalers(system, 2)
    eventually(
        lambda: told(system, service),
        lambda seen: (
            all(seen[name][1] != "AutoscalerGone" for name in AUTOSCALER_CONDITIONS)
            and seen[SCALING_ACTIVE] == ("True", "Auto")
        ),
        within_s=60,
        what="a living autoscaler has the word",
    )


def pause(system: System, service: Service, pod: str, *, resume: bool = False) -> None:
    """Stop an engine's core as it can stop by itself: its API process accepts requests and calls itself healthy."""
    address = system.get("pod", pod, namespace=service.namespace)["status"]["podIP"]
    httpx.post(f"http://{address}:8000/{'resume' if resume else 'pause?mode=keep'}", timeout=10).raise_for_status()


def events_about(system: System, service: Service, pod: str) -> list[str]:
    found = system.get("events", namespace=service.namespace)["items"]
    about_it = [one for one in found if pod in one["message"] and one["involvedObject"]["kind"] == "ModelService"]
    return sorted(one["reason"] for one in about_it)


def alerted(system: System, service: Service, name: str) -> bool:
    """Whether the chart's alert is about the service, by its expression and the metrics that there are."""
    rules = [rule for path in ALERTS for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
    expression = next(one["expr"] for one in rules if one["alert"] == name)
    url = f"{system.cluster.prometheus_url}/api/v1/query"
    found = httpx.post(url, data={"query": expression}, timeout=10).json()["data"]["result"]
    return any(one["metric"].get("namespace") == service.namespace for one in found)


def test_a_worker_that_hangs_is_named_in_the_status_until_it_is_back(system, serve, load):
    service: Service = serve(
        engine={"maxModelLen": 16384, "env": [{"name": "VLLM_SERVER_DEV_MODE", "value": "1"}]},
        pools=[{"name": "mixed", "accelerator": "h100-sxm", "replicas": {"min": 3, "max": 3}}],
        autoscaling={"mode": "Auto"},
    )
    pods = system.get("pods", "-l", f"forebay.dev/model-service={service.name}", namespace=service.namespace)["items"]
    pod = min(one["metadata"]["name"] for one in pods)
    with load(service, rate_rps=5):
        eventually(
            lambda: told(system, service).get(WORKERS_HEALTHY),
            lambda seen: seen == ("True", "NoneEjected"),
            within_s=60,
            what="every worker gets requests",
        )
        assert not [name for name in ("ForebayWorkersEjected", "ForebayNoWorkers") if alerted(system, service, name)]
        pause(system, service, pod)
        eventually(
            lambda: told(system, service)[WORKERS_HEALTHY],
            lambda seen: seen == ("False", "WorkersEjected"),
            within_s=90,
            what="the worker that hangs is told",
        )
        message = find_condition(status(system, service)["conditions"], WORKERS_HEALTHY)["message"]
        assert f"{pod} (frozen: no content for" in message
        assert all(other["metadata"]["name"] not in message for other in pods if other["metadata"]["name"] != pod)
        assert told(system, service)["Ready"][0] == "True", "Kubernetes sees nothing of it"
        assert events_about(system, service, pod) == ["WorkerEjected"]
        eventually(
            lambda: alerted(system, service, "ForebayWorkersEjected"), bool, within_s=30, what="its alert can fire"
        )
        pause(system, service, pod, resume=True)
        eventually(
            lambda: told(system, service)[WORKERS_HEALTHY],
            lambda seen: seen == ("True", "NoneEjected"),
            within_s=150,
            what="the worker is back",
        )
        assert events_about(system, service, pod) == ["WorkerEjected", "WorkerReturned"]
