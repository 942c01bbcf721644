"""Who is asked for counters, and when."""

import time
from types import SimpleNamespace

from forebay_router.errors import FailureReason, WorkerFailure
from forebay_router.health.breaker import Cause
from forebay_router.health.guard import Guard
from forebay_router.health.watch import AT_ONCE_MAX, Watch
from forebay_router.supervision import Background
from forebay_router.table import WorkerTable
from forebay_router.worker_access import WorkerAccess
from tests.router.test_table import service, worker


class Silent:
    """Connections to workers of which none has said anything for an hour."""

    def __init__(self, table: WorkerTable) -> None:
        self.asked: list[str] = []
        self.access = WorkerAccess()
        answer = SimpleNamespace(scanner=None, status=0, paused=False, last_byte_s=0.0, opened=True)
        self.open = [SimpleNamespace(answer=answer, peer=one.peer) for one in table.workers.values()]

    async def get(self, peer, path, *, timeout_s):
        assert path == "/metrics"
        self.asked.append(peer.name)
        raise WorkerFailure(FailureReason.FIRST_BYTE_TIMEOUT, f"no answer in {timeout_s} s")

    async def collect(self, peer, *_):
        raise AssertionError(f"{peer.name} is asked although its service is gone")


def watching(count: int) -> tuple[Watch, Silent]:
    """Workers that have all been quiet for long."""
    table = WorkerTable()
    table.put_service(service())
    for number in range(count):
        table.put_worker(worker(f"w{number}"), 0.0)
    silent = Silent(table)
    watch = Watch(table, Guard(table), silent)
    watch.observe(0.0)
    return watch, silent


async def test_every_quiet_worker_is_asked_in_its_turn_however_many_there_are():
    watch, silent = watching(3 * AT_ONCE_MAX)
    for _ in range(3):
        await watch.round()
    assert sorted(silent.asked) == sorted(watch.table.workers)
    await watch.round()
    assert silent.asked[-AT_ONCE_MAX:] == silent.asked[:AT_ONCE_MAX], "those first that were asked first"


async def test_worker_whose_service_was_deleted_meanwhile_is_not_asked_for_a_sign():
    watch, _ = watching(2)
    frozen = watch.table.workers["w0"]
    frozen.health.eject(Cause.FROZEN, time.monotonic() - 3600)
    del watch.table.services[frozen.spec.service]
    await watch.round()
    assert watch.supervisor.failures[Background.WATCH] == 0


async def test_one_odd_worker_does_not_keep_the_others_from_being_asked(caplog):
    watch, silent = watching(3)
    kept = silent.get

    async def get(peer, path, *, timeout_s):
        if peer.name == "w1":
            raise KeyError(peer.name)
        return await kept(peer, path, timeout_s=timeout_s)

    silent.get = get
    await watch.round()
    assert sorted(silent.asked) == ["w0", "w2"]
    assert watch.supervisor.failures[Background.WATCH] == 1
    assert caplog.records[0].loop == "watch"
