"""Workers that fail: another is tried before the answer has begun; afterwards the client is told."""

import asyncio
import socket
import time
from contextlib import contextmanager

import pytest

from tests.router.harness import ask, chat, request_bytes, routed, running, until
from tests.router.scripted import ScriptedWorker, chat_chunk, completion, hello, workers
from tests.support.bounds import NEVER_S, in_time, quickest_of_three


async def reset_at_once(_asked, wire):
    wire.reset()


async def close_at_once(_asked, wire):
    wire.close()


async def reset_after_head(_asked, wire):
    await wire.events_head()
    wire.reset()


async def busy(_asked, wire):
    await wire.json({"error": {"message": "busy", "type": "Service Unavailable", "param": None, "code": 503}}, 503)


async def draining(_asked, wire):
    message = "cannot schedule new futures after shutdown"
    await wire.json({"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}}, 500)


async def failing(_asked, wire):
    await wire.json(
        {"error": {"message": "KV load failure", "type": "InternalServerError", "param": None, "code": 500}}, 500
    )


async def abort_before_content(_asked, wire):
    await wire.events_head()
    await wire.event(chat_chunk("", finish="abort"))
    await wire.event("[DONE]")
    await wire.end_chunks()


async def error_before_content(_asked, wire):
    await wire.events_head()
    await wire.event({"error": {"message": "engine died", "type": "InternalServerError", "param": None, "code": 500}})
    await wire.event("[DONE]")
    await wire.end_chunks()


async def garbage(_asked, wire):
    await wire.raw(b"220 smtp.example.com ESMTP\r\n")
    wire.close()


BEFORE_THE_ANSWER = [
    (reset_at_once, "reset"),
    (close_at_once, "reset"),
    (reset_after_head, "cut_off"),
    (busy, "worker_error"),
    (draining, "worker_error"),
    (abort_before_content, "aborted"),
    (error_before_content, "worker_error"),
    (garbage, "bad_answer"),
]


@pytest.mark.parametrize(("fails", "reason"), BEFORE_THE_ANSWER)
async def test_failure_before_the_answer_is_made_good_by_another_worker(fails, reason):
    """Whatever happens before the first event, the client gets one whole answer."""
    async with workers(fails, hello) as [bad, good], routed(bad, good) as router:
        for _ in range(24):
            reply = await ask(router, chat(stream=True))
            assert (reply.status, reply.text(), reply.error()) == (200, "hello", None)
            assert reply.body.count(b"[DONE]") == 1
            if bad.asked:
                break
        assert bad.asked, "ties are random: the bad worker gets one of 24"
        assert all(asked.json["messages"] for asked in good.asked)
        retries = {key.value: count for key, count in router.stats.retries.items() if count}
        assert retries == {reason: 1}
        assert router.verdicts()["bad"] == 0


async def test_long_request_is_made_good_by_another_worker():
    """Its body went past the parser and its fields were dropped; the second worker gets all of it."""
    pad = "p" * 100_000
    async with workers(reset_at_once, hello) as [bad, good], routed(bad, good) as router:
        for number in range(24):
            assert (await ask(router, chat(pad=pad, seed=number))).json == completion("hello")
            if bad.asked:
                break
        assert bad.asked
        assert good.asked[-1].json == bad.asked[0].json
        assert good.asked[-1].json["pad"] == pad


@pytest.mark.parametrize(
    ("fails", "status", "most"),
    [
        (reset_at_once, 502, 2),
        (reset_after_head, 502, 2),
        (abort_before_content, 503, 3),
        (error_before_content, 502, 3),
        (garbage, 502, 3),
    ],
)
async def test_failure_of_every_worker_is_an_error_in_openai_shape(fails, status, most):
    """C062: no raw upstream text and no parser message; each worker is asked once.

    A request under which connections end may be what ends them: it gets two workers, not all.
    """
    flags = ("--hold-timeout", "200ms")
    async with workers(fails, fails, fails) as made, routed(*made, flags=flags) as router:
        reply = await ask(router, chat(stream=True))
        assert reply.status == status
        assert reply.json["error"].keys() == {"message", "type", "param", "code"}
        assert b"smtp" not in reply.body
        asked = [len(worker.asked) for worker in made]
        assert (max(asked), sum(asked)) == (1, most), "never the same worker twice"
        assert router.verdicts() == {"good": 0, "bad": 1, "abandoned": 0}


async def test_error_of_every_worker_is_relayed_as_it_is():
    async with workers(busy, failing) as made, routed(*made) as router:
        reply = await ask(router, chat())
        assert reply.status in {500, 503}
        assert reply.json["error"]["message"] in {"busy", "KV load failure"}
        assert [len(worker.asked) for worker in made] == [1, 1]


async def test_attempts_are_bounded():
    made = [ScriptedWorker(garbage) for _ in range(6)]
    for worker in made:
        await worker.start()
    async with routed(*made, flags=("--attempts", "4")) as router:
        assert (await ask(router, chat())).status == 502
        assert sum(len(worker.asked) for worker in made) == 4
    for worker in made:
        await worker.stop()


@pytest.mark.parametrize("ending", ["reset", "close", "polite", "within an event"])
async def test_stream_that_breaks_ends_with_an_error_event(ending):
    """C014, C016: one last well-formed error event, no bare [DONE]; the request is bad."""

    async def script(_asked, wire):
        await wire.events_head()
        for text in "abcde":
            await wire.event(chat_chunk(text))
        await wire.chunk(b'data: {"id":"chatcmpl-1","choi')
        if ending == "reset":
            wire.reset()
        elif ending == "close":
            wire.close()
        else:
            if ending == "polite":
                await wire.chunk(b'ces":[]}\n\n')
            await wire.end_chunks()

    async with workers(script, hello) as [first, second], routed(first, second) as router:
        reply = await ask(router, chat(stream=True))
        while not first.asked:
            reply = await ask(router, chat(stream=True))
        assert reply.text() == "abcde"
        assert reply.error()["code"] == "cut_off"
        assert "[DONE]" not in reply.events()
        assert reply.body.endswith(b"}\n\n")
        await router.no_lease_is_left()
        assert router.verdicts()["bad"] == 1
        assert router.stats.failures["cut_off"] == 1


async def test_broken_stream_is_not_continued_elsewhere():
    """C017: the client's text is a beginning of the first worker's, and nobody else is asked."""

    async def script(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("alpha "))
        await wire.event(chat_chunk("beta "))
        await asyncio.sleep(0.05)
        wire.reset()

    async with workers(script, script) as made, routed(*made) as router:
        reply = await ask(router, chat(stream=True))
        assert "alpha beta ".startswith(reply.text())
        assert reply.error() is not None
        assert sum(len(worker.asked) for worker in made) == 1


async def test_aborted_stream_gets_an_error_event_before_its_end_marker():
    """finish_reason "abort" under status 200 is a failure, and the client's SDK is told."""

    async def script(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("par"))
        await wire.event(chat_chunk("tial", finish="abort"))
        await wire.event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, chat(stream=True))
        assert reply.text() == "partial"
        assert reply.error()["code"] == "aborted"
        assert reply.events()[-1] == "[DONE]"
        await router.no_lease_is_left()
        assert (router.verdicts()["bad"], router.stats.failures["aborted"]) == (1, 1)


async def test_aborted_stream_without_end_marker_gets_an_error_event():
    async def script(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("par"))
        await wire.event(chat_chunk("", finish="abort"))
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, chat(stream=True))
        assert reply.error()["code"] == "aborted"
        assert reply.body.count(b'"error"') == 1


async def test_end_marker_without_its_blank_line_ends_the_stream():
    async def script(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("x"))
        await wire.chunk(b"data: [DONE]")
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, chat(stream=True))
        assert reply.body.endswith(b"data: [DONE]")
        assert reply.error() is None
        assert router.verdicts()["good"] == 1


async def test_aborted_plain_answer_counts_as_failed():
    async with (
        workers(lambda _asked, wire: wire.json(completion("par", finish="abort"))) as [worker],
        routed(worker) as router,
    ):
        reply = await ask(router, chat())
        assert reply.status == 200
        assert (router.verdicts()["bad"], router.stats.failures["aborted"]) == (1, 1)


async def test_error_event_of_the_engine_is_passed_on_and_counted():
    async def script(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("x"))
        await wire.event(
            {"error": {"message": "EngineCore died", "type": "InternalServerError", "param": None, "code": 500}}
        )
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, chat(stream=True))
        assert [event for event in reply.events() if "error" in event] == [reply.events()[1]], "no second error event"
        await router.no_lease_is_left()
        assert (router.verdicts()["bad"], router.stats.failures["worker_error"]) == (1, 1)


async def test_plain_answer_that_breaks_is_made_again_elsewhere():
    async def script(_asked, wire):
        await wire.head(200, {"Content-Type": "application/json", "Content-Length": "1000"}, chunked=False)
        await wire.raw(b'{"id":')
        wire.reset()

    async with workers(script, hello) as [first, second], routed(first, second) as router:
        for _ in range(8):
            assert (await ask(router, chat())).json == completion("hello")
        assert first.asked, "ties are random"


async def test_answer_of_known_length_that_breaks_closes_the_connection():
    async def script(_asked, wire):
        await wire.head(200, {"Content-Type": "audio/wav", "Content-Length": "1000"}, chunked=False)
        await wire.raw(b"RIFF")
        await asyncio.sleep(0.05)
        wire.reset()

    async with workers(script) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(request_bytes({"model": "m", "input": "x"}, "/v1/audio/speech"))
        await client.read_head()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.reader.readexactly(1000)
        await client.close()


async def test_idle_connection_that_the_worker_closed_costs_nobody_an_error():
    """C037: a reused connection that dies before any byte is replaced once; no request runs twice to its end."""

    async def answer_once(asked, wire):
        await hello(asked, wire)
        if len(worker.asked) % 2:
            wire.close()  # as the engine does after 5 s of silence: the router may or may not have noticed

    async with workers(answer_once) as [worker], routed(worker) as router:
        for _ in range(30):
            assert (await ask(router, chat())).status == 200
        assert len(worker.asked) == 30


async def test_connection_that_dies_as_it_is_reused_is_replaced_once():
    """The race itself: the worker reads the request on an old connection and closes without a byte."""

    async def dies_when_reused(asked, wire):
        port = wire.writer.get_extra_info("peername")[1]
        if port in seen:
            wire.close()
            return
        seen.add(port)
        await hello(asked, wire)

    seen: set[int] = set()
    async with workers(dies_when_reused) as [worker], routed(worker) as router:
        for number in range(1, 6):
            assert (await ask(router, chat())).status == 200
            assert sum(asked.finished and len(seen) > 0 for asked in worker.asked) >= number
        assert len(seen) == 5, "each second request took a new connection"
        assert not any(router.stats.retries.values()), "the worker itself was not given up"


@quickest_of_three
async def test_silent_worker_fails_over_within_the_first_byte_limit():
    """C019: a worker that accepts and never answers costs one deadline, then another answers."""

    async def silent(_asked, _wire):
        await asyncio.sleep(30)

    flags = ("--first-byte-timeout", "300ms")
    async with workers(silent, hello) as [bad, good], routed(bad, good, flags=flags) as router:
        for _ in range(24):
            started_s = time.monotonic()
            reply = await ask(router, chat(stream=True))
            assert (reply.status, reply.text()) == (200, "hello")
            in_time(time.monotonic() - started_s, 1.5)
            if bad.asked:
                break
        assert bad.asked[0].aborted or await until(lambda: bad.asked[0].aborted, "the silent worker is let go")
        assert router.stats.retries["first_byte_timeout"] == 1


async def test_stream_that_falls_silent_ends_with_an_error_event():
    async def script(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("x"))
        await asyncio.sleep(30)

    async with workers(script) as [worker], routed(worker, flags=("--idle-timeout", "300ms")) as router:
        reply = await ask(router, chat(stream=True))
        assert reply.text() == "x"
        assert reply.error()["code"] == "idle_timeout"
        assert router.stats.failures["idle_timeout"] == 1
        await until(lambda: worker.asked[0].aborted, "the worker is told to stop")


@pytest.mark.parametrize("stream", [True, False])
async def test_request_that_takes_too_long_is_ended(stream):
    async def endless(asked, wire):
        if asked.json.get("stream"):
            await wire.events_head()
        while True:
            if asked.json.get("stream"):
                await wire.event(chat_chunk("x"))
            await asyncio.sleep(0.05)

    async with workers(endless) as [worker], routed(worker, flags=("--total-timeout", "400ms")) as router:
        reply = await ask(router, chat(stream=stream))
        if stream:
            assert reply.error()["code"] == "total_timeout"
        else:
            assert (reply.status, reply.json["error"]["code"]) == (504, "total_timeout")
        assert router.stats.failures["total_timeout"] == 1


async def test_client_error_is_nobodys_fault():
    """C065: 4xx answers are made once, put no worker aside, and count neither good nor bad."""

    async def script(asked, wire):
        if asked.json.get("max_tokens") == 99:
            await wire.json(
                {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}, 400
            )
        else:
            await hello(asked, wire)

    async with workers(script, script) as made, routed(*made) as router:
        replies = await asyncio.gather(*(ask(router, chat(max_tokens=99 if n % 5 == 0 else 1)) for n in range(250)))
        assert sorted(reply.status for reply in replies) == [200] * 200 + [400] * 50
        assert len(router.service.snapshot.mixed) == 2
        assert all(worker.health.failures == 0 and worker.health.sound for worker in router.table.workers.values())
        assert router.verdicts() == {"good": 200, "bad": 0, "abandoned": 0}
        assert router.stats.responses[400] == 50
        assert not any(router.stats.failures.values())


async def test_client_error_within_a_stream_is_nobodys_fault():
    """C065: an error event with a code 4xx is passed on once, and counts neither good nor bad."""

    async def script(_asked, wire):
        await wire.events_head()
        await wire.event({"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}})
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(script, script) as made, routed(*made) as router:
        reply = await ask(router, chat(stream=True))
        assert (reply.status, reply.error()["message"]) == (200, "too long")
        assert len(reply.events()) == 2, "no second error event"
        await router.no_lease_is_left()
        assert sum(len(worker.asked) for worker in made) == 1
        assert router.verdicts() == {"good": 0, "bad": 0, "abandoned": 0}
        assert not any(router.stats.failures.values())


@pytest.mark.parametrize("told", ["client error", "end"])
async def test_stream_that_has_told_all_may_break_afterwards(told):
    """What counts has been said: no second error event, and the request is what it was before the connection broke."""

    async def script(_asked, wire):
        await wire.events_head()
        if told == "end":
            await wire.event(chat_chunk("x"))
            await wire.event("[DONE]")
        else:
            await wire.event({"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}})
        await asyncio.sleep(0.05)
        wire.reset()

    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, chat(stream=True))
        assert len(reply.events()) == (2 if told == "end" else 1)
        await router.no_lease_is_left()
        assert len(worker.asked) == 1
        assert router.verdicts() == {"good": 1 if told == "end" else 0, "bad": 0, "abandoned": 0}
        assert not any(router.stats.failures.values())


async def test_every_attempt_after_a_comment_gets_the_whole_request():
    """A comment opens the client's stream; an answer that does not fit into it is passed over with the request kept."""
    attempts = []

    async def script(asked, wire):
        attempts.append(asked.json["messages"])
        if len(attempts) == 1:
            await wire.events_head()
            await wire.chunk(b": waiting\n\n")
            await asyncio.sleep(0.05)
            wire.reset()
        elif len(attempts) == 2:
            await wire.json(completion("of the wrong kind"))
        else:
            await hello(asked, wire)

    async with workers(script, script, script) as made, routed(*made) as router:
        reply = await ask(router, chat(stream=True))
        assert (reply.text(), reply.error()) == ("hello", None)
        assert attempts == [chat()["messages"]] * 3


async def test_worker_that_refuses_connections_is_left_alone_and_comes_back():
    """C068: the second attempt goes elsewhere, a refusing worker gets few tries, and heals without help."""
    async with (
        workers(hello, hello) as [first, second],
        running("--workers", first.url, second.url, "--probe-interval", "10s") as router,
    ):
        await first.stop()
        for _ in range(50):
            assert (await ask(router, chat())).status == 200
        assert 1 <= router.stats.retries["connect"] <= 4, "left alone after a refusal"
        await first.start()
        before = len(first.asked)

        async def served() -> bool:
            await ask(router, chat())
            return len(first.asked) > before

        deadline_s = time.monotonic() + NEVER_S
        while not await served():
            assert time.monotonic() < deadline_s, "the healed worker is used again"
            await asyncio.sleep(0.05)
        await router.no_lease_is_left()


async def test_request_whose_only_worker_is_gone_waits_for_the_next():
    """The worker dies while the request waits in it; a replacement gets it; the client sees one whole answer."""

    async def die(_asked, wire):
        wire.reset()

    async with workers(die) as [worker], routed(worker, flags=("--hold-timeout", "8s")) as router:
        asking = asyncio.create_task(ask(router, chat(stream=True)))
        await until(lambda: worker.asked, "the worker got it")
        worker.script = hello
        await worker.stop()
        await until(lambda: not router.table.workers, "the worker is away")
        await worker.start()
        reply = await asking
        assert (reply.status, reply.text()) == (200, "hello")
        assert router.verdicts()["good"] == 1


async def test_anthropic_paths_get_anthropic_errors():
    async def script(_asked, wire):
        await wire.events_head()
        await wire.chunk(
            b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":5}}}\n\n'
        )
        await asyncio.sleep(0.05)
        wire.reset()

    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, chat(stream=True), "/v1/messages")
        assert reply.body.endswith(b"\n\n")
        event = reply.events()[-1]
        assert event["type"] == "error"
        assert event["error"].keys() == {"type", "message"}
        assert b"event: error\n" in reply.body
        refused = await ask(router, {"model": "unknown"}, "/v1/messages")
        assert refused.json["error"]["type"] == "not_found_error"


async def test_worker_whose_probes_time_out_is_taken_out_and_keeps_its_load():
    """C019, its last part: a stopped worker is taken out after a few probes; back, it is the same worker with its requests."""

    async def drip(_asked, wire):
        await wire.events_head()
        while True:
            await wire.event(chat_chunk("x"))
            await asyncio.sleep(0.02)

    async with workers(drip) as [worker], routed(worker) as router:
        router.process.discovery.timeout_s = 0.1
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True)))
        await client.read_head()
        (uid,) = router.table.workers
        worker.hung = True
        await until(lambda: not router.service.snapshot.mixed, "it is taken out")
        assert router.table.workers[uid].load.requests == 1, "its stream goes on"
        assert b"x" in await client.read_chunk()
        worker.hung = False
        await until(lambda: router.service.snapshot.mixed, "it is used again")
        assert list(router.table.workers) == [uid]
        client.leave()


async def test_client_that_reads_nothing_is_given_up():
    """A client that asked for a stream and then stalls holds its worker for no longer than it may take to send a request."""

    async def flood(_asked, wire):
        await wire.events_head()
        while True:
            await wire.event(chat_chunk("z" * 8192))

    async with workers(flood) as [worker], routed(worker, flags=("--client-request", "500ms")) as router:
        client = await router.connect()
        client.writer.transport.pause_reading()
        await client.send(request_bytes(chat(stream=True)))
        await until(lambda: worker.asked and worker.asked[0].aborted, "the worker is told to stop")
        assert router.verdicts()["abandoned"] == 1
        client.leave()


@quickest_of_three
async def test_the_first_request_after_a_spell_of_dropped_connections_is_served():
    """C007: packets to the only worker are dropped while many requests fail; nothing of that is left afterwards."""
    worker = ScriptedWorker()
    await worker.start()
    flags = ("--connect-timeout", "100ms", "--hold-timeout", "300ms", "--attempts", "1")
    try:
        async with routed(worker, flags=flags) as router:
            discovery = router.process.discovery
            discovery.timeout_s = 0.2
            assert (await ask(router, chat())).status == 200
            await worker.stop()
            with dropping(worker.port):
                replies = await asyncio.gather(*(ask(router, chat()) for _ in range(60)))
                assert {reply.status for reply in replies} <= {502, 503, 504}
                failures = discovery.failures
                await until(lambda: discovery.failures >= failures + 3, "probes go on, and fail")
            await worker.start()
            began_s = time.monotonic()
            await until(lambda: router.service.snapshot.by_uid, "a probe has found it again")
            in_time(time.monotonic() - began_s, 3)
            for _ in range(20):
                assert (await ask(router, chat())).status == 200
    finally:
        await worker.stop()


@contextmanager
def dropping(port: int):
    """A port whose queue of connections is full, so that the kernel drops every further SYN."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(0)
    waiting = []
    for _ in range(3):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        waiting.append(one)
    try:
        yield
    finally:
        for one in (*waiting, listener):
            one.close()
