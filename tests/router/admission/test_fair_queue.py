"""Laws of the queue in which requests wait."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay_router.admission.claim import Claim, Priority
from forebay_router.admission.fair_queue import SHARES, FairQueue

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW
PLENTY = 10**9


def queue(requests_max: int = PLENTY, size_bytes_max: int = PLENTY) -> FairQueue[str]:
    return FairQueue(requests_max, size_bytes_max)


def add(made: FairQueue[str], name: str, claim: Claim, *, cost: float = 1.0, size: int = 1):
    """As a newcomer does it: room is made first. Returns the entry, or None, and who had to go."""
    victims = [entry.item for entry in made.make_room(claim, size)]
    return made.add(name, claim, cost=cost, size_bytes=size), victims


def drain(made: FairQueue[str]) -> list[str]:
    served = []
    while (entry := made.head()) is not None:
        made.serve(entry)
        served.append(entry.item)
    return served


def test_one_tenant_is_served_in_the_order_of_arrival():
    made = queue()
    for number, cost in enumerate([5.0, 0.1, 3.0, 0.0]):
        add(made, str(number), Claim(), cost=cost)
    assert drain(made) == ["0", "1", "2", "3"]


def test_newcomer_does_not_wait_behind_a_flood():
    made = queue()
    for number in range(100):
        add(made, f"flood {number}", Claim(tenant="flood"))
    made.serve(made.head())
    add(made, "quiet", Claim(tenant="quiet"))
    assert drain(made).index("quiet") <= 1


def test_high_request_is_the_next_but_one_in_a_queue_of_normal_ones():
    made = queue()
    for number in range(50):
        add(made, str(number), Claim())
    made.serve(made.head())
    add(made, "high", Claim(HIGH))
    assert drain(made).index("high") <= 1


def test_priorities_get_their_shares():
    """16 : 4 : 1 of the cost, over any long enough run."""
    made = queue()
    for priority in Priority:
        for _ in range(420):
            add(made, priority.label, Claim(priority))
    first = drain(made)[:210]
    assert {name: first.count(name) for name in ("high", "normal", "low")} == {"high": 160, "normal": 40, "low": 10}


def test_shares_are_of_cost_and_by_weight():
    made = queue()
    for _ in range(300):
        add(made, "small", Claim(tenant="small", weight=1), cost=1)
        add(made, "large", Claim(tenant="large", weight=1), cost=10)
        add(made, "twice", Claim(tenant="twice", weight=2), cost=10)
    first = drain(made)[:130]
    assert 95 <= first.count("small") <= 105
    assert 9 <= first.count("large") <= 11
    assert 19 <= first.count("twice") <= 21


def test_priority_that_could_not_be_served_gets_no_credit_for_that():
    made = queue()
    for number in range(200):
        add(made, "low", Claim(LOW))
        add(made, f"normal {number}", Claim())
    for _ in range(100):
        made.serve(made.head(but={LOW}))
    rest = drain(made)[:50]
    assert 9 <= rest.count("low") <= 11, "a fifth, as if it had come just now"


def late(made: FairQueue[str], count: int) -> None:
    """The next so many turn out to be late."""
    for _ in range(count):
        made.set_back(made.head())


def test_who_can_be_in_time_goes_before_who_is_late():
    made = queue()
    for number in range(3):
        add(made, f"old {number}", Claim())
    late(made, 3)
    for number in range(3):
        add(made, f"new {number}", Claim())
    assert drain(made) == ["new 0", "old 0", "new 1", "new 2", "old 1", "old 2"], (
        "and the first late one at once, as its share"
    )


def test_late_ones_get_the_tenth_part_while_others_can_be_in_time():
    made = queue()
    for _ in range(200):
        add(made, "old", Claim())
    late(made, 200)
    for _ in range(200):
        add(made, "new", Claim())
    assert drain(made)[:200].count("old") == pytest.approx(20, abs=1)


def test_late_requests_of_a_high_priority_keep_its_share():
    made = queue()
    for _ in range(100):
        add(made, "high", Claim(HIGH))
    late(made, 100)
    for _ in range(100):
        add(made, "low", Claim(LOW))
    assert drain(made)[:34].count("low") == pytest.approx(2, abs=1)


def test_who_was_late_alone_owes_nothing_to_those_that_come():
    """Nor do these owe it anything: while nobody else waited, its places were nobody else's."""
    made = queue()
    for _ in range(100):
        add(made, "old", Claim())
    late(made, 100)
    for _ in range(50):
        made.serve(made.head())
    for _ in range(50):
        add(made, "new", Claim())
    assert drain(made)[:20].count("old") == pytest.approx(2, abs=1)


def test_late_request_that_is_due_goes_next():
    made = queue()
    for number in range(2):
        made.add(f"old {number}", Claim(), cost=100.0, size_bytes=1, due_s=5.0)
    late(made, 2)
    made.serve(made.head())
    add(made, "new", Claim())
    assert made.head(now_s=4.9).item == "new", "late ones have had their part"
    assert made.head(now_s=5.0).item == "old 1"


def test_due_request_does_not_wait_for_a_late_one_that_is_not():
    """It stood behind others of its tenant, so nobody has asked yet whether it is late."""
    made = queue()
    made.add("new", Claim(), cost=1.0, size_bytes=1, due_s=9.0)
    late(made, 1)
    made.add("served", Claim(), cost=1.0, size_bytes=1)
    made.serve(made.head())
    made.add("old", Claim(), cost=1.0, size_bytes=1, due_s=5.0)
    assert made.head(now_s=4.9).item == "new"
    assert made.due_s(Claim().priority) == 5.0
    assert made.head(now_s=5.0).item == "old"


def test_full_queue_refuses_the_newcomer_when_there_is_one_tenant():
    made = queue(requests_max=2)
    assert add(made, "a", Claim())[0]
    assert add(made, "b", Claim())[0]
    assert add(made, "c", Claim()) == (None, [])
    assert drain(made) == ["a", "b"]


def test_full_queue_makes_room_at_the_cost_of_who_has_most():
    made = queue(requests_max=4)
    for number in range(4):
        add(made, f"flood {number}", Claim(tenant="flood"))
    entry, victims = add(made, "quiet 0", Claim(tenant="quiet"))
    assert entry
    assert victims == ["flood 3"], "the newest of the flood"
    entry, victims = add(made, "quiet 1", Claim(tenant="quiet"))
    assert entry
    assert victims == ["flood 2"]
    assert add(made, "quiet 2", Claim(tenant="quiet")) == (None, []), "both have the same now"
    assert add(made, "flood 4", Claim(tenant="flood")) == (None, [])


def test_weight_counts_in_a_full_queue():
    made = queue(requests_max=4)
    for number in range(3):
        add(made, f"heavy {number}", Claim(tenant="heavy", weight=3))
    add(made, "light", Claim(tenant="light"))
    assert add(made, "light 1", Claim(tenant="light")) == (None, []), (
        "three for a weight of three is no more than one for one"
    )


def test_priorities_do_not_take_one_anothers_room():
    made = queue(requests_max=2)
    for number in range(2):
        add(made, f"low {number}", Claim(LOW))
    assert add(made, "normal", Claim())[0]
    assert add(made, "high", Claim(HIGH))[0]


def test_bytes_are_bounded_too():
    made = queue(size_bytes_max=100)
    assert add(made, "a", Claim(), size=60)[0]
    assert add(made, "b", Claim(), size=60) == (None, [])
    assert add(made, "c", Claim(), size=40)[0]
    entry, victims = add(made, "d", Claim(tenant="t"), size=50)
    assert entry
    assert victims == ["c", "a"], "the newest first, as many as are needed"


def test_large_body_does_not_push_out_more_than_it_weighs():
    made = queue(size_bytes_max=100)
    for number in range(10):
        add(made, str(number), Claim(tenant="many"), size=10)
    assert add(made, "large", Claim(tenant="one"), size=90) == (None, []), "the others would have less than it"
    assert len(drain(made)) == 10


def test_body_larger_than_the_queue_is_refused_and_nobody_else():
    made = queue(size_bytes_max=100)
    add(made, "a", Claim(tenant="t"), size=90)
    assert add(made, "b", Claim(), size=101) == (None, [])
    assert drain(made) == ["a"]


def test_cost_ahead_of_a_newcomer_is_by_share():
    made = queue()
    assert made.cost_ahead(Claim()) == 0
    for _ in range(10):
        add(made, "a", Claim(tenant="a"), cost=2)
        add(made, "b", Claim(tenant="b"), cost=2)
    assert made.cost_ahead(Claim(tenant="a")) == 40, "its own 20, of which it gets half"
    assert made.cost_ahead(Claim(tenant="new")) == 0
    for _ in range(10):
        add(made, "low", Claim(LOW, "a"), cost=2)
    assert made.cost_ahead(Claim(LOW, "a")) == 60, "a fifth of the share, but never more than all there is"


COSTS = st.floats(0.01, 100, allow_nan=False)


@settings(deadline=None)
@given(
    st.lists(COSTS, min_size=2, max_size=30),
    st.lists(COSTS, min_size=2, max_size=30),
    st.integers(1, 5),
    st.integers(1, 5),
    st.lists(COSTS, max_size=10),
)
def test_tenants_that_both_wait_get_the_same_by_weight(a_costs, b_costs, a_weight, b_weight, others):
    """Start-time fair queueing's bound, for every stretch of time in which both wait."""
    made = queue()
    for cost in others:
        add(made, "c", Claim(tenant="c"), cost=cost)
    for cost in a_costs:
        add(made, "a", Claim(tenant="a", weight=a_weight), cost=cost)
    for cost in b_costs:
        add(made, "b", Claim(tenant="b", weight=b_weight), cost=cost)
    bound = max(a_costs) / a_weight + max(b_costs) / b_weight
    leads, lead = [0.0], 0.0
    left = {"a": len(a_costs), "b": len(b_costs), "c": len(others)}
    while left["a"] and left["b"]:
        entry = made.head()
        made.serve(entry)
        left[entry.item] -= 1
        lead += {"a": entry.cost / a_weight, "b": -entry.cost / b_weight, "c": 0.0}[entry.item]
        leads.append(lead)
    assert max(leads) - min(leads) <= bound * (1 + 1e-9) + 1e-6


@settings(deadline=None)
@given(st.lists(COSTS, min_size=2, max_size=30), st.lists(COSTS, min_size=2, max_size=30))
def test_priorities_that_both_wait_get_their_shares(high_costs, low_costs):
    made = queue()
    for cost in high_costs:
        add(made, "high", Claim(HIGH), cost=cost)
    for cost in low_costs:
        add(made, "low", Claim(LOW), cost=cost)
    bound = max(high_costs) / SHARES[HIGH] + max(low_costs) / SHARES[LOW]
    leads, lead = [0.0], 0.0
    left = {"high": len(high_costs), "low": len(low_costs)}
    while left["high"] and left["low"]:
        entry = made.head()
        made.serve(entry)
        left[entry.item] -= 1
        lead += entry.cost / SHARES[HIGH] if entry.item == "high" else -entry.cost / SHARES[LOW]
        leads.append(lead)
    assert max(leads) - min(leads) <= bound * (1 + 1e-9) + 1e-6


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), min_size=1, max_size=60), st.integers(1, 12))
def test_tenant_below_its_part_of_a_full_queue_is_never_refused(arrivals, limit):
    """Refused is only who would have at least as much waiting by weight as anybody else."""
    made = queue(requests_max=limit)
    waiting = dict.fromkeys("abc", 0)
    weights = {"a": 1, "b": 2, "c": 3}
    for tenant, _ in arrivals:
        entry, victims = add(made, tenant, Claim(tenant=tenant, weight=weights[tenant]))
        for victim in victims:
            waiting[victim] -= 1
        if entry is None:
            most = max(waiting[other] / weights[other] for other in waiting if other != tenant)
            assert (waiting[tenant] + 1) / weights[tenant] >= most
        else:
            waiting[tenant] += 1
        assert sum(waiting.values()) == made.requests <= limit


class QueueMachine(RuleBasedStateMachine):
    """Whatever happens, nothing is lost, doubled or out of a tenant's order, and the bounds hold."""

    LIMIT, BYTES = 5, 40

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue(self.LIMIT, self.BYTES)
        self.waiting = {}
        self.count = 0

    @rule(
        priority=st.sampled_from(Priority),
        tenant=st.sampled_from("abc"),
        cost=st.floats(0, 50),
        size=st.integers(0, 45),
    )
    def arrive(self, priority, tenant, cost, size):
        claim = Claim(priority, tenant, 1 + "abc".index(tenant))
        victims = self.queue.make_room(claim, size)
        for victim in victims:
            assert victim.claim.tenant != tenant
            assert victim.claim.priority is priority
            del self.waiting[victim.item]
        if any(not victim.late for victim in victims):
            left = [one for one in self.waiting.values() if one.claim == victims[0].claim]
            assert not any(one.late for one in left), "who is late goes first"
        entry = self.queue.add(self.count, claim, cost=cost, size_bytes=size, due_s=self.count % 3 - 1.0)
        if entry is not None:
            self.waiting[self.count] = entry
        self.count += 1

    @rule(but=st.sets(st.sampled_from(Priority), max_size=3), late=st.booleans(), now_s=st.sampled_from([-1.0, 1.0]))
    def serve(self, but, late, now_s):
        entry = self.queue.head(but, now_s)
        possible = [one for one in self.waiting.values() if one.claim.priority not in but]
        assert (entry is None) == (not possible), "work conserving"
        if entry is not None:
            same = [one.number for one in possible if (one.claim, one.late) == (entry.claim, entry.late)]
            assert entry.number == min(same), "a tenant's own are served in order"
            if late and not entry.late:
                self.queue.set_back(entry)
                return
            self.queue.serve(entry)
            del self.waiting[entry.item]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data):
        item = data.draw(st.sampled_from(sorted(self.waiting)))
        entry = self.waiting.pop(item)
        self.queue.remove(entry)
        self.queue.remove(entry)

    @invariant()
    def counts_agree(self):
        assert sorted(entry.item for entry in self.queue) == sorted(self.waiting)
        assert self.queue.requests == len(self.waiting)
        for priority, band in self.queue.bands.items():
            own = [entry for entry in self.waiting.values() if entry.claim.priority is priority]
            assert band.requests == len(own) <= self.LIMIT
            assert band.size_bytes == sum(entry.size_bytes for entry in own) <= self.BYTES
            assert abs(band.cost - sum(entry.cost for entry in own)) < 1e-6
            assert band.late.requests == sum(entry.late for entry in own)
            assert sum(requests for requests, _, _ in band.tenants().values()) == len(own)
            for lane in (band.timely, band.late):
                assert lane.requests or not lane.flows, "nobody is remembered in an empty queue"


QueueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestQueue = QueueMachine.TestCase


def test_tenants_that_come_and_go_are_forgotten():
    """Names that clients make up do not stay: at most those that wait, and a bound over that."""
    made = queue()
    add(made, "stays", Claim(tenant="stays"), cost=1e9)
    made.serve(made.head())
    for _ in range(2):
        add(made, "stays", Claim(tenant="stays"), cost=1e9)
    for number in range(300):
        add(made, "x", Claim(tenant=f"t{number}"))
        made.serve(made.head())
        assert len(made.bands[NORMAL].timely.flows) <= made.requests + 65


def test_virtual_time_only_goes_on_while_somebody_waits():
    made = queue()
    reached = [0.0]
    for number in range(20):
        add(made, str(number), Claim(tenant=str(number % 3)), cost=1 + number)
    while (entry := made.head()) is not None:
        made.serve(entry)
        if made.requests:
            reached.append(made.reached)
    assert all(before <= after for before, after in pairwise(reached))
    assert made.reached == 0
