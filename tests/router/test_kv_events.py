"""KV events over real sockets: subscribing, replaying, engines that restart and come back."""

import asyncio
import json
import re
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random

import msgspec
import pytest
import zmq
import zmq.asyncio

from forebay_router.control import metrics_text
from forebay_router.index.content import content_of
from forebay_router.kv_events import KvEvents, Source, read_sources
from forebay_router.tokens.encoder import Memory
from forebay_router.tokens.folder import load
from tests.router.harness import Running, ask, running, until
from tests.router.scripted import MODEL, completion, workers
from tests.router.tokens.vocabulary import text_of, write_folder

END = b"\xff" * 8
IDS = list(range(3000, 3160))
encode = msgspec.msgpack.Encoder().encode


class Publisher:
    """An engine's event sockets: PUB, and ROUTER for replays."""

    def __init__(self, *, topic_in_replay: bool = True) -> None:
        self.context = zmq.asyncio.Context()
        self.topic_in_replay = topic_in_replay
        self.kept: list[bytes] = []
        self.replays: list[int] = []
        self.port = 0

    async def open(self, port: int = 0) -> None:
        self.pub = self.context.socket(zmq.PUB)
        self.router = self.context.socket(zmq.ROUTER)
        for one in (self.pub, self.router):
            one.set(zmq.LINGER, 0)
        if port:
            self.pub.bind(f"tcp://127.0.0.1:{port}")
            self.router.bind(f"tcp://127.0.0.1:{port + 1}")
        else:
            port = self._bind_two()
        self.port = port
        self.answering = asyncio.create_task(self._answer())

    def _bind_two(self) -> int:
        """Two neighbouring free ports."""
        for _ in range(50):
            port = self.pub.bind_to_random_port("tcp://127.0.0.1")
            try:
                self.router.bind(f"tcp://127.0.0.1:{port + 1}")
            except zmq.ZMQError:
                self.pub.unbind(f"tcp://127.0.0.1:{port}")
            else:
                return port
        raise AssertionError("no two neighbouring ports are free")

    async def _answer(self) -> None:
        while True:
            identity, _, start = await self.router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.replays.append(first)
            topic = [b"kv@somebody-else@m"] if self.topic_in_replay else []
            for number in range(first, len(self.kept)):
                if number == first and not topic:
                    await self.router.send_multipart([identity, b"", b"garbage"])
                await self.router.send_multipart([identity, b"", *topic, number.to_bytes(8, "big"), self.kept[number]])
            await self.router.send_multipart([identity, b"", *([b""] if topic else []), END, b""])

    def keep(self, *events: dict) -> tuple[int, bytes]:
        """A batch that is published to nobody."""
        payload = encode([1.0, list(events), 0])
        self.kept.append(payload)
        return len(self.kept) - 1, payload

    async def send(self, *events: dict) -> None:
        number, payload = self.keep(*events)
        await self.pub.send_multipart([b"kv@10.9.9.9@m", number.to_bytes(8, "big"), payload])

    async def close(self) -> None:
        self.answering.cancel()
        with suppress(asyncio.CancelledError):
            await self.answering
        self.pub.close()
        self.router.close()

    def destroy(self) -> None:
        self.context.destroy(linger=0)


def stored(first: int, last: int) -> dict:
    """Blocks first to last of IDS, named by their position."""
    return {
        "type": "BlockStored",
        "block_hashes": list(range(first + 1, last + 1)),
        "parent_block_hash": first or None,
        "token_ids": IDS[first * 16 : last * 16],
        "block_size": 16,
    }


async def answer(asked, wire):
    if asked.path == "/kv_event_sources":
        await wire.json({"detail": "Not Found"}, status=404)
    else:
        await wire.json(completion("fine"))


@asynccontextmanager
async def following(publisher: Publisher):
    """A router that follows one worker's events."""
    async with workers(answer) as scripted:
        flags = ("--workers", scripted[0].url, "--kv-events-port", str(publisher.port))
        async with running(*flags) as router:
            await until(lambda: router.process.kv_events.connected, "the subscription stands")
            yield router


@pytest.fixture(params=[True, False], ids=["topic in replay", "no topic in replay"])
async def publisher(request):
    made = Publisher(topic_in_replay=request.param)
    await made.open()
    yield made
    await made.close()
    made.destroy()


def known(router: Running) -> int:
    """Tokens of IDS that the worker is known to hold."""
    found = router.process.router.tools.placing.index.precise.match([*IDS, 1])
    return next(iter(found.values()), 0)


async def test_events_are_followed_and_what_was_stored_before_is_replayed(publisher):
    """C082, C083: replays with and without a topic, a malformed message among them, topics that name somebody else."""
    publisher.keep(stored(0, 2))
    async with following(publisher) as router:
        await until(lambda: known(router) == 32, "the replay is applied")
        await publisher.send(stored(2, 4))
        await until(lambda: known(router) == 64, "live events are applied")
        assert publisher.replays == [0]
        assert router.process.kv_events.counts.malformed == (0 if publisher.topic_in_replay else 1)


async def test_a_gap_is_filled_by_a_replay(publisher):
    async with following(publisher) as router:
        await until(lambda: publisher.replays == [0], "the first replay is asked for")
        await publisher.send(stored(0, 1))
        await until(lambda: known(router) == 16, "the first event is applied")
        publisher.keep(stored(1, 2))
        await publisher.send(stored(2, 3))
        await until(lambda: known(router) == 48, "the gap is filled")
        assert publisher.replays == [0, 1]
        assert router.process.kv_events.counts.gaps == 1


async def test_an_engine_that_begins_its_numbers_again_has_lost_its_cache(publisher):
    """C080: the same connection, numbers from 0."""
    async with following(publisher) as router:
        await until(lambda: publisher.replays == [0], "the first replay is asked for")
        for at in range(3):
            await publisher.send(stored(at, at + 1))
        await until(lambda: known(router) == 48, "events are applied")
        publisher.kept.clear()
        await publisher.send({"type": "AllBlocksCleared"})
        await until(lambda: router.process.kv_events.counts.restarts == 1, "the restart is seen")
        assert known(router) == 0


async def test_an_engine_that_went_away_is_followed_again(publisher):
    async with following(publisher) as router:
        await publisher.send(stored(0, 3))
        await until(lambda: known(router) == 48, "events are applied")
        await publisher.close()
        await until(lambda: not router.process.kv_events.connected, "the broken connection is seen")
        assert known(router) == 0
        publisher.kept.clear()
        publisher.keep(stored(0, 1))
        await publisher.open(publisher.port)
        await until(lambda: known(router) == 16, "the new engine's cache is known")


async def test_requests_with_token_ids_are_sent_where_events_say():
    """Two workers; the router itself has sent nothing yet."""
    publisher = Publisher()
    await publisher.open()
    sources = {"0": {"endpoint": f"tcp://*:{publisher.port}", "replay_endpoint": f"tcp://*:{publisher.port + 1}"}}

    async def tells(asked, wire):
        if asked.path == "/kv_event_sources":
            await wire.json(sources)
        else:
            await wire.json(completion("fine"))

    publisher.keep(stored(0, 10))
    try:
        async with workers(answer, tells, answer) as scripted:
            flags = ("--workers", *(one.url for one in scripted), "--kv-events-port", "1")
            async with running(*flags) as router:
                await until(lambda: known(router) == 160, "the cache is known")
                for _ in range(4):
                    await ask(router, {"model": MODEL, "prompt": [*IDS, 1, 2, 3], "max_tokens": 1}, "/v1/completions")
                paths = [[asked.path for asked in one.asked] for one in scripted]
                assert [told.count("/v1/completions") for told in paths] == [0, 4, 0]
    finally:
        await publisher.close()
        publisher.destroy()


async def test_texts_are_sent_where_events_say_if_the_tokenizer_is_given(tmp_path):
    """Chats and completions, of which this router has sent nothing yet; events tell token ids only."""
    folder = write_folder(tmp_path)
    encoder = load(folder, Memory(1 << 20)).encoder
    text = text_of(100, Random(9))
    chat = encoder.encode(f"<|im_start|>user\n{text} and more", framed=False)[:64]
    plain = encoder.encode(text, framed=True)[:64]
    publisher = Publisher()
    await publisher.open()
    for first, ids in ((1, chat), (101, plain)):
        names = list(range(first, first + 4))
        event = {"type": "BlockStored", "block_hashes": names, "parent_block_hash": None, "block_size": 16}
        publisher.keep({**event, "token_ids": ids.tolist()})
    sources = {"0": {"endpoint": f"tcp://*:{publisher.port}", "replay_endpoint": f"tcp://*:{publisher.port + 1}"}}

    async def tells(asked, wire):
        await wire.json(sources if asked.path == "/kv_event_sources" else completion("fine"))

    try:
        async with workers(answer, tells, answer) as scripted:
            flags = (
                "--workers",
                *(one.url for one in scripted),
                "--kv-events-port",
                "1",
                "--tokenizer",
                f"{MODEL}={folder}",
            )
            async with running(*flags) as router:
                precise = router.process.router.tools.placing.index.precise
                await until(lambda: 64 in precise.match([*chat, 1]).values(), "the cache is known")
                router.process.router.tools.placing.tokenizers.wait_s = 5.0
                messages = [{"role": "user", "content": f"{text} and more, then something else"}]
                for _ in range(3):
                    await ask(router, {"model": MODEL, "messages": messages, "max_tokens": 1})
                    await ask(
                        router, {"model": MODEL, "prompt": f"{text} and an end", "max_tokens": 1}, "/v1/completions"
                    )
                told = [sum(asked.path.startswith("/v1/c") for asked in one.asked) for one in scripted]
                assert told == [0, 6, 0]
                explained = await ask(
                    router, {"model": MODEL, "messages": messages}, headers={"x-forebay-explain": "1"}
                )
                choice = json.loads(explained.headers["x-forebay-explain"])
                ids = encoder.encode(
                    f"<|im_start|>user\n{messages[0]['content']}<|im_end|>\n<|im_start|>assistant\n", framed=False
                )
                assert choice["prompt_tokens"] == len(ids)
                assert choice["predicted"]["uncached_tokens"] == len(ids) - 64
                assert router.process.router.tools.placing.tokenizers.counts.exact == 7
    finally:
        await publisher.close()
        publisher.destroy()


# -- feeds that are cut, engines that move ----------------------------------------------------------------------------


class Cable:
    """A TCP connection to somewhere that can be cut without anybody being told."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.cut = False
        self.port = 0

    @asynccontextmanager
    async def laid(self):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _serve(self, reader, writer) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self.target)
        with suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(self._pass(reader, forth), self._pass(back, writer))
        forth.close()
        writer.close()

    async def _pass(self, reader, writer) -> None:
        while data := await reader.read(65536):
            if not self.cut:
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_a_feed_that_is_cut_is_found_and_a_quiet_one_is_left(monkeypatch):
    """C088: two workers publish; one's events stop on the way although it is alive, the other has nothing to say."""
    monkeypatch.setattr("forebay_router.process.KvEvents", partial(KvEvents, heartbeat_s=0.2, heartbeat_timeout_s=0.2))
    publisher, quiet = Publisher(), Publisher()
    await publisher.open()
    await quiet.open()

    def telling(events: int, replay: int):
        async def tells(asked, wire):
            ports = {"0": {"endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://*:{replay}"}}
            await wire.json(ports if asked.path == "/kv_event_sources" else completion("fine"))

        return tells

    try:
        async with Cable(publisher.port).laid() as cable:
            scripts = (telling(cable.port, publisher.port + 1), telling(quiet.port, quiet.port + 1))
            async with workers(*scripts) as scripted:
                flags = ("--workers", *(one.url for one in scripted), "--kv-events-port", "1")
                async with running(*flags, ready=False) as router:
                    await until(lambda: len(router.process.kv_events.connected) == 2, "both are followed")
                    await publisher.send(stored(0, 3))
                    await until(lambda: known(router) == 48, "events are applied")
                    body = {"model": MODEL, "prompt": [*IDS, 1, 2, 3], "max_tokens": 1}
                    await ask(router, body, "/v1/completions")
                    assert index_states(router) == {"precise": 2, "lost": 0, "distrusted": 0, "none": 0}
                    cable.cut = True
                    await until(lambda: index_states(router)["lost"] == 1, "the cut is found")
                    assert index_states(router) == {"precise": 1, "lost": 1, "distrusted": 0, "none": 0}
                    assert known(router) == 0
                    look_up = router.process.router.tools.placing.index.look_up
                    held = look_up(str(router.service.spec.key), content_of(body)).cached
                    assert max(held.values()) >= 150, "what was sent there counts"
                    cable.cut = False
                    await until(lambda: known(router) == 48, "the worker is followed again")
                    assert index_states(router)["lost"] == 0
    finally:
        for one in (publisher, quiet):
            await one.close()
            one.destroy()


def index_states(router: Running) -> dict[str, int]:
    """Workers by how their caches are known, as the metrics say."""
    text = metrics_text(router.process.router, router.process.discovery, router.process.kv_events).decode()
    found = re.findall(r'^forebay_router_cache_index_workers\{.*state="(\w+)"\} (\d+)', text, re.MULTILINE)
    return {state: int(count) for state, count in found}


async def test_an_engine_that_comes_back_on_other_ports_is_found_there():
    """A container that restarts in its pod: the same worker, but it bound any free port."""
    publisher = Publisher()
    await publisher.open()

    async def tells(asked, wire):
        ports = {"0": {"endpoint": f"tcp://*:{publisher.port}", "replay_endpoint": f"tcp://*:{publisher.port + 1}"}}
        await wire.json(ports if asked.path == "/kv_event_sources" else completion("fine"))

    publisher.keep(stored(0, 3))
    try:
        async with workers(tells) as scripted, running("--workers", scripted[0].url, "--kv-events-port", "1") as router:
            await until(lambda: known(router) == 48, "the cache is known")
            await publisher.close()
            await until(lambda: known(router) == 0, "the broken connection is seen")
            publisher.kept.clear()
            publisher.keep(stored(0, 1))
            await publisher.open()
            await until(lambda: known(router) == 16, "the new engine's cache is known")
    finally:
        await publisher.close()
        publisher.destroy()


async def test_an_engine_that_restarts_without_a_replay_socket_has_lost_its_cache():
    """C080 as it was reported: numbers from 0 again, no replay endpoint."""
    publisher = Publisher()
    await publisher.open()

    async def tells(asked, wire):
        told = {"0": {"endpoint": f"tcp://*:{publisher.port}", "replay_endpoint": None}}
        await wire.json(told if asked.path == "/kv_event_sources" else completion("fine"))

    try:
        async with workers(tells) as scripted, running("--workers", scripted[0].url, "--kv-events-port", "1") as router:
            await until(lambda: router.process.kv_events.connected, "the subscription stands")
            feed_reached = {
                "type": "BlockStored",
                "block_hashes": [99],
                "parent_block_hash": None,
                "token_ids": [5],
                "block_size": 1,
            }
            while not router.process.kv_events.counts.messages:  # sent into the void until the subscription is heard of
                await publisher.send(feed_reached)
                await asyncio.sleep(0.02)
            for at in range(3):
                await publisher.send(stored(at, at + 1))
            await until(lambda: known(router) == 48, "events are applied")
            publisher.kept.clear()
            await publisher.send(stored(0, 1))
            await until(lambda: router.process.kv_events.counts.restarts == 1, "the restart is seen")
            assert known(router) == 16
            assert not publisher.replays
    finally:
        await publisher.close()
        publisher.destroy()


def test_sources_are_read_under_the_workers_address():
    told = b"""{"0": {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://0.0.0.0:5560", "topic": ""},
        "1": {"endpoint": "tcp://[::]:5558", "replay_endpoint": null}, "x": {"endpoint": "tcp://*:1"}, "\xc2\xb2": {"endpoint": "tcp://*:1"},
        "999999999": {"endpoint": "tcp://*:1"}, "5": {"endpoint": "tcp://[:1"}, "2": {"endpoint": "ipc:///x"},
        "3": {"endpoint": "tcp://*:99999"}, "4": 5}"""
    assert read_sources(told, "10.0.0.7") == (
        Source(0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5560"),
        Source(1, "tcp://10.0.0.7:5558", None),
    )
    assert read_sources(b"{}", "h") == read_sources(b"[", "h") == read_sources(b"[]", "h") == ()
