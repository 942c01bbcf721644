"""What ends the operator's process."""

import asyncio
from types import SimpleNamespace

import pytest

from forebay_operator.__main__ import _take_part
from forebay_operator.control import Health
from forebay_operator.metrics import Metrics
from tests.support.bounds import NEVER_S


class Election:
    """An elector that leads at once; its parts end as a test wants it."""

    holder = identity = "me"
    leading = True

    def __init__(self, *, run=None, until_lost=None) -> None:
        self.run = run or self.forever
        self.until_lost = until_lost or self.forever
        self.released = False

    async def until_leading(self) -> None:
        return

    async def forever(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.released = True


class Leading:
    """A leader that runs until told to stop."""

    settings = SimpleNamespace(leader_election=True)

    def __init__(self) -> None:
        self.health, self.metrics = Health(), Metrics()
        self.running = asyncio.Event()
        self.ended = False

    async def run(self, stop: asyncio.Event) -> None:
        self.running.set()
        try:
            await stop.wait()
        finally:
            self.ended = True


async def broken() -> None:
    raise KeyError("what nobody has thought of")


@pytest.mark.parametrize("part", ["run", "until_lost"])
async def test_an_elector_or_guard_that_ends_unexpectedly_ends_the_process(part):
    """A leader whose lease nobody looks after would go on writing when it is lost."""
    leader = Leading()
    async with asyncio.timeout(NEVER_S):
        with pytest.raises(ExceptionGroup) as raised:
            await _take_part(leader, Election(**{part: broken}), asyncio.Event())
    assert raised.group_contains(KeyError)
    assert leader.ended is leader.running.is_set()


async def test_when_told_to_stop_the_lease_is_given_back_after_the_leader_has_ended():
    leader, election, stop = Leading(), Election(), asyncio.Event()
    taking_part = asyncio.create_task(_take_part(leader, election, stop))
    async with asyncio.timeout(NEVER_S):
        await leader.running.wait()
        stop.set()
        await taking_part
    assert leader.ended
    assert election.released
