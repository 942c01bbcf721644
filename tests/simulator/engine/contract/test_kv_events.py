"""The KV event contract: what batches hold, how they chain, and how a subscriber catches up."""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import zmq

from forebay_simulator.engine.block_hash import BlockHasher, HashAlgorithm, TokenSequence, event_id
from tests.simulator.engine.process import EngineProcess
from tests.support.bounds import NEVER_S

from .captured import DATA, events_of
from .sources import BLOCK_SIZE, EVENTS, NAME, words

STORED_KEYS = [
    "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
    "group_idx", "kv_cache_spec_kind",
]  # fmt: skip
REMOVED_KEYS = ["type", "block_hashes", "medium", "group_idx"]
END = b"\xff" * 8


@dataclass
class Batch:
    """One message of the PUB socket."""

    topic: str
    sequence: int
    payload: Any

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.payload[1]


class Subscriber:
    """Listens to one engine."""

    def __init__(self, engine: EngineProcess) -> None:
        self.source = engine.get("/kv_event_sources").json()["0"]
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.connect(self.source["endpoint"])
        self.socket.subscribe(b"")
        time.sleep(0.2)  # a subscription takes effect when the publisher has heard of it, which nobody reports

    def batches(self, count: int, timeout_s: float = NEVER_S) -> list[Batch]:
        found = []
        while len(found) < count:
            assert self.socket.poll(round(timeout_s * 1000)), f"{len(found)} of {count} batches came"
            topic, sequence, payload = self.socket.recv_multipart()
            found.append(Batch(topic.decode(), int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload)))
        return found

    def replay(self, start: int) -> list[list[bytes]]:
        dealer = self.context.socket(zmq.DEALER)
        dealer.connect(self.source["replay_endpoint"])
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        messages = []
        while not messages or messages[-1][2] != END:
            assert dealer.poll(round(NEVER_S * 1000)), "the replay has no end"
            messages.append(dealer.recv_multipart())
        dealer.close(linger=0)
        return messages

    def close(self) -> None:
        self.context.destroy(linger=0)


@contextmanager
def listening(start, *flags: str, **environment: str):
    with start("--kv-events-config", EVENTS, *flags, **environment) as engine:
        subscriber = Subscriber(engine)
        try:
            yield engine, subscriber
        finally:
            subscriber.close()


def _captured_batches() -> list[Batch]:
    return [Batch(row["topic"], row["seq"], row["payload"]) for row in events_of("kv_events/sha256.jsonl")]


def _record(any_start) -> list[Batch]:
    """What the captured engine did, in its order, on a live one."""
    if any_start is None:
        return _captured_batches()
    with listening(any_start) as (engine, subscriber):

        def ask(text: str, tokens: int = 2, **fields: object) -> None:
            answer = engine.chat(text, max_tokens=tokens, model=NAME, temperature=0, ignore_eos=True, **fields)
            assert answer.status_code == 200

        text = words(60, 1)
        ask(text)
        ask(text, vllm_xargs={"kv_cache_report_mode": "full"})
        ask(text, cache_salt="tenant-a")
        ask(words(60, 2), session_id="sess-42")
        headers = {"X-Session-ID": "sess-hdr"}
        body = {"model": NAME, "messages": [{"role": "user", "content": words(60, 3)}], "max_tokens": 2}
        assert engine.post("/v1/chat/completions", body, **headers).status_code == 200
        ask(words(25, 4), 90)
        for number in range(12):
            ask(words(900, 10 + number))
        assert engine.post("/reset_prefix_cache").json() == {"success": True}
        ask(text)
        batches = subscriber.batches(5)
        while not any(event["type"] == "AllBlocksCleared" for event in batches[-1].events):
            batches += subscriber.batches(1)
        return batches


@pytest.fixture(scope="module")
def batches(any_start) -> list[Batch]:
    return _record(any_start)


def test_batches_count_from_zero_and_hold_maps(batches):
    assert [batch.sequence for batch in batches] == list(range(len(batches)))
    assert len({batch.topic for batch in batches}) == 1
    for batch in batches:
        stamp, events, rank = batch.payload
        assert stamp > 1.7e9
        assert rank == 0
        assert events
        for event in events:
            keys = {"BlockStored": STORED_KEYS, "BlockRemoved": REMOVED_KEYS, "AllBlocksCleared": ["type"]}[
                event["type"]
            ]
            assert [key for key in event if key != "session_id"] == keys


def test_stored_blocks_chain_and_hash_as_vllm_hashes(batches):
    hasher = BlockHasher(algorithm=HashAlgorithm.SHA256, block_size=BLOCK_SIZE)
    known: dict[int, list[int]] = {}
    for event in (event for batch in batches for event in batch.events if event["type"] == "BlockStored"):
        count = len(event["block_hashes"])
        assert event["block_size"] == BLOCK_SIZE
        assert len(event["token_ids"]) == count * BLOCK_SIZE
        assert len(event["extra_keys"]) == count
        assert (event["medium"], event["group_idx"], event["kv_cache_spec_kind"]) == ("GPU", 0, "full_attention")
        if event["lora_name"] is not None:
            continue  # pickled hashes of adapters cannot be recomputed
        before = known[event["parent_block_hash"]] if event["parent_block_hash"] is not None else []
        salt = event["extra_keys"][0][0] if event["extra_keys"][0] else None
        sequence = TokenSequence(before + event["token_ids"], hasher, salt=salt)
        first = len(before) // BLOCK_SIZE
        if salt is None:
            assert [event_id(sequence.block_hash(first + n)) for n in range(count)] == event["block_hashes"]
        for number, block_hash in enumerate(event["block_hashes"]):
            known[block_hash] = sequence.ids[: (first + number + 1) * BLOCK_SIZE]


def test_a_hit_is_published_only_when_the_request_asks_for_it(batches):
    first, again = batches[0].events, batches[1].events
    assert [event["type"] for event in first] == ["BlockStored"]
    assert again == first


def test_a_salt_shows_on_the_first_block_and_changes_every_hash(batches):
    plain, salted = batches[0].events[0], batches[2].events[0]
    assert salted["token_ids"] == plain["token_ids"]
    assert salted["extra_keys"] == [["tenant-a"], *plain["extra_keys"][1:]]
    assert not set(salted["block_hashes"]) & set(plain["block_hashes"])


def test_sessions_are_named(batches):
    assert [batches[n].events[0].get("session_id") for n in (2, 3, 4)] == [None, "sess-42", "sess-hdr"]


def test_decoding_publishes_each_block_when_it_fills(batches):
    first, *rest = (batches[n].events for n in (5, 6, 7))
    parent = first[-1]["block_hashes"][-1]
    for events in rest:
        (event,) = events
        assert event["parent_block_hash"] == parent
        assert len(event["block_hashes"]) == 1
        parent = event["block_hashes"][0]


def test_removals_come_one_hash_an_event_and_before_what_took_their_place(batches):
    removing = [batch for batch in batches if any(event["type"] == "BlockRemoved" for event in batch.events)]
    assert removing
    stored = set()
    for batch in batches:
        for event in batch.events:
            if event["type"] == "BlockRemoved":
                assert len(event["block_hashes"]) == 1
                assert event["block_hashes"][0] in stored
            elif event["type"] == "BlockStored":
                stored.update(event["block_hashes"])
    for batch in removing:
        kinds = [event["type"] for event in batch.events]
        assert kinds == ["BlockRemoved"] * (len(kinds) - 1) + ["BlockStored"]


def test_the_longest_unused_blocks_go_first_and_the_end_of_a_prefix_before_its_beginning(batches):
    first = batches[0].events[0]["block_hashes"]
    removed = [e["block_hashes"][0] for batch in batches for e in batch.events if e["type"] == "BlockRemoved"]
    positions = [removed.index(block_hash) for block_hash in first[1:]]
    assert positions == sorted(positions, reverse=True)


def test_a_reset_is_announced_with_the_next_step(batches):
    clearing = next(batch for batch in batches if batch.events[0]["type"] == "AllBlocksCleared")
    assert [event["type"] for event in clearing.events] == ["AllBlocksCleared", "BlockStored"]
    assert clearing.events[1]["block_hashes"] == batches[0].events[0]["block_hashes"]


def test_nothing_is_sent_for_a_reset_until_a_step_is_made(start):
    with listening(start) as (engine, subscriber):
        assert engine.chat(words(60), max_tokens=1).status_code == 200
        assert engine.post("/reset_prefix_cache").json() == {"success": True}
        subscriber.batches(1)
        assert subscriber.socket.poll(500) == 0
        engine.chat("hi", max_tokens=1)
        (batch,) = subscriber.batches(1)
        assert [event["type"] for event in batch.events] == ["AllBlocksCleared"]


def test_a_replay_gives_what_was_missed_and_an_end(any_start):
    if any_start is None:
        (frames,) = [row["frames"] for row in json.loads((DATA / "kv_events/replay_sha256.json").read_text())][:1]
        messages = [
            [bytes.fromhex(f) if re.fullmatch("[0-9a-f]*", f) else b"..." for f in message] for message in frames
        ]
        start_at, count = 15, 3
    else:
        with listening(any_start) as (engine, subscriber):
            for number in range(3):
                engine.chat(words(60, number), max_tokens=1)
            live = subscriber.batches(3)
            assert len(subscriber.replay(3)) == 1
            messages, start_at, count = subscriber.replay(1), 1, 2
            assert [msgspec.msgpack.decode(m[3]) for m in messages[:-1]] == [batch.payload for batch in live[1:]]
    assert [len(message) for message in messages] == [4] * (count + 1)
    assert all(message[0] == b"" for message in messages)
    sequences = [int.from_bytes(message[2], "big") for message in messages[:-1]]
    assert sequences == list(range(start_at, start_at + count))
    assert all(message[1] for message in messages[:-1])
    assert messages[-1] == [b"", b"", END, b""]


def test_a_restarted_engine_counts_from_zero_again(start):
    for _ in range(2):
        with listening(start) as (engine, subscriber):
            engine.chat(words(60, 7), max_tokens=1)
            (batch,) = subscriber.batches(1)
            assert batch.sequence == 0


def test_hashes_can_be_bytes(start):
    with listening(start, VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES="0") as (engine, subscriber):
        engine.chat(words(60, 7), max_tokens=1)
        (batch,) = subscriber.batches(1)
        assert all(isinstance(value, bytes) and len(value) == 32 for value in batch.events[0]["block_hashes"])


def test_an_endpoint_without_a_star_is_connected_to(start):
    context = zmq.Context()
    consumer = context.socket(zmq.SUB)
    port = consumer.bind_to_random_port("tcp://127.0.0.1")
    consumer.subscribe(b"")
    config = json.dumps({"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{port}"})
    try:
        with start("--kv-events-config", config) as engine:
            deadline = time.monotonic() + 10
            number = 0
            while not consumer.poll(200):  # what was sent before the connection stood is lost
                number += 1
                engine.chat(words(60, number), max_tokens=1)
                assert time.monotonic() < deadline
            assert len(consumer.recv_multipart()) == 3
    finally:
        context.destroy(linger=0)
