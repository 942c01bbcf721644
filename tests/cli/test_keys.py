"""`forebay keys new` and the router's key file fit together."""

import subprocess
import sys
from pathlib import Path

from forebay_router.tenancy.keys import Bounds, read_keys


def made(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "forebay_cli", "keys", "new", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)


def test_entries_appended_to_a_file_let_the_keys_in_and_hold_none_of_them(tmp_path: Path):
    path = tmp_path / "keys.yaml"
    first = made("--tenant", "team-a")
    second = made(
        "--tenant=team-b", "--name=ci", "--model=m", "--model=n", "--requests-per-minute=60", "--tokens-per-minute=1000",
        "--max-in-flight=4", "--priority=low",
    )  # fmt: skip
    path.write_text("keys:\n" + first.stdout + second.stdout)
    ring = read_keys(path)
    keys = [run.stderr.strip().rpartition(" ")[2] for run in (first, second)]
    assert all(key.startswith("fb-") and len(key) == 46 for key in keys)
    assert not any(key in path.read_text() for key in keys)
    one, two = [ring.find(key.encode()) for key in keys]
    assert one is not None
    assert two is not None
    assert (one.tenant, one.key[:7], one.models, one.bounds) == ("team-a", "team-a-", None, Bounds())
    assert (two.key, two.models, two.priority_max) == ("ci", {"m", "n"}, -1)
    assert two.bounds == Bounds(requests_per_minute=60, tokens_per_minute=1000, in_flight_max=4)


def test_what_a_key_file_could_not_hold_is_refused_with_a_sentence():
    refused = made("--tenant", "team a", "--max-in-flight", "0")
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert "tenant: must be 1 to 63 letters" in refused.stderr
    assert "maxInFlight" in refused.stderr
    assert "fb-" not in refused.stderr


def test_a_file_that_is_begun_by_it_is_a_key_file(tmp_path: Path):
    """The first command of docs/security.md, on a file that is not there yet."""
    path = tmp_path / "keys.yaml"
    command = f"{sys.executable} -m forebay_cli keys new --tenant team-a"
    for _ in range(2):
        subprocess.run(f"{command} >> {path}", shell=True, capture_output=True, check=True, timeout=110)
    assert path.read_text().count("keys:") == 1
    assert len(read_keys(path).grants) == 2
