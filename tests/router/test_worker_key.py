"""The key that workers ask for is the router's business, not the clients'."""

from pathlib import Path

from tests.router.harness import ask, chat, routed, running, until
from tests.router.scripted import ScriptedWorker, hello, started


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
