"""Telling a worker that hangs from one that is slow."""

import pytest

from forebay_router.health.frozen import LIMITS, Pulse, read_counters

QUIET_S, FROZEN_S, BLIND_S = LIMITS.quiet_s, LIMITS.still_s, LIMITS.blind_s
METRICS = b"""# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} %d
vllm:num_requests_running{engine="0"} 2.0
vllm:admission_rejections_total{reason="queue"} %d
http_requests_total{handler="/health"} %d
process_cpu_seconds_total %d
"""


def watched(*looks: tuple[float, int | None], moved_s: float = 0.0) -> Pulse:
    made = Pulse(moved_s)
    for now_s, counters in looks:
        made.look(counters, now_s)
    return made


def seconds(start: float, stop: float) -> list[float]:
    return [float(second) for second in range(int(start), int(stop) + 1)]


@pytest.mark.parametrize(
    ("looks", "now_s", "others_worked_s", "frozen"),
    [
        ([], 300.0, 299.0, False),
        ([(QUIET_S, 7)], QUIET_S, 0.0, False),
        ([(at, 7) for at in seconds(10, 24)], 24.0, 0.0, False),
        ([(at, 7) for at in seconds(10, 25)], 10 + FROZEN_S, 0.0, True),
        ([(at, int(at)) for at in seconds(10, 70)], 70.0, 69.0, False),
        ([(at, int(at) // 10) for at in seconds(10, 70)], 70.0, 69.0, False),
        ([(10.0, 7), *((at, None) for at in seconds(11, 25))], 25.0, 0.0, True),
        ([(at, None) for at in seconds(10, 59)], 59.0, 58.0, False),
        ([(at, None) for at in seconds(10, 61)], BLIND_S + 1, 59.0, True),
        ([(at, None) for at in seconds(10, 90)], 90.0, 0.0, False),
    ],
    ids=[
        "nobody has looked",
        "just quiet",
        "its counters stand still, not for long",
        "its counters stand still",
        "its counters move each second",
        "its counters move every ten seconds",
        "it showed counters once and does not answer any more",
        "it has no counters, and is not quiet for long",
        "it has no counters, is quiet for long, and others go on",
        "it has no counters, and nobody goes on",
    ],
)
def test_frozen(looks, now_s, others_worked_s, frozen):
    assert (watched(*looks).frozen(now_s, others_worked_s=others_worked_s) is not None) is frozen


def test_any_progress_ends_the_suspicion():
    made = watched(*((at, 7) for at in seconds(10, 40)))
    assert made.frozen(40.0, others_worked_s=0.0)
    made.move(40.5)
    assert made.frozen(41.0, others_worked_s=0.0) is None
    assert not made.quiet(50.0)
    made.look(7, 51.0)
    assert made.frozen(60.0, others_worked_s=0.0) is None, "it is looked at anew"


def test_found_within_the_documented_time():
    """C064: at most 60 s."""
    assert QUIET_S + FROZEN_S + 2 <= 30


def test_counters_are_the_core_s_own():
    """What the API process counts says nothing of the engine."""
    still = read_counters(METRICS % (5, 0, 1, 1))
    assert still is not None
    assert read_counters(METRICS % (5, 3, 900, 77)) == still
    assert read_counters(METRICS % (6, 0, 1, 1)) != still
    assert read_counters(b"python_info 1\n") is None
    assert read_counters(b"") is None
