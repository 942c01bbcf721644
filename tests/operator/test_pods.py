"""The view of a worker pod."""

import pytest

from forebay_operator.pods import read_worker
from tests.operator.examples import NOW


def pod(phase: str = "Running", **annotations: str) -> dict:
    metadata = {"name": "w", "uid": "u", "creationTimestamp": "2026-01-01T12:00:00Z", "annotations": annotations}
    return {"metadata": metadata, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-01T12:00:00Z", NOW),
        ("2026-01-01T12:00:00", NOW),
        ("2026-01-01T12:00:00.000+00:00", NOW),
        ("now", None),
    ],
)
def test_a_mark_that_a_person_wrote_never_stops_the_plan(text, expected):
    """A time without a zone could not be compared with now."""
    assert read_worker(pod(**{"forebay.dev/drain-started": text})).drain_started_at == expected


@pytest.mark.parametrize(
    ("phase", "ended"), [("Running", False), ("Pending", False), ("Failed", True), ("Succeeded", True)]
)
def test_a_pod_that_has_ended_for_good_is_told_from_one_that_runs(phase, ended):
    made = read_worker(pod(phase))
    assert made.has_ended is made.is_terminating is ended
