"""The comparison of autoscalers runs, writes its three files, and lays a second run over the first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forebay_autoscaler.forecast import Forecast
from forebay_autoscaler.policy import Tuning
from forebay_simulator.fleet.comparing import BOUND
from forebay_simulator.fleet.report import Line, Scores, document
from forebay_simulator.fleet.scenarios import RAMP
from tests.bench.autoscaler.__main__ import main, merged
from tests.bench.autoscaler.foresight import foreseen
from tests.bench.autoscaler.situations import POLICIES, SITUATIONS


@pytest.mark.timeout(240)
def test_a_quick_comparison_writes_json_text_and_a_page(tmp_path, capsys):
    flags = ["--quick", "--situation", "step", "--out", str(tmp_path)]
    main([*flags, "--processes", "1"])
    main([*flags, "--policy", "hpa-queue", "--processes", "2"])
    found = json.loads((tmp_path / "autoscaler.json").read_text())
    (step,) = found.values()
    assert [one["policy"].rpartition(" + ")[2] for one in step["policies"]] == [
        "least-load",
        "hpa-queue",
        "clairvoyant",
        "forebay",
    ]
    forebay = step["policies"][-1]
    assert 0 <= forebay["summary"]["attainment"]["mean"] <= 1
    assert forebay["summary"]["gpu_hours"]["mean"] > 0
    assert forebay["gpu_hours_over_bound"] is not None
    text = (tmp_path / "autoscaler.txt").read_text()
    assert "over bound %" in text
    assert text.strip() in capsys.readouterr().out
    assert (tmp_path / "autoscaler.html").read_text().count("<svg") == 2


def test_foresight_is_the_most_that_the_law_says_until_the_next_order_could_be_there():
    def foresight(now_s: float) -> float:
        return foreseen(Forecast(), 0.0, Tuning(), now_s=now_s, lead_s=120.0)

    assert foresight(0.0) == RAMP(135.0), "a rise is met where it will be"
    assert foresight(390.0) == RAMP(450.0) == 24.0, "and a crest is not gone beyond"
    assert foresight(600.0) == RAMP(600.0), "a fall is followed from now"


LIMITS = {"ttft_s": 1.0, "tpot_s": 0.025, "target": 0.95}


def figures(name: str, objective: dict[str, float] = LIMITS, **gpu_hours: float) -> dict[str, Any]:
    """A document of one situation: policies by scaling, with their GPU-hours."""
    values = dict.fromkeys(Scores.__dataclass_fields__, 1)
    lines = [
        Line(f"least-load + {scaling}", (Scores(**values | {"gpu_hours": hours}),), bound=scaling == "clairvoyant")
        for scaling, hours in gpu_hours.items()
    ]
    return json.loads(json.dumps({name: document(lines, {"scenario": name, "about": "x", "objective": objective})}))


def hours_of(found: dict[str, Any], name: str) -> dict[str, float]:
    return {one["policy"].rpartition(" + ")[2]: one["summary"]["gpu_hours"]["mean"] for one in found[name]["policies"]}


def test_new_figures_take_the_place_of_old_ones_of_the_same_policy_only():
    before = figures("step", kpa=3.0, clairvoyant=2.0) | figures("ramp", forebay=9.0)
    found = merged(before, figures("step", forebay=5.0, kpa=4.0))
    assert hours_of(found, "step") == {"kpa": 4.0, "clairvoyant": 2.0, "forebay": 5.0}
    assert hours_of(found, "ramp") == {"forebay": 9.0}
    over = {one["policy"].rpartition(" + ")[2]: one["gpu_hours_over_bound"] for one in found["step"]["policies"]}
    assert over["kpa"] == pytest.approx(1.0), "twice the bound, which is an old figure"
    assert merged(before, {}) == before


def test_old_figures_of_another_question_are_dropped():
    """Another objective, or scores that were counted otherwise."""
    before = figures("step", {**LIMITS, "ttft_s": 2.0}, kpa=3.0)
    assert hours_of(merged(before, figures("step", forebay=5.0)), "step") == {"forebay": 5.0}
    before = figures("step", kpa=3.0, hpa_queue=2.0)
    before["step"]["policies"][1]["policy"] = "least-load + hpa-queue"
    del before["step"]["policies"][0]["seeds"][0]["preemptions"]
    assert hours_of(merged(before, figures("step", forebay=5.0)), "step") == {"hpa-queue": 2.0, "forebay": 5.0}


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_has_requests_and_a_run_for_every_policy_and_seed(name):
    situation = SITUATIONS[name]
    tasks = situation.tasks(POLICIES, (1, 2))
    bounds = (task for task in tasks if task.policy.scaling == BOUND)  # whose seeds go together
    assert len(tasks) == 2 * len(situation.policies) - sum(1 for _ in bounds)
    assert {task.policy.scaling for task in tasks} == set(situation.policies)
    static = next(task for task in tasks if task.policy.scaling == "static")
    assert {pool.name: pool.replicas for pool in static.scenario.fleet.pools} == dict(situation.peak)
    trace = situation.scenario.trace(1)
    assert trace == situation.scenario.trace(1)
    assert trace != situation.scenario.trace(2)
    assert len(trace.arrivals) > 15_000
