"""An answer as it comes, without a connection."""

from forebay_router import answer as answers
from forebay_router.answer import Answer
from forebay_router.errors import FailureReason
from tests.router.ear import Ear


def test_collected_answer_has_a_largest_size(monkeypatch):
    """Up to the limit it is kept as one piece; above it the connection is given up."""
    monkeypatch.setattr(answers, "COLLECTED_MAX_BYTES", 10)
    ear = Ear()
    answer = Answer(ear, now_s=0.0)
    answer.carrier = ear
    answer.collect_whole()
    answer.begin(200, [(b"content-type", b"application/json")], 0.0)
    answer.take_in(b"x" * 10, 0.0)
    assert (ear.opened, ear.ends) == (0, [])
    answer.take_in(b"x", 0.0)
    assert [failure.reason for failure in ear.ends if failure] == [FailureReason.BAD_ANSWER]
    assert (ear.opened, ear.let_go_of) == (0, 1)
    assert answer.take_buffered() == b""


def test_collected_answer_opens_when_it_is_complete():
    ear = Ear()
    answer = Answer(ear, now_s=0.0)
    answer.collect_whole()
    answer.begin(200, [(b"content-type", b"text/plain")], 0.0)
    answer.take_in(b"x" * (answers.WHOLE_MAX_BYTES + 1), 0.0)
    assert ear.opened == 0
    answer.finish()
    assert (ear.opened, ear.ends) == (1, [])
    assert len(answer.take_buffered()) == answers.WHOLE_MAX_BYTES + 1


def test_answer_tells_its_end_once():
    """Whatever comes after its end, or after it was given up, is nobody's business."""
    ear = Ear()
    answer = Answer(ear, now_s=0.0)
    answer.carrier = ear
    answer.begin(200, [(b"content-type", b"text/plain")], 0.0)
    answer.take_in(b"x", 0.0)
    answer.fail(FailureReason.RESET, "gone")
    answer.fail(FailureReason.CUT_OFF, "gone again")
    assert (ear.opened, [failure.reason for failure in ear.ends if failure]) == (1, [FailureReason.RESET])
    assert ear.let_go_of == 1
