"""Files that change while the router runs."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from forebay_router.followed import BadFileError, Followed, Kind, read_secret


@dataclass
class Taken:
    values: list[str] = field(default_factory=list)


def followed(path: Path, taken: Taken) -> Followed[str]:
    return Followed(Kind.WORKER_KEY, lambda: (path,), lambda: read_secret(path), taken.values.append)


async def test_what_has_not_changed_is_not_read_again_and_what_has_is(tmp_path):
    path, taken = tmp_path / "key", Taken()
    path.write_text("one")
    file = followed(path, taken)
    file.start()
    await file.look()
    assert (taken.values, file.reloads) == (["one"], 0)
    path.write_text("second\n")
    await file.look()
    await file.look()
    assert (taken.values, file.reloads, file.valid) == (["one", "second"], 1, True)


async def test_a_bad_change_is_told_once_and_undone_by_a_good_one(tmp_path, caplog):
    path, taken = tmp_path / "key", Taken()
    path.write_text("one")
    file = followed(path, taken)
    file.start()
    for spoil in (lambda: path.write_text("two words, secret"), path.unlink):
        spoil()
        await file.look()
        await file.look()
        assert not file.valid
    assert file.failures == 2
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "secret" not in caplog.text
    path.write_text("new")
    await file.look()
    assert (file.valid, taken.values) == (True, ["one", "new"])


async def test_nothing_that_goes_wrong_ends_the_following_or_tells_what_the_file_holds(tmp_path, caplog):
    path, taken = tmp_path / "key", Taken()
    path.write_text("one")

    def read() -> str:
        if (text := path.read_text()) == "secret":
            raise RecursionError(text)
        return text

    file = Followed(Kind.WORKER_KEY, lambda: (path,), read, taken.values.append)
    file.start()
    path.write_text("secret")
    await file.look()
    assert (file.valid, file.failures) == (False, 1)
    assert "worker_key: RecursionError" in caplog.text
    assert "secret" not in caplog.text
    path.write_text("another")
    await file.look()
    assert (file.valid, taken.values) == (True, ["one", "another"])


async def test_the_swap_of_a_link_is_a_change_though_the_path_stays(tmp_path):
    for version in ("1", "2"):
        folder = tmp_path / f"..{version}"
        folder.mkdir()
        (folder / "key").write_text(f"value-{version}")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "key").symlink_to("..data/key")
    taken = Taken()
    file = followed(tmp_path / "key", taken)
    file.start()
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    await file.look()
    assert taken.values == ["value-1", "value-2"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "must hold one key, on one line"),
        (b" \n", "must hold one key, on one line"),
        (b"a b", "must hold one key, on one line"),
        (b"a\nb", "must hold one key, on one line"),
        ("schl\u00fcssel".encode(), "plain ASCII"),
    ],
)
def test_a_secret_is_one_word_that_can_stand_in_a_header(tmp_path, content, says):
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(BadFileError, match=says):
        read_secret(path)
    with pytest.raises(BadFileError, match="gone: cannot be read: No such file"):
        read_secret(tmp_path / "gone")
