"""An answer as it comes, without a connection."""

import asyncio

import pytest

from forebay_router import answer as answers
from forebay_router.answer import Answer
from forebay_router.errors import FailureReason, WorkerFailure


async def test_collected_answer_has_a_largest_size(monkeypatch):
    """Up to the limit it is kept as one piece; above it the connection is given up."""
    monkeypatch.setattr(answers, "COLLECTED_MAX_BYTES", 10)
    answer = Answer(asyncio.get_running_loop(), now_s=0.0, scanner=None)
    ends = []
    answer.attach(lambda: ends.append(True))
    answer.collect_whole()
    answer.begin(200, [(b"content-type", b"application/json")], 0.0)
    answer.take_in(b"x" * 10, 0.0)
    assert not answer.opened.done()
    answer.take_in(b"x", 0.0)
    with pytest.raises(WorkerFailure) as caught:
        await answer.opened
    assert caught.value.reason is FailureReason.BAD_ANSWER
    assert ends == [True]
    assert answer.take_buffered() == b""


async def test_collected_answer_opens_when_it_is_complete():
    answer = Answer(asyncio.get_running_loop(), now_s=0.0, scanner=None)
    answer.collect_whole()
    answer.begin(200, [(b"content-type", b"text/plain")], 0.0)
    answer.take_in(b"x" * (answers.WHOLE_MAX_BYTES + 1), 0.0)
    assert not answer.opened.done()
    answer.finish()
    await answer.opened
    assert len(answer.take_buffered()) == answers.WHOLE_MAX_BYTES + 1
