"""What plots are drawn from."""

from __future__ import annotations

import pytest

from forebay_simulator.fleet.comparing import Policy, compare
from forebay_simulator.fleet.courses import course_of, means
from forebay_simulator.fleet.faults import WorkerLoss
from forebay_simulator.fleet.report import document, over_bound, scores_of, table
from forebay_simulator.fleet.scenarios import Scenario
from forebay_simulator.fleet.traces.generators import chat, constant, generate
from forebay_simulator.fleet.traces.herds import Herd, herds

from .fleets import chats, mixed, run


def test_means_are_of_what_held_in_each_part():
    assert means([(0.0, 10.0, 2.0), (5.0, 7.5, 4.0)], 5.0, 2) == (2.0, 4.0)
    assert means([], 1.0, 3) == (0.0, 0.0, 0.0)


def test_a_course_adds_up_to_the_run():
    done = run(mixed(2), chats(10, 60), faults=(WorkerLoss(30.0, "mixed"),))
    course = course_of(done, parts=6)
    assert sum(course.arrivals_per_s) * course.part_s == pytest.approx(len(done.jobs))
    taken = done.members.gpu_seconds(done.setting.trace.duration_s)
    assert sum(course.gpus) * course.part_s == pytest.approx(taken)
    assert course.wanted == {"mixed": (2.0,) * 6}
    assert course.attainment[0] == 1.0


def small(seconds: float = 40.0) -> Scenario:
    return Scenario(name="small", about="", fleet=mixed(1), trace=lambda seed: chats(8, seconds, seed=seed))


def test_processes_find_what_one_process_finds():
    policies, seeds = [Policy("least-load", "static"), Policy("least-load", "clairvoyant")], [1, 2]
    heard = []
    alone = compare(small(), policies, seeds)
    spread = compare(small(), policies, seeds, lambda *what: heard.append(what), processes=2)
    for one, other in zip(alone, spread, strict=True):
        assert (one.policy, one.bound) == (other.policy, other.bound)
        assert [run.attainment for run in one.runs] == [run.attainment for run in other.runs]
        assert [run.seed for run in other.runs] == seeds
        assert one.course == other.course
    assert len(heard) == 3


def test_every_line_says_how_far_it_is_from_the_bound():
    lines = compare(small(), [Policy("least-load", "static"), Policy("least-load", "clairvoyant")], [1])
    static, bound = lines
    expected = static.runs[0].gpu_hours / bound.runs[0].gpu_hours - 1
    assert over_bound(static, lines) == pytest.approx(expected)
    assert over_bound(bound, lines) is None
    headings, first, second = table(lines)
    assert headings[-1] == "over bound %"
    assert (first[-1], second[-1]) == (f"{100 * expected:+.0f}", "-")
    assert document(lines, {})["policies"][0]["gpu_hours_over_bound"] == pytest.approx(expected)
    assert over_bound(static, [static]) is None


def test_the_same_run_by_other_definitions_of_goodput():
    """The bench of vLLM does not see failures, inference-perf divides by finished ones, Mooncake allows 30 s and 100 ms."""
    done = run(mixed(3), chats(20, 40, output=100), faults=(WorkerLoss(15.0, "mixed"),))
    scores = scores_of(done)
    assert scores.failed > 0
    assert scores.good_share_of_finished > scores.attainment
    assert scores.good_per_s_as_vllm == pytest.approx(scores.goodput_per_s, rel=0.02)
    assert scores.within_mooncake == pytest.approx(1 - scores.failed / scores.requests)


def test_a_herd_comes_at_once_and_begins_alike():
    traffic = generate("chats", constant(5), chat, duration_s=100, seed=1)
    herd = Herd(size=50, within_s=2.0, prefix_blocks=3, own_tokens=(10, 20), output_tokens=(5, 9))
    made = herds(traffic, herd, at_s=(20.0, 60.0), seed=1)
    alike = [one for one in made.arrivals if one.block_ids]
    assert len(alike) == 100
    assert {one.block_ids for one in alike} == {(0, 1, 2)}
    assert all(20 <= one.at_s <= 22 or 60 <= one.at_s <= 62 for one in alike)
    assert len(made.arrivals) == len(traffic.arrivals) + 100
    assert made.duration_s == traffic.duration_s
