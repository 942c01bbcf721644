"""The comparison of autoscalers runs, writes its three files, and lays a second run over the first."""

from __future__ import annotations

import json

import pytest

from tests.bench.autoscaler.__main__ import main, merged
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


def test_new_figures_take_the_place_of_old_ones_of_the_same_policy_only():
    assert merged({"other": {"policies": []}}, {}) == {"other": {"policies": []}}


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_has_requests_and_a_run_for_every_policy_and_seed(name):
    situation = SITUATIONS[name]
    tasks = situation.tasks(POLICIES, (1, 2))
    assert len(tasks) == 2 * len(POLICIES) - 1  # the bound's seeds go together
    assert {task.policy.scaling for task in tasks} == set(POLICIES)
    static = next(task for task in tasks if task.policy.scaling == "static")
    assert {pool.name: pool.replicas for pool in static.scenario.fleet.pools} == dict(situation.peak)
    trace = situation.scenario.trace(1)
    assert trace == situation.scenario.trace(1)
    assert trace != situation.scenario.trace(2)
    assert len(trace.arrivals) > 15_000
