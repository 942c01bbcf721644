"""From what the operator writes to what the router knows: workers as the operator starts them, KV events included.

Its Deployment's container is started as simulated nodes start it (a simulated engine on a loopback address of the pod's own),
the router reads the pod as discovery does, and events of the engine's cache must arrive.
"""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

from forebay_operator.desired.deployment import WorkerContext
from forebay_router.discovery.objects import read_service, read_worker
from forebay_router.index.precise import PreciseIndex
from forebay_router.kv_events import KvEvents
from forebay_router.table import WorkerTable
from forebay_router.upstream import Upstreams
from tests.operator.examples import model_service
from tests.operator.test_desired import everything_for
from tests.router.harness import until
from tests.simulator.engine.process import CLIENT
from tests.simulator.engine.process import running as running_engine

IDS = list(range(1000, 1100))


def pods(addresses, **spec):
    """Pods of the pool's Deployment, as the API server has them once they are ready."""
    context = WorkerContext(host="$(POD_IP)", probe_period_s=1, prestop_delay_s=5)
    service = model_service(**spec)
    deployment = next(one for one in everything_for(service, context=context) if one["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    made = [
        {
            "metadata": {**template["metadata"], "name": f"pod-{at}", "namespace": "team", "uid": f"u{at}"},
            "spec": template["spec"],
            "status": {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        for at, address in enumerate(addresses)
    ]
    return {**service, "metadata": {**service["metadata"], "creationTimestamp": None}}, made


@asynccontextmanager
async def started(pods):
    """The pods' containers as processes."""
    async with AsyncExitStack() as stack:
        for pod in pods:
            address = pod["status"]["podIP"]
            (container,) = pod["spec"]["containers"]
            values = {"POD_IP": address}
            for one in container["env"]:
                if "value" in one:
                    values[one["name"]] = one["value"].replace("$(POD_IP)", address)
            model, *arguments = [text.replace("$(POD_IP)", address) for text in container["args"]]
            own = {name: value for name, value in values.items() if name.startswith("VLLM") or name == "POD_IP"}
            running = running_engine(*arguments, "--sim-speed", "10", model=model, **own)
            await asyncio.to_thread(stack.enter_context, running)
        yield


async def test_workers_that_the_operator_starts_are_followed():
    """Two pods that share a network, as on the local cluster: each publishes on free ports of its own address."""
    service, made = pods(["127.90.7.1", "127.90.7.2"])
    upstreams = Upstreams(connect_timeout_s=2, idle_s=3)
    table, index = WorkerTable(), PreciseIndex()
    following = KvEvents(table, index, upstreams)
    async with started(made):
        table.put_service(read_service(service, {}), 0.0)
        for pod in made:
            spec = read_worker(pod)
            assert spec is not None
            assert (spec.kv_events_port, spec.kv_replay_port) == (5557, 5558)
            table.put_worker(spec, 0.0)
        task = asyncio.create_task(following.run())
        try:
            await until(lambda: len(following.connected) == 2, "both are followed")
            for at, pod in enumerate(made):
                url = f"http://{pod['status']['podIP']}:8000"
                ids = [at, *IDS]
                await asyncio.to_thread(post, url, {"prompt": ids, "max_tokens": 1})
                await until(lambda ids=ids, at=at: index.match(ids).get(f"u{at}"), "its cache is known")
                assert index.match(ids) == {**{f"u{before}": 0 for before in range(at)}, f"u{at}": 96}
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            upstreams.close()


def post(url: str, body: dict) -> None:
    """One completion."""
    assert CLIENT.post(f"{url}/v1/completions", json=body).status_code == 200
