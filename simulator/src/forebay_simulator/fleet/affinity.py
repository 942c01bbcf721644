"""Routing by what workers have in cache: the baselines that Forebay's prefix index is measured against.

All match by the block ids of the trace, which stand for the text of the prompt.

CHWBL           consistent hashing with bounded loads (Mirrokni et al., 2018; KubeAI's form): the hash of the prompt's start
                points into a ring of workers; the first one clockwise whose load stays within 1.25 times the mean gets it.
approximate     SGLang's cache-aware router: a tree of what was sent to each worker, bounded, least recently used out. When
                loads are far apart (max - min > 64 and max > 1.5 min) the shortest queue; else the worker with the longest
                match if that covers more than 0.3 of the prompt; else the one with the smallest tree.
precise         the worker that has the longest prefix in its cache at this moment (KV events without delay), fewest requests
                among equals, blind to load otherwise. Blocks that more than half of the requests begin with count for
                nothing: else the first warm worker would get everything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from random import Random

from forebay_router.predicting import Candidate
from forebay_simulator.fleet.jobs import Job
from forebay_simulator.fleet.members import Member
from forebay_simulator.fleet.routing import ByRule, Routing, least_requests

RING_POINTS = 100
"""Points of each worker on the ring."""
LOAD_BOUND = 1.25
MATCH_SHARE_MIN = 0.3
IMBALANCE_MIN = 64
IMBALANCE_RATIO = 1.5
BEGINNING_BLOCKS = 16
"""First blocks of a prompt that are compared with other prompts'."""
TREE_BLOCKS_MAX = 1 << 16
"""Blocks that are remembered of a worker."""


def bounded_hashing(chance: Random) -> Routing:
    """CHWBL by the first block of the prompt."""

    def pick(job: Job, candidates: Sequence[Candidate]) -> Candidate:
        by_uid = {one.uid: one for one in candidates}
        bound = LOAD_BOUND * (1 + sum(one.load.requests for one in candidates)) / len(candidates)
        start = job.arrival.block_ids[0] if job.arrival.block_ids else job.number
        ring = _ring(tuple(by_uid))
        at = bisect_left(ring, (_point(str(start)), ""))
        for step in range(len(ring)):
            one = by_uid[ring[(at + step) % len(ring)][1]]
            if one.load.requests + 1 <= bound:
                return one
        return least_requests(candidates, chance)

    return ByRule(pick, chance)


@lru_cache(maxsize=256)
def _ring(uids: tuple[str, ...]) -> list[tuple[int, str]]:
    return sorted((_point(f"{uid}/{number}"), uid) for uid in uids for number in range(RING_POINTS))


@lru_cache(maxsize=1 << 16)
def _point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def approximate(chance: Random, *, tree_blocks_max: int = TREE_BLOCKS_MAX) -> Routing:
    """SGLang's rule over what was sent where."""
    trees: dict[str, OrderedDict[int, None]] = {}

    def pick(job: Job, candidates: Sequence[Candidate]) -> Candidate:
        ids = job.arrival.block_ids or (-1 - job.number,)  # without ids every prompt is unlike all others
        loads = [one.load.requests for one in candidates]
        if max(loads) - min(loads) > IMBALANCE_MIN and max(loads) > IMBALANCE_RATIO * min(loads):
            chosen = least_requests(candidates, chance)
        else:
            matched = [_matched(ids, trees.get(one.uid, ())) for one in candidates]
            best = max(matched)
            if best and best > MATCH_SHARE_MIN * len(ids):
                chosen = candidates[matched.index(best)]
            else:
                chosen = min(candidates, key=lambda one: len(trees.get(one.uid, ())))
        tree = trees.setdefault(chosen.uid, OrderedDict())
        for block in reversed(ids):  # the end of a prompt is forgotten before its beginning
            tree[block] = None
            tree.move_to_end(block)
        while len(tree) > tree_blocks_max:
            tree.popitem(last=False)
        return chosen

    def forget(uid: str) -> None:
        trees.pop(uid, None)

    return ByRule(pick, chance, forget)


def _matched(ids: Sequence[int], known: Mapping[int, None] | tuple[()]) -> int:
    """How many of the first ids are known; an id stands for all before it, too."""
    for position, block in enumerate(ids):
        if block not in known:
            return position
    return len(ids)


Cached = Callable[[Job, str], int]
"""How many of a prompt's first tokens a worker has in cache now."""


class Beginnings:
    """Which first blocks most requests share. Looks at the first few only."""

    def __init__(self) -> None:
        self._seen = 0
        self._counts: dict[int, int] = {}

    def common(self, ids: Sequence[int]) -> int:
        """How many first blocks of a request more than half of all so far began with, itself included."""
        self._seen += 1
        length, going = 0, True
        for block in ids[:BEGINNING_BLOCKS]:
            count = self._counts[block] = self._counts.get(block, 0) + 1
            going = going and 2 * count > self._seen
            length += going
        return length


def precise(chance: Random, cached: Cached) -> Routing:
    """The longest prefix in cache; among equals the fewest requests, then at random."""
    beginnings = Beginnings()

    def pick(job: Job, candidates: Sequence[Candidate]) -> Candidate:
        common_tokens = beginnings.common(job.arrival.block_ids) * job.blocks.trace_block
        counted = [max(0, cached(job, one.uid) - common_tokens) for one in candidates]
        best = max(counted)
        return least_requests([one for one, n in zip(candidates, counted, strict=True) if n == best], chance)

    return ByRule(pick, chance)


def cached_in(members: Mapping[str, Member]) -> Cached:
    """Look into the workers themselves."""

    def cached(job: Job, uid: str) -> int:
        member = members[uid]
        find, name = member.engine.scheduler.pool.find, job.blocks.block_hash
        size = member.engine.scheduler.config.block_size
        blocks = (job.arrival.prompt_tokens - 1) // size
        for index in range(blocks):
            if find(name(index)) is None:
                return index * size
        return blocks * size

    return cached
