"""Tokenising off the loop: requests wait for it a little, never for long, and never fail of it."""

import asyncio
import threading

import pytest

from forebay_router.endpoints import ENDPOINTS
from forebay_router.index.events import Batch
from forebay_router.index.precise import PreciseIndex
from forebay_router.parsing import CONTENT_MIN_BYTES, ParsedRequest, parse_request
from forebay_router.tokens import tokenizers as module
from forebay_router.tokens.tokenizers import QUEUE_MAX, Tokenizers
from tests.router.harness import until
from tests.router.tokens.vocabulary import write_folder
from tests.support.bounds import NEVER_S, in_time, quickest_of_three

CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "the router sends"}]}'


@pytest.fixture
def tokenizers(tmp_path):
    index = PreciseIndex()
    index.apply("w", Batch((), 0))
    made = Tokenizers.load({"m": write_folder(tmp_path)}, index)
    yield made
    made.close()


def request(body: bytes = CHAT, path: bytes = b"/v1/chat/completions") -> ParsedRequest:
    """A request whose body is long enough to have any content that a cache could hold."""
    return parse_request(ENDPOINTS[path], {}, body.ljust(CONTENT_MIN_BYTES))


async def test_a_chats_tokens_are_told(tokenizers):
    parsed = request()
    assert tokenizers.wants(parsed, ("other", "m"))
    await tokenizers.tell(parsed, ("other", "m"))
    text = "<|im_start|>user\nthe router sends<|im_end|>\n<|im_start|>assistant\n"
    assert parsed.content.token_ids == tokenizers.models["m"].encoder.encode(text, framed=False)
    assert not parsed.content.of_ids
    assert tokenizers.counts.exact == 1


@pytest.mark.parametrize(
    ("body", "path", "models"),
    [
        (CHAT, b"/v1/chat/completions", ("other",)),
        (b'{"model": "m", "prompt": [1, 2, 3]}', b"/v1/completions", ("m",)),
        (b'{"model": "m", "input": "x"}', b"/v1/responses", ("m",)),
        (CHAT, b"/v1/messages", ("m",)),
        (b'{"model": "m", "prompt": "x"}', b"/tokenize", ("m",)),
    ],
    ids=["another model", "token ids", "responses", "messages", "no answer to predict"],
)
def test_other_requests_are_not_wanted(tokenizers, body, path, models):
    assert not tokenizers.wants(request(body, path), models)


def test_nothing_is_tokenised_while_no_worker_publishes(tokenizers):
    tokenizers.index.drop_worker("w")
    assert not tokenizers.wants(request(), ("m",))


async def test_what_only_the_engine_can_tokenise_is_counted(tokenizers):
    parsed = request(CHAT.replace(b'"model"', b'"chat_template": "x", "model"'))
    await tokenizers.tell(parsed, ("m",))
    assert parsed.content.token_ids is None
    assert tokenizers.counts.other == 1


async def test_a_fault_in_the_thread_costs_a_prediction_only(tokenizers, monkeypatch, caplog):
    monkeypatch.setattr(module, "prompt_of", lambda *_: 1 / 0)
    parsed = request()
    await tokenizers.tell(parsed, ("m",))
    assert parsed.content.token_ids is None
    assert "could not be tokenised" in caplog.text


async def test_nobody_waits_long_or_behind_many(tokenizers, monkeypatch):
    """A thread that is busy: the first waits its time, the others find the queue full; afterwards all is as before."""
    release, plain = threading.Event(), module.prompt_of

    def held(*arguments):
        release.wait(2 * NEVER_S)
        return plain(*arguments)

    monkeypatch.setattr(module, "prompt_of", held)
    tokenizers.wait_s = 0.01
    try:
        parsed = [request() for _ in range(QUEUE_MAX + 10)]
        await asyncio.gather(*(tokenizers.tell(one, ("m",)) for one in parsed))
        assert all(one.content.token_ids is None for one in parsed)
        assert tokenizers.counts.late == QUEUE_MAX + 10
    finally:
        release.set()
    tokenizers.wait_s = 5
    await until(lambda: not tokenizers._queued, "the thread has caught up")
    await tokenizers.tell(parsed[0], ("m",))
    assert parsed[0].content.token_ids is not None


async def test_a_client_that_leaves_meanwhile_leaves_nothing(tokenizers, monkeypatch):
    release, plain = threading.Event(), module.prompt_of
    monkeypatch.setattr(module, "prompt_of", lambda *arguments: (release.wait(5), plain(*arguments))[1])
    tokenizers.wait_s = 5
    telling = asyncio.create_task(tokenizers.tell(request(), ("m",)))
    await asyncio.sleep(0)
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling
    release.set()
    await tokenizers.tell(request(), ("m",))
    assert tokenizers._queued == 0


@quickest_of_three
async def test_the_loop_turns_while_the_thread_is_stuck_and_requests_go_on_without_tokens(tokenizers, monkeypatch):
    """C071: fifty requests at once, a tokenizer that takes a second; the router's health page would not wait."""
    release, running = threading.Event(), []

    def held(*_arguments):
        running.append(threading.current_thread().name)
        release.wait(2 * NEVER_S)
        raise module.NotTokenisableError("never")

    monkeypatch.setattr(module, "prompt_of", held)
    loop = asyncio.get_running_loop()
    lags = []

    async def health() -> None:
        while True:
            began_s = loop.time()
            await asyncio.sleep(0.01)
            lags.append(loop.time() - began_s)

    watching = asyncio.create_task(health())
    began_s = loop.time()
    try:
        await asyncio.gather(*(tokenizers.tell(request(), ("m",)) for _ in range(50)))
        in_time(loop.time() - began_s, 1)
        assert len(running) == 1, "one at a time, off the loop"
        before = len(lags)
        await until(lambda: len(lags) > before, "the loop turns again")
        in_time(max(lags), 0.2)
    finally:
        watching.cancel()
        release.set()
        await until(lambda: not tokenizers._queued, "the thread has caught up")


def test_files_are_read_at_the_start_and_never_fetched(tmp_path):
    """C071: what is not there ends the program with the name of the file; no request waits for it, nobody asks a hub."""
    with pytest.raises(ValueError, match="tokenizer"):
        Tokenizers.load({"m": tmp_path / "absent"}, PreciseIndex())
