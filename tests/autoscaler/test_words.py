"""What people read: reasons, conditions, Events, rounded numbers."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from forebay_api.modelservice import AutoscalingMode
from forebay_autoscaler.constraints import Constraint, Proposal, Rejected
from forebay_autoscaler.decision import Decision, PoolDecision
from forebay_autoscaler.demand import Demand
from forebay_autoscaler.events import build_event, notices_of, scaled
from forebay_autoscaler.model import Capacity, Need
from forebay_autoscaler.observation import Writer
from forebay_autoscaler.reasons import explain, number
from forebay_autoscaler.state import Action, ServiceState
from forebay_autoscaler.status import (
    NOTHING_SAID,
    build_status,
    differs,
    differs_beside_numbers,
    format_rate,
    format_share,
    metrics_fresh,
    own_part,
    scaling_active,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MEASURED = Capacity(work_s=0.9, limit=8, measured=True)
NEED = Need(workers=5, with_backlog=5, to_keep=6, offered=37, margin=10)
FACTS = "41.0 req/s asked, one worker does 8.9 good/s, 2.1 s of backlog"
BUSY = Demand(rate_per_s=41, backlog=87, running=24)


def pool(**changes) -> PoolDecision:
    return replace(
        PoolDecision(
            name="mixed",
            current=3,
            desired=5,
            action=Action.GROW,
            reason="3 → 5: because",
            news=True,
            demand=BUSY,
            capacity=MEASURED,
            need=NEED,
            unknown=(),
            rejected=(),
            rival=None,
            foreign=None,
        ),
        **changes,
    )


def decision(*pools: PoolDecision, **changes) -> Decision:
    return replace(
        Decision(
            key=("default", "llama"),
            mode=AutoscalingMode.AUTO,
            at_s=0.0,
            pools=pools or (pool(),),
            state=ServiceState(),
            attainment=0.9934,
            goodput_per_s=12.44,
            unknown=(),
            unknown_lasts=False,
            trouble="",
        ),
        **changes,
    )


def rejected(*options: tuple[int, Constraint, str], to: int) -> Proposal:
    return Proposal(to, tuple(Rejected(*option) for option in options))


@pytest.mark.parametrize(
    ("action", "proposal", "text"),
    [
        (
            Action.GROW,
            Proposal(5),
            "3 → 5: 41.0 req/s asked, one worker does 8.9 good/s, 2.1 s of backlog",
        ),
        (
            Action.GROW,
            rejected((9, Constraint.MAXIMUM, "replicas.max is 5"), to=5),
            f"3 → 5: {FACTS}; 9 needed, but replicas.max is 5",
        ),
        (
            Action.WAIT,
            rejected((2, Constraint.SHRINK_WINDOW, "3 may have been needed within the last 300 s"), to=3),
            "3 kept, 2 needed: 3 may have been needed within the last 300 s; " + FACTS,
        ),
        (
            Action.HOLD,
            rejected((2, Constraint.UNKNOWN, "unknown: waiting"), to=3),
            "3 held: unknown: waiting; 41.0 req/s asked, one worker does 8.9 good/s, 2.1 s of backlog",
        ),
        (
            Action.STAND_BACK,
            rejected((5, Constraint.RIVAL, "HorizontalPodAutoscaler/x owns the number"), to=3),
            "3 kept: HorizontalPodAutoscaler/x owns the number",
        ),
        (Action.KEEP, Proposal(3), "3 kept: 41.0 req/s asked, one worker does 8.9 good/s, 2.1 s of backlog"),
    ],
)
def test_a_reason_tells_number_demand_capacity_and_obstacle(action, proposal, text):
    assert explain(action, current=3, proposal=proposal, demand=BUSY, capacity=MEASURED) == text


def test_a_reason_says_what_is_expected_and_what_is_not_known():
    expected = Capacity(work_s=0.9, limit=8, measured=False)
    nothing = Capacity(work_s=None, limit=8, measured=False)
    calm = Demand(rate_per_s=3, backlog=0, running=1)
    told = [
        explain(Action.KEEP, current=1, proposal=Proposal(1), demand=calm, capacity=one) for one in (expected, nothing)
    ]
    assert told[0] == "1 kept: 3 req/s asked, one worker should do 8.9 good/s"
    assert told[1] == "1 kept: 3 req/s asked, one worker's rate not measured yet"
    assert explain(Action.KEEP, current=1, proposal=Proposal(1), demand=None, capacity=nothing).endswith(
        "demand unknown"
    )


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.0"), (0.123, "0.12"), (3, "3"), (8.94, "8.9"), (12.34, "12.3"), (1234.5, "1234")]
)
def test_numbers_have_two_or_three_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(("share", "text"), [(1.0, "100.0%"), (0.99999, "99.9%"), (0.9934, "99.3%"), (0.0, "0.0%")])
def test_attainment_is_never_rounded_up_to_perfect(share, text):
    assert format_share(share) == text


def test_goodput_is_rounded():
    assert [format_rate(rate) for rate in (0, 12.44, 312.6)] == ["0.0", "12.4", "313"]


@pytest.mark.parametrize(
    ("changes", "status", "reason", "words"),
    [
        ({}, "True", "Auto", "follows demand"),
        ({"mode": AutoscalingMode.OFF}, "False", "Off", "kubectl scale"),
        ({"mode": AutoscalingMode.ADVISE}, "False", "AdviseOnly", "Advise"),
        (
            {"pools": (pool(action=Action.STAND_BACK, rival="HorizontalPodAutoscaler/x"),)},
            "False",
            "ForeignAutoscaler",
            "delete it",
        ),
        ({"pools": (pool(action=Action.HOLD),)}, "False", "MetricsUnknown", "held"),
        (
            {"pools": (pool(rejected=(Rejected(9, Constraint.MAXIMUM, "replicas.max is 5"),)),)},
            "True",
            "AtMaximum",
            "replicas.max is 5",
        ),
        (
            {"pools": (pool(rejected=(Rejected(9, Constraint.BUDGET, "the budget is 8 GPUs"),)),)},
            "True",
            "AtBudget",
            "8 GPUs",
        ),
    ],
)
def test_scaling_active_says_what_keeps_the_number_from_following_demand(changes, status, reason, words):
    condition = scaling_active(decision(**changes), ())
    assert (condition.status.value, condition.reason) == (status, reason)
    assert words in condition.message


def test_a_failed_write_is_a_condition():
    condition = scaling_active(decision(), ["pool mixed could not be scaled to 5: 403 Forbidden"])
    assert (condition.status.value, condition.reason) == ("False", "WriteFailed")
    assert "403" in condition.message


def test_metrics_fresh_names_the_series_to_look_for():
    """C116: an engine without a gauge that is needed gives a condition which names it."""
    unknown = ("waiting of mixed", "arrivals")
    assert metrics_fresh(decision(unknown=unknown)).reason == "WaitingForData"
    condition = metrics_fresh(decision(unknown=unknown, unknown_lasts=True))
    assert condition.reason == "NoFreshData"
    assert "waiting of mixed (vllm:num_requests_waiting)" in condition.message
    assert "arrivals (forebay_router_requests_arrived_total)" in condition.message
    failing = metrics_fresh(decision(unknown=("arrivals",), trouble="Prometheus at http://x: ConnectError"))
    assert failing.reason == "PrometheusFails"


def stored(**status) -> dict:
    return {"metadata": {"namespace": "default", "name": "llama", "uid": "u", "generation": 7}, "status": status}


def test_status_is_written_once_and_again_only_for_news():
    made = build_status(decision(), stored(), failures=(), routers=NOTHING_SAID, now=NOW)
    assert made["attainment"] == "99.3%"
    assert made["goodputPerSecond"] == "12.4"
    assert made["pools"] == [{"name": "mixed", "desired": 5, "reason": "3 → 5: because"}]
    assert {one["observedGeneration"] for one in made["conditions"]} == {7}
    ours = {**made, "pools": [{**made["pools"][0], "replicas": 3, "ready": 3}]}
    ready = {"type": "Ready", "status": "True"}
    kept = stored(**{**ours, "conditions": [ready, *reversed(made["conditions"])], "workers": "3/5"})
    later = build_status(decision(), kept, failures=(), routers=NOTHING_SAID, now=datetime(2027, 1, 1, tzinfo=UTC))
    assert not differs(later, own_part(kept))
    busier = build_status(decision(goodput_per_s=13.0), kept, failures=(), routers=NOTHING_SAID, now=NOW)
    assert differs(busier, own_part(kept))
    assert not differs_beside_numbers(busier, own_part(kept))
    held = build_status(decision(unknown=("arrivals",)), kept, failures=(), routers=NOTHING_SAID, now=NOW)
    assert differs_beside_numbers(held, own_part(kept))


def test_unknown_numbers_are_absent_from_status():
    made = build_status(
        decision(attainment=None, goodput_per_s=None), stored(), failures=(), routers=NOTHING_SAID, now=NOW
    )
    assert not {"attainment", "goodputPerSecond"} & set(made)


def test_events_tell_changes_holds_and_strangers_once():
    assert scaled(pool()).reason == "ScaledUp"
    assert scaled(pool(action=Action.SHRINK)).message == "pool mixed: 3 → 5: because"
    assert [one.reason for one in notices_of(decision(), pool(action=Action.HOLD))] == ["ScalingHeld"]
    assert list(notices_of(decision(), pool(action=Action.HOLD, news=False))) == []
    assert list(notices_of(decision(), pool(action=Action.WAIT))) == []
    (notice,) = notices_of(decision(), pool(action=Action.KEEP, foreign=Writer("kubectl", "2026")))
    assert notice.message == "pool mixed: kubectl set 3 workers; scaling goes on from there"
    advice = decision(mode=AutoscalingMode.ADVISE)
    assert [one.reason for one in notices_of(advice, pool())] == ["ScalingAdvised"]
    assert list(notices_of(decision(mode=AutoscalingMode.OFF), pool(action=Action.HOLD))) == []


def test_an_event_is_about_the_model_service():
    event = build_event(scaled(pool(reason="x" * 2000)), stored(), identity="pod-1", now=NOW)
    assert event["involvedObject"]["kind"] == "ModelService"
    assert event["involvedObject"]["uid"] == "u"
    assert event["metadata"]["generateName"] == "llama."
    assert event["lastTimestamp"] == "2026-01-02T03:04:05Z"
    assert len(event["message"]) == 1024
