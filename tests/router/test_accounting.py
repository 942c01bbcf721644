"""What a request comes to."""

import pytest

from forebay_api.objective import Objective, Outcome, Verdict
from forebay_router.accounting import Record, verdict_of
from forebay_router.endpoints import ENDPOINTS
from forebay_router.parsing import parse_request
from forebay_router.usage import Usage

OBJECTIVE = Objective(ttft_s=1.0, tpot_s=0.02, target=0.9)


def ended(*, choices: int, streamed: bool = True, seconds: float = 3.0) -> Record:
    """100 tokens a choice, side by side, first content after half a second."""
    record = Record(10.0)
    record.choices, record.streamed, record.outcome = choices, streamed, Outcome.FINISHED
    record.usage = Usage(7, 100 * choices, None)
    record.ended_s = 10.0 + seconds
    if streamed:
        record.first_content_s, record.last_content_s = 10.5, 10.0 + seconds
    return record


@pytest.mark.parametrize("choices", [1, 4])
def test_time_per_output_token_is_that_of_one_choice(choices):
    """Four answers that come side by side are not four times as fast."""
    record = ended(choices=choices)
    assert record.tpot_s == pytest.approx(2.5 / 99)
    assert verdict_of(record, OBJECTIVE) is Verdict.BAD


@pytest.mark.parametrize(("seconds", "verdict"), [(2.9, Verdict.GOOD), (3.1, Verdict.BAD)])
def test_bound_of_an_answer_that_is_not_streamed_is_that_of_one_choice(seconds, verdict):
    record = ended(choices=4, streamed=False, seconds=seconds)
    assert verdict_of(record, OBJECTIVE) is verdict


@pytest.mark.parametrize(
    ("body", "choices"),
    [
        (b'{"model":"m","prompt":"a"}', 1),
        (b'{"model":"m","prompt":"a","n":3}', 3),
        (b'{"model":"m","prompt":["a","b"],"n":3}', 6),
        (b'{"model":"m","prompt":[[1,2],[3]]}', 2),
        (b'{"model":"m","prompt":[1,2,3],"n":null}', 1),
        (b'{"model":"m","prompt":[],"n":true}', 1),
    ],
)
def test_choices_are_answers_of_each_prompt(body, choices):
    assert parse_request(ENDPOINTS[b"/v1/completions"], {}, body).choices == choices
