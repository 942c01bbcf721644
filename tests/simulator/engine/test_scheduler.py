"""What each step computes, by the rules of continuous batching."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_simulator.engine.request import FinishReason, Phase
from forebay_simulator.engine.scheduling import BlockRemoved, BlocksStored, CacheCleared
from forebay_simulator.engine.waiting import Policy

from .plain import Blocks, a_request, a_scheduler, run_step, run_to_end


def test_a_prompt_is_prefilled_and_its_step_gives_the_first_token():
    scheduler = a_scheduler()
    request = a_request(20, 3)
    scheduler.add(request)
    assert run_step(scheduler, 1.0) == ([(request.request_id, 20)], [request.request_id])
    assert (request.output_tokens, request.first_scheduled_s, request.first_token_s) == (1, 1.0, 1.01)
    assert run_step(scheduler)[0] == [(request.request_id, 1)]
    run_step(scheduler)
    assert request.finish_reason is FinishReason.LENGTH
    assert scheduler.usage == 0.0


def test_the_timer_is_told_decodes_contexts_and_prefill_squares():
    scheduler = a_scheduler(max_batched_tokens=30)
    scheduler.add(a_request(10, 5))
    run_step(scheduler)
    scheduler.add(a_request(40, 5))
    run_step(scheduler)
    run_step(scheduler)
    timer = scheduler._timer
    assert timer.asked == [
        {"decodes": 0, "context": 0, "prefill": 10, "attention": 100},
        {"decodes": 1, "context": 11, "prefill": 29, "attention": 29 * 29},
        {"decodes": 1, "context": 12, "prefill": 11, "attention": 40 * 40 - 29 * 29},
    ]


def test_decodes_come_before_prefill_and_a_long_prompt_is_chunked():
    scheduler = a_scheduler(max_batched_tokens=16)
    first, second = a_request(10, 9), a_request(40, 2)
    scheduler.add(first)
    run_step(scheduler)
    scheduler.add(second)
    chunks = [run_step(scheduler)[0] for _ in range(3)]
    assert chunks == [
        [(first.request_id, 1), (second.request_id, 15)],
        [(first.request_id, 1), (second.request_id, 15)],
        [(first.request_id, 1), (second.request_id, 10)],
    ]
    assert second.output_tokens == 1


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_has_room_for_all_of_it():
    scheduler = a_scheduler(max_batched_tokens=64, chunked_prefill=False)
    first, second = a_request(40, 5), a_request(40, 5)
    scheduler.add(first)
    scheduler.add(second)
    assert [name for name, _ in run_step(scheduler)[0]] == [first.request_id]
    assert [tokens for _, tokens in run_step(scheduler)[0]] == [1, 40]


def test_no_more_requests_run_than_there_are_slots():
    scheduler = a_scheduler(max_sequences=2)
    requests = [a_request(4, 2) for _ in range(3)]
    for request in requests:
        scheduler.add(request)
    run_step(scheduler)
    assert (len(scheduler.running), len(scheduler.waiting)) == (2, 1)
    run_to_end(scheduler)
    assert all(request.finished for request in requests)


def test_a_cached_prefix_is_not_computed_again():
    scheduler = a_scheduler()
    shared = [a_request(50, 1, blocks=Blocks(own=f"q{n}", shared="system", shared_blocks=2)) for n in range(2)]
    scheduler.add(shared[0])
    run_to_end(scheduler)
    scheduler.add(shared[1])
    assert run_step(scheduler)[0] == [(shared[1].request_id, 50 - 32)]
    assert shared[1].cached_tokens == 32
    assert (scheduler.counters.prefix_queries, scheduler.counters.prefix_hits) == (100, 32)


@pytest.mark.parametrize(("prompt", "cached"), [(96, 80), (97, 96), (15, 0), (16, 0), (17, 16)])
def test_cached_tokens_are_whole_blocks_and_leave_the_last_token_to_compute(prompt, cached):
    scheduler = a_scheduler(max_batched_tokens=200)
    for _ in range(2):
        request = a_request(prompt, 1, blocks=Blocks(own="same"))
        scheduler.add(request)
        run_to_end(scheduler)
    assert request.cached_tokens == cached


def test_a_prefix_is_hit_within_the_step_that_computes_it():
    scheduler = a_scheduler(max_batched_tokens=200)
    twins = [a_request(40, 1, blocks=Blocks(own="same")) for _ in range(2)]
    for twin in twins:
        scheduler.add(twin)
    assert [tokens for _, tokens in run_step(scheduler)[0]] == [40, 8]


def test_output_blocks_serve_the_next_turn():
    scheduler = a_scheduler()
    scheduler.add(a_request(20, 30, blocks=Blocks(own="chat")))
    run_to_end(scheduler)
    turn = a_request(60, 1, blocks=Blocks(own="chat"))
    scheduler.add(turn)
    run_step(scheduler)
    # 49 tokens have KV (the last token of an answer never gets any): three blocks.
    assert turn.cached_tokens == 48


def test_when_blocks_run_out_the_last_admitted_is_preempted_and_computed_again():
    scheduler = a_scheduler(usable_blocks=4, prefix_caching=False)
    first, second = a_request(30, 20), a_request(30, 20)
    scheduler.add(first)
    scheduler.add(second)
    run_to_end(scheduler)
    assert first.preemptions == 0
    assert second.preemptions == 1
    assert scheduler.counters.preemptions == 1
    assert (first.output_tokens, second.output_tokens) == (20, 20)
    assert scheduler.usage == 0


def test_by_priority_the_least_urgent_is_preempted_and_the_most_urgent_admitted_first():
    scheduler = a_scheduler(usable_blocks=4, prefix_caching=False, policy=Policy.PRIORITY)
    urgent, patient = a_request(30, 20, priority=0, arrival_s=2.0), a_request(30, 20, priority=9, arrival_s=1.0)
    scheduler.add(patient)
    scheduler.add(urgent)
    assert [name for name, _ in run_step(scheduler)[0]] == [urgent.request_id, patient.request_id]
    run_to_end(scheduler)
    assert (urgent.preemptions, patient.preemptions) == (0, 1)


def test_a_prompt_is_admitted_only_when_all_of_it_fits():
    scheduler = a_scheduler(usable_blocks=5, max_batched_tokens=16)
    scheduler.add(a_request(40, 30))
    big = a_request(60, 1)
    scheduler.add(big)
    run_step(scheduler)
    run_step(scheduler)
    assert big.phase is Phase.WAITING
    run_to_end(scheduler)
    assert big.finished


def test_an_aborted_request_frees_its_blocks_and_produces_nothing_more():
    scheduler = a_scheduler()
    request = a_request(20, 10)
    scheduler.add(request)
    step = scheduler.schedule(0.0)
    scheduler.finish(request, FinishReason.ABORT, 0.005)
    assert scheduler.complete(step, 0.01) == []
    assert (scheduler.usage, scheduler.unfinished, request.output_tokens) == (0.0, 0, 0)


def test_aborting_a_waiting_request_takes_it_out_of_the_count():
    scheduler = a_scheduler(max_sequences=1)
    scheduler.add(a_request(4, 5))
    waiting, last = a_request(4, 5), a_request(4, 5)
    scheduler.add(waiting)
    scheduler.add(last)
    run_step(scheduler)
    scheduler.finish(waiting, FinishReason.ABORT, 0.0)
    assert len(scheduler.waiting) == 1
    run_to_end(scheduler)
    assert last.output_tokens == 5
    assert waiting.output_tokens == 0


def test_a_natural_end_stops_before_the_limit():
    scheduler = a_scheduler()
    request = a_request(4, 10, natural_output_tokens=3)
    scheduler.add(request)
    run_to_end(scheduler)
    assert (request.output_tokens, request.finish_reason) == (3, FinishReason.STOP)


def test_a_prefill_leg_holds_its_blocks_until_they_are_released():
    scheduler = a_scheduler(lease_s=30.0)
    request = a_request(33, 1, hold_after_finish=True)
    scheduler.add(request)
    run_step(scheduler, 5.0)
    held = scheduler.held[request.request_id]
    assert (held.block_ids, held.expires_s) == ((1, 2, 3), 35.01)
    assert scheduler.usage == 0.03
    assert scheduler.release_held(request.request_id)
    assert not scheduler.release_held(request.request_id)
    assert scheduler.usage == 0.0


def test_a_lease_ends_by_itself_unless_it_is_renewed():
    scheduler = a_scheduler(lease_s=30.0)
    requests = [a_request(4, 1, hold_after_finish=True) for _ in range(2)]
    for request in requests:
        scheduler.add(request)
    run_step(scheduler, 0.0)
    assert scheduler.renew_held(requests[1].request_id, 50.0)
    assert scheduler.expire_held(30.0) == []
    assert scheduler.expire_held(30.02) == [requests[0].request_id]
    assert scheduler.expire_held(50.0) == [requests[1].request_id]


def test_an_aborted_prefill_leg_holds_nothing():
    scheduler = a_scheduler()
    request = a_request(4, 5, hold_after_finish=True)
    scheduler.add(request)
    run_step(scheduler)
    scheduler.finish(request, FinishReason.ABORT, 0.0)
    assert scheduler.held == {}
    assert scheduler.usage == 0.0


def test_a_decode_leg_waits_for_its_blocks_and_computes_the_last_prompt_token():
    scheduler = a_scheduler()
    request = a_request(40, 5, remote_prefill=True)
    scheduler.add(request)
    step = scheduler.schedule(0.0)
    assert (step.work, step.fetches, request.phase) == ([], [request], Phase.FETCHING)
    assert request.first_scheduled_s is None  # the fetch is part of the wait
    assert scheduler.usage == 0.03
    assert run_step(scheduler)[0] == []
    scheduler.remote_kv_arrived(request)
    assert run_step(scheduler) == ([(request.request_id, 1)], [request.request_id])
    assert request.first_scheduled_s is not None
    assert (request.fetched_tokens, scheduler.counters.external_hits) == (40, 40)


def test_a_decode_leg_of_one_token_works():
    scheduler = a_scheduler()
    request = a_request(1, 2, remote_prefill=True)
    scheduler.add(request)
    scheduler.schedule(0.0)
    scheduler.remote_kv_arrived(request)
    run_to_end(scheduler)
    assert request.output_tokens == 2
    assert scheduler.usage == 0.0


def test_fetched_blocks_are_cached_like_computed_ones():
    scheduler = a_scheduler(records_events=True)
    request = a_request(40, 1, blocks=Blocks(own="same"), remote_prefill=True)
    scheduler.add(request)
    scheduler.schedule(0.0)
    assert scheduler.events == []
    scheduler.remote_kv_arrived(request)
    assert scheduler.events == [BlocksStored(request, 0, 2)]
    run_to_end(scheduler)
    again = a_request(40, 1, blocks=Blocks(own="same"))
    scheduler.add(again)
    run_to_end(scheduler)
    assert again.cached_tokens == 32


def test_after_a_failed_fetch_the_prompt_is_computed():
    scheduler = a_scheduler()
    request = a_request(40, 5, remote_prefill=True)
    scheduler.add(request)
    scheduler.schedule(0.0)
    scheduler.remote_kv_failed(request)
    assert run_step(scheduler)[0] == [(request.request_id, 40)]
    assert request.fetched_tokens == 0


@pytest.mark.parametrize("caching", [False, True])
def test_a_fetched_request_runs_before_a_preempted_one_that_lacks_the_blocks_it_holds(caching):
    scheduler = a_scheduler(usable_blocks=4, prefix_caching=caching)
    running, fetched = a_request(31, 20), a_request(32, 3, remote_prefill=True)
    scheduler.add(running)
    run_step(scheduler)
    scheduler.add(fetched)
    run_step(scheduler)
    scheduler.remote_kv_arrived(fetched)
    assert run_step(scheduler)[0] == [(fetched.request_id, 1)]
    assert (running.phase, running.preemptions, scheduler.queued) == (Phase.WAITING, 1, 1)
    run_to_end(scheduler)
    assert (running.output_tokens, fetched.output_tokens) == (20, 3)


@pytest.mark.parametrize("arrived", [False, True])
def test_a_fetching_request_can_be_aborted(arrived):
    scheduler = a_scheduler()
    request = a_request(40, 5, remote_prefill=True)
    scheduler.add(request)
    scheduler.schedule(0.0)
    if arrived:
        scheduler.remote_kv_arrived(request)
    scheduler.finish(request, FinishReason.ABORT, 0.0)
    assert (scheduler.unfinished, scheduler.usage) == (0, 0.0)


def test_adapters_beyond_the_limit_wait_and_do_not_block_others():
    scheduler = a_scheduler(max_adapters=1)
    one, two, base = a_request(4, 3, adapter="one"), a_request(4, 3, adapter="two"), a_request(4, 3)
    for request in (one, two, base):
        scheduler.add(request)
    assert [name for name, _ in run_step(scheduler)[0]] == [one.request_id, base.request_id]
    assert scheduler.adapter_deferred == 1
    run_to_end(scheduler)
    assert two.output_tokens == 3


def test_the_journal_has_removals_before_the_blocks_that_took_their_place():
    scheduler = a_scheduler(usable_blocks=3, records_events=True)
    first = a_request(33, 1, blocks=Blocks(own="old"))
    scheduler.add(first)
    run_to_end(scheduler)
    scheduler.events.clear()
    second = a_request(33, 1, blocks=Blocks(own="new"))
    scheduler.add(second)
    run_to_end(scheduler)
    assert scheduler.events == [BlockRemoved(("old", 1)), BlockRemoved(("old", 0)), BlocksStored(second, 0, 2)]


def test_a_reset_clears_the_cache_only_when_nothing_is_held():
    scheduler = a_scheduler(records_events=True)
    request = a_request(40, 5, blocks=Blocks(own="same"))
    scheduler.add(request)
    run_step(scheduler)
    assert not scheduler.reset_cache()
    assert scheduler.reset_cache(preempt_running=True)
    assert scheduler.events[-1] == CacheCleared()
    run_to_end(scheduler)
    assert (request.output_tokens, request.preemptions) == (5, 1)


REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.integers(1, 90),
            "output": st.integers(1, 40),
            "priority": st.integers(0, 2),
            "shared_blocks": st.integers(0, 4),
            "fetch_steps": st.none() | st.integers(0, 6),
            "fetch_fails": st.booleans(),
        }
    ),
    min_size=1,
    max_size=14,
)


@given(
    specs=REQUESTS,
    policy=st.sampled_from(Policy),
    caching=st.booleans(),
    blocks=st.integers(9, 30),
    budget=st.integers(8, 64),
    aborts=st.sets(st.integers(0, 13)),
)
@settings(max_examples=150, deadline=None)
def test_whatever_comes_every_request_ends_and_every_block_is_free_again(
    specs, policy, caching, blocks, budget, aborts
):
    scheduler = a_scheduler(
        usable_blocks=blocks, max_batched_tokens=budget, max_sequences=6, policy=policy, prefix_caching=caching
    )
    requests = []
    left = {}
    for number, spec in enumerate(specs):
        identity = Blocks(own=f"o{number}", shared="s", shared_blocks=spec["shared_blocks"])
        remote = spec["fetch_steps"] is not None
        fields = {"priority": spec["priority"], "blocks": identity, "remote_prefill": remote}
        requests.append(a_request(spec["prompt"], spec["output"], **fields))
        left[requests[-1].request_id] = (spec["fetch_steps"], spec["fetch_fails"])
        scheduler.add(requests[-1])
    for number in range(5_000):
        step = scheduler.schedule(number * 1.0)
        assert sum(tokens for _, tokens in step.work) <= budget
        assert len(scheduler.running) <= 6
        assert len({request.request_id for request, _ in step.work}) == len(step.work)
        assert all(tokens >= 1 for _, tokens in step.work)
        if number in aborts and number < len(requests):
            scheduler.finish(requests[number], FinishReason.ABORT, number)
        for request in list(scheduler.fetching.values()):
            steps, fails = left[request.request_id]
            left[request.request_id] = (steps - 1, fails)
            if steps <= 0:
                (scheduler.remote_kv_failed if fails else scheduler.remote_kv_arrived)(request)
        scheduler.complete(step, number + 0.5)
        if not scheduler.unfinished:
            break
    assert scheduler.unfinished == 0
    for number, request in enumerate(requests):
        assert request.finished
        if number not in aborts:
            assert request.output_tokens == request.output_tokens_max
    assert scheduler.pool.held_blocks == 0
