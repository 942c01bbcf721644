"""Decisions of a simulated run, with everything real ones are made from, come back from their text and come out again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from forebay_autoscaler.codec import read_record, record_text
from forebay_autoscaler.decide import decide
from forebay_autoscaler.history import Record
from forebay_autoscaler.reproduce import reproduce
from forebay_simulator.fleet.autoscaling import ForebayAutoscaler
from forebay_simulator.fleet.metrics import Scraping

from .fleets import chats, mixed, run, split


@dataclass(slots=True)
class Recording(ForebayAutoscaler):
    """The autoscaler, and what it decided from."""

    records: list[Record] = field(default_factory=list)

    def decide(self, watch, now_s):
        state, observation = self.state, self.observe(watch)
        decision = decide(self.policy, state, observation, now_s)
        self.state = decision.state
        self.records.append(Record(datetime.now(UTC), True, self.policy, state, observation, decision))
        return {pool.name: pool.desired for pool in decision.pools}


@pytest.mark.parametrize("fleet", [mixed(1), split(1, 1)])
def test_every_decision_of_a_run_comes_out_again(fleet):
    made = {}

    def scaling(spec, _trace, settings):
        made["it"] = Recording(spec, settings)
        return made["it"]

    outage = Scraping(interval_s=5.0, outages=((50.0, 65.0),))
    run(fleet, chats(40, 80, output=40), scaling=scaling, scraping=outage)
    records = made["it"].records
    assert len(records) >= 8
    pools = [pool for one in records for pool in one.decision.pools]
    assert any(pool.desired != pool.current for pool in pools)
    assert any(
        len({(pool.current, pool.desired) for pool in pools if pool.name == name}) > 1
        for name in {one.name for one in pools}
    ), "not one order again and again"
    for one in records:
        assert reproduce(read_record(json.loads(record_text(one)))) == []
