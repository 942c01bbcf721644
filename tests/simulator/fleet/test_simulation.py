"""What becomes of requests and workers in a simulated fleet."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from forebay_api.modelservice import Role
from forebay_api.objective import Outcome, Verdict
from forebay_capacity.batch import prefill_seconds
from forebay_simulator.fleet.comparing import Policy, setting_of
from forebay_simulator.fleet.faults import NodeShortage, SlowWorker, WorkerLoss
from forebay_simulator.fleet.members import State
from forebay_simulator.fleet.policies import ROUTING
from forebay_simulator.fleet.report import Line, document, imbalance_of, interval, scores_of, table
from forebay_simulator.fleet.scenarios import SCENARIOS
from forebay_simulator.fleet.spec import EngineSpec, FleetSpec, PoolSpec, mocker_engine
from forebay_simulator.fleet.traces.generators import chat, constant, fixed, generate, sinusoid
from forebay_simulator.fleet.traces.trace import Arrival, Trace

from .fleets import ENGINE, OBJECTIVE, chats, mixed, run, split

SERVED = ENGINE.served()


class To:
    """A scaling policy that follows a timetable."""

    interval_s = 1.0

    def __init__(self, *changes: tuple[float, dict[str, int]]) -> None:
        self.changes = list(changes)

    def decide(self, _watch, now_s):
        due = [wanted for at_s, wanted in self.changes if at_s <= now_s]
        return due[-1] if due else {}


def timetable(*changes):
    return lambda _fleet, _trace, _spec: To(*changes)


def test_a_lone_request_takes_what_the_step_times_say():
    one = Trace.of("one", [Arrival(1.0, 3000, 11)])
    (job,) = run(mixed(1), one).jobs
    prefill_s = prefill_seconds(SERVED.timer, 3000)
    assert job.ttft_s == pytest.approx(prefill_s, rel=1e-9)
    decode = [
        SERVED.timer.step_seconds(
            decode_sequences=1, decode_context_tokens=3000 + n, prefill_tokens=0, prefill_attention=0
        )
        for n in range(1, 11)
    ]
    assert job.tpot_s == pytest.approx(sum(decode) / 10, rel=1e-9)
    assert (job.outcome, job.verdict) == (Outcome.FINISHED, Verdict.GOOD)


def test_a_split_request_is_prefilled_moved_and_answered():
    one = Trace.of("one", [Arrival(0.0, 3000, 11)])
    (job,) = run(split(1, 1), one, routing="least-load").jobs
    last_token_s = SERVED.timer.step_seconds(
        decode_sequences=1, decode_context_tokens=3000, prefill_tokens=0, prefill_attention=0
    )
    expected_s = prefill_seconds(SERVED.timer, 3000) + SERVED.transfer_seconds(3000) + last_token_s
    assert job.ttft_s == pytest.approx(expected_s, rel=1e-9)
    assert (job.worker, job.prefill_worker) == ("decode-0", "prefill-0")


def test_an_idle_decode_worker_computes_a_prompt_itself_rather_than_have_it_sent():
    (job,) = run(split(1, 1), Trace.of("one", [Arrival(0.0, 3000, 11)])).jobs
    assert job.ttft_s == pytest.approx(prefill_seconds(SERVED.timer, 3000), rel=1e-9)
    assert (job.worker, job.prefill_worker) == ("decode-0", "")


@pytest.mark.parametrize("routing", ROUTING)
@pytest.mark.parametrize("fleet", [mixed(3), split(2, 2)], ids=["mixed", "split"])
def test_nothing_is_left_behind(fleet, routing):
    """Every request ends once; leases, blocks and held KV are all given back."""
    done = run(fleet, chats(15, 20), routing=routing)
    assert all(job.outcome is Outcome.FINISHED for job in done.jobs)
    assert done.front.counts.in_flight == 0
    assert not done.front._legs
    for member in done.members.all_members():
        load = member.candidate.load
        assert (load.requests, load.prompt_tokens, load.output_tokens) == (0, 0, 0)
        scheduler = member.engine.scheduler
        assert (scheduler.usage, scheduler.unfinished, len(scheduler.held)) == (0.0, 0, 0)


@pytest.mark.parametrize("routing", ROUTING)
def test_a_seed_decides_everything(routing):
    def outcome(seed):
        done = run(mixed(3), chats(20, 10), routing=routing, seed=seed)
        return [(job.worker, job.first_token_s, job.ended_s) for job in done.jobs]

    assert outcome(4) == outcome(4)
    if routing not in ("round-robin", "chwbl", "approximate-prefix"):  # these draw no lots here
        assert outcome(4) != outcome(5)


def test_a_preempted_request_finds_its_own_blocks_again():
    """Without shared prefixes the cache still matters: preempted requests would compute their prompts anew."""

    def ends(*, caching: bool) -> float:
        engine = EngineSpec(block_tokens=64, blocks=200, max_model_len=4096, prefix_caching=caching)
        pool = PoolSpec(name="mixed", role=Role.MIXED, replicas=1, engine=engine)
        done = run(FleetSpec(pools=(pool,), objective=OBJECTIVE), chats(6, 20, prompt=1000, output=400))
        assert sum(job.preemptions for job in done.jobs) > 0
        return max(job.ended_s for job in done.jobs)

    assert ends(caching=True) < ends(caching=False)


def test_ordered_workers_help_after_their_start_up_time():
    done = run(mixed(1), chats(5, 60), scaling=timetable((10, {"mixed": 2})))
    second = done.members.by_uid["mixed-1"]
    assert second.placed_s == pytest.approx(10.0)
    first_use_s = min(job.at_s for job in done.jobs if job.worker == "mixed-1")
    assert 30.0 <= first_use_s < 32.0
    assert done.gpu_seconds == pytest.approx(done.duration_s + (done.duration_s - 10.0))


def test_a_leaving_worker_finishes_what_it_has_and_gets_no_more():
    done = run(mixed(2), chats(10, 60, output=400), scaling=timetable((20, {"mixed": 1})))
    assert all(job.outcome is Outcome.FINISHED for job in done.jobs)
    (left,) = [member for member in done.members.all_members() if member.state is State.GONE]
    assert 20.0 < left.gone_s < 40.0
    assert not [job for job in done.jobs if job.worker == left.uid and job.at_s > 20.0]


def test_workers_that_have_not_started_are_the_first_to_go():
    done = run(mixed(1), chats(2, 40), scaling=timetable((5, {"mixed": 3}), (10, {"mixed": 1})))
    assert {job.worker for job in done.jobs} == {"mixed-0"}
    assert done.gpu_seconds == pytest.approx(done.duration_s + 2 * 5.0)


def test_a_lost_worker_costs_only_the_answers_that_had_begun():
    lost_s = 14.98  # while a prompt waits there
    done = run(mixed(3), chats(40, 40), faults=(WorkerLoss(lost_s, "mixed"),))
    outcomes = Counter(job.outcome for job in done.jobs)
    cut = [job for job in done.jobs if job.outcome is Outcome.CUT_OFF]
    assert outcomes == {Outcome.FINISHED: len(done.jobs) - len(cut), Outcome.CUT_OFF: len(cut)}
    assert 0 < len(cut) < 80
    assert all(job.first_token_s is not None and job.first_token_s < lost_s == job.ended_s for job in cut)
    assert done.front.counts.retries > 0
    assert done.members.pools["mixed"].count(State.READY) == 3  # its pool ordered another one


@pytest.mark.parametrize("pool", ["prefill", "decode"])
def test_either_side_of_a_pair_may_die(pool):
    done = run(split(2, 2), chats(20, 40), faults=(WorkerLoss(15.0, pool),))
    outcomes = Counter(job.outcome for job in done.jobs)
    assert set(outcomes) <= {Outcome.FINISHED, Outcome.CUT_OFF}
    assert (outcomes[Outcome.CUT_OFF] > 0) == (pool == "decode")  # with its prefill worker no answer has begun
    assert not done.front._legs
    for member in done.members.all_members():
        if member.state is not State.GONE:
            assert member.engine.scheduler.usage == 0.0


def test_without_nodes_ordered_workers_wait_for_them():
    done = run(
        mixed(1, gpus=3),
        chats(3, 100),
        scaling=timetable((10, {"mixed": 3})),
        faults=(NodeShortage(0.0, 50.0, 2),),
    )
    assert [member.placed_s for member in done.members.all_members()] == [0.0, 50.0, 50.0]


def test_a_slow_worker_is_slow_while_it_lasts():
    done = run(mixed(1), chats(1, 90), faults=(SlowWorker(30.0, 60.0, "mixed-0", 3.0),))

    def tpot(begins_s, ends_s):
        times = [job.tpot_s for job in done.jobs if begins_s < job.at_s < ends_s - 4.0]
        return sum(times) / len(times)

    assert tpot(30.0, 60.0) == pytest.approx(3 * tpot(0.0, 30.0), rel=0.1)
    assert tpot(62.0, 90.0) == pytest.approx(tpot(0.0, 30.0), rel=0.1)


def test_requests_without_a_worker_are_held_and_then_rejected():
    fleet = replace(mixed(0), hold_s=10.0, hold_max=5)
    pool = replace(fleet.pools[0], replicas_min=0)
    done = run(replace(fleet, pools=(pool,)), chats(1, 20))
    reasons = [(job.outcome, round(job.ended_s - job.at_s, 6)) for job in done.jobs]
    assert {outcome for outcome, _ in reasons} == {Outcome.REJECTED}
    assert {waited for _, waited in reasons} == {0.0, 10.0}  # the queue is full, or the time is over


def test_a_prompt_that_no_worker_can_hold_is_rejected():
    (job,) = run(mixed(1), Trace.of("huge", [Arrival(0.0, 600_000, 1)])).jobs
    assert (job.outcome, job.verdict) == (Outcome.REJECTED, Verdict.BAD)


def test_round_robin_is_even_and_random_is_not():
    trace = chats(20, 40)
    even = Counter(job.worker for job in run(mixed(4), trace, routing="round-robin").jobs)
    assert max(even.values()) - min(even.values()) <= 1
    drawn = Counter(job.worker for job in run(mixed(4), trace, routing="random").jobs)
    assert max(drawn.values()) - min(drawn.values()) > 10


def test_scores_count_rejected_and_cut_off_as_bad():
    done = run(mixed(3), chats(20, 40), faults=(WorkerLoss(15.0, "mixed"),))
    scores = scores_of(done)
    cut = sum(1 for job in done.jobs if job.outcome is Outcome.CUT_OFF)
    good = sum(1 for job in done.jobs if job.verdict is Verdict.GOOD)
    assert scores.failed == cut
    assert scores.attainment == pytest.approx(good / len(done.jobs))
    assert scores.good_per_gpu_hour == pytest.approx(good / (done.gpu_seconds / 3600))
    assert 1.0 <= imbalance_of(done) < 2.0


def test_an_interval_is_students():
    assert interval([1.0, 2.0, 3.0, 4.0, 5.0]).half_width == pytest.approx(2.776 * 1.5811388 / 5**0.5)
    assert interval([7.0]).half_width == 0.0


def test_the_report_has_every_policy_and_seed():
    runs = tuple(scores_of(run(mixed(2), chats(5, 10, seed=seed), seed=seed)) for seed in (1, 2))
    lines = [Line("forebay", runs)]
    headings, row = table(lines)
    assert headings[:3] == ["policy", "attainment %", "GPU-hours"]
    assert row[:2] == ["forebay", "100.0"]
    found = document(lines, {"scenario": "x"})
    assert [one["seed"] for one in found["policies"][0]["seeds"]] == [1, 2]
    assert found["policies"][0]["summary"]["attainment"] == {"mean": 1.0, "half_width": 0.0}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_runs(name):
    """A short piece of each, with the autoscaler at work."""
    scenario = SCENARIOS[name]
    setting = setting_of(scenario, Policy("forebay", "forebay"), 1)
    short = simulate_first(setting, 60.0)
    assert all(job.outcome is not None for job in short.jobs)
    assert short.scaling.decisions


def simulate_first(setting, seconds):
    fields = {name: getattr(setting, name) for name in ("routing", "scaling", "autoscaler", "scraping", "faults")}
    return run(setting.fleet, setting.trace.first(seconds), **fields, seed=setting.seed)


def test_dynamos_static_ramp_comes_out_as_in_dynamos_own_replay():
    """Its own replay gave 5 prefill and 7 decode workers 100 % at 7.05 GPU-hours over 35 minutes; here two of them."""
    fleet = split(5, 7)
    fleet = replace(
        fleet,
        pools=tuple(replace(pool, engine=mocker_engine()) for pool in fleet.pools),
        objective=replace(fleet.objective, ttft_s=3.0, tpot_s=0.035),
    )
    trace = generate("ramp", sinusoid(1, 24, 900), fixed(8000, 1000), duration_s=120, seed=1)
    scores = scores_of(run(fleet, trace))
    assert scores.attainment == 1.0
    assert scores.gpu_hours == pytest.approx(12 * 120 / 3600, rel=0.3)


def test_a_steady_load_is_served_at_its_rate():
    trace = generate("steady", constant(12), fixed(500, 20), duration_s=60, seed=9)
    assert len(trace.arrivals) == pytest.approx(720, rel=0.1)
    assert scores_of(run(mixed(2), trace)).goodput_per_s == pytest.approx(trace.rate_per_s, rel=0.03)


def test_what_a_worker_cannot_run_in_time_waits_and_the_rest_is_in_time():
    """Half as much again as one worker does. Sent at once, nearly all are too slow; held back, some are late, most good."""
    trace = generate("flood", constant(20), chat, duration_s=60, seed=3)
    fleet = mixed(1, engine=replace(ENGINE, block_tokens=128, prefix_caching=False))
    at_once, held = (scores_of(run(fleet, trace, routing=one)) for one in ("least-load", "forebay"))
    assert at_once.slow_tokens > 0.8 * len(trace.arrivals)
    assert held.attainment > 0.6 > 3 * at_once.attainment
    assert held.slow_tokens < 0.1 * len(trace.arrivals)
    assert held.rejected == held.failed == 0, "late ones are answered, too"


def test_a_request_that_is_held_twice_waits_its_time_twice():
    """Placed at 21 s, its new worker dies at once; held anew, it waits until the next one starts at 41 s."""
    fleet = replace(mixed(1), hold_s=30.0)
    losses = (WorkerLoss(1.0, "mixed"), WorkerLoss(21.2, "mixed"))
    trace = Trace.of("one", [Arrival(2.0, 20_000, 50)], duration_s=60)
    (job,) = run(fleet, trace, faults=losses, routing="least-load").jobs
    assert job.outcome is Outcome.FINISHED
    assert job.first_token_s > 41.0


def test_a_request_is_refused_where_no_worker_that_answers_could_ever_take_it():
    """Small decode workers behind large prefill workers."""
    fleet = split(1, 1)
    prefill, decode = fleet.pools
    small = replace(decode, engine=replace(ENGINE, max_model_len=4096))
    trace = Trace.of("two", [Arrival(0.1, 8000, 50), Arrival(0.2, 2000, 50)], duration_s=30)
    done = run(replace(fleet, pools=(prefill, small)), trace)
    assert [job.outcome for job in done.jobs] == [Outcome.REJECTED, Outcome.FINISHED]
