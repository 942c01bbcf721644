"""The core under virtual time: steps follow each other on a planned line, and a fault is a death."""

from __future__ import annotations

import asyncio

import pytest

from forebay_simulator.engine.block_hash import BlockHasher, HashAlgorithm, TokenSequence
from forebay_simulator.engine.core import CATCH_UP_MAX_S, EngineCore
from forebay_simulator.engine.errors import ApiError
from forebay_simulator.engine.generation import Generation
from forebay_simulator.engine.metrics import Metrics
from forebay_simulator.engine.recorder import Recorder
from forebay_simulator.engine.request import Request
from forebay_simulator.engine.text import Answer, Vocabulary
from forebay_simulator.engine.tokens import Tokenizer

from .plain import STEP_S, a_scheduler

HASHER = BlockHasher(algorithm=HashAlgorithm.SHA256, block_size=16)


class Ear:
    """Notes when tokens come, by the loop's clock."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.ended = asyncio.Event()
        self.error: ApiError | None = None

    def on_token(self, _generation, _word):
        self.times.append(asyncio.get_running_loop().time())

    def on_finish(self, _generation, word):
        if word is not None:
            self.times.append(asyncio.get_running_loop().time())
        self.ended.set()

    def on_error(self, _generation, error):
        self.error = error
        self.ended.set()


def a_core(speed: float = 1.0, **limits: object) -> EngineCore:
    metrics = Metrics(model="m", created_s=0.0, extras=frozenset(), info={})
    core = EngineCore(
        a_scheduler(**limits), Vocabulary(Tokenizer(1000)), Recorder(metrics, connector=False), speed=speed
    )
    core.now = asyncio.get_running_loop().time
    return core


def a_generation(core: EngineCore, name: str, tokens: int, **fields: object) -> Generation:
    sequence = TokenSequence([1, 2, 3], HASHER)
    request = Request(request_id=name, prompt_tokens=3, output_tokens_max=tokens, blocks=sequence, arrival_s=core.now())
    return Generation(request=request, tokens=sequence, answer=Answer(0), listener=Ear(), **fields)


@pytest.mark.looptime
async def test_tokens_come_at_the_ends_of_steps():
    core = a_core()
    generation = a_generation(core, "a", 4)
    begun = core.now()
    core.submit(generation)
    await generation.listener.ended.wait()
    assert [time - begun for time in generation.listener.times] == pytest.approx([STEP_S * n for n in (1, 2, 3, 4)])


@pytest.mark.looptime
async def test_latencies_run_from_arrival_through_the_queue_to_every_token():
    core = a_core(max_sequences=1)
    first, second = a_generation(core, "a", 3), a_generation(core, "b", 2)
    for generation in (first, second):
        core.submit(generation)
    await second.listener.ended.wait()
    # Tokens of the first at 10, 20 and 30 ms; the second waits until then and has its own at 40 and 50.
    sums_ms = {
        "time_to_first_token_seconds": 10 + 40,
        "inter_token_latency_seconds": 10 + 10 + 10,
        "request_queue_time_seconds": 0 + 30,
        "request_prefill_time_seconds": 10 + 10,
        "request_decode_time_seconds": 20 + 10,
        "request_inference_time_seconds": 30 + 20,
        "request_time_per_output_token_seconds": 10 + 10,
        "e2e_request_latency_seconds": 30 + 50,
    }
    for name, sum_ms in sums_ms.items():
        assert core.recorder.metrics.histogram(f"vllm:{name}").total == pytest.approx(sum_ms / 1000), name


@pytest.mark.looptime
async def test_speed_divides_the_time_of_a_step():
    core = a_core(speed=4)
    generation = a_generation(core, "a", 2)
    begun = core.now()
    core.submit(generation)
    await generation.listener.ended.wait()
    assert core.now() - begun == pytest.approx(2 * STEP_S / 4)


@pytest.mark.looptime
async def test_a_late_step_does_not_shift_the_ones_after_it():
    """The loop is blocked for 25 ms: the tokens due meanwhile come at once, and the plan holds again."""
    core = a_core()
    clock = core.now
    late = 0.0
    core.now = lambda: clock() + late
    generation = a_generation(core, "a", 6)
    begun = core.now()
    core.submit(generation)
    await asyncio.sleep(1.5 * STEP_S)
    late = 2.5 * STEP_S
    await generation.listener.ended.wait()
    assert core.now() - begun == pytest.approx(6 * STEP_S, abs=STEP_S / 2)


@pytest.mark.looptime
async def test_after_a_long_stop_the_plan_starts_anew():
    core = a_core()
    clock = core.now
    late = 0.0
    core.now = lambda: clock() + late
    generation = a_generation(core, "a", 6)
    core.submit(generation)
    await asyncio.sleep(1.5 * STEP_S)
    late = 10 * CATCH_UP_MAX_S
    stopped = clock()
    await generation.listener.ended.wait()
    assert clock() - stopped > 3 * STEP_S


@pytest.mark.looptime
async def test_nothing_is_scheduled_when_there_is_nothing_to_do():
    core = a_core()
    generation = a_generation(core, "a", 2)
    core.submit(generation)
    await generation.listener.ended.wait()
    await asyncio.sleep(1)
    assert core._timer is None


@pytest.mark.looptime
async def test_a_core_that_stumbles_is_dead_and_tells_everyone():
    core = a_core()
    died = asyncio.Event()
    core.on_death = died.set
    core.on_step = lambda: 1 / 0
    generation = a_generation(core, "a", 9)
    core.submit(generation)
    await died.wait()
    assert generation.listener.error is not None
    assert generation.listener.error.status == 500
    assert core.dead


@pytest.mark.looptime
async def test_parked_requests_run_after_the_pause():
    core = a_core()
    core.pause(freeze=False)
    generation = a_generation(core, "a", 1)
    core.submit(generation)
    await asyncio.sleep(1)
    assert not generation.listener.ended.is_set()
    core.resume()
    await generation.listener.ended.wait()


@pytest.mark.looptime
async def test_a_parked_request_can_be_aborted():
    core = a_core()
    core.pause(freeze=False)
    generation = a_generation(core, "a", 1)
    core.submit(generation)
    core.abort(generation, counted=False)
    core.resume()
    await asyncio.sleep(1)
    assert core.generations == {}
    assert generation.listener.times == []
