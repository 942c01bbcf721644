"""Services and workers from a file, and what a change of it does."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_router.discovery.static import ServiceDefaults
from forebay_router.discovery.worker_file import WorkerFile
from forebay_router.followed import BadFileError
from forebay_router.table import Timeouts
from tests.router.harness import ask, chat, running, until
from tests.router.scripted import MODEL, ScriptedWorker, hello, started, workers

DEFAULTS = ServiceDefaults(
    objective=Objective(ttft_s=1, tpot_s=0.1, target=0.9),
    timeouts=Timeouts(hold_s=1, first_byte_s=2, idle_s=3, total_s=4),
)


def written(path: Path, *services: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"services": list(services)}))
    return path


def service(*urls: str, name: str = "svc", **fields: Any) -> dict[str, Any]:
    return {"name": name, "pools": [{"name": "pool", "workers": list(urls)}], **fields}


def test_a_file_says_services_pools_and_workers_and_flags_say_the_rest(tmp_path):
    path = tmp_path / "workers.yaml"
    path.write_text(
        """
services:
- name: llama
  models: [llama-3, llama]
  objective: {ttft: 2s, tpot: 50ms, target: "0.95"}
  pools:
  - {name: p, role: Prefill, kvEventsPort: 5557, workers: ["http://10.0.0.1:8000"]}
  - {name: d, role: Decode, workers: ["10.0.0.2:8000", "http://10.0.0.3:8000"]}
- name: other
  routing: {queueTimeout: 5s}
  pools:
  - {name: all}
"""
    )
    layout = WorkerFile(path, DEFAULTS, tls=False).read()
    assert [(one.url, one.role, one.pool, one.kv_events_port) for one in layout.addresses] == [
        ("http://10.0.0.1:8000", Role.PREFILL, "p", 5557),
        ("http://10.0.0.2:8000", Role.DECODE, "d", None),
        ("http://10.0.0.3:8000", Role.DECODE, "d", None),
    ]
    llama, other = layout.services["llama"], layout.services["other"]
    assert llama.models == ("llama-3", "llama")
    assert llama.pools == (("p", Role.PREFILL), ("d", Role.DECODE))
    assert llama.defaults == ServiceDefaults(Objective(ttft_s=2, tpot_s=0.05, target=0.95), DEFAULTS.timeouts)
    assert other.defaults.objective == DEFAULTS.objective
    assert other.defaults.timeouts.hold_s == 5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "services: Field required"),
        ("services: [{name: a}]", "services[0].pools: Field required"),
        ("services: [{name: a, pools: []}]", "services[0].pools: List should have at least 1 item"),
        ("services: [{name: a, pools: [{name: p, role: Both}]}]", "services[0].pools[0].role: Input should be"),
        (
            "services: [{name: a, pools: [{name: p, workers: [a]}]}]",
            "'a' is not a worker's address; write http://HOST:PORT",
        ),
        ("services: [{name: a, pools: [{name: p, worker: [a]}]}]", "pools[0].worker: is no field here"),
        ("services: [{name: a, objective: {ttf: 1s}, pools: [{name: p}]}]", "objective.ttf: is no field here"),
        ("services: [{name: a, objective: {ttft: 1}, pools: [{name: p}]}]", "objective.ttft"),
        ("services: [{name: a, pools: [{name: p, role: Prefill}]}]", "must be all Mixed, or Prefill and Decode"),
        ("services: [{name: a, pools: [{name: p}, {name: p}]}]", "has two pools of one name"),
        ("services: [{name: a, pools: [{name: p}]}, {name: a, pools: [{name: p}]}]", "'a' stands there twice"),
        ("services: [{name: a, pools: [{name: p, workers: ['h:1', 'h:1']}]}]", "http://h:1 stands there twice"),
        (
            "services: [{name: a, pools: [{name: p, workers: ['https://h:1']}]}]",
            "give --worker-ca-file, or write http://",
        ),
    ],
)
def test_a_wrong_file_names_the_field_and_the_fix(tmp_path, text, says):
    path = tmp_path / "workers.yaml"
    path.write_text(text)
    with pytest.raises(BadFileError) as raised:
        WorkerFile(path, DEFAULTS, tls=False).read()
    assert says in str(raised.value)
    assert str(path) in str(raised.value)


def test_with_tls_addresses_must_say_so(tmp_path):
    path = written(tmp_path / "workers.json", service("http://h:1"))
    with pytest.raises(BadFileError, match="write https://"):
        WorkerFile(path, DEFAULTS, tls=True).read()


async def test_workers_come_and_go_with_the_file_and_requests_that_run_come_to_their_end(tmp_path):
    gate = asyncio.Event()

    async def slow(asked, wire):
        await gate.wait()
        await hello(asked, wire)

    async with workers(slow, hello) as [one, two]:
        path = written(tmp_path / "workers.json", service(one.url))
        async with running("--worker-file", str(path)) as router:
            (file,) = router.process.router.tools.protection.files
            first = asyncio.create_task(ask(router, chat()))
            await until(lambda: one.asked, "one is asked")
            written(path, service(two.url, models=["alias"]))
            await until(lambda: file.reloads == 1, "seen by itself")
            assert one.url not in {worker.spec.name for worker in router.table.workers.values()}
            for model in (MODEL, "alias"):
                assert (await ask(router, chat(model=model))).status == 200
            assert len(two.asked) == 2
            gate.set()
            assert (await first).status == 200
            assert router.service.spec.key.name == "svc"
            await router.no_lease_is_left()


async def test_a_file_that_cannot_be_used_changes_nothing(tmp_path, caplog):
    async with workers(hello) as [worker]:
        path = written(tmp_path / "workers.json", service(worker.url))
        async with running("--worker-file", str(path)) as router:
            (file,) = router.process.router.tools.protection.files
            path.write_text('{"services": [{"name": "svc", "pools": []}]}')
            await file.look()
            assert (file.valid, file.failures) == (False, 1)
            assert "services[0].pools: List should have at least 1 item" in caplog.text
            assert (await ask(router, chat())).status == 200


async def test_two_services_of_one_file_keep_their_workers_apart_and_one_may_go(tmp_path):
    other = ScriptedWorker(models=({"id": "other", "object": "model", "created": 1},))
    async with workers(hello) as [worker], started(other):
        path = written(
            tmp_path / "workers.json", service(worker.url), service(other.url, name="second", objective={"ttft": "3s"})
        )
        async with running("--worker-file", str(path)) as router:
            assert {key.name for key in router.table.services} == {"svc", "second"}
            assert router.table.by_model["other"].spec.objective.ttft_s == 3
            assert (await ask(router, chat(model="other"))).status == 200
            assert worker.asked == []
            (file,) = router.process.router.tools.protection.files
            written(path, service(worker.url))
            await file.look()
            assert (await ask(router, chat(model="other"))).status == 404
            assert (await ask(router, chat())).status == 200


async def test_models_that_a_file_names_are_held_for_until_a_worker_comes(tmp_path):
    worker = ScriptedWorker()
    async with started(worker):
        url = worker.url
        await worker.stop()
        path = written(tmp_path / "workers.json", service(url, models=[MODEL]))
        async with running("--worker-file", str(path), ready=False) as router:
            asking = asyncio.create_task(ask(router, chat()))
            await until(lambda: router.table.services and router.stats.pending, "it is held")
            await worker.start()
            assert (await asking).status == 200


async def test_a_router_does_not_start_with_a_file_that_it_cannot_read(tmp_path):
    with pytest.raises(SystemExit, match=r"forebay-router: .*gone\.yaml: cannot be read"):
        async with running("--worker-file", str(tmp_path / "gone.yaml")):
            pass


async def test_after_many_reloads_each_worker_is_probed_by_one_loop_and_removed_ones_by_none(tmp_path):
    """C061."""
    async with workers(hello, hello, hello) as all_three:
        path = written(tmp_path / "workers.json", service(all_three[0].url))
        async with running("--worker-file", str(path)) as router:
            (file,) = router.process.router.tools.protection.files
            for chosen in ((1, 2), (0,), (0, 1, 2), (2,), (0, 1)):
                written(path, service(*(all_three[at].url for at in chosen)))
                await file.look()
            await until(lambda: len(router.service.snapshot.by_uid) == 2, "the last two are ready")
            before = [one.probed for one in all_three]
            await asyncio.sleep(0.6)  # the span that is measured: twelve intervals
            probed = [one.probed - at for one, at in zip(all_three, before, strict=True)]
            assert probed[2] == 0
            assert all(6 <= count <= 13 for count in probed[:2]), probed
            await all_three[0].stop()
            await until(lambda: len(router.service.snapshot.by_uid) == 1, "one that dies is still noticed")
