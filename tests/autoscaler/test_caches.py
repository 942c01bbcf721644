"""The condition CacheIndexHealthy: from what routers say of their knowledge to words."""

import pytest

from forebay_api.conditions import ConditionStatus
from forebay_autoscaler.caches import cache_index_healthy
from forebay_autoscaler.prometheus import sample_of
from forebay_autoscaler.queries import Signal
from forebay_autoscaler.signals import Signals

KEY = ("team", "chat")
LABELS = {"namespace": "team", "model_service": "chat"}


@pytest.mark.parametrize(
    ("workers", "status", "reason"),
    [
        (None, ConditionStatus.UNKNOWN, "NoData"),
        ({"precise": 3, "lost": 0, "distrusted": 0, "none": 0}, ConditionStatus.TRUE, "Precise"),
        ({"precise": 3, "lost": 0, "distrusted": 0, "none": 1}, ConditionStatus.TRUE, "Precise"),
        ({"precise": 0, "lost": 0, "distrusted": 0, "none": 4}, ConditionStatus.TRUE, "Approximate"),
        ({"precise": 2, "lost": 1, "distrusted": 1, "none": 0}, ConditionStatus.FALSE, "EventsLost"),
        ({"precise": 2, "lost": 0, "distrusted": 1, "none": 0}, ConditionStatus.FALSE, "EventsWrong"),
    ],
)
def test_the_worst_that_a_router_sees_is_told(workers, status, reason):
    condition = cache_index_healthy(workers)
    assert (condition.type, condition.status, condition.reason) == ("CacheIndexHealthy", status, reason)
    assert condition.message


def test_what_no_router_has_told_of_late_is_unknown():
    states = [sample_of({**LABELS, "state": name}, 1.0, 100.0) for name in ("precise", "lost")]
    fresh, old = (sample_of(LABELS, at_s, 100.0) for at_s in (95.0, 20.0))
    told = {Signal.CACHE_INDEX: states, Signal.ROUTER_SEEN: [fresh]}
    assert Signals(told, stale_after_s=60).caches_of(KEY) == {"precise": 1, "lost": 1}
    assert Signals({**told, Signal.ROUTER_SEEN: [old]}, stale_after_s=60).caches_of(KEY) is None
    assert Signals({Signal.ROUTER_SEEN: [fresh]}, stale_after_s=60).caches_of(KEY) is None
    assert Signals(told, stale_after_s=60).caches_of(("other", "chat")) is None
