"""Metrics of several processes as one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_router import metrics
from forebay_router.metrics import ServiceStats, render
from forebay_router.processes.exposition import Exposition, read

HEAD = "# HELP {0} Some help.\n# TYPE {0} {1}\n"


def text(requests: float, in_flight: int = 0, workers: int = 3) -> str:
    return (
        HEAD.format("requests_total", "counter")
        + f'requests_total{{verdict="good"}} {requests}\n'
        + HEAD.format("ttft_seconds", "histogram")
        + f'ttft_seconds_bucket{{le="0.1"}} {requests}\nttft_seconds_bucket{{le="+Inf"}} {requests}\n'
        + f"ttft_seconds_sum {requests / 8}\nttft_seconds_count {requests}\n"
        + HEAD.format("in_flight", "gauge")
        + f"in_flight {in_flight}\n"
        + HEAD.format(metrics.WORKERS.name, "gauge")
        + f'{metrics.WORKERS.name}{{state="ready"}} {workers}\n'
    )


def samples(made: str) -> dict[str, float]:
    return {key: value for family in read(made).values() for key, value in family.samples.items()}


def test_counts_and_loads_are_added_and_what_all_see_is_not():
    made = samples(Exposition().combine({0: (10, text(5, 2)), 1: (11, text(7, 4, workers=2))}))
    assert made['requests_total{verdict="good"}'] == 12
    assert made['ttft_seconds_bucket{le="+Inf"}'] == made["ttft_seconds_count"] == 12
    assert made["ttft_seconds_sum"] == 1.5
    assert made["in_flight"] == 6
    assert made[f'{metrics.WORKERS.name}{{state="ready"}}'] == 3


@pytest.mark.parametrize("family", [metrics.WORKERS_EJECTED, metrics.OBJECTIVE_TARGET], ids=lambda one: one.name)
def test_what_each_process_says_of_the_same_thing_is_said_once(family):
    one = HEAD.format(family.name, "gauge") + f"{family.name} 0.9\n"
    assert samples(Exposition().combine({0: (10, one), 1: (11, one)})) == {family.name: 0.9}


def test_a_process_that_begins_anew_leaves_its_counts_in_the_sum():
    exposition = Exposition()
    exposition.combine({0: (10, text(5, 2)), 1: (11, text(7, 4))})
    without = samples(exposition.combine({1: (11, text(8, 1))}))
    assert without['requests_total{verdict="good"}'] == 13, "what it said last counts while it is away"
    assert without["in_flight"] == 1, "what it holds does not"
    anew = samples(exposition.combine({0: (12, text(1, 1)), 1: (11, text(8, 1))}))
    assert anew['requests_total{verdict="good"}'] == 14


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 50)), max_size=40))
def test_sums_never_fall_whatever_processes_do(events):
    """A process counts on, or begins anew, or cannot be read; the total is what was ever seen."""
    exposition, pids, counts, seen, pid = Exposition(), [0, 1, 2], [0, 0, 0], 0, 2
    before = 0.0
    for number, restarts, more in events:
        if restarts:
            pid += 1
            pids[number], counts[number] = pid, 0
        counts[number] += more
        seen += more
        made = samples(exposition.combine({number: (pids[number], text(counts[number]))}))
        assert made['requests_total{verdict="good"}'] >= before
        before = made['requests_total{verdict="good"}']
        assert before == seen


def test_one_process_is_shown_as_it_is():
    stats = ServiceStats(namespace="n", model_service='odd "name"\\')
    stats.ttft.observe(0.2)
    one = render([stats], [(metrics.SYNCED, (), 1), (metrics.MESH_SILENCE, (), 0.25)]).decode()
    made = Exposition().combine({0: (1, one)})
    assert samples(made) == samples(one)
    assert [line for line in made.splitlines() if line.startswith("#")] == [
        line for line in one.splitlines() if line.startswith("#")
    ]


def test_what_only_the_parent_knows_is_put_in():
    one = HEAD.format("restarts_total", "counter") + "restarts_total 1\n"
    assert samples(Exposition().combine({0: (1, one)}, {"restarts_total": 4, "other": 5})) == {"restarts_total": 5}
    assert Exposition().combine({}) == "\n"
