"""KV events: as engines spell them, in the order in which they come, and what is known from them."""

import json
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from forebay_router.index.events import Cleared, MalformedBatchError, Removed, Stored, decode_batch
from forebay_router.index.feed import HELD_MAX, Feed
from forebay_router.index.precise import PreciseIndex, salt_digest

CAPTURES = Path(__file__).resolve().parents[2] / "data" / "vllm-contract" / "kv_events"
VECTORS = sorted(CAPTURES.glob("hash_vectors_*.json"))
encode = msgspec.msgpack.Encoder().encode


def captured(name: str) -> list[bytes]:
    """Payloads of a recorded engine, by sequence number."""
    lines = (CAPTURES / name).read_text().splitlines()
    return [bytes.fromhex(json.loads(line)["payload_hex"]) for line in lines]


def batch(*events, rank: int = 0) -> bytes:
    return encode([1.5, list(events), rank])


def stored(hashes, token_ids, parent=None, size: int = 2, **fields) -> dict:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": token_ids,
        "block_size": size,
        **fields,
    }


def removed(*hashes, **fields) -> dict:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), **fields}


CLEARED = {"type": "AllBlocksCleared"}


def index_after(*payloads: bytes, uid: str = "w", index: PreciseIndex | None = None) -> PreciseIndex:
    index = index or PreciseIndex()
    for payload in payloads:
        index.apply(uid, decode_batch(payload))
    return index


# -- spelling ---------------------------------------------------------------------------------------------------------


def test_arrays_and_maps_say_the_same():
    """Engines before 0.24.0 send arrays tagged by their first element."""
    gpu = {"medium": "GPU", "group_idx": 1}
    maps = batch(stored([1 << 63, 7], [1, 2, 3, 4], lora_name="a", **gpu), removed(7, **gpu), CLEARED)
    arrays = batch(
        ["BlockStored", [1 << 63, 7], None, [1, 2, 3, 4], 2, None, "GPU", "a", None, 1, ""],
        ["BlockRemoved", [7], "GPU", 1],
        ["AllBlocksCleared"],
    )
    assert decode_batch(maps) == decode_batch(arrays)
    assert [type(one) for one in decode_batch(maps).events] == [Stored, Removed, Cleared]


def test_short_arrays_of_old_engines_are_understood():
    said = decode_batch(encode([1.0, [["BlockStored", [b"\1" * 32], None, [1, 2], 2, None]]]))
    assert said.events == (Stored((b"\1" * 32,), None, (1, 2), 2),)
    assert said.rank == 0


def test_unknown_fields_and_events_are_passed_over():
    said = decode_batch(batch(stored([1], [1, 2], lookahead_token_ids=[9]), {"type": "Future"}, ["Future", 1], 5, {}))
    assert len(said.events) == 1
    assert said.malformed == 4


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"{}", encode("x"), encode([1.0]), encode([1.0, "x", 0])])
def test_what_is_no_batch_is_refused(payload):
    with pytest.raises(MalformedBatchError):
        decode_batch(payload)


@given(st.binary(max_size=60))
def test_no_payload_does_harm(payload):
    try:
        PreciseIndex().apply("w", decode_batch(payload))
    except MalformedBatchError:
        return


def test_a_payload_that_is_nested_without_end_is_refused():
    with pytest.raises(MalformedBatchError):
        decode_batch(b"\x91" * 100_000)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.text("aé0", max_size=3)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("aé0", max_size=3), inner, max_size=2),
    max_leaves=6,
)
FIELDS = ("parent_block_hash", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "medium")


@st.composite
def almost_events(draw):
    """Events of the right form in which some fields hold anything; blocks are as many as token ids fill."""
    hashes = draw(st.lists(st.integers(0, 3), max_size=3))
    event = stored(hashes, [5] * (2 * len(hashes)), draw(st.none() | st.integers(0, 3)))
    event["type"] = draw(st.sampled_from(["BlockStored", "BlockStored", "BlockRemoved", "AllBlocksCleared"]))
    event |= draw(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=2))
    if draw(st.booleans()):
        event["token_ids"] = draw(st.lists(ANYTHING, min_size=2 * len(hashes), max_size=2 * len(hashes)))
    event |= draw(st.dictionaries(st.sampled_from([*event]), ANYTHING, max_size=1))
    return [*event.values()] if draw(st.booleans()) else event


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine the first draw is
@given(st.lists(almost_events(), min_size=1, max_size=4))
def test_no_event_does_harm(events):
    index = PreciseIndex()
    said = decode_batch(batch(*events))
    assert said.malformed + len(said.events) == len(events)
    index.apply("w", said)
    index.match([5, 5, 5, 5], lora="a")
    index.drop_worker("w")


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_ids": ["a", "b"]},
        {"token_ids": [-1, 2]},
        {"token_ids": [1, 1 << 32]},
        {"token_ids": [1.5, 2]},
        {"token_ids": b"ab"},
        {"parent_block_hash": [1]},
        {"lora_name": 5},
        {"group_idx": "full"},
        {"kv_cache_spec_kind": [1]},
        {"medium": {}},
        {"extra_keys": "a"},
        {"block_hashes": [None]},
        {"block_size": "2"},
    ],
    ids=str,
)
def test_one_event_that_cannot_be_understood_is_counted_and_the_others_hold(wrong):
    said = decode_batch(batch(stored([1], [1, 2]) | wrong, stored([2], [3, 4])))
    assert said.malformed == 1
    index = PreciseIndex()
    index.apply("w", said)
    assert index.match([3, 4, 5]) == {"w": 2}


@pytest.mark.parametrize("file", VECTORS, ids=lambda path: path.stem)
def test_events_of_a_real_engine_are_matched_by_token_ids(file):
    """Adapters, salts, numbers and bytes as names: each request finds exactly its own blocks (C085, C086)."""
    index = PreciseIndex()
    cases = json.loads(file.read_text())["cases"]
    kept = []
    for case in cases:
        event = _plain(case["event"])
        salt = case["request"].get("cache_salt")
        asked = (case["token_ids"], event.get("lora_name"), salt_digest(salt) if salt else None)
        before = index.match(*asked).get("w", 0)
        assert before == 0, f"{case['name']} finds blocks of another request"
        index.apply("w", decode_batch(batch(event)))
        kept.append((case["name"], asked))
    for name, asked in kept:
        size = next(iter(index.ranks["w"].values())).block_size
        assert index.match(*asked) == {"w": (len(asked[0]) - 1) // size * size}, name


def _plain(said):
    """A fixture's JSON with its bytes put back."""
    if isinstance(said, dict):
        return (
            bytes.fromhex(said["$bytes"]) if "$bytes" in said else {key: _plain(value) for key, value in said.items()}
        )
    return [_plain(one) for one in said] if isinstance(said, list) else said


def test_a_whole_recording_leaves_what_the_engine_had_left():
    """Stored, evicted and cleared over the life of an engine: after the last clear nothing is held."""
    index = PreciseIndex()
    live: dict[object, int] = {}
    for payload in captured("sha256.jsonl"):
        said = decode_batch(payload)
        assert said.malformed == 0
        for event in said.events:
            if isinstance(event, Stored):
                live.update(dict.fromkeys(event.hashes, 0))
            elif isinstance(event, Removed):
                for name in event.hashes:
                    live.pop(name, None)
            else:
                live.clear()
        index.apply("w", said)
        assert set(index.ranks["w"][0].blocks) == set(live)
    assert index.orphans == 0
    assert not index.holders.blocks


def test_decoded_blocks_hang_on_their_prompt():
    """basic.jsonl ends with 16 blocks that decoding filled, one by one."""
    index = index_after(*captured("basic.jsonl"))
    assert index.orphans == 0
    behind = {}
    for payload in captured("basic.jsonl"):
        for event in decode_batch(payload).events:
            names = (event.parent, *event.hashes)
            for at, name in enumerate(event.hashes):
                behind[name] = (names[at], event.token_ids[at * 32 : at * 32 + 32])
    name, token_ids = names[-1], ()
    while name is not None:
        name, tokens = behind[name]
        token_ids = tokens + token_ids
    assert len(token_ids) == 32 * (6 + 41 + 16)
    assert index.match([*token_ids, 1]) == {"w": len(token_ids)}


# -- what is known ----------------------------------------------------------------------------------------------------


def test_a_removed_block_takes_what_is_behind_it_out_of_reach():
    index = index_after(batch(stored([1, 2, 3], [1, 2, 3, 4, 5, 6])), batch(removed(2)))
    assert index.match([1, 2, 3, 4, 5, 6, 7]) == {"w": 2}


def test_a_block_is_held_until_the_last_tier_removes_it():
    index = index_after(
        batch(stored([1], [1, 2], medium="GPU"), stored([1], [1, 2], medium="CPU")), batch(removed(1, medium="GPU"))
    )
    assert index.match([1, 2, 3]) == {"w": 2}
    assert index_after(batch(removed(1, medium="CPU")), index=index).match([1, 2, 3]) == {"w": 0}


def test_what_is_told_twice_is_removed_once():
    """sha256.jsonl has it so: an engine that tells of every hit."""
    index = index_after(batch(stored([1], [1, 2])), batch(stored([1], [1, 2])), batch(removed(1)))
    assert index.match([1, 2, 3]) == {"w": 0}


def test_a_block_of_an_unknown_parent_is_counted_and_left():
    index = index_after(batch(stored([5], [1, 2], parent=4)))
    assert index.orphans == 1
    assert index.match([1, 2, 3]) == {"w": 0}


def test_the_last_token_is_always_computed():
    index = index_after(batch(stored([1, 2], [1, 2, 3, 4])))
    assert index.match([1, 2, 3, 4]) == {"w": 2}
    assert index.match([1, 2, 3, 4, 5]) == {"w": 4}


def test_ranks_have_caches_of_their_own():
    """The engine picks the rank, so what is expected is their mean."""
    index = index_after(batch(stored([1, 2], [1, 2, 3, 4])), batch(stored([9], [1, 2]), rank=1))
    assert index.match([1, 2, 3, 4, 5]) == {"w": 3}
    index.forget_rank("w", 1)
    assert index.match([1, 2, 3, 4, 5]) == {"w": 4}


def test_the_group_with_full_attention_is_followed():
    windowed = {"group_idx": 0, "kv_cache_spec_kind": "sliding_window"}
    full = {"group_idx": 1, "kv_cache_spec_kind": "full_attention"}
    index = index_after(
        batch(stored([1], [1, 2], **windowed), stored([1, 2], [1, 2, 3, 4], **full)),
        batch(removed(1, group_idx=0), stored([7], [9, 9], **windowed)),
    )
    assert index.match([1, 2, 3, 4, 5]) == {"w": 4}
    assert index.match([9, 9, 1]) == {"w": 0}


def test_an_engine_that_changes_its_block_size_starts_anew():
    index = index_after(batch(stored([1], [1, 2])), batch(stored([1], [1, 2, 3, 4], size=4)))
    assert index.match([1, 2, 3, 4, 5]) == {"w": 4}
    assert len(index.holders.blocks) == 1


def test_memory_of_a_rank_is_bounded():
    index = PreciseIndex(blocks_max=10)
    for at in range(100):
        index_after(batch(stored([at], [at, at])), index=index)
    assert len(index.holders.blocks) == len(index.ranks["w"][0].blocks) == 10


def test_a_worker_that_has_gone_leaves_nothing():
    index = index_after(batch(stored([1], [1, 2])), batch(stored([1], [1, 2]), rank=1))
    index.drop_worker("w")
    assert not index.holders.blocks
    assert not index.speaks("w")
    assert index.match([1, 2, 3]) == {}


class EngineMachine(RuleBasedStateMachine):
    """The index tells what a naive list of the engines' blocks tells."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PreciseIndex()
        self.held: dict[str, dict[int, tuple[int, ...]]] = {"v": {}, "w": {}}

    @rule(uid=st.sampled_from("vw"), tokens=st.lists(st.integers(0, 2), min_size=2, max_size=10))
    def store(self, uid, tokens):
        """An engine stores the blocks of a prompt that it lacks."""
        held = self.held[uid]
        for end in range(2, len(tokens) // 2 * 2 + 1, 2):
            start = tuple(tokens[:end])
            name = hash(start) & (1 << 64) - 1
            if name not in held:
                parent = hash(start[:-2]) & (1 << 64) - 1 if end > 2 else None
                held[name] = start
                index_after(batch(stored([name], tokens[end - 2 : end], parent)), uid=uid, index=self.index)

    @rule(uid=st.sampled_from("vw"), data=st.data())
    def remove(self, uid, data):
        """Engines remove a block only when nothing that hangs on it is left."""
        held = self.held[uid]
        leaves = [
            name
            for name, start in held.items()
            if not any(o != start and o[: len(start)] == start for o in held.values())
        ]
        if leaves:
            name = data.draw(st.sampled_from(sorted(leaves)))
            del held[name]
            index_after(batch(removed(name)), uid=uid, index=self.index)

    @rule(uid=st.sampled_from("vw"))
    def clear(self, uid):
        self.held[uid].clear()
        index_after(batch(CLEARED), uid=uid, index=self.index)

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=11))
    def ask(self, tokens):
        found = self.index.match(tokens)
        for uid, held in self.held.items():
            ends = range(2, len(tokens), 2)
            expected = next((end - 2 for end in ends if tuple(tokens[:end]) not in held.values()), len([*ends]) * 2)
            assert found.get(uid, 0) == expected


EngineMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestEngines = EngineMachine.TestCase


def test_a_block_is_found_behind_what_it_was_stored_behind_only():
    index = index_after(batch(stored([b"a", b"b"], [1, 2, 3, 4])))
    assert index.match([1, 2, 3, 4, 5]) == {"w": 4}
    assert index.match([9, 2, 3, 4, 5]) == {"w": 0}
    assert index.match([1, 2, 9, 4, 5]) == {"w": 2}
    assert index.match([1, 2, 3, 4, 5], lora="a") == {"w": 0}
    assert index.match([1, 2, 3, 4, 5], salt=salt_digest("s")) == {"w": 0}
    assert index.match([1]) == {"w": 0}


# -- order ------------------------------------------------------------------------------------------------------------


class Heard:
    """A feed, and what came out of it."""

    def __init__(self) -> None:
        self.known: list[bytes] = []
        self.forgotten = 0
        self.feed = Feed(apply=self.known.append, forget=self._forget)

    def _forget(self) -> None:
        self.forgotten += 1
        self.known.clear()

    def reconnect(self) -> None:
        """As a subscription that ends and is made anew."""
        self._forget()
        self.feed = Feed(apply=self.known.append, forget=self._forget)


def test_messages_in_order_are_applied():
    heard = Heard()
    assert [heard.feed.live(at, b"%d" % at) for at in range(3)] == [None] * 3
    assert heard.known == [b"0", b"1", b"2"]


def test_a_gap_is_replayed_and_what_came_meanwhile_is_held():
    heard = Heard()
    heard.feed.live(0, b"0")
    assert heard.feed.live(3, b"3") == 1
    assert heard.feed.live(4, b"4") is None
    for at in (1, 2, 3):
        heard.feed.replayed(at, b"%d" % at)
    heard.feed.replay_over()
    assert heard.known == [b"0", b"1", b"2", b"3", b"4"]
    assert (heard.feed.gaps, heard.feed.holes, heard.forgotten) == (1, 0, 0)


def test_a_late_subscriber_replays_what_was_stored_before():
    heard = Heard()
    assert heard.feed.connected() == 0
    heard.feed.live(2, b"2")
    for at in (0, 1, 2):
        heard.feed.replayed(at, b"%d" % at)
    heard.feed.replay_over()
    assert heard.known == [b"0", b"1", b"2"]


def test_a_replay_that_does_not_reach_back_leaves_nothing_wrong():
    heard = Heard()
    heard.feed.live(0, b"0")
    assert heard.feed.live(9, b"9") == 1
    heard.feed.replayed(8, b"8")
    heard.feed.replay_over()
    assert heard.known == [b"8", b"9"]
    assert (heard.feed.holes, heard.forgotten) == (1, 1)


def test_a_failed_replay_leaves_nothing_wrong():
    heard = Heard()
    heard.feed.live(0, b"0")
    heard.feed.live(2, b"2")
    heard.feed.replay_over()
    assert heard.known == [b"2"]
    assert heard.feed.live(3, b"3") is None
    assert heard.known == [b"2", b"3"]


@pytest.mark.parametrize("again", [0, 1, 500], ids=["from 0", "later", "the same number twice"])
def test_numbers_that_go_back_mean_a_restart(again):
    """C080: the engine restarted in place with an empty cache."""
    heard = Heard()
    for at in range(501):
        heard.feed.live(at, b"old")
    wanted = heard.feed.live(again, b"new")
    assert heard.feed.restarts == 1
    assert heard.forgotten == 1
    assert wanted == (None if again == 0 else 0)
    heard.feed.replay_over()
    assert heard.known == [b"new"]


def test_what_is_held_is_bounded():
    heard = Heard()
    heard.feed.live(0, b"0")
    for at in range(2, HELD_MAX + 100):
        heard.feed.live(at, b"")
    assert len(heard.feed.held) == HELD_MAX
    heard.feed.replay_over()
    assert heard.feed.holes == 1


@settings(max_examples=200)
@given(st.data())
def test_whatever_is_lost_the_known_is_one_run_of_an_engines_messages(data):
    """Law: what is applied and not forgotten is a run without a hole, of one life of the engine."""
    heard = Heard()
    for life in range(data.draw(st.integers(1, 3))):
        last = data.draw(st.integers(0, 8))
        reach = data.draw(st.integers(0, 9))
        for at in range(last + 1):
            if data.draw(st.booleans()):
                wanted = heard.feed.live(at, b"%d.%d" % (life, at))
                if wanted is not None:
                    for past in range(max(wanted, at + 1 - reach), at + 1):
                        heard.feed.replayed(past, b"%d.%d" % (life, past))
                    heard.feed.replay_over()
        if data.draw(st.booleans()):
            heard.reconnect()
    runs = [tuple(map(int, one.split(b"."))) for one in heard.known]
    assert all(after[1] == before[1] + 1 for before, after in pairwise(runs))
