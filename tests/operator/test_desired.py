"""Builders: the samples' manifests against golden files, and what must hold for every spec."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from forebay_api.acceleratorclass import AcceleratorClass
from forebay_api.modelservice import ModelServiceSpec, Role
from forebay_api.workerpool import WorkerPoolSpec
from forebay_operator.desired.deployment import GRACE_MARGIN_S, WorkerContext, build_deployment
from forebay_operator.desired.disruption_budget import build_disruption_budget
from forebay_operator.desired.revision import revision_of
from forebay_operator.desired.service import build_service
from forebay_operator.desired.volumes import locate
from forebay_operator.desired.worker_pool import build_worker_pool
from forebay_operator.resources import DEPLOYMENT, DISRUPTION_BUDGET, SERVICE, WORKER_POOL, Manifest, name_of
from tests.operator.examples import model_service, pool

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/data/operator/golden"
EXAMPLES = ROOT / "tests/data/operator/examples"
CONTEXT = WorkerContext(host="0.0.0.0", probe_period_s=5, prestop_delay_s=5)
H100 = AcceleratorClass.model_validate(
    {
        "spec": {
            "hardware": "h100-sxm",
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        }
    }
).spec
SOURCES = {
    "llama-8b": ROOT / "deploy/samples/llama-8b.yaml",
    "llama-8b-pd": ROOT / "deploy/samples/llama-8b-prefill-decode.yaml",
    "llama-70b": ROOT / "deploy/samples/llama-70b-tp4.yaml",
    "everything": EXAMPLES / "everything.yaml",
}


class PlainDumper(yaml.SafeDumper):
    """Without anchors: a golden file is read by people."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def everything_for(service: Manifest, *, context: WorkerContext = CONTEXT) -> list[Manifest]:
    """All objects of a service, as they would be applied."""
    service = {**service, "metadata": {"namespace": "team", "uid": "uid-of-service", **service["metadata"]}}
    spec = ModelServiceSpec.model_validate(service["spec"])
    made = []
    for one in spec.pools:
        worker_pool = build_worker_pool(service, spec, one)
        owner = {**worker_pool, "metadata": {**worker_pool["metadata"], "uid": f"uid-of-{name_of(worker_pool)}"}}
        pool_spec = WorkerPoolSpec.model_validate({**worker_pool["spec"], "replicas": 2})
        children = {
            DEPLOYMENT: build_deployment(owner, pool_spec, H100, context=context, replicas=2),
            SERVICE: build_service(owner, pool_spec),
            DISRUPTION_BUDGET: build_disruption_budget(owner, pool_spec),
        }
        for resource, manifest in {WORKER_POOL: worker_pool, **children}.items():
            made.append({"apiVersion": resource.api_version, "kind": resource.kind, **manifest})
    return made


def deployment_of(**spec: Any) -> Manifest:
    made = everything_for(model_service(**spec))
    return next(one for one in made if one["kind"] == "Deployment")


def engine_of(deployment: Manifest) -> dict[str, Any]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("name", SOURCES)
def test_manifests_are_the_golden_ones(name, request):
    """Rewritten by `pytest tests/operator --update-golden`; read the difference before you commit it.

    A difference in a pod template restarts every worker of every user on upgrade (C152): make it worth that, and say so in the
    changelog.
    """
    service = yaml.safe_load(SOURCES[name].read_text())
    text = yaml.dump_all(everything_for(service), Dumper=PlainDumper, sort_keys=False, width=110)
    golden = GOLDEN / f"{name}.yaml"
    if request.config.getoption("--update-golden", default=False):
        golden.write_text(text)
    assert golden.read_text() == text, f"{golden.name} differs: run `pytest tests/operator --update-golden` and review"


def test_replicas_are_never_a_part_of_the_pool_that_is_applied():
    for one in everything_for(model_service()):
        if one["kind"] == "WorkerPool":
            assert "replicas" not in one["spec"]


def test_a_drain_is_never_blocked_by_the_budget_of_a_single_worker():
    """C145: a minimum of one ready worker would make `kubectl drain` wait for ever."""
    (budget,) = (one for one in everything_for(model_service()) if one["kind"] == "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    assert "minAvailable" not in budget["spec"]
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@given(
    drain=st.integers(min_value=1, max_value=7200),
    prestop=st.integers(min_value=0, max_value=60),
    startup=st.integers(min_value=1, max_value=20000),
    period=st.integers(min_value=1, max_value=30),
)
def test_the_times_of_a_workers_life_nest(drain, prestop, startup, period):
    """SIGKILL comes only after the pre-stop pause and the whole drain time.

    C143: the startup probe gives the whole start budget and sees readiness within a period; liveness needs no delay of its own,
    since it begins only after that.
    """
    service = model_service(rollout={"drainTimeout": f"{drain}s"}, engine={"startupTimeout": f"{startup}s"})
    context = WorkerContext(host="0.0.0.0", probe_period_s=period, prestop_delay_s=prestop)
    made = everything_for(service, context=context)
    deployment = next(one for one in made if one["kind"] == "Deployment")
    template, engine = deployment["spec"]["template"]["spec"], engine_of(deployment)
    arguments = engine["args"]
    shutdown_s = int(arguments[arguments.index("--shutdown-timeout") + 1])
    assert shutdown_s == drain
    assert template["terminationGracePeriodSeconds"] == prestop + shutdown_s + GRACE_MARGIN_S
    assert template["terminationGracePeriodSeconds"] - prestop - shutdown_s >= 10
    probe = engine["startupProbe"]
    assert startup <= probe["periodSeconds"] * probe["failureThreshold"] < startup + period
    assert not [
        one for one in ("startupProbe", "readinessProbe", "livenessProbe") if "initialDelaySeconds" in engine[one]
    ]
    assert deployment["spec"]["progressDeadlineSeconds"] > startup


def test_users_arguments_come_last_so_that_they_win():
    engine = engine_of(deployment_of(engine={"args": ["--max-num-seqs", "8"]}))
    assert engine["args"][-2:] == ["--max-num-seqs", "8"]


def test_prefill_and_decode_speak_nixl_on_their_own_address_and_mixed_does_not():
    spec = {"pools": [pool("prefill", role="Prefill"), pool("decode", role="Decode")]}
    made = [one for one in everything_for(model_service(**spec)) if one["kind"] == "Deployment"]
    roles = {}
    for deployment in made:
        engine = engine_of(deployment)
        environment = {one["name"]: one.get("value") for one in engine["env"]}
        assert environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "$(POD_IP)"
        assert [port["name"] for port in engine["ports"]] == ["http", "kv-events", "kv-replay", "nixl"]
        config = engine["args"][engine["args"].index("--kv-transfer-config") + 1]
        roles[deployment["metadata"]["name"]] = yaml.safe_load(config)["kv_role"]
    assert roles == {"chat-prefill": "kv_producer", "chat-decode": "kv_consumer"}
    mixed = engine_of(deployment_of())
    assert "--kv-transfer-config" not in mixed["args"]
    assert [port["name"] for port in mixed["ports"]] == ["http", "kv-events", "kv-replay"]


@pytest.mark.parametrize(
    ("host", "ranks", "endpoints", "named"),
    [
        ("0.0.0.0", 1, ["tcp://*:5557", "tcp://*:5558"], 5558),
        ("0.0.0.0", 4, ["tcp://*:5557", "tcp://*:5561"], 5561),
        ("$(POD_IP)", 1, ["tcp://*:0", "tcp://*:0"], 5558),
    ],
    ids=["one rank", "a port a rank", "pods that share a network"],
)
def test_every_worker_publishes_what_its_cache_holds(host, ranks, endpoints, named):
    context = WorkerContext(host=host, probe_period_s=1, prestop_delay_s=5)
    made = everything_for(model_service(pools=[pool("mixed", parallelism={"data": ranks})]), context=context)
    engine = engine_of(next(one for one in made if one["kind"] == "Deployment"))
    config = json.loads(engine["args"][engine["args"].index("--kv-events-config") + 1])
    assert config["enable_kv_cache_events"] is True
    assert config["publisher"] == "zmq"
    assert [config["endpoint"], config["replay_endpoint"]] == endpoints
    assert {"name": "VLLM_HOST_IP", "value": "$(POD_IP)"} in engine["env"]
    ports = {port["name"]: port["containerPort"] for port in engine["ports"]}
    assert (ports["kv-events"], ports["kv-replay"]) == (5557, named)


def test_pod_ip_is_defined_before_what_refers_to_it():
    engine = engine_of(deployment_of())
    assert engine["env"][0]["name"] == "POD_IP"


def test_a_variable_of_the_users_replaces_ours():
    engine = engine_of(deployment_of(engine={"env": [{"name": "HF_HOME", "value": "/elsewhere"}]}))
    assert [one for one in engine["env"] if one["name"] == "HF_HOME"] == [{"name": "HF_HOME", "value": "/elsewhere"}]


@pytest.mark.parametrize(
    ("parallelism", "accelerators"),
    [({}, "1"), ({"tensor": 4}, "4"), ({"tensor": 2, "pipeline": 2}, "4"), ({"tensor": 2, "data": 4}, "8")],
)
def test_a_worker_asks_for_every_accelerator_it_uses(parallelism, accelerators):
    engine = engine_of(deployment_of(pools=[pool("mixed", parallelism=parallelism)]))
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == accelerators
    assert engine["resources"]["requests"]["nvidia.com/gpu"] == accelerators


@pytest.mark.parametrize(
    ("source", "argument", "has_volume"),
    [
        ("hf://meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", False),
        ("pvc://weights/llama/8b", "/models/model/llama/8b", True),
        ("pvc://weights", "/models/model", True),
        ("oci://registry.example/llama:8b", "/models/model", True),
        ("s3://bucket/llama", "s3://bucket/llama", False),
        ("/opt/models/llama", "/opt/models/llama", False),
    ],
)
def test_each_kind_of_source_becomes_what_the_engine_understands(source, argument, has_volume):
    found = locate(source, volume="model")
    assert found.argument == argument
    assert (found.volume is not None) == has_volume
    assert (found.mount is not None) == has_volume


SPEC = ModelServiceSpec.model_validate(model_service()["spec"])


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"image": "vllm/vllm-openai:v0.33.0"}, True),
        ({"kv_cache_dtype": "fp8"}, True),
        ({"args": ["--block-size", "32"]}, True),
        ({"startup_timeout": "2h"}, False),
        ({"max_model_len": 8192}, False),
    ],
)
def test_the_revision_changes_with_what_could_change_the_cache_layout_only(change, differs):
    other = SPEC.engine.model_copy(update=change)
    assert (revision_of(SPEC.model, other) != revision_of(SPEC.model, SPEC.engine)) == differs


def test_pools_of_one_service_have_one_revision():
    spec = {"pools": [pool("prefill", role="Prefill"), pool("decode", role="Decode", parallelism={"tensor": 2})]}
    made = [one for one in everything_for(model_service(**spec)) if one["kind"] == "Deployment"]
    revisions = {one["spec"]["template"]["metadata"]["labels"]["forebay.dev/revision"] for one in made}
    assert len(revisions) == 1


def test_selectors_hold_nothing_that_changes_with_a_version():
    """C152: an upgrade must never meet an immutable selector."""
    deployment = deployment_of()
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert set(selector) == {
        "app.kubernetes.io/name",
        "app.kubernetes.io/component",
        "forebay.dev/model-service",
        "forebay.dev/pool",
        "forebay.dev/role",
    }
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


@given(st.sampled_from(list(Role)), st.integers(min_value=0, max_value=3), st.integers(min_value=1, max_value=3))
def test_equal_specs_give_equal_manifests(role, unavailable, surge):
    spec = {
        "pools": [pool("a", role="Prefill"), pool("b", role="Decode")] if role is not Role.MIXED else [pool("a")],
        "rollout": {"maxUnavailable": unavailable, "maxSurge": surge},
    }
    assert everything_for(model_service(**spec)) == everything_for(model_service(**spec))
