"""Who waits where, and what a preemption leaves as it was."""

from __future__ import annotations

import pytest

from forebay_simulator.engine.request import FinishReason, Phase
from forebay_simulator.engine.waiting import Policy, waiting_queue

from .plain import a_request, a_scheduler, run_to_end


def test_equal_priorities_are_served_by_arrival_and_equal_arrivals_by_entry():
    queue = waiting_queue(Policy.PRIORITY)
    late, early, twin, urgent = (
        a_request(1, 1, priority=priority, arrival_s=arrival_s)
        for priority, arrival_s in ((1, 2.0), (1, 1.0), (1, 1.0), (0, 3.0))
    )
    for request in (late, early, twin, urgent):
        queue.push(request)
    assert [queue.pop() for _ in range(4)] == [urgent, early, twin, late]


@pytest.mark.parametrize("policy", Policy)
def test_a_request_that_left_the_queue_is_passed_over(policy):
    queue = waiting_queue(policy)
    gone, stays = a_request(1, 1), a_request(1, 1)
    for request in (gone, stays):
        queue.push(request)
    gone.phase, gone.finish_reason = Phase.FINISHED, FinishReason.ABORT
    queue.discard(gone)
    assert (len(queue), list(queue), queue.peek()) == (1, [stays], stays)


def test_a_prompt_that_is_computed_again_counts_as_one_lookup():
    scheduler = a_scheduler(usable_blocks=4)
    first, second = a_request(30, 20), a_request(30, 20)
    scheduler.add(first)
    scheduler.add(second)
    run_to_end(scheduler)
    assert second.preemptions > 0
    assert (scheduler.counters.prefix_queries, scheduler.counters.prefix_hits, second.cached_tokens) == (60, 0, 0)
