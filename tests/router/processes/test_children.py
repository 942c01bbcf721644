"""Child processes that are begun and stopped at awkward moments."""

import asyncio
import sys

from forebay_router.processes import children
from forebay_router.processes.children import Child, Children
from forebay_router.processes.part import Part

SLEEPS = (sys.executable, "-c", "import time; time.sleep(60)")


async def test_child_that_is_being_begun_when_all_are_stopped_is_stopped_too(tmp_path, monkeypatch):
    made = Children((Child(Part(0, str(tmp_path)), SLEEPS),))
    begin = asyncio.create_subprocess_exec

    async def begin_late(*command, **options):
        made.stop()  # there is no process yet that could be told
        return await begin(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", begin_late)
    try:
        async with asyncio.timeout(20):
            await made.keep()
    finally:
        made.kill()
    assert made.restarts == 0


async def test_child_that_cannot_be_begun_is_tried_again(tmp_path, monkeypatch, caplog):
    """The system may be out of processes or files for a while: the other children serve on."""
    monkeypatch.setattr(children, "FIRST_PAUSE_S", 0.001)
    child = Child(Part(0, str(tmp_path)), SLEEPS)
    stopping = asyncio.Event()
    tries = 0

    async def refuse(*_command, **_options):
        nonlocal tries
        tries += 1
        if tries == 3:
            stopping.set()
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    await child.keep(stopping)
    assert tries == 3
    assert "Resource temporarily unavailable" in caplog.text
