"""Block hashes equal those that a real engine published."""

from __future__ import annotations

import json

import pytest

from forebay_simulator.engine.block_hash import DEFAULT_SEED, BlockHasher, HashAlgorithm, TokenSequence, cbor, event_id

from .contract.captured import DATA, events_of

VECTORS = [
    (path.stem, case["name"])
    for path in sorted((DATA / "kv_events").glob("hash_vectors_*.json"))
    for case in json.loads(path.read_text())["cases"]
    # A pickle of equal strings depends on whether they are one object: nobody can recompute those, see block_hash.
    if not ("lora" in case["name"] and path.stem.startswith("hash_vectors_sha256_seed"))
]


@pytest.mark.parametrize(("file", "name"), VECTORS)
def test_vectors_of_a_real_engine(file, name):
    vectors = json.loads((DATA / "kv_events" / f"{file}.json").read_text())
    case = next(case for case in vectors["cases"] if case["name"] == name)
    seed = DEFAULT_SEED if vectors["PYTHONHASHSEED"] == "unset" else vectors["PYTHONHASHSEED"]
    hasher = BlockHasher(algorithm=HashAlgorithm(vectors["algo"]), block_size=vectors["block_size"], seed=seed)
    assert hasher.root.hex() == vectors["none_hash"]
    adapter = next((tuple(key[1:]) for key in case["extra_keys_every_block"] if key[0] == "lora"), None)
    sequence = TokenSequence(case["token_ids"], hasher, adapter=adapter, salt=case["request"].get("cache_salt"))
    digests = [sequence.block_hash(index) for index in range(len(case["token_ids"]) // vectors["block_size"])]
    published = case["event_block_hashes"]
    as_bytes = [{"$bytes": digest.hex()} for digest in digests]
    assert published in ([event_id(digest) for digest in digests], as_bytes)


def test_hashes_of_a_whole_captured_conversation():
    """The first batches of the capture chain on one another by their parents."""
    hasher = BlockHasher(algorithm=HashAlgorithm.SHA256, block_size=32)
    known: dict[int, list[int]] = {}
    checked = 0
    for batch in events_of("kv_events/basic.jsonl"):
        for event in batch["payload"][1]:
            if event["type"] != "BlockStored" or any(event["extra_keys"]):
                continue
            before = known[event["parent_block_hash"]] if event["parent_block_hash"] is not None else []
            tokens = before + event["token_ids"]
            sequence = TokenSequence(tokens, hasher)
            for offset, published in enumerate(event["block_hashes"]):
                index = len(before) // 32 + offset
                assert event_id(sequence.block_hash(index)) == published
                known[published] = tokens[: (index + 1) * 32]
                checked += 1
    assert checked == 70


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, "f6"), (0, "00"), (23, "17"), (24, "1818"), (256, "190100"), (1 << 40, "1b0000010000000000"),
        (b"\x01", "4101"), ("é", "62c3a9"), ((1, [2, None]), "82018202f6"),
    ],
)  # fmt: skip
def test_cbor_is_canonical(value, encoded):
    assert cbor(value).hex() == encoded


def test_only_what_hashes_are_made_of_is_encoded():
    with pytest.raises(TypeError, match="not float"):
        cbor(1.5)
