"""The mirrors of workers' caches."""

from collections.abc import Iterator
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from forebay_router.index.approximate import CAUTION, RESET_MISSES, ApproximateIndex, Bound, Sent
from forebay_router.index.content import ENDS, SIZES, Content, chain
from forebay_router.index.tree import Run


def prompt(name: str, blocks: int = 8) -> Content:
    """A prompt of its own, or one that goes on where its name's first letters are another's."""
    size = ENDS[blocks - 1]
    data = b"".join(letter.encode() * 128 for letter in name).ljust(size, b".")[:size]
    return Content(chain(data, 0), len(data))


def apart(name: str) -> Content:
    """A prompt that shares nothing with one of another name."""
    return Content(chain(name.encode().ljust(1024, b"."), 0), 1024)


def index_of(*uids: str, bound_bytes: float = inf, entries_max: int = 10_000) -> ApproximateIndex:
    made = ApproximateIndex(entries_max=entries_max)
    for uid in uids:
        made.add_worker(uid, Bound(bound_bytes))
    return made


def test_a_worker_holds_what_it_was_sent():
    index = index_of("a", "b")
    assert index.record("a", prompt("xyz")) == Sent(0, 0)
    assert index.match(prompt("xyz")) == {"a": 1024}
    assert index.match(prompt("xyw")) == {"a": 256}
    assert index.match(prompt("w")) == {}
    index.record("b", prompt("xyw"))
    assert index.match(prompt("xyw")) == {"a": 256, "b": 1024}
    assert index.record("a", prompt("xyw")) == Sent(256, 0)


def test_a_bounded_worker_drops_the_least_recently_used_tails_first():
    index = index_of("a", bound_bytes=16 * 128)
    index.record("a", prompt("x"))
    index.record("a", prompt("y"))
    index.record("a", prompt("x"))
    index.record("a", prompt("z", 4))
    assert index.match(prompt("x")) == {"a": 1024}
    assert index.match(prompt("y")) == {"a": 512}, "its tail went, its head stays"
    assert index.match(prompt("z", 4)) == {"a": 512}


def test_a_new_pod_has_no_credit_and_frees_the_memory():
    """C076, C070: a worker that has gone, and one that returns empty."""
    index = index_of("a", "b")
    for at in range(200):
        index.record("a", prompt(f"{at:03}"))
    index.drop_worker("a")
    assert index.match(prompt("007")) == {}
    index.add_worker("a")
    assert index.match(prompt("007")) == {}
    for _ in range(60):
        index.record("b", prompt("b"))
    assert index.tree.blocks == 8
    assert index.entries == 9, "and the run that they are"
    assert len(index.slots.names) <= 3


def test_memory_levels_off_while_a_hot_prefix_still_hits():
    """C070: unique prompts without end, and one hot prefix throughout."""
    index = index_of("a", "b", entries_max=2_000)
    for at in range(3_000):
        uid = "ab"[at % 2]
        index.record(uid, prompt(f"{at:04}"))
        if at % 20 == 0:
            index.record("a", prompt("hot"))
        assert index.entries <= 2_000
    assert index.match(prompt("hot"))["a"] == 1024
    assert index.tree.blocks <= 2_000


def test_the_bound_shrinks_by_what_was_promised_and_not_delivered():
    index = index_of("a")
    for name in "uvwxyz":
        index.record("a", prompt(name))
    sent = index.record("a", prompt("u"))
    assert sent.predicted_bytes == 1024
    index.correct("a", prompt("u"), sent, delivered_bytes=0.0, slack_bytes=200)
    mirror = index.mirrors[0]
    assert mirror.bound_bytes == 6 * 1024 - CAUTION * 1024
    assert index.match(prompt("u")) == {"a": 1024}, "just computed, so it is there now"
    assert index.match(prompt("v")) == {"a": 768}, "the oldest gave way"


def test_the_bound_grows_by_what_was_dropped_too_early():
    index = index_of("a", bound_bytes=2 * 1024)
    for name in "xyz":
        index.record("a", prompt(name))
    sent = index.record("a", prompt("x"))
    assert (sent.predicted_bytes, sent.shadow_bytes) == (0, 1024)
    assert (sent.pushed_out_bytes, sent.victim) == (1024, 2)
    index.correct("a", prompt("x"), sent, delivered_bytes=1024.0, slack_bytes=200)
    assert index.mirrors[0].bound_bytes == 3 * 1024


def test_an_answer_that_joins_the_prompt_says_nothing_of_the_bound():
    """A chat's last answer is cached by the worker and was never sent by the router."""
    index = index_of("a", bound_bytes=8 * 1024)
    index.record("a", prompt("x", 4))
    sent = index.record("a", prompt("x"))
    assert sent == Sent(512, 0)
    index.correct("a", prompt("x"), sent, delivered_bytes=1024.0, slack_bytes=200)
    assert index.mirrors[0].bound_bytes == 8 * 1024


def test_workers_of_a_pool_learn_their_size_together():
    bound = Bound(4 * 1024)
    index = ApproximateIndex(entries_max=10_000)
    for uid in "ab":
        index.add_worker(uid, bound)
    for name in "wxyz":
        index.record("a", apart(name))
    sent = index.record("a", apart("w"))
    index.correct("a", apart("w"), sent, delivered_bytes=0.0, slack_bytes=200)
    assert bound.size_bytes == 4 * 1024 - CAUTION * 1024 / 2, "one of two"
    for name in "wxyz":
        index.record("b", apart(name))
    assert index.match(apart("w"))["b"] < 1024
    index.drop_worker("b")
    assert bound.workers == 1


def test_what_was_pushed_out_and_is_wanted_again_is_regretted():
    index = index_of("a", "b", bound_bytes=20 * 1024)
    names = [f"r{at}" for at in range(60)]
    for name in names:
        index.record("a", apart(name))
    again = [index.record("b", apart(name)) for name in names[20:40]]
    assert [one.regretted_bytes for one in again] == [1024] * 20, "it is known to nobody any more"
    for name in (*names[:20], *names[40:], "new"):
        assert index.record("b", apart(name)).regretted_bytes == 0, "pushed out long ago, still held, or new"


def test_the_bound_finds_the_engines_capacity():
    """Whatever it starts from, predictions get to be right for a cache of 20 prompts under cyclic and skewed use."""
    for first in (inf, 1024.0, 500 * 1024.0):
        index = index_of("a", bound_bytes=first)
        engine: dict[str, None] = {}
        wrong = total = 0
        for at in range(4_000):
            name = f"{(at * 7) % 16:02}" if at % 3 else f"cold{at % 97}"
            held = 1024 if name in engine else 0
            engine.pop(name, None)
            engine[name] = None
            if len(engine) > 20:
                engine.pop(next(iter(engine)))
            sent = index.record("a", apart(name))
            index.correct("a", apart(name), sent, delivered_bytes=held, slack_bytes=600)
            if at > 2_000:
                total += 1024
                wrong += abs(sent.predicted_bytes - held)
        assert wrong / total < 0.2, f"from {first}: {wrong / total:.2f}"


def test_a_worker_that_lost_its_cache_is_forgotten_at_once():
    """C080, by its answers alone: an engine that restarted in place."""
    index = index_of("a", bound_bytes=100 * 1024)
    names = [f"p{at}" for at in range(50)]
    for name in names:
        index.record("a", prompt(name))
    for name in ("p1", "p2"):
        sent = index.record("a", prompt(name))
        index.correct("a", prompt(name), sent, delivered_bytes=sent.predicted_bytes, slack_bytes=200)
    for name in ("p2", "p1")[:RESET_MISSES]:
        assert index.resets == 0
        sent = index.record("a", prompt(name))
        index.correct("a", prompt(name), sent, delivered_bytes=0.0, slack_bytes=200)
    assert index.resets == 1
    assert index.match(prompt("p30")) == {}
    assert next(iter(index.mirrors.values())).bound_bytes == 100 * 1024, "its size has not changed"


class Naive:
    """A cache as a list of blocks, least recently used first."""

    def __init__(self, bound: float) -> None:
        self.bound = bound
        self.blocks: list[tuple[int, int]] = []

    def record(self, content: Content) -> None:
        for at in reversed(range(len(content.hashes))):
            pair = (content.hashes[at], SIZES[at])
            if pair in self.blocks:
                self.blocks.remove(pair)
            self.blocks.append(pair)
        while sum(size for _, size in self.blocks) > self.bound:
            self.blocks.pop(0)

    def match(self, content: Content) -> int:
        held = {block for block, _ in self.blocks}
        count = next((at for at, block in enumerate(content.hashes) if block not in held), len(content.hashes))
        return content.bytes_of(count)


class MirrorMachine(RuleBasedStateMachine):
    """The index tells what naive caches of the same bounds tell, whatever is sent and whoever comes and goes."""

    def __init__(self) -> None:
        super().__init__()
        self.index = index_of()
        self.naive: dict[str, Naive] = {}

    @rule(uid=st.sampled_from("abcde"), bound=st.sampled_from([inf, 700.0, 2000.0, 5000.0]))
    def add(self, uid, bound):
        self.index.add_worker(uid, Bound(bound))
        self.naive.setdefault(uid, Naive(bound))

    @rule(uid=st.sampled_from("abcde"))
    def drop(self, uid):
        self.index.drop_worker(uid)
        self.naive.pop(uid, None)

    @rule(uid=st.sampled_from("abcde"), name=st.text("xy", max_size=10), blocks=st.integers(1, 12))
    def send(self, uid, name, blocks):
        content = prompt(name, blocks)
        sent = self.index.record(uid, content)
        if uid in self.naive:
            assert sent.predicted_bytes == self.naive[uid].match(content)
            self.naive[uid].record(content)

    @rule(name=st.text("xy", max_size=10), blocks=st.integers(1, 12))
    def ask(self, name, blocks):
        content = prompt(name, blocks)
        expected = {uid: held for uid, cache in self.naive.items() if (held := cache.match(content))}
        assert self.index.match(content) == expected

    @invariant()
    def sizes_add_up(self):
        index = self.index
        mirrors = {**index.mirrors, **index._retired}
        runs = list(runs_below(index.tree.root))
        assert index.tree.blocks == sum(len(run.hashes) for run in runs)
        assert index.entries == index.tree.blocks + sum(mirror.entries for mirror in mirrors.values())
        for slot, mirror in mirrors.items():
            assert set(mirror.held.numbers) == {run for run in runs if run.mask >> slot & 1}
            assert set(mirror.shadow.numbers) == {run for run in runs if run.shadow >> slot & 1}
        for mirror in index.mirrors.values():
            assert mirror.size_bytes == sum(run.size_bytes for run in mirror.held.numbers) <= mirror.bound_bytes
            assert (
                mirror.shadow.size_bytes == sum(run.size_bytes for run in mirror.shadow.numbers) <= mirror.bound_bytes
            )
            assert not set(mirror.held.numbers) & set(mirror.shadow.numbers)

    @invariant()
    def what_a_worker_holds_and_dropped_of_late_has_no_hole(self):
        gone = sum(1 << slot for slot in self.index._retired)
        for run in runs_below(self.index.tree.root):
            parent = run.parent
            if parent is not self.index.tree.root:
                assert not run.mask & ~parent.mask & ~gone
                assert not run.shadow & ~(parent.mask | parent.shadow) & ~gone

    @invariant()
    def the_tree_is_whole(self):
        for run in runs_below(self.index.tree.root):
            assert run.parent is not None
            assert run.parent.end == run.start
            assert run.parent.children[run.hashes[0]] is run
            assert run.mask or run.shadow or run.children, "nobody knows it"


def runs_below(run: Run) -> Iterator[Run]:
    for child in (run.children or {}).values():
        yield child
        yield from runs_below(child)


MirrorMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestMirrors = MirrorMachine.TestCase
