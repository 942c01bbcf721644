"""The replay command, from its flags to its table and its file."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_autoscaler.history_file import HistoryFile
from forebay_cli.__main__ import app
from forebay_cli.errors import CliError
from forebay_cli.replay_standing import with_standing
from forebay_simulator.fleet.spec import FleetSpec, PoolSpec
from tests.autoscaler.test_history_file import records

DATA = Path(__file__).resolve().parent.parent / "data" / "traces"
CONVERSATION = str(DATA / "mooncake_fast25_conversation.jsonl.gz")
SHORT = ["--trace", CONVERSATION, "--tick", "3s", "--first", "60s", "--block-size", "512", "--ttft", "2s"]


def replayed(*flags: str) -> str:
    result = CliRunner().invoke(app, ["replay", *flags], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_policies_are_compared_in_a_table():
    shown = replayed(*SHORT, "--workers", "4", "-r", "round-robin", "-r", "forebay", "--seeds", "2")
    assert "mooncake_fast25_conversation.jsonl.gz" in shown
    assert "2 seeds" in shown
    lines = shown.splitlines()
    headings = next(line for line in lines if line.startswith("policy"))
    assert "attainment %" in headings
    assert [line.split()[0] for line in lines[lines.index(headings) + 1 :] if line.strip()] == [
        "round-robin",
        "forebay",
    ]


def test_the_document_has_each_seed_and_is_written(tmp_path):
    file = tmp_path / "build" / "run.json"
    shown = replayed(*SHORT, "--prefill", "2", "--decode", "2", "--seeds", "2", "-o", "json", "--write", str(file))
    found = orjson.loads(file.read_bytes())
    assert found == json.loads(shown)
    (policy,) = found["policies"]
    assert policy["policy"] == "forebay"
    assert [one["seed"] for one in policy["seeds"]] == [1, 2]
    assert 0 < policy["summary"]["attainment"]["mean"] <= 1
    assert found["objective"] == {"ttft_s": 2.0, "tpot_s": 0.025, "target": 0.95}


def test_a_page_has_every_policy_and_needs_nothing_else(tmp_path):
    page = tmp_path / "deep" / "page.html"
    flags = ["-r", "least-load", "-s", "forebay", "-s", "static", "-s", "clairvoyant", "--seeds", "2", "--jobs", "2"]
    shown = replayed(*SHORT, "--first", "12s", "--workers", "8", *flags, "--html", str(page))
    assert "over bound %" in shown
    text = page.read_text()
    assert text.count("<svg") == 2
    assert 'class="ours"' in text
    assert 'class="bound"' in text
    assert not re.search(r"<script|<link|<img|@import|src=|url\((?!#)", text)


STANDING = [
    *SHORT,
    "--first",
    "300s",
    "--rate",
    "0.2",
    "--startup",
    "5s",
    "-s",
    "forebay",
    "--seeds",
    "1",
    "-o",
    "json",
]


def summary(*flags: str) -> dict[str, float]:
    (policy,) = json.loads(replayed(*STANDING, *flags))["policies"]
    return {name: value["mean"] for name, value in policy["summary"].items() if value is not None}


def test_a_price_is_what_the_fleets_hours_cost():
    found = summary("--workers", "2", "--price", "3", "--price", "mixed=2.5")
    assert found["cost"] == pytest.approx(2.5 * found["gpu_hours"])


def test_a_spare_and_a_schedule_are_workers_that_are_there_though_nothing_asks_for_them():
    """The window is the first minutes of the run, whose clock begins at 07:58; a window at another time changes nothing."""
    plain = summary("--workers", "2")
    assert summary("--workers", "2", "--spare", "2")["gpu_hours"] > plain["gpu_hours"]
    inside = summary("--workers", "2", "--schedule", "6@08:00-08:04", "--begins", "07:58")
    assert inside["gpu_hours"] > 1.5 * plain["gpu_hours"]
    outside = summary("--workers", "2", "--schedule", "6@20:00-21:00", "--begins", "07:58")
    assert outside["gpu_hours"] == plain["gpu_hours"]


def test_pools_of_a_split_fleet_are_told_one_by_one():
    fleet = FleetSpec(
        pools=(
            PoolSpec(name="prefill", role=Role.PREFILL, replicas=1),
            PoolSpec(name="decode", role=Role.DECODE, replicas=1),
        ),
        objective=Objective(1.0, 0.1, 0.9),
    )
    made = with_standing(
        fleet,
        spares=["1", "decode=2"],
        schedules=["4@08:00-09:00", "prefill=6@22:00-02:00"],
        prices=["decode=2"],
    )
    prefill, decode = made.pools
    assert (prefill.spare, decode.spare) == (1, 2)
    assert (prefill.price_per_hour, decode.price_per_hour) == (None, 2.0)
    assert [(one.min, one.from_, one.to) for one in prefill.schedules] == [(4, "08:00", "09:00"), (6, "22:00", "02:00")]
    assert [one.name for one in decode.schedules] == ["schedule-1"]


def test_more_of_a_trace_is_more_requests():
    def requests(*flags: str) -> int:
        shown = replayed(*SHORT, "--first", "240s", "--seeds", "1", "-o", "json", *flags)
        return json.loads(shown)["policies"][0]["seeds"][0]["requests"]

    assert requests("--rate", "3") == pytest.approx(3 * requests(), rel=0.3)  # copies are of other minutes


def test_scenarios_are_listed():
    shown = replayed("--scenario", "list")
    assert "worker-loss" in shown
    assert "metrics-loss" in shown


TOLD = ["--trace", CONVERSATION, "-s", "forebay"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "name what to replay"),
        (["--scenario", "nowhere"], "--scenario 'nowhere' is none of ramp"),
        (["--scenario", "step", "-r", "best"], "--routing 'best' is none of random"),
        (["--scenario", "step", "-s", "best"], "--scaling 'best' is none of static"),
        (["--trace", "missing.jsonl"], "cannot read the trace missing.jsonl"),
        (["--trace", CONVERSATION, "--format", "yaml"], "--format is mooncake, azure or lmcache"),
        (["--trace", CONVERSATION, "--prefill", "2"], "--prefill and --decode go together"),
        (["--trace", CONVERSATION, "--model", "llama-3.1-70b"], "No available memory for the cache blocks"),
        (["--trace", CONVERSATION, "-o", "yaml"], "--output is table or json"),
        (["--trace", CONVERSATION, "--first", "0s"], "has no request within 0s"),
        (["--trace", CONVERSATION, "--first", "soon"], "'soon' is not a duration"),
        (["--trace", CONVERSATION, "--target", "2"], "objective.target must be in"),
        (
            ["--trace", CONVERSATION, "--block-size", "17", "--first", "9s"],
            "engine blocks of 17 tokens cannot be named",
        ),
        (["--trace", CONVERSATION, "--write", "/dev/null/run.json"], "/dev/null/run.json cannot be written"),
        (["--trace", CONVERSATION, "--html", "/"], "/ cannot be written: Is a directory"),
        (["--trace", CONVERSATION, "--workers", "16", "--prefill", "5", "--decode", "4"], "--workers are mixed ones"),
        (["--scenario", "step", "--budget", "4", "--ttft", "2s"], "--budget, --ttft: a scenario has its own"),
        (["--scenario", "step", "--trace", CONVERSATION], "--trace: a scenario has its own"),
        (["--scenario", "step", "--spare", "1", "--price", "2"], "--spare, --price: a scenario has its own"),
        ([*TOLD, "--spare", "one"], "--spare 'one' is not a number of workers: write --spare 1, or"),
        ([*TOLD, "--spare", "decode=1"], "--spare 'decode=1': 'decode' is no pool of this fleet, which has mixed"),
        ([*TOLD, "--price", "0"], "--price '0' is not a price of a GPU-hour"),
        ([*TOLD, "--price", "nan"], "--price 'nan' is not a price of a GPU-hour"),
        ([*TOLD, "--schedule", "08:00-09:00"], "--schedule '08:00-09:00' is not WORKERS@FROM-TO"),
        ([*TOLD, "--schedule", "8@08:00-25:00"], "--schedule '8@08:00-25:00' is not a schedule: to: must be a time"),
        ([*TOLD, "--schedule", "8@08:00-08:00"], "a schedule's from and to must differ"),
        ([*TOLD, "--schedule", "8@08:00-09:00", "--begins", "8 am"], "--begins '8 am' is not a time of day"),
        ([*TOLD, "--begins", "08:00"], "--begins: nothing but a --schedule goes by the clock"),
        (
            ["--trace", CONVERSATION, "--spare", "1", "--schedule", "8@08:00-09:00"],
            "--spare, --schedule: no other policy",
        ),
    ],
)
def test_what_cannot_be_done_is_a_sentence(flags, message):
    with pytest.raises(CliError, match=message):
        CliRunner().invoke(app, ["replay", *flags], catch_exceptions=False)


def test_a_run_that_fails_leaves_no_new_file_behind_and_an_old_one_as_it_was(tmp_path):
    new, old = tmp_path / "new.json", tmp_path / "old.html"
    old.write_text("<html>")
    flags = ["--trace", CONVERSATION, "--first", "0s", "--write", str(new), "--html", str(old)]
    with pytest.raises(CliError, match="has no request"):
        CliRunner().invoke(app, ["replay", *flags], catch_exceptions=False)
    assert not new.exists()
    assert old.read_text() == "<html>"


ROW = b'{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1]}\n'
PACKED = gzip.compress(ROW * 99, mtime=0)
"""Without the time of day, for it becomes a part of tests' names, and these are the same in every process that collects them."""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", b"", "empty has no request"),
        ("five.jsonl", ROW + b"5\n", "five.jsonl, line 2: must be a JSON object"),
        ("cut.jsonl.gz", PACKED[:-9], "cut.jsonl.gz: it is damaged"),
        ("bad.jsonl.gz", PACKED[:12] + b"x" * 40, "bad.jsonl.gz: it is damaged"),
        ("picture.jsonl", b"\xff\xd8\xff\n", "picture.jsonl: it is damaged"),
    ],
)
def test_a_trace_that_cannot_be_read_is_a_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CliError, match=message):
        CliRunner().invoke(app, ["replay", "--trace", str(tmp_path / name)], catch_exceptions=False)


@pytest.mark.parametrize("flag", ["--workers", "--block-size", "--tensor", "--seeds", "--jobs", "--rate", "--budget"])
def test_a_number_that_must_be_above_zero_is_refused(flag):
    result = CliRunner().invoke(app, ["replay", "--trace", CONVERSATION, flag, "0"])
    assert result.exit_code == 2
    assert f"Invalid value for '{flag}'" in result.output


def test_a_fault_of_the_simulators_is_not_told_as_the_users(monkeypatch):
    def broken(*_arguments, **_named):
        raise ValueError("a fault of ours")

    monkeypatch.setattr("forebay_cli.replay.compare", broken)
    with pytest.raises(ValueError, match="a fault of ours"):
        CliRunner().invoke(app, ["replay", *SHORT], catch_exceptions=False)


def history(tmp_path: Path) -> Path:
    file = HistoryFile(tmp_path / "decisions.jsonl", 10**7)
    file.add(records(45))
    return file.path


def test_recorded_decisions_are_made_again(tmp_path):
    shown = replayed("--from-history", str(history(tmp_path)))
    assert "45 decisions on default/llama-8b: each came out again, to the last bit" in shown


def test_a_decision_that_comes_out_otherwise_is_shown_and_fails(tmp_path):
    path = history(tmp_path)
    lines = path.read_text().splitlines()
    changed = json.loads(lines[30])
    changed["decision"]["pools"][0]["desired"] = 77
    lines[30] = json.dumps(changed)
    path.write_text("\n".join(lines))
    result = CliRunner().invoke(app, ["replay", "--from-history", str(path)])
    assert result.exit_code == 1
    assert "- pools[0].desired: 77" in result.stdout
    assert "+ pools[0].desired: " in result.stdout
    assert "1 of 45 decisions on default/llama-8b came out otherwise" in result.stdout


def test_a_history_that_cannot_be_read_is_a_sentence(tmp_path):
    with pytest.raises(CliError, match="cannot read the history missing"):
        replayed("--from-history", "missing")
    empty = tmp_path / "empty"
    empty.write_text("")
    with pytest.raises(CliError, match="has no decisions"):
        replayed("--from-history", str(empty))
