"""Keys, limits and tenants, asked of a router that listens."""

import asyncio
import json
import logging
from hashlib import sha256
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.router.harness import Running, ask, chat, request_bytes, routed, running, until
from tests.router.mesh.test_sockets import free_ports
from tests.router.scripted import MODEL, ScriptedWorker, completion, hello, started, workers
from tests.support.bounds import NEVER_S

KEY = "fb-one"
MINE = {"Authorization": f"Bearer {KEY}"}


def entry(key: str = KEY, **fields: Any) -> dict[str, Any]:
    return {"name": f"name-of-{key}", "tenant": "team-a", "sha256": sha256(key.encode()).hexdigest(), **fields}


def key_file(folder: Path, *entries: dict[str, Any], **more: Any) -> Path:
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": list(entries), **more}))
    return path


def guarded(folder: Path, *entries: dict[str, Any], **more: Any) -> tuple[str, ...]:
    return ("--api-keys", str(key_file(folder, *(entries or (entry(),)), **more)))


async def scrape(router: Running) -> str:
    async with httpx.AsyncClient(timeout=NEVER_S) as client:
        return (await client.get(router.control + "/metrics")).text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/nothing"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer fb-wrong"}, {"x-api-key": "fb-wrong"}])
async def test_without_a_known_key_everything_is_401_in_the_paths_own_shape(tmp_path, path, headers):
    async with workers(hello) as [worker], routed(worker, flags=guarded(tmp_path)) as router:
        reply = await ask(router, chat(), path, headers)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        error = reply.json["error"]
        if path == "/v1/messages":
            assert (reply.json["type"], error["type"]) == ("error", "authentication_error")
        else:
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert worker.asked == []
        assert 'forebay_router_unauthenticated_total{reason="%s"} 1' % (
            "unknown_key" if headers else "no_key"
        ) in await scrape(router)


async def test_a_stranger_is_refused_before_the_body_is_read(tmp_path):
    async with workers(hello) as [worker], routed(worker, flags=guarded(tmp_path)) as router:
        client = await router.connect()
        await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        assert (await client.read()).status == 401
        assert await client.at_end()
        await client.close()


async def test_health_needs_no_key_and_models_do(tmp_path):
    async with (
        workers(hello) as [worker],
        routed(worker, flags=guarded(tmp_path)) as router,
        httpx.AsyncClient(timeout=NEVER_S) as client,
    ):
        assert (await client.get(router.url + "/health")).status_code == 200
        assert (await client.get(router.url + "/v1/models")).status_code == 401
        listed = await client.get(router.url + "/v1/models", headers=MINE)
        assert [one["id"] for one in listed.json()["data"]] == [MODEL]


@pytest.mark.parametrize("headers", [MINE, {"x-api-key": KEY}, {"authorization": f"bearer {KEY}"}])
async def test_a_client_key_opens_the_router_and_never_reaches_a_worker(tmp_path, headers):
    async with workers(hello) as [worker], routed(worker, flags=guarded(tmp_path)) as router:
        reply = await ask(router, chat(stream=True), headers=headers)
        assert (reply.status, reply.text()) == (200, "hello")
        assert not {"authorization", "x-api-key"} & worker.asked[0].headers.keys()


async def test_without_keys_the_clients_authorization_goes_to_the_worker():
    async with workers(hello) as [worker], routed(worker) as router:
        await ask(router, chat(), headers=MINE)
        assert worker.asked[0].headers["authorization"] == f"Bearer {KEY}"


async def test_a_key_reaches_its_own_models_only_and_is_not_told_of_others(tmp_path):
    two = ScriptedWorker(models=({"id": "other", "object": "model", "created": 1},))
    flags = guarded(tmp_path, entry(models=["other"]))
    async with (
        workers(hello) as [worker],
        started(two),
        routed(worker, two, flags=flags) as router,
        httpx.AsyncClient(headers=MINE) as client,
    ):
        assert (await ask(router, chat(model="other"), headers=MINE)).status == 200
        for model in (MODEL, "nowhere"):
            refused = await ask(router, chat(model=model), headers=MINE)
            error = refused.json["error"]
            assert (refused.status, error["code"], error["param"]) == (403, "model_not_allowed", "model")
        listed = await client.get(router.url + "/v1/models")
        assert [one["id"] for one in listed.json()["data"]] == ["other"]
        assert (await client.get(f"{router.url}/v1/models/{MODEL}")).status_code == 404
        assert (await client.get(f"{router.url}/v1/models/other")).status_code == 200
        assert 'forebay_router_tenant_refused_total{tenant="team-a",limit="model"} 2' in await scrape(router)


async def test_the_only_service_without_a_model_name_is_subject_to_the_key_too(tmp_path):
    async with workers(hello) as [worker], routed(worker, flags=guarded(tmp_path, entry(models=["other"]))) as router:
        body = chat()
        del body["model"]
        assert (await ask(router, body, headers=MINE)).status == 403
        assert worker.asked == []


async def test_a_rate_that_is_used_up_is_429_with_what_a_client_needs_to_know(tmp_path):
    flags = guarded(tmp_path, entry(requestsPerMinute=2, tokensPerMinute=600))
    async with workers(hello) as [worker], routed(worker, flags=flags) as router:
        replies = [await ask(router, chat(max_tokens=100), headers=MINE) for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 429]
        last = replies[2]
        assert last.json["error"]["code"] == "rate_limit_exceeded"
        assert 29 <= int(last.headers["retry-after"]) <= 30
        assert [reply.headers["x-ratelimit-remaining-requests"] for reply in replies] == ["1", "0", "0"]
        assert last.headers["x-ratelimit-limit-requests"] == "2"
        tokens = [int(reply.headers["x-ratelimit-remaining-tokens"]) for reply in replies]
        assert tokens[0] < 510, "reserved: the prompt and 100 tokens of output"
        assert tokens[2] > 570, "used: 7 + 3 tokens, twice"
        shaped = await ask(router, {**chat(), "max_tokens": 1}, "/v1/messages", MINE)
        assert (shaped.status, shaped.json["error"]["type"]) == (429, "rate_limit_error")
        assert len(worker.asked) == 2
        assert router.stats.arrived == 2, "what a limit refuses is no demand on the service"
        text = await scrape(router)
        assert 'forebay_router_tenant_requests_total{tenant="team-a"} 2' in text
        assert 'forebay_router_tenant_refused_total{tenant="team-a",limit="requests"} 2' in text
        assert 'forebay_router_tenant_tokens_total{tenant="team-a",kind="prompt"} 14' in text
        assert 'forebay_router_tenant_tokens_total{tenant="team-a",kind="output"} 6' in text
        assert router.verdicts()["bad"] == 0


async def test_streams_settle_their_tokens_too(tmp_path):
    flags = guarded(tmp_path, entry(tokensPerMinute=10_000))
    async with workers(hello) as [worker], routed(worker, flags=flags) as router:
        await ask(router, chat(stream=True, max_tokens=5000), headers=MINE)
        level = router.process.router.tools.protection.quotas.accounts["key", f"name-of-{KEY}"].tokens.level
        assert 9985 < level <= 9992, "7 + 2 tokens were used"


async def test_a_client_that_leaves_within_its_answer_does_not_get_its_tokens_back_and_one_before_it_does(tmp_path):
    gate = asyncio.Event()

    async def script(asked, wire):
        if asked.json["max_tokens"] == 2000:
            await gate.wait()
        await wire.events_head()
        await wire.event({"choices": [{"index": 0, "delta": {"content": "x"}}]})
        await gate.wait()

    flags = guarded(tmp_path, entry(tokensPerMinute=600_000))
    async with workers(script) as [worker], routed(worker, flags=flags) as router:
        account = router.process.router.tools.protection.quotas.accounts["key", f"name-of-{KEY}"]
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True, max_tokens=2000), headers=MINE))
        await until(lambda: worker.asked, "it waits")
        account.tokens.per_minute = 0.001  # hold still: nothing comes in from now on
        assert account.tokens.level < 598_010
        account.tokens.per_minute = 600_000
        client.leave()
        await until(lambda: account.in_flight == 0, "it has left")
        assert account.tokens.level > 599_900
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True, max_tokens=300_000), headers=MINE))
        await client.read_head()
        client.leave()
        await until(lambda: account.in_flight == 0, "it has left")
        assert account.tokens.level < 350_000


async def test_too_many_at_once_are_429_and_the_next_goes_when_one_has_ended(tmp_path):
    gate = asyncio.Event()

    async def script(asked, wire):
        await gate.wait()
        await wire.json(completion("hello"))

    async with workers(script) as [worker], routed(worker, flags=guarded(tmp_path, entry(maxInFlight=1))) as router:
        first = asyncio.create_task(ask(router, chat(), headers=MINE))
        await until(lambda: worker.asked, "one runs")
        refused = await ask(router, chat(), headers=MINE)
        assert (refused.status, refused.json["error"]["code"]) == (429, "concurrency_limit_exceeded")
        assert refused.headers["retry-after"] == "1"
        gate.set()
        assert (await first).status == 200
        assert (await ask(router, chat(), headers=MINE)).status == 200


async def test_official_clients_understand_every_refusal(tmp_path):
    flags = guarded(tmp_path, entry(requestsPerMinute=1), entry("fb-two", models=["other"]))
    async with workers(hello) as [worker], routed(worker, flags=flags) as router:

        def client(key: str) -> openai.AsyncOpenAI:
            return openai.AsyncOpenAI(base_url=router.url + "/v1", api_key=key, max_retries=0)

        async def hi(key: str) -> Any:
            async with client(key) as one:
                return await one.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])

        with pytest.raises(openai.AuthenticationError):
            await hi("fb-wrong")
        with pytest.raises(openai.PermissionDeniedError):
            await hi("fb-two")
        assert (await hi(KEY)).choices[0].message.content == "hello"
        with pytest.raises(openai.RateLimitError):
            await hi(KEY)
        async with anthropic.AsyncAnthropic(base_url=router.url, api_key="fb-wrong", max_retries=0) as other:
            with pytest.raises(anthropic.AuthenticationError):
                await other.messages.create(model=MODEL, max_tokens=1, messages=[{"role": "user", "content": "hi"}])
        assert len(worker.asked) == 1


async def test_a_changed_file_counts_at_once_and_a_bad_one_not_at_all(tmp_path, caplog):
    async with workers(hello) as [worker], routed(worker, flags=guarded(tmp_path)) as router:
        (file,) = router.process.router.tools.protection.files
        key_file(tmp_path, entry(), entry("fb-two"))
        await until(lambda: file.reloads == 1, "read by itself")
        assert (await ask(router, chat(), headers={"x-api-key": "fb-two"})).status == 200
        (tmp_path / "keys.json").write_text('{"keys": [{"name": "x"')
        await file.look()
        assert (await ask(router, chat(), headers=MINE)).status == 200
        text = await scrape(router)
        assert 'forebay_router_file_failures_total{file="api_keys"} 1' in text
        assert 'forebay_router_file_valid{file="api_keys"} 0' in text
        assert "forebay_router_api_keys 2" in text
        assert "is not valid JSON" in caplog.text
        key_file(tmp_path, entry("fb-two"))
        await file.look()
        assert (await ask(router, chat(), headers=MINE)).status == 401
        assert 'forebay_router_file_valid{file="api_keys"} 1' in await scrape(router)


async def test_no_key_is_ever_logged_and_the_access_log_names_tenant_and_key(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    flags = (*guarded(tmp_path, entry(requestsPerMinute=2)), "--access-log", "all")
    async with workers(hello) as [worker], routed(worker, flags=flags) as router:
        for headers in (MINE, MINE, MINE, {"x-api-key": "fb-wrong"}, {"Authorization": "Bearer fb-wrong"}):
            await ask(router, chat(), headers=headers)
        lines = [record.__dict__ for record in caplog.records if record.name == "forebay_router.access"]
        assert [line["status"] for line in lines] == [200, 200, 429, 401, 401]
        assert all((line["tenant"], line["key"]) == ("team-a", f"name-of-{KEY}") for line in lines[:3])
        for record in caplog.records:
            told = json.dumps(record.__dict__, default=str).replace(f"name-of-{KEY}", "")
            assert KEY not in told
            assert "fb-wrong" not in told


async def test_a_router_does_not_start_with_keys_that_it_cannot_read(tmp_path):
    with pytest.raises(SystemExit, match=r"forebay-router: .*keys\.json: keys: holds no key"):
        async with running("--workers", "http://127.0.0.1:1", "--api-keys", str(key_file(tmp_path))):
            pass


async def test_more_tenants_than_series_are_counted_together(tmp_path):
    entries = [entry(f"fb-{number}", tenant=f"t{number}") for number in range(103)]
    async with workers(hello) as [worker], routed(worker, flags=guarded(tmp_path, *entries)) as router:
        for number in (0, 100, 101):
            await ask(router, chat(), headers={"x-api-key": f"fb-{number}"})
        text = await scrape(router)
        assert 'forebay_router_tenant_requests_total{tenant="t0"} 1' in text
        assert 'forebay_router_tenant_requests_total{tenant="_other"} 2' in text
        assert text.count("forebay_router_tenant_requests_total{") == 101


async def test_replicas_that_hear_each_other_give_out_a_part_of_a_limit_each(tmp_path):
    ports = free_ports(2)
    keys = guarded(tmp_path, entry(requestsPerMinute=2))
    peers = ("--peers", *(f"tcp://127.0.0.1:{port}" for port in ports))
    async with workers(hello) as [worker]:
        first = running("--workers", worker.url, *keys, "--mesh", f"127.0.0.1:{ports[0]}", *peers)
        second = running("--workers", worker.url, *keys, "--mesh", f"127.0.0.1:{ports[1]}", *peers)
        async with first as one, second as two:
            both = (one, two)
            quotas = [router.process.router.tools.protection.quotas for router in both]
            await until(lambda: all(quota.replicas == 2 for quota in quotas), "they know of each other")
            replies = [await ask(router, chat(), headers=MINE) for router in both for _ in range(2)]
            assert [reply.status for reply in replies] == [200, 429, 200, 429]
            assert replies[0].headers["x-ratelimit-limit-requests"] == "2"
