"""What the control port says of a request that is not sent."""

from dataclasses import replace

import httpx

from forebay_api.modelservice import Role
from forebay_router.speed import Origin
from forebay_router.table import ServiceKey
from tests.router.harness import ask, chat, routed, routed_pairs, running
from tests.router.scripted import MODEL, hello, workers
from tests.support.bounds import NEVER_S

LONG = [{"role": "user", "content": "the basin in front of a power station " * 200}]


async def explain(router, body, path: str = "/v1/chat/completions"):
    async with httpx.AsyncClient(timeout=NEVER_S) as control:
        return await control.post(router.control + "/explain", params={"path": path}, json=body)


async def test_candidates_and_the_choice_are_told_and_nothing_is_sent_or_remembered():
    async with workers(hello, hello, hello) as scripted, routed(*scripted) as router:
        await ask(router, chat(messages=LONG))
        index = router.process.router.tools.placing.index.approximate
        entries = index.entries
        asked = [len(one.asked) for one in scripted]
        told = (await explain(router, chat(messages=LONG))).json()
        (holder,) = [one for one in scripted if any(asked.path == "/v1/chat/completions" for asked in one.asked)]
        assert told["worker"] == holder.url
        assert told["reason"] == "least cost, holds part of the prompt"
        assert told["model_service"] == f"local/{MODEL}"
        assert told["considered"] == len(told["candidates"]) == 3
        best = told["candidates"][0]
        assert best["worker"] == holder.url
        assert best["requests"] == 0
        assert best["uncached_tokens"] < told["prompt_tokens"] / 2
        assert told["candidates"][1]["uncached_tokens"] == told["prompt_tokens"]
        other = (await explain(router, chat(messages=[{"role": "user", "content": "something else " * 300}]))).json()
        assert other["considered"] == 3
        assert index.entries == entries
        assert [len(one.asked) for one in scripted] == asked
        assert not router.table.leases
        assert router.stats.arrived == 1


async def test_both_sides_of_a_pair_are_told():
    async with workers(hello, hello) as scripted, routed_pairs(scripted[:1], scripted[1:]) as router:
        told = (await explain(router, chat(messages=LONG))).json()
        assert {one["worker"] for one in told["candidates"]} == {one.url for one in scripted}
        assert told["worker"] == scripted[1].url


async def test_decode_workers_that_are_kept_out_are_told_with_what_keeps_them_out():
    """They are no candidates: those that decode there would wait for the prompt for longer than a token may take."""
    async with workers(hello, hello, hello) as scripted, routed_pairs(scripted[:1], scripted[1:]) as router:
        busy, idle = (one for one in router.table.workers.values() if one.spec.role is Role.DECODE)
        pool = busy.candidate.speed.pool
        pool.plan(replace(pool.seed, origin=Origin.PLANNED))
        lease = router.table.take(busy, prompt_tokens=0, output_tokens=1)
        told = (await explain(router, chat(messages=[{"role": "user", "content": "word " * 200_000}]))).json()
        (out,) = told["kept_out"]
        assert out["worker"] == busy.spec.name
        assert out["requests"] == 1
        assert out["prompt_ms"] > out["tpot_ms"] == told["objective"]["tpot_ms"]
        assert told["kept_out_count"] == 1
        short = (await explain(router, chat())).json()
        assert (short["kept_out"], short["kept_out_count"]) == ([], 0)
        lease.release()
        assert idle.load.requests == 0


async def test_what_would_wait_or_be_refused_is_told():
    async with workers(hello) as [worker], running("--workers", worker.url, "--worker-limit", "1") as router:
        lease = router.table.take(next(iter(router.table.workers.values())), prompt_tokens=1, output_tokens=1)
        told = (await explain(router, chat())).json()
        assert (told["worker"], told["reason"]) == (None, "no worker can take it now: it would wait")
        lease.release()
        refused = await explain(router, chat(model="nobody"))
        assert refused.status_code == 404
        assert "nobody" in refused.json()["error"]
        assert (await explain(router, [])).status_code == 400
        router.table.put_service(replace(router.service.spec, key=ServiceKey("local", "other"), models=("other",)))
        nameless = await explain(router, {"messages": []})
        assert (nameless.status_code, "`model` is required" in nameless.json()["error"]) == (400, True)
        assert (await explain(router, chat(), "/v1/nothing")).status_code == 404
