"""What holds of the mesh whatever happens to its messages. Pure: no socket, no clock."""

from array import array
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_router.index.content import Content
from forebay_router.mesh.claims import Claims
from forebay_router.mesh.messages import (
    Ask,
    Batch,
    Everything,
    Farewell,
    Message,
    Prefilled,
    Prompts,
    Released,
    Sent,
    Taken,
)
from forebay_router.mesh.outbox import (
    EVENTS_MAX,
    EVERYTHING_PAUSE_S,
    EVERYTHING_S,
    FLUSH_S,
    HEARTBEAT_S,
    PART_BLOCKS,
    RECENT_BLOCKS,
    Outbox,
)
from forebay_router.mesh.peers import ASK_PAUSE_S, EXPIRY_S, PEERS_MAX, Peers
from forebay_router.predicting import Load

WORKERS = ("a", "b", "c")


@dataclass
class Sender:
    """A replica with real leases, its outbox, and everything that it ever said."""

    name: str
    incarnation: int = 1
    leases: dict[int, Taken] = field(default_factory=dict)
    said: list[Message] = field(default_factory=list)
    now_s: float = 0.0
    number: int = 0

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.name, self.incarnation)

    def act(self, kind: str, at: int, tokens: int) -> None:
        if kind == "take":
            self.number += 1
            taken = Taken(self.number, WORKERS[at % len(WORKERS)], tokens, 7)
            self.leases[self.number] = taken
            self.outbox.note(taken)
        elif kind == "tell":
            self.now_s += FLUSH_S if at % 2 else HEARTBEAT_S
            self.said += self.outbox.due(self.now_s, lambda: tuple(self.leases.values()))
        elif kind == "ask":
            self.outbox.asked = True
        elif self.leases:
            number = sorted(self.leases)[at % len(self.leases)]
            if kind == "compute":
                old = self.leases[number]
                self.leases[number] = Taken(number, old.worker, 0, old.output_tokens)
                self.outbox.note(Prefilled(number))
            else:
                del self.leases[number]
                self.outbox.note(Released(number))

    def everything(self) -> Everything:
        self.outbox.asked = True
        self.now_s += EVERYTHING_PAUSE_S
        return self.outbox.due(self.now_s, lambda: tuple(self.leases.values()))[-1]


@dataclass
class Receiver:
    """A replica that hears, with the loads of its workers."""

    loads: dict[str, Load] = field(default_factory=lambda: {name: Load() for name in WORKERS})
    prompts: list[Sent] = field(default_factory=list)
    asked: int = 0
    new: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.peers = Peers("me", Claims(), self.prompts.append, self._on_ask, self.new.append)
        for name, load in self.loads.items():
            self.peers.claims.add_worker(name, load, 0.0)

    def _on_ask(self) -> None:
        self.asked += 1

    def hear(self, message: Message, now_s: float) -> str | None:
        asks = self.peers.apply(message, now_s)
        self.check()
        return asks

    def check(self) -> None:
        for load in self.loads.values():
            assert load.requests >= 0
            assert load.prompt_tokens >= 0
            assert load.output_tokens >= 0
            assert load.backlog.tokens >= 0
            assert load.backlog.tokens <= load.prompt_tokens
            assert len(load.backlog.prompts) <= load.requests

    def totals(self) -> dict[str, tuple[int, int, int]]:
        return {name: (one.requests, one.prompt_tokens, one.output_tokens) for name, one in self.loads.items()}


def totals_of(*senders: Sender) -> dict[str, tuple[int, int, int]]:
    made = dict.fromkeys(WORKERS, (0, 0, 0))
    for sender in senders:
        for one in sender.leases.values():
            requests, prompt, output = made[one.worker]
            made[one.worker] = (requests + 1, prompt + one.prompt_tokens, output + one.output_tokens)
    return made


NOTHING = dict.fromkeys(WORKERS, (0, 0, 0))
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "tell", "tell", "compute", "release", "ask"]),
        st.integers(0, 20),
        st.integers(0, 900),
    ),
    max_size=60,
)


@given(st.lists(ACTS, min_size=1, max_size=3), st.data())
def test_any_order_loss_and_repetition_keeps_loads_sane_everything_mends_and_silence_ends_all(scripts, data):
    senders = [Sender(f"s{number}") for number in range(len(scripts))]
    for sender, acts in zip(senders, scripts, strict=True):
        for act in acts:
            sender.act(*act)
    said = [message for sender in senders for message in sender.said]
    heard = data.draw(st.lists(st.sampled_from(said), max_size=2 * len(said))) if said else []
    receiver = Receiver()
    for message in heard:
        receiver.hear(message, 1.0)
    for sender in senders:
        receiver.hear(sender.everything(), 2.0)
    assert receiver.totals() == totals_of(*senders)
    for message in heard:
        receiver.hear(message, 2.5)
    assert receiver.totals() == totals_of(*senders), "what is old changes nothing"
    assert not receiver.peers.expire(1.9 + EXPIRY_S)
    receiver.peers.expire(2.5 + EXPIRY_S)
    receiver.check()
    assert receiver.totals() == NOTHING
    assert not receiver.peers.claims.by_worker
    assert receiver.peers.claims.count == 0


@given(ACTS)
def test_a_peer_that_misses_nothing_needs_no_everything(acts):
    sender, receiver = Sender("s"), Receiver()
    for act in [*acts, ("tell", 0, 0)]:
        sender.act(*act)
    for message in sender.said:
        assert receiver.hear(message, 1.0) is None
    assert receiver.totals() == totals_of(sender)


@given(ACTS, st.data())
def test_workers_that_come_go_and_come_back_have_the_load_that_is_on_them(acts, data):
    sender, receiver = Sender("s"), Receiver()
    claims = receiver.peers.claims
    for act in [*acts, ("tell", 0, 0)]:
        sender.act(*act)
    for message in sender.said:
        name = data.draw(st.sampled_from(WORKERS))
        claims.drop_worker(name, receiver.loads[name])
        receiver.hear(message, 1.0)
        receiver.loads[name] = Load()
        claims.add_worker(name, receiver.loads[name], 1.0)
    assert receiver.totals() == totals_of(sender)


@given(ACTS, ACTS)
def test_a_replica_that_begins_anew_holds_what_its_second_life_holds(first, second):
    before, after, receiver = Sender("s", 1), Sender("s", 2), Receiver()
    for act in [*first, ("tell", 0, 0)]:
        before.act(*act)
    for act in [*second, ("tell", 0, 0)]:
        after.act(*act)
    for message in [*before.said, *after.said, *before.said]:
        receiver.hear(message, 1.0)
    assert receiver.totals() == totals_of(after)


def test_a_missing_number_is_asked_about_with_pauses():
    receiver = Receiver()
    assert receiver.hear(Batch("s", 1, 1, (Taken(1, "a", 10, 1),)), 0.0) is None
    assert receiver.hear(Batch("s", 1, 3), 0.1) == "s"
    assert receiver.hear(Batch("s", 1, 4), 0.2) is None
    assert receiver.hear(Batch("s", 1, 5), 0.1 + ASK_PAUSE_S) == "s"
    assert receiver.hear(Everything("s", 1, 6), 1.0) is None
    assert receiver.totals() == NOTHING, "the release was missed, and made good"
    assert receiver.peers.counts.gaps == 1


def test_a_newcomer_asks_at_once_and_is_told_everything_unasked():
    receiver = Receiver()
    assert receiver.hear(Batch("s", 1, 40), 0.0) == "s"
    assert receiver.new == ["s"]
    assert receiver.peers.counts.gaps == 0, "nothing was missed that could have been heard"
    receiver.hear(Ask("s", 1, "me"), 0.1)
    receiver.hear(Ask("s", 1, "somebody else"), 0.1)
    assert receiver.asked == 1
    assert receiver.new == ["s"]


def test_a_farewell_ends_all_and_is_no_newcomer():
    receiver = Receiver()
    receiver.hear(Farewell("s", 1), 0.0)
    assert not receiver.peers.known
    receiver.hear(Batch("s", 1, 1, (Taken(1, "a", 10, 1), Sent("a", 128, bytes(8)))), 0.0)
    assert [one.worker for one in receiver.prompts] == ["a"]
    receiver.hear(Farewell("s", 1), 0.0)
    assert receiver.totals() == NOTHING
    assert receiver.peers.counts.expired_leases == 0


def test_the_first_token_of_a_later_prompt_ends_the_wait_for_earlier_ones_of_any_replica():
    receiver = Receiver()
    load = receiver.loads["a"]
    receiver.hear(Batch("s", 1, 1, (Taken(1, "a", 1000, 1),)), 0.0)
    load.backlog.add(1, 500, 0.0, visible=True)
    assert load.backlog.tokens == 1500
    load.backlog.computed(1, 1.0)
    assert load.backlog.tokens == 0


def test_claims_of_everything_count_from_when_they_were_taken():
    receiver = Receiver()
    receiver.hear(Everything("s", 1, 1, (Taken(1, "a", 1000, 1, True, 400),)), 10.0)
    assert receiver.loads["a"].backlog.wait_s(1e-3, 10.0) == pytest.approx(0.6)


def test_peers_are_bounded():
    receiver = Receiver()
    for number in range(PEERS_MAX + 5):
        receiver.hear(Batch(f"s{number}", 1, 1), 0.0)
    assert len(receiver.peers.known) == PEERS_MAX
    assert receiver.peers.counts.refused == 5
    assert receiver.peers.oldest_s(2.0) == 2.0


def test_an_outbox_that_overflows_leaves_a_number_out_and_tells_everything():
    outbox = Outbox("s", 1)
    outbox.due(0.0, tuple)
    for number in range(EVENTS_MAX + 10):
        outbox.note(Released(number))
    batch, everything = outbox.due(0.1, lambda: (Taken(1, "a", 1, 1),))
    assert (batch.sequence, everything.sequence) == (3, 4)
    assert batch.events[0] == Released(10)
    assert outbox.dropped == 10


def prompt(number: int, blocks: int = 100) -> Content:
    return Content(array("Q", range(number * 1000, number * 1000 + blocks)), blocks * 128)


def test_a_newcomer_is_told_of_late_prompts_in_parts_and_in_order():
    outbox, receiver, bystander = Outbox("s", 1), Receiver(), Receiver()
    bystander.peers.own_name = "bystander"
    outbox.due(0.0, tuple)
    for number in range(RECENT_BLOCKS // 100 + 25):
        outbox.remember(WORKERS[number % 3], prompt(number))
    assert outbox.recent_blocks == RECENT_BLOCKS
    outbox.welcome("me")
    told, now_s = [], 1.0
    while parts := [one for one in outbox.due(now_s, tuple) if isinstance(one, Prompts)]:
        told += parts
        now_s += FLUSH_S
    assert max(len(one.prompts) for one in told) * 100 == PART_BLOCKS
    for message in told:
        receiver.hear(message, 1.0)
        bystander.hear(message, 1.0)
    kept = range(25, RECENT_BLOCKS // 100 + 25)
    assert [one.content().hashes[0] for one in receiver.prompts] == [number * 1000 for number in kept]
    assert [one.worker for one in receiver.prompts] == [WORKERS[number % 3] for number in kept]
    assert bystander.prompts == []


def test_an_outbox_is_silent_between_heartbeats():
    outbox = Outbox("s", 1)
    assert [type(one) for one in outbox.due(0.0, tuple)] == [Everything]
    assert outbox.due(HEARTBEAT_S / 2, tuple) == []
    assert [type(one) for one in outbox.due(HEARTBEAT_S, tuple)] == [Batch]
    outbox.asked = True
    assert [type(one) for one in outbox.due(HEARTBEAT_S + 0.1, tuple)] == [Everything]
    outbox.asked = True
    assert outbox.due(HEARTBEAT_S + 0.2, tuple) == [], "not twice within the pause"
    assert [type(one) for one in outbox.due(EVERYTHING_S * 2, tuple)] == [Everything]
