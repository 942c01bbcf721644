"""The key that workers ask for is the router's business, not the clients'."""

from hashlib import sha256
from pathlib import Path

import pytest

from forebay_router.endpoints import ENDPOINTS
from tests.router.harness import ask, chat, routed, running, until
from tests.router.scripted import MODEL, ScriptedWorker, hello, started
from tests.simulator.engine.process import running as running_engine


def flags(folder: Path, key: str = "worker-key") -> tuple[str, ...]:
    path = folder / "key"
    path.write_text(key + "\n")
    return ("--worker-key-file", str(path))


async def test_the_router_shows_its_own_key_and_withholds_the_clients(tmp_path):
    worker = ScriptedWorker(hello, key="worker-key")
    async with started(worker), routed(worker, flags=flags(tmp_path)) as router:
        reply = await ask(router, chat(), headers={"Authorization": "Bearer client", "x-api-key": "client"})
        assert reply.status == 200
        (asked,) = worker.asked
        assert asked.headers["authorization"] == "Bearer worker-key"
        assert "x-api-key" not in asked.headers


FORM = b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--XX--\r\n'


@pytest.mark.parametrize("path", sorted(ENDPOINTS), ids=bytes.decode)
async def test_every_path_shows_the_workers_key_and_never_the_clients(path, tmp_path):
    """C049: the multipart paths too; a wrong client key gets 401 from the router, and the worker is not asked."""

    async def answer(_asked, wire):
        await wire.json({"model": MODEL})

    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys: [{{name: n, tenant: t, sha256: {sha256(b'client').hexdigest()}}}]")
    worker = ScriptedWorker(answer, key="worker-key")
    form = ENDPOINTS[path].form
    body = FORM if form else {"model": MODEL}
    headers = {"Content-Type": "multipart/form-data; boundary=XX"} if form else {}
    async with started(worker), routed(worker, flags=(*flags(tmp_path), "--api-keys", str(keys))) as router:
        for key, status in (("client", 200), ("wrong", 401)):
            reply = await ask(router, body, path.decode(), {**headers, "Authorization": f"Bearer {key}"})
            assert reply.status == status
        (asked,) = worker.asked
        assert asked.headers["authorization"] == "Bearer worker-key"


async def test_an_engine_that_asks_for_a_key_is_found_and_answers(tmp_path):
    """C049: the engine's own check, on what it guards and on what it does not."""
    with running_engine("--sim-speed", "10", VLLM_API_KEY="worker-key") as engine:
        async with running("--workers", engine.url, *flags(tmp_path)) as router:
            (model, *_) = router.service.spec.models
            reply = await ask(router, {**chat(), "model": model, "max_tokens": 2})
            assert reply.status == 200
            assert (await ask(router, {"model": model, "prompt": "x"}, "/tokenize")).status == 200
            await router.no_lease_is_left()


async def test_a_refused_router_key_is_a_fault_of_ours_and_not_told_as_the_clients(tmp_path):
    """A 401 of a worker would make clients doubt their own, good key."""
    one, two = ScriptedWorker(hello), ScriptedWorker(hello)
    async with started(one, two), routed(one, two, flags=flags(tmp_path)) as router:
        one.key = "changed"
        replies = [await ask(router, chat()) for _ in range(6)]
        assert {reply.status for reply in replies} == {200}, "another worker takes it"
        two.key = "changed"
        reply = await ask(router, chat())
        assert (reply.status, reply.json["error"]["code"]) == (502, "worker_error")


async def test_a_changed_worker_key_is_used_at_once(tmp_path):
    worker = ScriptedWorker(hello, key="new")
    async with started(worker), running("--workers", worker.url, *flags(tmp_path, "old"), ready=False) as router:
        await until(lambda: worker.asked, "the router asks what is served, with the old key")
        assert not router.table.workers
        flags(tmp_path, "new")
        await until(lambda: router.table.workers, "it is known")
        assert (await ask(router, chat())).status == 200
