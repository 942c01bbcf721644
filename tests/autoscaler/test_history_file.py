"""Decisions on disk: exact, bounded, made again to the last bit, and never in the way of deciding."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_autoscaler.codec import decode, digest, encode, read_record, record_object, record_text
from forebay_autoscaler.decide import decide
from forebay_autoscaler.errors import HistoryError
from forebay_autoscaler.history import History, Record
from forebay_autoscaler.history_file import HistoryFile, read_history
from forebay_autoscaler.learn import Learnt
from forebay_autoscaler.reading import DataState, Reading
from forebay_autoscaler.reproduce import differences, reproduce
from forebay_autoscaler.state import PoolState, ServiceState

from .plant import service_policy
from .test_timelines import load_of

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


def records(seconds: int = 60, *, every_s: float = 10.0) -> list[Record]:
    """Decisions in a row, with a step in the load and a hole in the data."""
    made, state = [], ServiceState()
    for number in range(seconds):
        now_s = number * every_s + 0.1
        rate = 3.7 if number < 20 else 41.3
        observation = load_of(rate, wanted=1 if number < 25 else 4)
        if 30 <= number < 40:
            observation = replace(observation, signals=type(observation.signals)(), trouble="Prometheus is away")
        policy = service_policy()
        decision = decide(policy, state, observation, now_s)
        made.append(Record(AT, True, policy, state, observation, decision))
        state = decision.state
    return made


floats = st.floats(allow_nan=False)


@given(work_s=floats, limit=floats, changed_s=floats)
def test_every_number_comes_back_to_the_last_bit(work_s, limit, changed_s):
    state = ServiceState(pools={"a": PoolState(learnt=Learnt(work_s=work_s, limit=limit, limit_changed_s=changed_s))})
    back = decode(ServiceState, encode(ServiceState, state)).pools["a"].learnt
    for one, other in ((work_s, back.work_s), (limit, back.limit), (changed_s, back.limit_changed_s)):
        assert one == other
        assert math.copysign(1.0, one) == math.copysign(1.0, other)


def test_a_record_comes_back_as_it_was():
    for record in records():
        stored = read_record(json.loads(record_text(record)))
        assert replace(stored.record, decision=record.decision) == record
        assert replace(record.decision, state=ServiceState()) == stored.record.decision
        assert stored.state_after == digest(record.decision.state)


def test_every_decision_comes_out_again(tmp_path):
    file = HistoryFile(tmp_path / "deep" / "history.jsonl", 10**7)
    history = History(5, file)
    for record in records():
        history.add([record])
    stored = list(read_history(file.path))
    assert len(stored) == 60
    assert len({one.record.decision.pools[0].desired for one in stored}) > 1
    assert [difference for one in stored for difference in reproduce(one)] == []


def test_a_decision_that_comes_out_otherwise_is_told_field_by_field():
    changed = json.loads(record_text(records(30)[-1]))
    changed["decision"]["pools"][0]["desired"] += 1
    changed["observation"]["signals"]["arrived_per_s"]["number"] *= 1.0000000000000002
    found = {one.field: one for one in reproduce(read_record(changed))}
    assert "pools[0].desired" in found
    assert "pools[0].demand.rate_per_s" in found
    assert "recorded" in str(found["pools[0].desired"])


def test_a_state_that_comes_out_otherwise_is_told():
    changed = json.loads(record_text(records(30)[-1])) | {"state_after": "0" * 16}
    assert [one.field for one in reproduce(read_record(changed))] == ["state"]


def test_differences_see_what_is_missing_and_what_is_more():
    found = list(differences({"a": [1, 2], "b": 1}, {"a": [1], "c": None}))
    assert [one.field for one in found] == ["a[1]", "b", "c"]
    assert str(found[0]) == "a[1]: recorded 2, made again nothing"
    assert list(differences({"a": 1}, {"a": True})) != []


def test_files_are_bounded_and_the_newest_records_are_kept(tmp_path):
    path = tmp_path / "history.jsonl"
    file = HistoryFile(path, 100_000)
    made = records(100)
    for record in made:
        file.add([record])
    before = path.with_name("history.jsonl.1")
    assert path.stat().st_size + before.stat().st_size <= 100_000
    kept = [one.record.decision.at_s for source in (before, path) for one in read_history(source)]
    assert kept == [one.decision.at_s for one in made[-len(kept) :]]
    assert len(kept) > 10


def test_a_full_disk_stops_no_decision(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    file = HistoryFile(blocked / "history.jsonl", 10**6)
    for record in records(3):
        file.add([record])
    assert caplog.text.count("decisions are not recorded") == 1
    blocked.unlink()
    file.add(records(1))
    assert not file.failing
    assert len(list(read_history(file.path))) == 1


def test_an_answer_of_the_control_port_can_be_read_too(tmp_path):
    saved = tmp_path / "decisions.json"
    made = records(5)
    saved.write_text(json.dumps([record_object(one) for one in reversed(made)]))
    assert [one.record.decision.at_s for one in read_history(saved)] == [one.decision.at_s for one in made]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no history of decisions"),
        ('{"at": 1}', r"record 1: no record of a decision: 'decision' is missing"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, text, message):
    path = tmp_path / "history.jsonl"
    path.write_text(text)
    with pytest.raises(HistoryError, match=message):
        list(read_history(path))


def test_a_field_of_another_kind_is_named(tmp_path):
    changed = json.loads(record_text(records(1)[0]))
    changed["policy"]["objective"]["ttft_s"] = "soon"
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps(changed))
    with pytest.raises(HistoryError, match=r"record 1: policy\.objective\.ttft_s: "):
        list(read_history(path))
    with pytest.raises(HistoryError, match="cannot read the history"):
        list(read_history(Path("missing.jsonl")))


def test_unknown_is_written_as_unknown():
    assert decode(Reading, encode(Reading, Reading(DataState.STALE, 3.0, 61.0))).known is None
