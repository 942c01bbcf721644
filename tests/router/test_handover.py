"""What stays claimed when a hand-over from prefill to decode fails, with simulated engines."""

import asyncio
import json
import signal

from tests.router.gate import Gate
from tests.router.harness import BOUND_S, ask, request_bytes, running
from tests.router.test_simulated_engine import MODEL, engines

LEASE_S = 2.0
DROPS = 20
TEXT = "the quick brown fox jumps over the lazy dog "


def transfer(role: str) -> tuple[str, ...]:
    """Engine flags of a side; prefill keeps what it computed for a short while."""
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
    }
    return "--kv-transfer-config", json.dumps(config), "--kv-events-config", EVENTS


EVENTS = '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:0","replay_endpoint":"tcp://*:0"}'


def chat(number: int, **fields):
    text = f"{number} " + TEXT * 60
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4, "stream": True, **fields}


async def test_clients_that_leave_between_the_legs_hold_no_blocks_for_long():
    """C092: dropped after prefill and before decode has heard of it; the blocks are free again after the lease."""
    async with (
        engines(transfer("kv_producer"), transfer("kv_consumer")) as [prefill, decode],
        Gate(decode.port).open() as gate,
        running("--prefill-workers", prefill.url, "--decode-workers", gate.url) as router,
    ):
        for number in range(DROPS):
            client = await router.connect()
            left = asyncio.Event()

            def leave(client=client, left=left) -> bool:
                client.leave()
                left.set()
                return False

            gate.on_hand_over = leave
            await client.send(request_bytes(chat(number)))
            async with asyncio.timeout(BOUND_S):
                await left.wait()
        await router.no_lease_is_left()
        assert router.verdicts()["abandoned"] == DROPS
        gate.on_hand_over = None
        await asyncio.to_thread(prefill.eventually, "vllm:kv_cache_usage_perc", 0.0, 10 * LEASE_S)
        reply = await ask(router, chat(DROPS))
        assert (reply.status, reply.error()) == (200, None)
        assert gate.handed_over == DROPS + 1
        await router.no_lease_is_left()
        assert await asyncio.to_thread(decode.metric, "vllm:kv_cache_usage_perc") == 0


async def test_a_prefill_engine_that_is_killed_in_the_gap_costs_the_client_nothing():
    """C092, its second half: the prompt's KV has gone when decode asks for it; decode computes it."""
    async with (
        engines(transfer("kv_producer"), transfer("kv_consumer")) as [prefill, decode],
        Gate(decode.port).open() as gate,
        running("--prefill-workers", prefill.url, "--decode-workers", gate.url) as router,
    ):

        def kill() -> bool:
            prefill.process.send_signal(signal.SIGKILL)
            prefill.process.wait(BOUND_S)
            return True

        gate.on_hand_over = kill
        reply = await ask(router, chat(0))
        assert (reply.status, reply.error()) == (200, None)
        assert reply.events()[-1] == "[DONE]"
        gate.on_hand_over = None
        again = await ask(router, chat(1))
        assert (again.status, again.error()) == (200, None)
        await router.no_lease_is_left()
