"""Many equal steps at once leave exactly what single steps leave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_simulator.engine.request import Request
from forebay_simulator.fleet.agenda import Agenda
from forebay_simulator.fleet.jobs import PromptBlocks
from forebay_simulator.fleet.simulation import Setting, simulate
from forebay_simulator.fleet.spec import EngineSpec, FleetSpec, PoolSpec
from forebay_simulator.fleet.strides import StridingScheduler
from forebay_simulator.fleet.timers import MockerTimer
from forebay_simulator.fleet.traces.trace import Arrival, Trace
from forebay_simulator.fleet.workers import Engine, Hooks

SERVED = EngineSpec(block_tokens=16).served()

requests = st.lists(
    st.tuples(
        st.floats(0.0, 2.0),
        st.integers(1, 200),  # prompt tokens
        st.integers(1, 120),  # output tokens
        st.integers(0, 3),  # which prefix it shares
        st.one_of(st.none(), st.integers(1, 60)),  # where it would stop by itself
        st.one_of(st.none(), st.floats(0.0, 3.0)),  # when its client leaves
    ),
    min_size=1,
    max_size=14,
)


def outcome(specs, *, blocks: int, sequences: int, budget: int, strides: bool):
    config = replace(
        SERVED.scheduler, usable_blocks=blocks, max_sequences=sequences, max_batched_tokens=max(budget, sequences)
    )
    agenda, told = Agenda(), []
    hooks = Hooks(
        lambda request, now_s: told.append(("first", request.request_id, now_s)),
        lambda request, now_s: told.append(("finished", request.request_id, now_s)),
        lambda _request, _now_s: None,
    )
    engine = Engine(StridingScheduler(config, SERVED.timer), agenda, hooks, strides=strides)
    made = []
    for number, (at_s, prompt, output, shared, natural, leaves_s) in enumerate(specs):
        ids = tuple(1000 * shared + place for place in range(-(-prompt // 16)))
        blocks_of = PromptBlocks(
            Arrival(at_s, prompt, output, ids if shared else ()), number, trace_block=16, engine_block=16
        )
        request = Request(str(number), prompt, output, blocks_of, at_s, natural_output_tokens=natural)
        made.append(request)
        agenda.at(at_s, lambda one=request: engine.add(one))
        if leaves_s is not None:
            agenda.at(max(at_s, leaves_s), lambda one=request: None if one.finished else engine.abort(one))
    agenda.run()
    pool = engine.scheduler.pool
    return (
        told,
        [(r.first_scheduled_s, r.first_token_s, r.finished_s, r.finish_reason, r.output_tokens) for r in made],
        [(r.cached_tokens, r.preemptions, r.computed_tokens) for r in made],
        (engine.steps, engine.computed_prompt_tokens, engine.scheduler.counters),
        (list(pool._released), pool._references, pool._hashes),
    )


@settings(max_examples=120, deadline=None)
@given(requests, st.integers(21, 60), st.integers(1, 8), st.integers(8, 128))
def test_strides_equal_single_steps_to_the_last_bit(specs, blocks, sequences, budget):
    """Few blocks, so that requests wait, are preempted, and evict each other's prefixes; clients leave in between."""
    shape = {"blocks": blocks, "sequences": sequences, "budget": budget}
    assert outcome(specs, **shape, strides=True) == outcome(specs, **shape, strides=False)


def burst(number: int, gap_s: float) -> Trace:
    return Trace.of(
        "burst",
        [Arrival(n * gap_s, 200 + 37 * (n % 11), 5 + 13 * (n % 7), tuple(range(n % 5))) for n in range(number)],
        block_tokens=64,
    )


def pools(block: int) -> tuple[PoolSpec, ...]:
    engine = EngineSpec(block_tokens=block, blocks=60, max_model_len=2048)
    return (
        PoolSpec(name="prefill", role=Role.PREFILL, replicas=2, engine=engine),
        PoolSpec(name="decode", role=Role.DECODE, replicas=2, engine=engine),
    )


def test_a_split_fleet_is_the_same_with_and_without_strides():
    fleet = FleetSpec(pools=pools(64), objective=Objective(1, 0.025, 0.95))
    runs = [
        simulate(Setting(fleet=fleet, trace=burst(120, 0.011), seed=3, strides=strides)) for strides in (True, False)
    ]
    seen = [[(job.first_token_s, job.ended_s, job.worker, job.cached_tokens) for job in run.jobs] for run in runs]
    assert seen[0] == seen[1]
    steps = [[member.engine.steps for member in run.members.all_members()] for run in runs]
    assert steps[0] == steps[1]
    assert sum(steps[0]) > 600


@given(st.integers(1, 256), st.integers(1, 2_000_000), st.integers(2, 400))
def test_times_of_many_steps_are_those_of_single_steps_in_the_fitted_timing_too(decodes, context, steps):
    timer = MockerTimer()
    contexts = np.arange(context, context + steps * decodes, decodes, dtype=np.float64)
    rest = {"decode_sequences": decodes, "prefill_tokens": 0, "prefill_attention": 0}
    together = timer.step_seconds(decode_context_tokens=contexts, **rest)
    single = [timer.step_seconds(decode_context_tokens=context + step * decodes, **rest) for step in range(steps)]
    assert together[:steps].tolist() == single
