"""`forebay explain request` against a control port that answers as the router does."""

import json
from io import StringIO

import pytest
from aiohttp import web
from rich.console import Console
from typer.testing import CliRunner

from forebay_cli.__main__ import app
from forebay_cli.errors import CliError
from forebay_cli.explain import ask, show

CANDIDATE = {
    "worker": "models/w-1",
    "wait_ms": 1.25,
    "uncached_tokens": 32,
    "ttft_ms": 15.5,
    "tpot_ms": 8.1,
    "cost": 0.35,
    "chance": 1.0,
    "meets_objective": True,
    "requests": 2,
}
TOLD = {
    "model_service": "models/chat",
    "objective": {"ttft_ms": 500.0, "tpot_ms": 25.0, "target": 0.99},
    "prompt_tokens": 1000,
    "output_tokens": 256,
    "waiting": 0,
    "worker": "models/w-1",
    "prefill": None,
    "reason": "least cost, holds part of the prompt",
    "predicted": CANDIDATE,
    "considered": 20,
    "candidates": [CANDIDATE, {**CANDIDATE, "worker": "models/w-2", "uncached_tokens": 1000, "meets_objective": False}],
}


def shown(told: dict) -> str:
    console = Console(file=StringIO(), width=160)
    show(told, console)
    made: str = console.file.getvalue()  # type: ignore[attr-defined]
    return made


def test_the_choice_is_shown_with_its_candidates_and_reason():
    text = shown(TOLD)
    assert "models/chat: about 1000 prompt tokens, 256 output tokens; objective TTFT 500 ms, TPOT 25 ms, 99%" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("models/w-")]
    assert rows[0] == ["models/w-1", "2", "1.2", "32", "15.5", "8.10", "0.3500", "100.0%", "yes"]
    assert rows[1][-1] == "no"
    assert "and 18 more" in text
    assert "goes to models/w-1: least cost, holds part of the prompt; predicted TTFT 15.5 ms" in text


def test_decode_workers_that_are_kept_out_are_shown():
    out = {"worker": "models/d-1", "requests": 3, "prompt_ms": 812.5, "tpot_ms": 25.0}
    text = shown({**TOLD, "kept_out": [out], "kept_out_count": 18})
    assert (
        "models/d-1 does not compute it: its prompt takes 812.5 ms, and the 3 that decode there wait 25 ms at most"
        in text
    )
    assert "nor do 17 more" in text
    assert "does not compute it" not in shown({**TOLD, "kept_out": [], "kept_out_count": 0})


def test_what_holds_a_request_back_is_shown():
    why = "every worker runs as many requests as it can in time"
    assert f"would wait here first: {why}; 5 wait already" in shown({**TOLD, "held": why, "waiting": 5})
    assert "wait" not in shown({**TOLD, "held": None}).replace("wait ms", "")


def test_a_pair_and_a_wait_are_shown():
    assert "goes to models/w-1, prompt computed by models/p-1" in shown({**TOLD, "prefill": "models/p-1"})
    held = shown({**TOLD, "worker": None, "reason": "no worker can take it now: it would wait", "waiting": 3})
    assert "no worker can take it now: it would wait; 3 wait already" in held


@pytest.fixture
async def control():
    """A control port; what it was asked, and what it answers."""
    asked: list[tuple[str, dict]] = []

    async def explain(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append((request.query["path"], body))
        if body["model"] == "nobody":
            return web.json_response({"error": "no such model"}, status=404)
        return web.json_response(TOLD)

    served = web.Application()
    served.router.add_post("/explain", explain)
    runner = web.AppRunner(served)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    await runner.cleanup()


async def test_the_body_goes_to_the_control_port_and_its_refusal_is_an_error(control):
    url, asked = control
    assert await ask(url + "/", "/v1/completions", b'{"model": "m"}') == TOLD
    assert asked == [("/v1/completions", {"model": "m"})]
    with pytest.raises(CliError, match=r"refuses the request \(404\): no such model"):
        await ask(url, "/v1/completions", b'{"model": "nobody"}')


async def test_a_port_where_no_router_is_gets_a_sentence():
    with pytest.raises(CliError, match="address with --router"):
        await ask("http://127.0.0.1:1", "/v1/completions", b"{}")


def test_a_file_or_a_model_must_be_named(tmp_path):
    runner = CliRunner()
    for arguments in ([], ["body.json", "--model", "m"]):
        failed = runner.invoke(app, ["explain", "request", *arguments])
        assert isinstance(failed.exception, CliError)
        assert "name a FILE" in str(failed.exception)
    failed = runner.invoke(app, ["explain", "request", str(tmp_path / "none.json")])
    assert "cannot be read" in str(failed.exception)


def test_the_answer_can_be_had_as_json(monkeypatch, tmp_path):
    async def answer(*_arguments) -> dict:
        return TOLD

    monkeypatch.setattr("forebay_cli.explain.ask", answer)
    file = tmp_path / "body.json"
    file.write_text("{}")
    made = CliRunner().invoke(app, ["explain", "request", str(file), "--json"])
    assert json.loads(made.stdout) == TOLD


def test_names_are_no_markup():
    """A listed worker with an IPv6 address, and whatever else a name may hold."""
    name = "http://[fd00::1]:8000"
    text = shown({**TOLD, "worker": name, "prefill": "[red]p[/]", "candidates": [{**CANDIDATE, "worker": name}]})
    assert f"goes to {name}, prompt computed by [red]p[/]: " in text
    assert any(line.startswith(name) for line in text.splitlines())
