"""What becomes of a request's place: what is charged when it is sent, and what is learnt when it has ended."""

import time
from random import Random

import pytest

from forebay_api.modelservice import Role
from forebay_api.objective import Objective, Outcome
from forebay_router.accounting import Record
from forebay_router.choose import Reason
from forebay_router.endpoints import ENDPOINTS
from forebay_router.fitting import work_of
from forebay_router.index.approximate import ApproximateIndex
from forebay_router.index.prefix_index import PrefixIndex
from forebay_router.parsing import ParsedRequest, parse_request
from forebay_router.place import Place
from forebay_router.placing import Placing
from forebay_router.reading import Received
from forebay_router.speed import TRAFFIC_S, PoolSpeed
from forebay_router.table import ServiceKey, ServiceSpec, WorkerSpec, WorkerState, WorkerTable, WorkerUid
from forebay_router.usage import Usage
from tests.router.test_table import TIMEOUTS

KEY = ServiceKey("n", "s")
OBJECTIVE = Objective(ttft_s=2.0, tpot_s=0.05, target=0.9)


def placing_of(*roles: Role) -> Placing:
    """One worker for each; those of one role are a pool."""
    placing = Placing(WorkerTable(), PrefixIndex(ApproximateIndex(100_000)), Random(1), 10, 1.0, 10_000)
    pools = tuple((role.value, role) for role in dict.fromkeys(roles))
    placing.table.put_service(ServiceSpec(KEY, ("m",), OBJECTIVE, TIMEOUTS, 0, pools))
    for at, role in enumerate(roles):
        spec = WorkerSpec(WorkerUid(f"w{at}"), f"w{at}", "10.0.0.1", 8000, KEY, role.value, role, WorkerState.READY)
        placing.table.put_worker(spec, time.monotonic())
    return placing


def prompt(name: str, size_bytes: int) -> ParsedRequest:
    text = name.encode().ljust(size_bytes, b".")
    return parse_request(ENDPOINTS[b"/v1/completions"], {}, b'{"model":"m","prompt":"%b","stream":true}' % text)


def place(placing: Placing, parsed: ParsedRequest) -> Place:
    received = Received(
        b"POST", b"/v1/completions", [], {}, http_10=False, keep_alive=True, received_s=time.monotonic()
    )
    made = placing.place_now(placing.table.services[KEY], parsed, received, None)
    assert made is not None
    return made


def end(placing: Placing, placed: Place, usage: Usage, *, first_token_s: float) -> None:
    """It is answered, the first token after so long."""
    record = Record(placed.trip.sent_s)
    record.outcome, record.streamed, record.usage = Outcome.FINISHED, True, usage
    record.first_content_s = record.last_content_s = placed.trip.sent_s + first_token_s
    placing.learn(placed, record)
    placed.release()


def pool_of(placing: Placing) -> PoolSpeed:
    return placing.table.workers["w0"].candidate.speed.pool


def test_how_much_longer_deep_tokens_take_is_learnt_from_answers():
    placing, rng, bend = placing_of(Role.MIXED), Random(3), 5e-5
    for at in range(400):
        tokens = round(100 * 10 ** (2.5 * rng.random()))
        placed = place(placing, prompt(f"{at} ", 4 * tokens))
        cached = rng.choice([0, tokens // 2])
        seconds = 0.01 + work_of(tokens, tokens - cached, bend) / 30_000
        end(placing, placed, Usage(tokens, 1, cached), first_token_s=seconds)
    assert pool_of(placing).bend.value == pytest.approx(bend, rel=0.3)
    expected_s = place(placing, prompt("last ", 4 * 30_000)).choice.prediction.ttft_s
    assert expected_s == pytest.approx(0.01 + work_of(30_000, 30_000, bend) / 30_000, rel=0.1)


@pytest.mark.parametrize("roles", [(Role.MIXED,), (Role.PREFILL, Role.DECODE)])
def test_a_place_claims_the_work_of_its_prompt(roles):
    placing = placing_of(*roles)
    pool_of(placing).bend.value = 1e-4
    placed = place(placing, prompt("a", 4000))
    prefill = placed.prefill or placed.lease
    assert (placed.prefill is not None) == (len(roles) > 1)
    assert prefill.worker.spec.uid == "w0"
    assert prefill.prompt_tokens == round(work_of(1000, 1000, 1e-4)) == 1100
    assert pool_of(placing).work_s.at(0.0) == pytest.approx(1100 * pool_of(placing).first_token.slope / TRAFFIC_S)


def test_a_hot_prefix_is_known_by_its_start_and_relief_of_its_worker_is_charged():
    """Four of five prompts are the hot one, which its worker would get for ever: it never has a queue."""
    placing = placing_of(Role.MIXED, Role.MIXED)
    pool, hot = pool_of(placing), prompt("hot", 8000)
    pool.work_s.note(time.monotonic(), 1000.0)
    assert hot.content is not None
    reasons = []
    while Reason.RELIEF not in reasons and len(reasons) < 400:
        for asked in (hot, hot, hot, hot, prompt(f"{len(reasons)} ", 8000)):
            placed = place(placing, asked)
            computes = placed.lease.worker.candidate.speed
            assert asked.content is not None
            assert computes.last_start == asked.content.hashes[0]
            reasons.append(placed.choice.reason)
            told = placed.choice.prediction
            end(placing, placed, Usage(2000, 1, 2000 - told.uncached_tokens), first_token_s=told.ttft_s)
            if placed.choice.reason is Reason.RELIEF:
                assert placed.choice.relief_s > 0
                assert pool.relief_s.at(0.0) == pytest.approx(placed.choice.relief_s / TRAFFIC_S)
                break
    assert Reason.RELIEF in reasons
