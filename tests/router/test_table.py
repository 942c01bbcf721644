"""The worker table: membership, states and leases."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_router.leases import LeaseEvent
from forebay_router.predicting import Load
from forebay_router.table import (
    ServiceKey,
    ServiceSpec,
    Timeouts,
    WorkerSpec,
    WorkerState,
    WorkerTable,
    WorkerUid,
)

OBJECTIVE = Objective(ttft_s=1, tpot_s=1, target=0.9)
TIMEOUTS = Timeouts(hold_s=1, first_byte_s=1, idle_s=1, total_s=1)


def service(
    name: str = "s", models: tuple[str, ...] = ("m",), *, namespace: str = "n", created_s: int = 0
) -> ServiceSpec:
    return ServiceSpec(ServiceKey(namespace, name), models, OBJECTIVE, TIMEOUTS, created_s, (("pool", Role.MIXED),))


def worker(uid: str, *, host: str = "10.0.0.1", state: WorkerState = WorkerState.READY, name: str = "s") -> WorkerSpec:
    return WorkerSpec(WorkerUid(uid), uid, host, 8000, ServiceKey("n", name), "pool", Role.MIXED, state)


def ready(table: WorkerTable, name: str = "s") -> set[str]:
    return {one.uid for one in table.services[ServiceKey("n", name)].snapshot.mixed}


def test_only_ready_workers_are_offered():
    """C055, C056, C058: not ready, draining and back again, at once."""
    table = WorkerTable()
    table.put_service(service())
    for state in WorkerState:
        table.put_worker(worker(state.value, state=state), 0.0)
    assert ready(table) == {"ready"}
    table.put_worker(worker("ready", state=WorkerState.DRAINING), 0.0)
    assert ready(table) == set()
    table.put_worker(worker("ready"), 0.0)
    assert ready(table) == {"ready"}


def test_new_worker_at_an_old_address_inherits_nothing():
    """C059: identity is the uid."""
    table = WorkerTable()
    table.put_service(service())
    table.put_service(service("t", ("other",)))
    table.put_worker(worker("a"), 0.0)
    lease = table.take(table.workers["a"], prompt_tokens=100, output_tokens=10)
    table.drop_worker("a")
    table.put_worker(worker("b", name="t"), 0.0)
    assert ready(table) == set()
    assert ready(table, "t") == {"b"}
    assert table.workers["b"].load == Load()
    lease.release()
    assert table.workers["b"].load == Load()
    assert not table.leases


def test_state_changes_keep_the_load():
    """C011: no health pass resets what is in flight."""
    table = WorkerTable()
    table.put_service(service())
    table.put_worker(worker("a"), 0.0)
    leases = [table.take(table.workers["a"], prompt_tokens=5, output_tokens=1) for _ in range(20)]
    for state in (WorkerState.NOT_READY, WorkerState.READY, WorkerState.DRAINING, WorkerState.READY):
        table.put_worker(worker("a", state=state), 0.0)
        assert table.workers["a"].load.requests == 20
    for lease in leases:
        lease.release()
    assert table.workers["a"].load == Load()


def test_lease_is_released_once():
    table = WorkerTable()
    table.put_service(service())
    table.put_worker(worker("a"), 0.0)
    seen = []
    table.on_lease.append(lambda lease, event: seen.append((lease.number, event)))
    lease = table.take(table.workers["a"], prompt_tokens=5, output_tokens=1)
    lease.prefilled()
    assert table.workers["a"].load.prompt_tokens == 0
    lease.release()
    with pytest.raises(AssertionError, match="released twice"):
        lease.release()
    assert seen == [(1, LeaseEvent.TAKEN), (1, LeaseEvent.PREFILLED), (1, LeaseEvent.RELEASED)]


def test_oldest_service_of_a_model_name_wins():
    table = WorkerTable()
    table.put_service(service("young", created_s=20))
    table.put_service(service("old", created_s=10, namespace="z"))
    assert table.by_model["m"].spec.key == ServiceKey("z", "old")
    assert table.shadowed() == [("m", ServiceKey("z", "old"), ServiceKey("n", "young"))]
    table.drop_service(ServiceKey("z", "old"))
    assert table.by_model["m"].spec.key == ServiceKey("n", "young")
    assert table.shadowed() == []


class TableMachine(RuleBasedStateMachine):
    """Whatever happens to workers and leases, loads equal the leases that are held."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.table = WorkerTable(worker_limit=3)
        self.table.put_service(service())
        self.held = []

    @rule(
        uid=st.sampled_from("abc"), state=st.sampled_from(WorkerState), host=st.sampled_from(["10.0.0.1", "10.0.0.2"])
    )
    def put(self, uid, state, host):
        self.table.put_worker(worker(uid, state=state, host=host), 0.0)

    @rule(uid=st.sampled_from("abc"))
    def drop(self, uid):
        self.table.drop_worker(uid)

    @rule(target=leases, uid=st.sampled_from("abc"), prompt_tokens=st.integers(0, 50))
    def take(self, uid, prompt_tokens):
        if uid not in self.table.workers:
            return None
        lease = self.table.take(self.table.workers[uid], prompt_tokens=prompt_tokens, output_tokens=7)
        self.held.append(lease)
        return lease

    @rule(lease=consumes(leases))
    def release(self, lease):
        if lease is not None:
            self.held.remove(lease)
            lease.release()

    @rule(lease=leases)
    def prefilled(self, lease):
        if lease is not None:
            lease.prefilled()

    @invariant()
    def loads_equal_leases(self):
        assert set(self.table.leases.values()) == set(self.held)
        for one in self.table.workers.values():
            own = [lease for lease in self.held if lease.worker is one]
            assert one.load.requests == len(own)
            assert one.load.prompt_tokens == sum(lease.prompt_tokens for lease in own)
            assert one.load.output_tokens == 7 * len(own)
        pool = self.table.services[ServiceKey("n", "s")].stats.pools["pool"]
        assert pool.in_flight == len(self.held)

    @invariant()
    def only_ready_workers_are_offered(self):
        offered = ready(self.table)
        assert offered == {uid for uid, one in self.table.workers.items() if one.spec.state is WorkerState.READY}


TableMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestTable = TableMachine.TestCase
