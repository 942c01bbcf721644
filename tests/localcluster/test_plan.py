"""A plan survives its file, and ends in the right order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_localcluster.errors import LocalClusterError
from forebay_localcluster.plan import (
    Check,
    FileCheck,
    HttpCheck,
    LogCheck,
    Plan,
    ProgramPlan,
    check_plan,
    dump_plan,
    load_plan,
    stop_waves,
)

TEXTS = st.text(max_size=8)
CHECKS: st.SearchStrategy[Check] = st.one_of(
    st.builds(HttpCheck, url=TEXTS, authority=st.none() | TEXTS, certificate=st.none() | TEXTS, key=st.none() | TEXTS),
    st.builds(FileCheck, TEXTS),
    st.builds(LogCheck, TEXTS),
)
PROGRAMS = st.builds(
    ProgramPlan,
    name=TEXTS,
    argv=st.lists(TEXTS, max_size=3).map(tuple),
    log=TEXTS,
    environment=st.dictionaries(TEXTS, TEXTS, max_size=2),
    after=st.lists(TEXTS, max_size=2).map(tuple),
    ready=st.lists(CHECKS, max_size=2).map(tuple),
    runs_once=st.booleans(),
    port=st.none() | st.integers(1, 65535),
)


def program(name: str, *after: str) -> ProgramPlan:
    return ProgramPlan(name=name, argv=(name,), log=f"{name}.log", after=after)


def plan(*programs: ProgramPlan) -> Plan:
    return Plan(name="x", number=1, owned=False, disposable=False, programs=programs)


@given(st.lists(PROGRAMS, max_size=3).map(tuple), st.booleans())
def test_a_plan_is_read_as_it_was_written(programs: tuple[ProgramPlan, ...], owned: bool):  # noqa: FBT001
    written = Plan(name="x", number=7, owned=owned, disposable=not owned, programs=programs)
    assert load_plan(dump_plan(written)) == written


@given(st.data())
def test_nothing_ends_before_what_needs_it(data: st.DataObject):
    """A random graph without circles: each program may need any that come earlier."""
    programs: list[ProgramPlan] = []
    for number in range(data.draw(st.integers(0, 8))):
        needs = data.draw(st.sets(st.sampled_from([each.name for each in programs]))) if programs else set()
        programs.append(program(f"p{number}", *sorted(needs)))
    waves = stop_waves(programs)
    place = {name: index for index, wave in enumerate(waves) for name in wave}
    assert sorted(place) == sorted(each.name for each in programs)
    for each in programs:
        assert all(place[each.name] < place[need] for need in each.after)


def test_programs_that_nothing_needs_end_first_and_together():
    waves = stop_waves([program("etcd"), program("api", "etcd"), program("a", "api"), program("b", "api")])
    assert waves == [["a", "b"], ["api"], ["etcd"]]


@pytest.mark.parametrize(
    ("programs", "complaint"),
    [
        ((program("a"), program("a")), "two programs are named 'a'"),
        ((program("a", "b"),), "a is to start after b, which is not planned"),
        ((program("a", "b"), program("b", "a")), "wait for one another"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(programs: tuple[ProgramPlan, ...], complaint: str):
    with pytest.raises(LocalClusterError, match=complaint):
        check_plan(plan(*programs))
