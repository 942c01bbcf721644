"""What of a log is sent."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_simulator.node.log_server import LogRequest, parse_request, tail_offset


@pytest.mark.parametrize(
    ("target", "request_"),
    [
        ("/containerLogs/ns/pod/main", LogRequest("ns", "pod", "main")),
        (
            "/containerLogs/ns/pod/main?follow=true&previous=true&tailLines=5&limitBytes=9&timestamps=true",
            LogRequest("ns", "pod", "main", follow=True, previous=True, tail_lines=5, bytes_max=9),
        ),
        ("/containerLogs/ns/pod", None),
        ("/exec/ns/pod/main", None),
        ("/containerLogs/..%2F..%2Fetc/pod/main", None),
        ("/containerLogs/../pod/main", None),
    ],
)
def test_requests_are_read_and_nothing_else_is_served(target: str, request_: LogRequest | None):
    assert parse_request(target) == request_


def test_the_previous_run_has_a_file_of_its_own():
    assert LogRequest("ns", "pod", "main").file == Path("ns_pod/main.log")
    assert LogRequest("ns", "pod", "main", previous=True).file == Path("ns_pod/main.previous.log")


@given(
    st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=20),
    st.integers(0, 25),
    st.booleans(),
)
def test_the_tail_is_whole_lines(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], count: int, ended: bool):  # noqa: FBT001
    path = tmp_path_factory.mktemp("log") / "log"
    text = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    path.write_bytes(text)
    kept = [part + b"\n" for part in text.split(b"\n")]
    kept[-1] = kept[-1][:-1]
    if not kept[-1]:
        kept.pop()
    expected = b"".join(kept[-count:]) if count else b""
    assert text[tail_offset(path, count) :] == expected
