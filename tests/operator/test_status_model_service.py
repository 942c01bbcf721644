"""A ModelService's status from its pools."""

import pytest

from forebay_api.conditions import Condition, ConditionStatus
from forebay_api.modelservice import ModelServiceSpec, Role
from forebay_operator.resources import Manifest
from forebay_operator.rootcause import Cause, Reason
from forebay_operator.status.model_service import PoolView, ServiceState, build_service_status, view_pool
from tests.operator.examples import NOW, model_service, pool

FITS = Condition("Fits", ConditionStatus.TRUE, "Fits", "it does")
READY = ("Ready", "True", "AllWorkersReady", "1/1 workers ready")
SETTLED = ("Progressing", "True", "Settled", "what runs is what is wanted")


def conditions(*given: tuple[str, str, str, str]) -> list[dict]:
    return [dict(zip(("type", "status", "reason", "message"), one, strict=True)) for one in given]


def view(name: str = "mixed", **fields) -> PoolView:
    values = {
        "role": Role.MIXED,
        "wanted": 1,
        "replicas": 1,
        "ready": 1,
        "draining": 0,
        "is_stale": False,
        "is_leaving": False,
        "conditions": conditions(READY, SETTLED),
    }
    return PoolView(name=name, **{**values, **fields})


def status(*views: PoolView, owner: Manifest | None = None, refused: Cause | None = None, **spec) -> dict:
    service = model_service(**spec)
    parsed = ModelServiceSpec.model_validate(service["spec"])
    owner = owner or {**service, "metadata": {**service["metadata"], "generation": 2}}
    return build_service_status(owner, ServiceState(parsed, refused, FITS, views), now=NOW)["status"]


def condition(made: dict, condition_type: str) -> tuple[str, str]:
    found = next(one for one in made["conditions"] if one["type"] == condition_type)
    return found["status"], found["reason"]


def test_a_healthy_settled_service_has_every_condition_true():
    made = status(view())
    assert [one["status"] for one in made["conditions"]] == ["True"] * 5
    assert [one["type"] for one in made["conditions"]] == ["Accepted", "Fits", "Ready", "Routable", "Progressing"]
    assert made["workers"] == "1/1"


def test_a_pools_root_cause_reaches_the_top_with_the_pools_name():
    trouble = ("Ready", "False", "Unschedulable", "0/1 workers ready: w: 0/2 nodes are available")
    stuck = ("Progressing", "False", "Unschedulable", "w: 0/2 nodes are available")
    made = status(view("decode", ready=0, conditions=conditions(trouble, stuck)))
    assert condition(made, "Ready") == ("False", "Unschedulable")
    assert condition(made, "Progressing") == ("False", "Unschedulable")
    ready = next(one for one in made["conditions"] if one["type"] == "Ready")
    assert ready["message"] == "pool decode: 0/1 workers ready: w: 0/2 nodes are available"


def test_the_most_severe_of_several_causes_names_the_reason():
    slow = view("a", conditions=conditions(("Ready", "False", "Starting", "0/1"), SETTLED))
    broken = view("b", conditions=conditions(("Ready", "False", "ImagePullFailed", "no such image"), SETTLED))
    assert condition(status(slow, broken), "Ready") == ("False", "ImagePullFailed")


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        ([view(ready=0)], ("False", "NoReadyWorkers")),
        ([view("p", role=Role.PREFILL), view("d", role=Role.DECODE)], ("True", "Serving")),
        ([view("p", role=Role.PREFILL, ready=0), view("d", role=Role.DECODE)], ("False", "NoReadyWorkers")),
        ([view("old", is_leaving=True), view("p", role=Role.PREFILL, ready=0)], ("True", "Serving")),
        ([], ("False", "NoReadyWorkers")),
        ([view(wanted=0, ready=0, replicas=0)], ("False", "Asleep")),
    ],
)
def test_routable_asks_for_a_ready_worker_of_every_needed_role(views, expected):
    assert condition(status(*views), "Routable") == expected


def test_missing_roles_are_named():
    made = status(view("p", role=Role.PREFILL, ready=0), view("d", role=Role.DECODE))
    message = next(one["message"] for one in made["conditions"] if one["type"] == "Routable")
    assert message == "no Prefill worker is ready"


def test_zero_workers_by_hand_are_not_asleep():
    made = status(view(wanted=0, ready=0), autoscaling={"mode": "Off"})
    assert condition(made, "Ready") == ("False", "ScaledToZero")
    assert condition(made, "Routable") == ("False", "ScaledToZero")


def test_a_pool_that_leaves_takes_readiness_until_it_is_gone():
    made = status(view(), view("old", is_leaving=True))
    assert condition(made, "Ready") == ("False", "RolloutInProgress")


def test_a_refused_spec_is_not_ready_but_what_runs_stays_routable():
    refused = Cause(Reason.ACCELERATOR_NOT_FOUND, "AcceleratorClass x does not exist: create it")
    made = status(view(), refused=refused)
    assert condition(made, "Accepted") == ("False", "AcceleratorNotFound")
    assert condition(made, "Ready") == ("False", "AcceleratorNotFound")
    assert condition(made, "Routable") == ("True", "Serving")


def test_a_spec_that_does_not_fit_is_accepted_but_not_acted_on():
    made = status(refused=Cause(Reason.DOES_NOT_FIT, "too large"))
    assert condition(made, "Accepted") == ("True", "Valid")
    assert "not acted on" in made["conditions"][0]["message"]
    assert condition(made, "Ready") == ("False", "DoesNotFit")


def test_a_stale_pool_keeps_what_was_said_about_the_same_spec():
    """A pool's status lags its spec for a moment after each scaling; that must not make a ready service flicker."""
    service = model_service()
    before = status(view())
    owner = {**service, "metadata": {**service["metadata"], "generation": 2}, "status": before}
    assert condition(status(view(is_stale=True), owner=owner), "Ready") == ("True", "AllWorkersReady")


def test_a_stale_pool_is_not_ready_for_a_new_spec():
    """C140, one level up: what the pool says is about the spec before."""
    service = model_service()
    owner = {**service, "metadata": {**service["metadata"], "generation": 3}, "status": status(view())}
    made = status(view(is_stale=True), owner=owner)
    assert condition(made, "Ready") == ("False", "RolloutInProgress")
    again = {**owner, "status": made}
    assert condition(status(view(is_stale=True), owner=again), "Ready") == ("False", "RolloutInProgress")


def test_growing_is_told_without_taking_readiness():
    growing = ("Ready", "True", "ScalingUp", "1/2 workers ready, 1 starting")
    moving = ("Progressing", "True", "ScalingUp", "1 of 2 workers are starting")
    made = status(view(wanted=2, conditions=conditions(growing, moving)))
    assert condition(made, "Ready") == ("True", "ScalingUp")
    assert condition(made, "Progressing") == ("True", "ScalingUp")
    assert made["workers"] == "1/2"


def test_pools_are_listed_by_name_with_their_counts():
    made = status(view("b", ready=2, wanted=2, replicas=3, draining=1), view("a"), pools=[pool("a"), pool("b")])
    assert made["pools"] == [
        {"name": "a", "role": "Mixed", "replicas": 1, "ready": 1, "draining": 0},
        {"name": "b", "role": "Mixed", "replicas": 3, "ready": 2, "draining": 1},
    ]


def test_a_new_worker_pool_without_status_is_stale():
    made = view_pool(
        {"metadata": {"name": "chat-mixed", "generation": 1}, "spec": {"replicas": 1, "pool": {"name": "mixed"}}},
        leaving=False,
    )
    assert made.is_stale
    assert made.ready == 0
