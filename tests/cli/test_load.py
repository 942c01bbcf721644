"""The load generator: arrivals follow the stages, and every way a stream can end is judged right."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from forebay_api.objective import Objective, Outcome, Verdict
from forebay_cli.load import LoadGenerator, Stage, Workload, arrival_times_s, build_body

OBJECTIVE = Objective(ttft_s=5.0, tpot_s=1.0, target=0.9)
CHUNK = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n'
ABORT = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"abort"}]}\n\n'
ERROR = b'data: {"error":{"message":"engine died","code":500}}\n\n'
DONE = b"data: [DONE]\n\n"


def test_arrivals_are_the_same_for_the_same_seed_and_follow_the_rate():
    stages = [Stage(rate_rps=50, duration_s=20), Stage(rate_rps=0, duration_s=5), Stage(rate_rps=10, duration_s=20)]
    first = arrival_times_s(stages, random.Random(1))
    assert first == arrival_times_s(stages, random.Random(1))
    assert 850 < sum(one < 20 for one in first) < 1150
    assert not [one for one in first if 20 <= one < 25]
    assert 140 < sum(one >= 25 for one in first) < 260


def test_too_many_requests_are_refused_with_the_fix():
    with pytest.raises(ValueError, match="shorten them"):
        arrival_times_s([Stage(rate_rps=10_000, duration_s=100)], random.Random(1))


def test_prompts_of_one_family_share_their_beginning():
    workload = Workload(model="m", families=1)
    one, two = (build_body(workload, random.Random(seed))["messages"] for seed in (1, 2))
    assert one[0] == two[0]
    assert one[1] != two[1]


@asynccontextmanager
async def serving(status: int, parts: list[bytes]) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        return response

    application = web.Application()
    application.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "parts", "outcome", "verdict"),
    [
        (200, [ROLE, CHUNK, CHUNK, CHUNK, USAGE, DONE], Outcome.FINISHED, Verdict.GOOD),
        (200, [ROLE, CHUNK, ABORT, DONE], Outcome.FAILED, Verdict.BAD),
        (200, [ROLE, CHUNK, ERROR, DONE], Outcome.FAILED, Verdict.BAD),
        (200, [ROLE, CHUNK], Outcome.CUT_OFF, Verdict.BAD),
        (503, [b'{"error":{}}'], Outcome.REJECTED, Verdict.BAD),
        (404, [b'{"error":{}}'], Outcome.FAILED, Verdict.BAD),
    ],
)
async def test_every_end_of_a_stream_is_judged(status, parts, outcome, verdict):
    async with serving(status, parts) as url:
        generator = LoadGenerator(url, Workload(model="m"), OBJECTIVE)
        report = await generator.run([Stage(rate_rps=20, duration_s=0.2)])
    assert report.records
    assert {record.outcome for record in report.records} == {outcome}
    assert {record.verdict for record in report.records} == {verdict}
    assert generator.in_flight == 0


async def test_a_server_that_is_not_there_is_a_failure_and_not_an_exception():
    generator = LoadGenerator("http://127.0.0.1:9", Workload(model="m"), OBJECTIVE)
    report = await generator.run([Stage(rate_rps=20, duration_s=0.2)])
    assert report.failed == len(report.records) > 0
    assert report.attainment == 0.0
