"""The prefix index and the choice: memory per million blocks, time per prompt. Results in build/bench/prefix_index.json."""

import gc
import json
import resource
import subprocess
import sys
import time
from array import array
from pathlib import Path
from random import Random

import pytest

from forebay_api.modelservice import Role
from forebay_router.choose import Snapshot, choose
from forebay_router.index.approximate import ApproximateIndex
from forebay_router.index.content import ENDS, Content, content_of
from forebay_router.index.events import Batch, Stored
from forebay_router.index.precise import PreciseIndex
from forebay_router.index.prefix_index import PrefixIndex
from forebay_router.predicting import Candidate, Demand
from forebay_router.speed import PoolSpeed, Speed

pytestmark = pytest.mark.bench

RESULT = Path("build/bench/prefix_index.json")
BLOCKS = 1_000_000
PROMPT_BLOCKS = 100
WORKERS = 8

_FILL = f"""
from array import array
from pathlib import Path
from random import Random
from forebay_router.index.approximate import ApproximateIndex
from forebay_router.index.content import Content, ENDS
rng = Random(1)
index = ApproximateIndex({2 * BLOCKS})
for at in range({WORKERS}):
    index.add_worker(f"w{{at}}")
def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
before = resident_bytes()
for at in range({BLOCKS // PROMPT_BLOCKS}):
    hashes = array("Q", [rng.getrandbits(64) for _ in range({PROMPT_BLOCKS})])
    index.record(f"w{{at % {WORKERS}}}", Content(hashes, ENDS[{PROMPT_BLOCKS} - 1]))
assert index.tree.blocks == {BLOCKS}
print(resident_bytes() - before)
"""


def memory_bytes() -> int:
    """Growth of a fresh process that fills an index with a million blocks, each held by one worker."""
    done = subprocess.run([sys.executable, "-c", _FILL], check=True, capture_output=True, text=True)
    return int(done.stdout)


def prompt_s(workers: int, lengths: int) -> dict[str, float]:
    """Least CPU seconds for a prompt of 100,000 tokens (400 KB), of which workers hold so many lengths, up to a third.

    Each length that somebody holds is a node of the tree, which the walk and the record pass.
    """
    text = "".join(chr(97 + at * 7 % 26) for at in range(1000)) * 400
    fields = {"model": "m", "messages": [{"role": "system", "content": text}, {"role": "user", "content": "Hi"}]}
    index = PrefixIndex(ApproximateIndex(1_000_000))
    rng = Random(1)
    for at in range(workers):
        index.add_worker(f"w{at}")
    first = content_of(fields)
    assert first is not None
    for at in range(workers):
        blocks = max(1, (rng.randrange(lengths) + 1) * len(first.hashes) // (3 * lengths))
        index.approximate.record(f"w{at}", Content(first.hashes[:blocks], ENDS[blocks - 1]))
    pool = PoolSpeed()
    snapshot = Snapshot.of([Candidate(f"w{at}", Role.MIXED, speed=Speed(pool, finished=100)) for at in range(workers)])
    times: dict[str, list[float]] = {"hash": [], "walk": [], "choose": [], "record": []}
    gc.disable()
    try:
        for _ in range(30):
            start = time.process_time()
            made = content_of(fields)
            hashed = time.process_time()
            assert made is not None
            looked = index.look_up("s", made)
            walked = time.process_time()
            demand = Demand(looked.prompt_tokens, 256, cached=looked.cached, displacement=looked.displacement)
            assert choose(demand, snapshot, rng, 1.0) is not None
            chosen = time.process_time()
            index.sent("w0", looked)
            times["record"].append(time.process_time() - chosen)
            times["choose"].append(chosen - walked)
            times["walk"].append(walked - hashed)
            times["hash"].append(hashed - start)
    finally:
        gc.enable()
    return {name: min(taken) for name, taken in times.items()}


def exact_match_s() -> float:
    """100,000 token ids in blocks of 16, held whole by eight workers."""
    ids = array("I", [at * 7919 % 128_000 for at in range(100_000)])
    index = PreciseIndex()
    stored = Stored(hashes=tuple(range(len(ids) // 16)), parent=None, token_ids=tuple(ids), block_size=16)
    for at in range(8):
        index.apply(f"w{at}", Batch((stored,), 0))
    taken = []
    for _ in range(30):
        start = time.process_time()
        found = index.match(ids)
        taken.append(time.process_time() - start)
    assert found == {f"w{at}": 99_984 for at in range(8)}
    return min(taken)


def test_an_exact_match_takes_less_than_a_millisecond():
    taken_s = exact_match_s()
    print(f"exact match of 100,000 tokens: {taken_s * 1e3:.2f} ms")
    assert taken_s < 1e-3


def test_prefix_index():
    figures: dict[str, object] = {"bytes_per_million_blocks": memory_bytes()}
    totals = {}
    for lengths in (8, 139):
        for workers in (10, 100, 1000):
            taken = prompt_s(workers, lengths)
            totals[lengths, workers] = sum(taken.values())
            figures[f"prompt_of_100k_tokens_ms_{workers}_workers_{lengths}_lengths"] = {
                name: round(one * 1e3, 3) for name, one in (taken | {"all": totals[lengths, workers]}).items()
            }
    figures["max_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))
    assert figures["bytes_per_million_blocks"] < 20e6
    assert max(totals.values()) < 0.5e-3
    assert totals[8, 1000] < 1.2 * totals[8, 100], "of 100 and 1,000 workers equally many are looked at"


def full_record_s(workers: int) -> float:
    """Mean CPU seconds to note a short prompt in an index that is full."""
    index, rng = ApproximateIndex(20_000), Random(1)
    for at in range(workers):
        index.add_worker(f"w{at}")
    taken = 0.0
    for at in range(24_000):
        content = Content(array("Q", [rng.getrandbits(64) for _ in range(3)]), ENDS[2])
        begun = time.process_time()
        index.record(f"w{rng.randrange(workers)}", content)
        taken += time.process_time() - begun if at >= 12_000 else 0.0
    assert index.entries <= 20_000
    return taken / 12_000


def test_a_full_index_makes_room_at_little_cost():
    """However many workers there are: the largest mirror is looked for once for many runs."""
    taken = {workers: full_record_s(workers) for workers in (8, 1000)}
    print({workers: f"{one * 1e6:.1f} us" for workers, one in taken.items()})
    assert taken[1000] < 10 * taken[8]
