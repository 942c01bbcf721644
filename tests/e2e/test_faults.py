"""One program after another is killed under load; everything heals without a hand.

Conditions are written by the programs that are killed, so they look well while nobody is there to write them. What heals is
therefore seen by what is done as well: an object that is deleted with the operator away is made again, a lease is renewed.

The figures (what the client saw, seconds until all conditions were True again and the work went on) are printed and written
to build/e2e/faults.json.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from forebay_api.names import MODEL_SERVICE_CONDITIONS
from forebay_api.objective import Outcome
from forebay_cli.system import RELEASE_NAMESPACE, ROOT, System
from tests.e2e.conftest import Service
from tests.support.eventually import eventually
from tests.support.pods import kill_pod_process

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def conditions(system: System, service: Service) -> dict[str, str]:
    found = system.get("msvc", service.name, namespace=service.namespace)
    return {one["type"]: one["status"] for one in found["status"]["conditions"]}


def healthy(seen: dict[str, str]) -> bool:
    """Every condition is there and True."""
    return seen == dict.fromkeys(MODEL_SERVICE_CONDITIONS, "True")


def leader(system: System, lease: str) -> str:
    found = system.get("lease", lease, namespace=RELEASE_NAMESPACE)
    return found["spec"]["holderIdentity"]


def pod_of(system: System, component: str) -> str:
    pods = system.get("pods", "-l", f"app.kubernetes.io/component={component}", namespace=RELEASE_NAMESPACE)["items"]
    return pods[0]["metadata"]["name"]


def leading_pod(system: System, component: str) -> str:
    holder = leader(system, f"forebay-{component}")
    pods = system.get("pods", "-l", f"app.kubernetes.io/component={component}", namespace=RELEASE_NAMESPACE)["items"]
    return next(pod["metadata"]["name"] for pod in pods if holder.startswith(pod["metadata"]["name"]))


def restarts(system: System, service: Service) -> int:
    """Restarts of Forebay's own containers and of the service's workers."""
    own = system.get("pods", namespace=RELEASE_NAMESPACE)["items"]
    workers = system.get("pods", namespace=service.namespace)["items"]
    return sum(one["restartCount"] for pod in own + workers for one in pod["status"].get("containerStatuses", ()))


def kill_api_server(system: System) -> None:
    system.cluster.kill("kube-apiserver")
    time.sleep(10)
    system.cluster.start_program("kube-apiserver")


def kill_prometheus(system: System) -> None:
    system.cluster.kill("prometheus")
    time.sleep(15)
    system.cluster.start_program("prometheus")


def kill_engine(system: System, service: Service) -> None:
    pods = system.get("pods", "-l", f"forebay.dev/model-service={service.name}", namespace=service.namespace)["items"]
    kill_pod_process(pods[0]["metadata"]["name"])


def delete_budget(system: System, service: Service) -> None:
    """Something for the operator to do, which is on no request's way."""
    system.cluster.kubectl("delete", "pdb", f"{service.name}-mixed", "-n", service.namespace)


def kill_operator(system: System, service: Service) -> None:
    kill_pod_process(leading_pod(system, "operator"))
    delete_budget(system, service)


def has_budget(system: System, service: Service, _since: datetime) -> bool:
    return bool(system.get("pdb", f"{service.name}-mixed", namespace=service.namespace))


def autoscaler_leads(system: System, _service: Service, since: datetime) -> bool:
    """Its lease was renewed after a moment."""
    spec = system.get("lease", "forebay-autoscaler", namespace=RELEASE_NAMESPACE)["spec"]
    return bool(spec["holderIdentity"]) and datetime.fromisoformat(spec["renewTime"]) > since


def api_server_away(system: System, service: Service) -> None:
    kill_api_server(system)
    delete_budget(system, service)


@dataclass(frozen=True)
class Fault:
    """What is done, and how it shows that the work goes on."""

    strike: Callable[[System, Service], None]
    restarts: range = range(1, 2)
    """How many containers it may make start again."""
    works_again: Callable[[System, Service, datetime], bool] = lambda _system, _service, _since: True


FAULTS = {
    "operator (leader)": Fault(kill_operator, works_again=has_budget),
    "autoscaler (leader)": Fault(
        lambda system, _: kill_pod_process(leading_pod(system, "autoscaler")), works_again=autoscaler_leads
    ),
    "Prometheus, away for 15 s": Fault(lambda system, _: kill_prometheus(system), restarts=range(1)),
    # An operator whose Lease another one took while it could not renew it ends. Whether that comes about is the machine's.
    "API server, away for 10 s": Fault(api_server_away, restarts=range(3), works_again=has_budget),
    "engine (1 of 2)": Fault(kill_engine),
    "router (1 of 2)": Fault(lambda system, _: kill_pod_process(pod_of(system, "router"))),
}


def test_every_component_can_be_killed_under_load(system, serve, load):
    service: Service = serve(
        pools=[{"name": "mixed", "accelerator": "h100-sxm", "replicas": {"min": 2, "max": 3}}],
        autoscaling={"mode": "Auto"},
    )
    rows: list[dict[str, Any]] = []
    with load(service, rate_rps=5, output_tokens=192) as run:  # some eight streams at any moment
        eventually(lambda: conditions(system, service), healthy, within_s=60, what="all conditions are True")
        for name, fault in FAULTS.items():
            run.wait_for(10)
            seen = len(run.report.records)
            before = restarts(system, service)
            begun = time.monotonic()
            fault.strike(system, service)
            struck_at = datetime.now(UTC)
            time.sleep(2)  # let the fault show before its absence is awaited
            eventually(
                lambda fault=fault, struck_at=struck_at: fault.works_again(system, service, struck_at),
                bool,
                within_s=60,
                what=f"works again after: {name}",
            )
            eventually(lambda: conditions(system, service), healthy, within_s=90, what=f"healed after: {name}")
            healed_s = time.monotonic() - begun
            restarted = restarts(system, service) - before
            assert restarted in fault.restarts, f"what was killed and what not: {name}"
            run.wait_for(15)
            records = run.ended_since(seen)
            rows.append(
                {
                    "fault": name,
                    "healed_s": round(healed_s, 1),
                    "requests": len(records),
                    "failed": sum(r.outcome is not Outcome.FINISHED for r in records),
                    "errors": sorted({r.error for r in records if r.error}),
                }
            )
            print(rows[-1])
    (ROOT / "build" / "e2e").mkdir(parents=True, exist_ok=True)
    (ROOT / "build" / "e2e" / "faults.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    failed = {row["fault"]: row["failed"] for row in rows}
    assert all(failed[name] == 0 for name in list(FAULTS)[:4]), rows  # none of these is on a request's way
    # An engine's or a router's death cuts the streams it was in the middle of, and nothing else.
    assert failed["engine (1 of 2)"] <= 8, rows
    assert failed["router (1 of 2)"] <= 8, rows
    cut_off = next(row["errors"] for row in rows if row["fault"] == "engine (1 of 2)")
    assert all(error.startswith("error event: ") for error in cut_off), rows
    silent = [r for r in run.report.records if r.error == "stream ended without [DONE]"]
    assert not silent, "a stream ended silently"
