"""Log lines as a log store reads them."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from forebay_operator.handlers import kopf_settings
from forebay_operator.logs import RETRY_LINES_EVERY, about, set_up_logging


@pytest.fixture
def written(monkeypatch) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    root = logging.getLogger()
    kept, level = list(root.handlers), root.level
    monkeypatch.setattr("sys.stderr", stream)
    set_up_logging(level="INFO", log_format="json")
    yield stream
    root.handlers[:] = kept
    root.setLevel(level)


def lines(written: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_a_line_names_its_object(written):
    logging.getLogger("forebay").warning(
        "reconciliation failed", extra=about("WorkerPool", "team", "chat-mixed", retry_after_s=2)
    )
    (line,) = lines(written)
    assert {
        key: line[key] for key in ("level", "message", "kind", "namespace", "name", "retry_after_s", "component")
    } == {
        "level": "WARNING",
        "message": "reconciliation failed",
        "kind": "WorkerPool",
        "namespace": "team",
        "name": "chat-mixed",
        "retry_after_s": 2,
        "component": "operator",
    }
    assert line["time"].endswith("+00:00")


def test_kopfs_lines_name_their_object_the_same_way(written):
    reference = {"apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "w", "uid": "u"}
    logging.getLogger("kopf.objects").error("handler failed", extra={"k8s_ref": reference, "settings": kopf_settings()})
    (line,) = lines(written)
    assert (line["kind"], line["namespace"], line["name"]) == ("Pod", "team", "w")


def test_a_watch_that_cannot_connect_is_told_now_and_then(written):
    for attempt in range(1, 2 * RETRY_LINES_EVERY + 1):
        logging.getLogger("kopf._cogs.clients.watching").error(
            "Request attempt #%d/304 failed; will retry: GET x", attempt
        )
    assert [line["level"] for line in lines(written)] == ["WARNING", "WARNING"]


def test_an_exception_is_one_line_with_its_trace(written):
    logging.getLogger("forebay").error("it failed", exc_info=ValueError("boom"))
    (line,) = lines(written)
    assert "ValueError: boom" in line["exception"]
