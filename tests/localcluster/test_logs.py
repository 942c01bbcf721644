"""The log that was asked for is found, read from its end, and followed through all that happens to files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_localcluster.errors import NoSuchLogError
from forebay_localcluster.layout import Layout
from forebay_localcluster.logs import BLOCK_BYTES, find_logs, follow, last_lines, list_logs

PODS = (
    ("node-0", "default", "llama-decode-7f9c-x2x4q"),
    ("node-0", "default", "llama-prefill-55d8-aaaaa"),
    ("node-1", "other", "llama-decode-7f9c-bbbbb"),
)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "data")
    layout.make_folders()
    for program in ("etcd", "kube-apiserver"):
        layout.log(program).write_text(f"{program} speaks\n")
    for node, namespace, pod in PODS:
        folder = layout.nodes / node / "pods" / f"{namespace}_{pod}"
        folder.mkdir(parents=True)
        (folder / "engine.log").write_text("engine speaks\n")
    return layout


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("etcd", ["etcd"]),
        ("llama-decode-7f9c-x2x4q", ["default/llama-decode-7f9c-x2x4q/engine"]),
        ("other/llama-decode-7f9c-bbbbb", ["other/llama-decode-7f9c-bbbbb/engine"]),
        ("default/llama-prefill-55d8-aaaaa/engine", ["default/llama-prefill-55d8-aaaaa/engine"]),
        ("llama-decode", ["default/llama-decode-7f9c-x2x4q/engine", "other/llama-decode-7f9c-bbbbb/engine"]),
        ("default/llama", ["default/llama-decode-7f9c-x2x4q/engine", "default/llama-prefill-55d8-aaaaa/engine"]),
    ],
)
def test_a_log_is_found_by_program_pod_or_beginning(layout: Layout, query: str, names: list[str]):
    assert [log.name for log in find_logs(layout, query)] == names


def test_an_unknown_name_is_answered_with_those_there_are(layout: Layout):
    with pytest.raises(NoSuchLogError, match="nothing logs as 'kubelet'") as refusal:
        find_logs(layout, "kubelet")
    assert refusal.value.known[:2] == ("default/llama-decode-7f9c-x2x4q", "default/llama-prefill-55d8-aaaaa")
    assert "etcd" in refusal.value.known


def test_programs_are_listed_before_pods(layout: Layout):
    assert [log.name for log in list_logs(layout)][:2] == ["etcd", "kube-apiserver"]
    assert len(list_logs(layout)) == 5


@given(
    st.lists(st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=9), max_size=30),
    st.integers(0, 40),
)
def test_the_last_lines_are_those_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], count: int
):
    path = tmp_path_factory.mktemp("logs") / "x.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    assert last_lines(path, count) == (lines[-count:] if count else [])


def test_the_last_lines_of_a_large_file_are_read_across_blocks(tmp_path: Path):
    path = tmp_path / "x.log"
    lines = [f"{number} {'x' * 1000}" for number in range(3 * BLOCK_BYTES // 1000)]
    path.write_text("\n".join(lines) + "\n")
    assert last_lines(path, 100) == lines[-100:]


class Waits:
    """Stands in for sleeping: does the next thing that happens to the files, and ends the test when nothing does."""

    def __init__(self, events: Iterator[object]) -> None:
        self._events = events

    def __call__(self, _seconds: float) -> None:
        try:
            next(self._events)
        except StopIteration:
            raise EndOfTestError from None


class EndOfTestError(Exception):
    pass


def collected(layout: Layout, query: str, events: Iterator[object]) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    try:
        for line in follow(lambda: find_logs(layout, query), wait=Waits(events)):
            lines.append(line)  # noqa: PERF402 -- the lines so far matter when the iterator ends by an error
    except EndOfTestError:
        pass
    return lines


def test_following_gives_only_whole_lines_written_from_now_on(layout: Layout):
    log = layout.log("etcd")

    def events() -> Iterator[object]:
        with log.open("a") as file:
            yield file.write("one\ntw")
            file.flush()
            yield file.write("o\nthree\n")
            file.flush()
            yield

    assert collected(layout, "etcd", events()) == [("etcd", "one"), ("etcd", "two"), ("etcd", "three")]


def test_following_begins_anew_with_a_new_or_shortened_file(layout: Layout):
    log = layout.log("etcd")

    def events() -> Iterator[object]:
        yield log.write_text("short\n")
        log.rename(log.with_suffix(".old"))
        yield
        yield log.write_text("another file, longer than before\n")

    assert [line for _, line in collected(layout, "etcd", events())] == ["short", "another file, longer than before"]


def test_following_takes_up_pods_that_appear_later(layout: Layout):
    def events() -> Iterator[object]:
        folder = layout.nodes / "node-1" / "pods" / "default_llama-decode-7f9c-ccccc"
        folder.mkdir(parents=True)
        yield (folder / "engine.log").write_text("hello\n")

    found = collected(layout, "llama-decode", events())
    assert found == [("default/llama-decode-7f9c-ccccc/engine", "hello")]
