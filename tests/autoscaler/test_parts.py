"""Parts that need no cluster: signals, seeds, policies, objects, the client, history and the control port."""

import asyncio
import math
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client import generate_latest

from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_api.modelservice import AutoscalingMode, Role
from forebay_api.objective import Objective
from forebay_autoscaler.__main__ import TokenFile
from forebay_autoscaler.control import build_app
from forebay_autoscaler.decide import decide
from forebay_autoscaler.errors import AutoscalerError, PrometheusError
from forebay_autoscaler.history import History, Record
from forebay_autoscaler.loop import Alone, Loop
from forebay_autoscaler.metrics import Metrics
from forebay_autoscaler.model import initial_limit, prefill_workers, utilisation_in_time, work_per_request_s
from forebay_autoscaler.objects import counts_of, foreign_writer
from forebay_autoscaler.observation import PoolSignals, ServiceObservation, ServiceSignals, Writer
from forebay_autoscaler.observe import Look, Subject
from forebay_autoscaler.policy import Tuning, policy_of
from forebay_autoscaler.prometheus import Prometheus, Sample, sample_of
from forebay_autoscaler.queries import Signal, build_queries
from forebay_autoscaler.reading import DataState
from forebay_autoscaler.seed import Mix, expect, mix_of
from forebay_autoscaler.signals import Signals, count_within
from forebay_autoscaler.state import ServiceState
from forebay_autoscaler.status import metrics_fresh, scaling_active
from forebay_capacity.batch import prefill_seconds
from tests.autoscaler.manifests import model_service, pool_spec, worker_pool
from tests.autoscaler.plant import KEY, known, pool_policy, service_policy
from tests.autoscaler.test_timelines import load_of
from tests.support.bounds import NEVER_S

OBJECTIVE = Objective(2.0, 0.025, 0.95)
SERVICE = {"namespace": KEY[0], "model_service": KEY[1]}


def sample(value: float, **labels: str) -> Sample:
    return sample_of({**SERVICE, **labels}, value, 1000.0)


def test_ages_are_differences_of_prometheus_own_clock():
    answers = {Signal.ROUTER_SEEN: [sample(988.0)], Signal.ARRIVED: [sample(5.0)], Signal.PENDING: [sample(0.0)]}
    fresh = Signals(answers, stale_after_s=20).of_service(KEY, OBJECTIVE)
    assert (fresh.arrived_per_s.state, fresh.arrived_per_s.age_s) == (DataState.VALUE, 12.0)
    assert fresh.pending.state is DataState.ZERO
    assert fresh.burst_per_s.state is DataState.UNKNOWN
    assert fresh.refused_per_s.state is DataState.ZERO, "no client error yet"
    stale = Signals(answers, stale_after_s=10).of_service(KEY, OBJECTIVE)
    assert stale.arrived_per_s.state is DataState.STALE
    assert stale.refused_per_s.known is None


def test_two_series_where_one_is_expected_are_unknown():
    """C098."""
    answers = {Signal.ROUTER_SEEN: [sample(999.0)], Signal.ARRIVED: [sample(5.0), sample(7.0)]}
    assert Signals(answers, stale_after_s=20).of_service(KEY, OBJECTIVE).arrived_per_s.known is None


def test_a_series_without_its_labels_belongs_to_nobody():
    answers = {Signal.ROUTER_SEEN: [sample(999.0)], Signal.ARRIVED: [sample_of({"namespace": KEY[0]}, 5.0, 1000.0)]}
    assert Signals(answers, stale_after_s=20).of_service(KEY, OBJECTIVE).arrived_per_s.known is None


def test_a_mean_over_no_request_is_unknown():
    pool = {"pool": "mixed"}
    answers = {
        Signal.WORKERS_SEEN: [sample(999.0, **pool)],
        Signal.SERVICE_SUM: [sample(0.0, **pool)],
        Signal.SERVICE_COUNT: [sample(0.0, **pool)],
    }
    signals = Signals(answers, stale_after_s=20).of_pool(KEY, "mixed")
    assert signals.service_time_s.state is DataState.UNKNOWN
    assert signals.finished_per_s.state is DataState.ZERO


@pytest.mark.parametrize(
    ("buckets", "bound", "expected"),
    [
        ([(1, 10), (2, 40), (math.inf, 50)], 2, (50, 40)),
        ([(1, 10), (2, 40), (math.inf, 50)], 1.5, (50, 25)),
        ([(1, 10), (2, 40), (math.inf, 50)], 0.5, (50, 5)),
        ([(1, 10), (2, 40), (math.inf, 50)], 100, (50, 40)),
        ([(1, 10), (2, 40)], 2, (None, None)),
        ([], 2, (None, None)),
        ([(1, math.nan), (math.inf, 5)], 2, (None, None)),
    ],
)
def test_samples_within_a_bound_are_interpolated_and_never_assumed_fast(buckets, bound, expected):
    assert count_within(buckets, bound) == expected


def test_queries_are_bound_to_the_watched_namespaces_and_to_pools():
    queries = build_queries(Tuning(), attainment_window_s=300, namespaces=["a", "b"])
    assert set(queries) == set(Signal)
    assert all('namespace=~"a|b"' in text for text in queries.values())
    assert all("by (namespace, model_service" in text for text in queries.values())
    everywhere = build_queries(Tuning(), attainment_window_s=300, namespaces=[])
    assert all('namespace!=""' in text for text in everywhere.values())


def test_the_capacity_model_seeds_a_pool_before_anything_is_measured():
    accelerators = {"h100-sxm": AcceleratorClassSpec(hardware="h100-sxm")}
    pools = [pool_spec("prefill", role="Prefill"), pool_spec("decode", role="Decode")]
    stored = model_service(pools=pools, engine={"args": []})
    stored["metadata"]["namespace"] = "default"
    prefill, decode = policy_of(stored, Tuning(), accelerators).pools
    mix = Mix(prompt=1000, cached=0, output=200)
    first = expect(prefill.worker, Role.PREFILL, mix, OBJECTIVE, prefill.concurrency_max)
    assert first.work_s == pytest.approx(0.03, rel=0.5)
    second = expect(decode.worker, Role.DECODE, mix, OBJECTIVE, decode.concurrency_max)
    assert 100 < second.limit < 500
    assert second.work_s == pytest.approx(200 * OBJECTIVE.tpot_s, rel=0.05)
    assert second.time_ratio(second.limit) == pytest.approx(1.0)
    assert second.time_ratio(1) > 2
    cached = expect(prefill.worker, Role.PREFILL, Mix(1000, 900, 200), OBJECTIVE, prefill.concurrency_max)
    assert cached.work_s < first.work_s
    mixed = expect(decode.worker, Role.MIXED, mix, OBJECTIVE, decode.concurrency_max)
    assert mixed.limit < second.limit
    assert expect(decode.worker, Role.DECODE, mix, Objective(2.0, 0.001, 0.95), 256) is None, "faster than memory"
    assert expect(decode.worker, Role.DECODE, mix, OBJECTIVE, 8).limit == 8


@pytest.mark.parametrize(("arguments", "tokens"), [([], 2048), (["--max-num-batched-tokens", "1024"], 1024)])
def test_the_seed_of_a_small_gpu_computes_prompts_in_steps_of_its_engines_budget(arguments, tokens):
    pools = [pool_spec("prefill", role="Prefill"), pool_spec("decode", role="Decode")]
    stored = model_service(pools=pools, engine={"args": arguments})
    stored["metadata"]["namespace"] = "default"
    accelerators = {"h100-sxm": AcceleratorClassSpec(hardware="l40s")}
    pool, _ = policy_of(stored, Tuning(), accelerators).pools
    seed = expect(pool.worker, Role.PREFILL, Mix(prompt=4096, cached=0, output=200), OBJECTIVE, pool.concurrency_max)
    assert seed.work_s == prefill_seconds(seed.timer, 4096, chunk_tokens=tokens)
    assert seed.work_s != prefill_seconds(seed.timer, 4096)


def test_a_pool_of_unknown_hardware_or_model_is_sized_by_measurement():
    stored = model_service(engine={"args": ["--max-num-seqs=32"]})
    stored["metadata"]["namespace"] = "default"
    (pool,) = policy_of(stored, Tuning(), {}).pools
    assert (pool.worker, pool.concurrency_max) == (None, 32)
    stored["spec"]["model"] = {"name": "own", "source": "/models/own"}
    (pool,) = policy_of(stored, Tuning(), {"h100-sxm": AcceleratorClassSpec(hardware="h100-sxm")}).pools
    assert pool.worker is None
    stored["spec"]["engine"] = {"args": ["--max-num-seqs", "many"]}
    assert policy_of(stored, Tuning(), {}).pools[0].concurrency_max == 256


@pytest.mark.parametrize(
    ("hardware", "sequences"), [("h100-sxm", 1024), ("h200", 1024), ("a100-80gb", 256), ("l40s", 256)]
)
def test_without_a_flag_a_worker_runs_as_many_sequences_as_vllm_does_by_itself(hardware, sequences):
    """It leaves A100s at the smaller default however much memory they have."""
    stored = model_service(engine={}, pools=[pool_spec(accelerator="gpu")])
    stored["metadata"]["namespace"] = "default"
    (pool,) = policy_of(stored, Tuning(), {"gpu": AcceleratorClassSpec(hardware=hardware)}).pools
    assert pool.concurrency_max == sequences


def test_the_mean_request_needs_enough_requests():
    signals = ServiceSignals(
        arrived_per_s=known(10),
        prompt_tokens_per_s=known(12345),
        output_tokens_per_s=known(1000),
        cached_tokens_per_s=known(0),
    )
    assert mix_of(signals, window_s=60, samples_min=10) == Mix(1200, 0, 100)
    assert mix_of(signals, window_s=0.5, samples_min=10) is None
    assert mix_of(ServiceSignals(), window_s=60, samples_min=10) is None


def test_a_prefill_worker_is_one_server_whatever_it_runs_at_once():
    """At half its capacity a request takes twice its work."""
    signals = PoolSignals(service_time_s=known(0.2), finished_per_s=known(10))
    assert work_per_request_s(Role.PREFILL, signals, ready=2) == pytest.approx(0.1)
    assert work_per_request_s(Role.DECODE, signals, ready=2) == 0.2
    assert utilisation_in_time(0.1, OBJECTIVE) == pytest.approx(1 - 0.1 * -math.log(0.05) / 2)
    assert utilisation_in_time(5.0, OBJECTIVE) == 0.4
    assert initial_limit(pool_policy(role=Role.PREFILL), None) == 0.9


def test_a_pool_of_prefill_workers_needs_less_room_each_than_one_alone():
    """A prompt that takes a third of the TTFT leaves one worker idle for 60 %; eight of them share what they keep free."""
    objective = Objective(1.0, 0.05, 0.95)
    assert utilisation_in_time(0.33, objective) == 0.4
    assert prefill_workers(0.4, 0.33, objective) == pytest.approx(1.0)
    assert prefill_workers(2.0, 0.33, objective) == pytest.approx(2.0 + 0.33 * -math.log(0.05) / 0.67)
    assert prefill_workers(8.0, 0.33, objective) == pytest.approx(8.0 / 0.75), "at most three quarters busy"
    assert prefill_workers(8.0, 1.5, objective) == pytest.approx(20.0), "late in any case"
    assert prefill_workers(8.0, 0.01, objective) == pytest.approx(8.0 / 0.9), "short prompts"
    assert prefill_workers(8.0, None, objective) == pytest.approx(8.0 / 0.9)


def owns(manager: str, time: str, field: str = "f:replicas") -> dict:
    return {"manager": manager, "time": time, "fieldsV1": {"f:spec": {field: {}}}}


@pytest.mark.parametrize(
    ("fields", "writer"),
    [
        ([], None),
        ([owns("forebay-initial-replicas", "1")], None),
        ([owns("forebay-operator", "3", "f:pool"), owns("forebay-autoscaler", "2")], None),
        ([owns("forebay-autoscaler", "1"), owns("kubectl", "2")], Writer("kubectl", "2")),
        ([owns("kubectl-edit", "9", "f:pool"), owns("forebay-autoscaler", "2")], None),
    ],
)
def test_the_last_writer_of_replicas_is_found_in_managed_fields(fields, writer):
    assert foreign_writer(fields) == writer


def test_a_pool_without_status_has_no_ready_worker_and_one_without_room_says_so():
    pool = worker_pool(replicas=3)
    assert counts_of(pool).ready == 0
    pool["status"] = {"ready": 1, "conditions": [{"type": "Ready", "status": "False", "reason": "Unschedulable"}]}
    assert counts_of(pool).unschedulable
    assert counts_of(pool).wanted == 3


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (503, "<html>gateway</html>", "status 503, and the answer is not Prometheus'"),
        (200, '{"status":"error","error":"too many samples"}', "too many samples"),
        (503, '{"status":"success","data":{"result":[]}}', "status 503: no reason given"),
        (200, '{"status":"success"}', "the answer is not Prometheus'"),
        (200, "[1,2]", "the answer is not Prometheus'"),
    ],
)
async def test_an_answer_that_is_none_is_an_error(status, body, message):
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text=body))
    async with httpx.AsyncClient(transport=transport) as http:
        with pytest.raises(PrometheusError, match=message):
            await Prometheus("http://x", http).query("up")


async def test_a_token_that_cannot_be_read_is_an_error_of_prometheus(tmp_path):
    async with httpx.AsyncClient(auth=TokenFile(str(tmp_path / "absent"))) as http:
        with pytest.raises(PrometheusError, match="absent"):
            await Prometheus("http://x", http).query("up")


def test_every_counter_is_there_from_the_start_and_goes_with_its_pool():
    metrics = Metrics()
    text = generate_latest(metrics.registry).decode()
    assert all(f'query_failures_total{{signal="{signal.value}"}} 0.0' in text for signal in Signal)
    made = record(1.0, 20, ServiceState()).decision
    metrics.record([made], leading=True, now_s=1.0)
    assert 'decisions_total{action="grow"' in generate_latest(metrics.registry).decode()
    metrics.record([replace(made, key=("default", "other"))], leading=True, now_s=2.0)
    text = generate_latest(metrics.registry).decode()
    assert f'model_service="{KEY[1]}"' not in text
    assert 'model_service="other"' in text


def test_a_service_whose_number_is_set_by_hand_lacks_no_input():
    made = replace(record(1.0, 20, ServiceState()).decision, unknown=("arrivals",))
    labels = dict(zip(("namespace", "model_service"), made.key, strict=True))
    metrics = Metrics()
    for mode, number in ((AutoscalingMode.ADVISE, 1), (AutoscalingMode.OFF, None), (AutoscalingMode.AUTO, 1)):
        metrics.record([replace(made, mode=mode)], leading=True, now_s=1.0)
        assert metrics.registry.get_sample_value("forebay_autoscaler_inputs_unknown", labels) == number


async def test_a_replica_that_lost_the_lease_in_an_outage_shows_no_numbers():
    asked_again = asyncio.Event()

    class Outage:
        looks = 0

        async def look(self):
            self.looks += 1
            if self.looks > 1:
                asked_again.set()
            raise AutoscalerError("no API server")

    forgotten = []
    actor = SimpleNamespace(forget=forgotten.append)
    loop = Loop(Outage(), actor, Alone(leading=False), Metrics(), History(10), interval_s=0.01)
    loop.metrics.record([record(1.0, 20, ServiceState()).decision], leading=True, now_s=1.0)
    running = asyncio.create_task(loop.run())
    async with asyncio.timeout(NEVER_S):
        await asked_again.wait()
    running.cancel()
    assert loop.metrics.registry.get_sample_value("forebay_autoscaler_leader") == 0
    assert "forebay_autoscaler_desired_replicas{" not in generate_latest(loop.metrics.registry).decode()
    assert forgotten[0] == set(), "what it told, in an outage, too"


async def test_a_replica_that_loses_the_lease_while_it_acts_stops_acting():
    class Observer:
        async def look(self):
            subjects = []
            for name in ("a", "b", "c"):
                policy = service_policy(key=("default", name))
                subjects.append(Subject(policy, replace(load_of(2, wanted=1), key=policy.key), {}))
            return Look(tuple(subjects), {}, {})

    class Lease:
        leading = True

    class Actor:
        async def act(self, decision, _stored, **_routers):
            acted.append(decision.key[1])
            lease.leading = len(acted) < 2

        def forget(self, _keys):
            return None

    acted, lease = [], Lease()
    await Loop(Observer(), Actor(), lease, Metrics(), History(10), interval_s=1).cycle()
    assert acted == ["a", "b"]


async def test_a_value_that_is_no_number_is_no_number():
    """C098: "abc"."""
    body = {"status": "success", "data": {"result": [{"metric": {}, "value": [1.0, "abc"]}]}}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=body))
    async with httpx.AsyncClient(transport=transport) as http:
        (found,) = await Prometheus("http://x/", http).query("up")
    assert math.isnan(found.value)


def record(at_s: float, rate_per_s: float, state: ServiceState) -> Record:
    policy, observation = service_policy(), load_of(rate_per_s, wanted=1)
    decision = decide(policy, state, observation, at_s)
    return Record(datetime(2026, 1, 1, tzinfo=UTC), True, policy, state, observation, decision)


def test_history_keeps_what_was_new_and_the_last_and_no_more_than_it_may():
    history, state = History(5), ServiceState()
    for second in range(20):
        made = record(float(second), 20 if second == 3 else 2, state)
        state = made.decision.state
        history.add([made])
    found = list(history.select(namespace=None, model_service=None, limit=100))
    assert found[0].decision.at_s == 19
    assert 3.0 in [one.decision.at_s for one in found]
    assert len(found) <= 6
    assert list(history.select(namespace="other", model_service=None, limit=100)) == []
    assert len(list(history.select(namespace=KEY[0], model_service=KEY[1], limit=1))) == 1


async def test_the_control_port_answers():
    loop = Loop(None, None, Alone(), Metrics(), History(10), interval_s=10, clock=lambda: 100.0)
    loop.history.add([record(1.0, 20, ServiceState())])
    transport = httpx.ASGITransport(app=build_app(loop))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 503
        loop.cycled_s = 70.0
        assert (await http.get("/readyz")).status_code == 200
        loop.cycled_s = 0.0
        assert (await http.get("/readyz")).status_code == 503
        text = (await http.get("/metrics")).text
        assert "forebay_autoscaler_leader" in text
        assert 'forebay_autoscaler_cycles_total{outcome="failed"} 0.0' in text
        (found,) = (await http.get("/decisions")).json()
        assert found["decision"]["pools"][0]["action"] == "grow"
        assert found["observation"]["signals"]["arrived_per_s"] == {"state": "value", "number": 20.0, "age_s": 1.0}
        assert (await http.get("/decisions?model_service=other")).json() == []
        assert (await http.get("/decisions?limit=0")).status_code == 422


async def test_a_service_that_cannot_be_decided_on_takes_no_other_with_it():
    class Observer:
        async def look(self):
            subjects = []
            for name in ("a", "b", "c"):
                policy = service_policy(key=("default", name))
                observed = replace(load_of(2, wanted=1), key=policy.key)
                subjects.append(Subject(policy, observed if name != "b" else None, {}))
            return Look(tuple(subjects), {}, {})

    class Actor:
        async def act(self, decision, _stored, **_routers):
            acted.append(decision.key[1])
            if decision.key[1] == "a":
                raise ValueError("a")

        def forget(self, _keys):
            return None

    acted: list[str] = []
    loop = Loop(Observer(), Actor(), Alone(), Metrics(), History(10), interval_s=1)
    await loop.cycle()
    assert acted == ["a", "c"]
    assert loop.metrics.registry.get_sample_value("forebay_autoscaler_service_failures_total") == 2
    assert loop.cycled_s is not None


def test_a_service_without_pools_is_not_said_to_be_measured():
    decision = decide(service_policy(), ServiceState(), ServiceObservation(KEY, ServiceSignals(), ()), 0.0)
    assert metrics_fresh(decision).status == "Unknown"
    assert scaling_active(decision, ()).reason == "NoWorkerPool"
