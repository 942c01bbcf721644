"""The definition of a good request, in one place.

A request is *good* when it finished without error, its time to first token (TTFT) is at most `ttft_s` and its mean time per
output token (TPOT) is at most `tpot_s`. It is *bad* when it was rejected, failed or cut off, or missed either bound. It is
*abandoned* when the client left before the end; it then counts in neither. Goodput is good requests per second; attainment is
good / (good + bad), and unknown (None) when there was neither.

    TTFT = first content (text, reasoning or tool call) - arrival at the router
    TPOT = (last content - first content) / (output tokens - 1);  undefined for answers of one token, which cannot miss it

The router judges live requests with it, the load generator the ones it sent, and the simulator the ones it simulated.
"""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a request ended, before any objective is looked at."""

    FINISHED = "finished"
    REJECTED = "rejected"
    FAILED = "failed"
    CUT_OFF = "cut_off"
    CLIENT_LEFT = "client_left"


class Verdict(StrEnum):
    """What a request counts as."""

    GOOD = "good"
    BAD = "bad"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class Objective:
    """What a model service promises; a service-level objective over single requests."""

    ttft_s: float
    """Largest time to first token of a good request, seconds."""
    tpot_s: float
    """Largest mean time per output token of a good request, seconds."""
    target: float
    """Share of requests that must be good, in (0, 1]."""

    def __post_init__(self) -> None:
        """Refuse what no request could be measured against."""
        if not self.ttft_s > 0:
            raise ValueError(f"objective.ttft must be above zero, got {self.ttft_s} s")
        if not self.tpot_s > 0:
            raise ValueError(f"objective.tpot must be above zero, got {self.tpot_s} s")
        if not 0 < self.target <= 1:
            raise ValueError(f"objective.target must be in (0, 1], got {self.target}")


def judge(outcome: Outcome, ttft_s: float | None, tpot_s: float | None, objective: Objective) -> Verdict:
    """Verdict on one request.

    `ttft_s` is None when no content ever came: a finished request without content is judged on the outcome alone. `tpot_s`
    is None when it is undefined (fewer than two output tokens).
    """
    if outcome is Outcome.CLIENT_LEFT:
        return Verdict.ABANDONED
    if outcome is not Outcome.FINISHED:
        return Verdict.BAD
    if ttft_s is not None and ttft_s > objective.ttft_s:
        return Verdict.BAD
    if tpot_s is not None and tpot_s > objective.tpot_s:
        return Verdict.BAD
    return Verdict.GOOD


def time_per_output_token_s(first_content_s: float, last_content_s: float, output_tokens: int | None) -> float | None:
    """Mean time per output token, or None where it is undefined or the token count is unknown."""
    if output_tokens is None or output_tokens < 2:
        return None
    return (last_content_s - first_content_s) / (output_tokens - 1)


def attainment(good: float, bad: float) -> float | None:
    """Share of good among judged requests; None when nothing was judged (unknown is not zero, nor is it one)."""
    judged = good + bad
    return good / judged if judged > 0 else None
