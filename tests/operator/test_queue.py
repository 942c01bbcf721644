"""The keyed queue: coalescing, one worker a key, back-off, resync."""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay_operator.queue import KeyedQueue, Pace
from tests.support.bounds import NEVER_S


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class FixedRandom(random.Random):
    """No jitter."""

    def random(self) -> float:
        return 0.0


PACE = Pace(backoff_first_s=1.0, backoff_max_s=8.0, backoff_event_s=2.0, again_s=0.1, resync_s=60.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> KeyedQueue[str]:
    return KeyedQueue(PACE, now=clock, rng=FixedRandom())


async def take(queue: KeyedQueue[str]) -> str | None:
    """A key that is due now, or None."""
    key, _ = queue._take()
    return key


async def test_a_burst_of_events_is_one_reconciliation(queue):
    for _ in range(1000):
        queue.put("a")
    assert await take(queue) == "a"
    assert await take(queue) is None


async def test_a_key_is_never_handed_to_two_workers(queue):
    queue.put("a")
    assert await take(queue) == "a"
    queue.put("a")
    assert await take(queue) is None


async def test_an_event_during_a_reconciliation_makes_the_key_due_soon_after_it(queue, clock):
    queue.put("a")
    await take(queue)
    queue.put("a")
    queue.done("a")
    assert await take(queue) is None
    clock.now_s += PACE.again_s
    assert await take(queue) == "a"


async def test_success_brings_a_key_back_after_the_resync_only(queue, clock):
    queue.put("a")
    await take(queue)
    queue.done("a")
    clock.now_s += PACE.resync_s - 0.1
    assert await take(queue) is None
    clock.now_s += 0.2
    assert await take(queue) == "a"


async def test_a_wanted_second_look_comes_before_the_resync(queue, clock):
    queue.put("a")
    await take(queue)
    queue.done("a", retry_after_s=1.0)
    clock.now_s += 1.0
    assert await take(queue) == "a"


async def test_failures_back_off_up_to_the_maximum_and_success_resets_them(queue, clock):
    queue.put("a")
    pauses = []
    for _ in range(6):
        await take(queue)
        pauses.append(queue.fail("a"))
        clock.now_s += pauses[-1]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    await take(queue)
    queue.done("a", retry_after_s=0)
    await take(queue)
    assert queue.fail("a") == 1.0


async def test_an_event_shortens_a_back_off_but_not_to_nothing(queue, clock):
    queue.put("a")
    for _ in range(4):
        await take(queue)
        pause_s = queue.fail("a")
        clock.now_s += pause_s
    await take(queue)
    queue.fail("a")
    queue.put("a")
    clock.now_s += PACE.backoff_event_s - 0.1
    assert await take(queue) is None
    clock.now_s += 0.1
    assert await take(queue) == "a"


async def test_a_forgotten_key_does_not_come_back(queue, clock):
    queue.put("a")
    await take(queue)
    queue.forget("a")
    clock.now_s += 10 * PACE.resync_s
    assert await take(queue) is None


async def test_a_key_that_was_put_while_it_was_forgotten_comes_back(queue, clock):
    queue.put("a")
    await take(queue)
    queue.put("a")
    queue.forget("a")
    clock.now_s += PACE.again_s
    assert await take(queue) == "a"


async def test_get_waits_for_a_put_and_for_the_time():
    loop = asyncio.get_running_loop()
    queue: KeyedQueue[str] = KeyedQueue(PACE, now=loop.time, rng=FixedRandom())
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.put("late", delay_s=0.02)
    queue.put("now")
    assert await asyncio.wait_for(waiting, NEVER_S) == "now"
    assert await asyncio.wait_for(queue.get(), NEVER_S) == "late"


def test_jitter_spreads_keys_that_failed_together(clock):
    queue: KeyedQueue[str] = KeyedQueue(PACE, now=clock, rng=random.Random(7))
    pauses = set()
    for key in "abcdef":
        queue.put(key)
        queue._take()
        pauses.add(queue.fail(key))
    assert len(pauses) == 6
    assert all(1.0 <= pause <= 1.2 for pause in pauses)


class QueueMachine(RuleBasedStateMachine):
    """Any order of puts, takes, ends and waits: no event is lost, no key is in two hands."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue: KeyedQueue[str] = KeyedQueue(PACE, now=self.clock, rng=FixedRandom())
        self.taken: set[str] = set()
        self.unseen: set[str] = set()
        """Keys with an event that no later reconciliation has seen."""

    keys = st.sampled_from("abc")

    @rule(key=keys)
    def put(self, key: str) -> None:
        self.queue.put(key)
        self.unseen.add(key)

    @rule()
    def take(self) -> None:
        key, _ = self.queue._take()
        if key is not None:
            assert key not in self.taken
            self.taken.add(key)
            self.unseen.discard(key)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), how=st.sampled_from(["done", "fail", "forget"]))
    def end(self, data: st.DataObject, how: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.taken)))
        self.taken.remove(key)
        getattr(self.queue, how)(key)

    @rule(seconds=st.floats(min_value=0.0, max_value=120.0))
    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @invariant()
    def every_event_will_be_seen_soon(self) -> None:
        """A key with an unseen event is due within the event pause, or in a worker's hand."""
        for key in self.unseen - self.taken:
            assert self.queue._due_at[key] <= self.clock.now_s + PACE.backoff_max_s

    @invariant()
    def a_key_is_due_or_taken_not_both(self) -> None:
        assert not self.taken & set(self.queue._due_at)
        assert not [key for key, count in Counter(self.queue._due_at).items() if count < 0]


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
