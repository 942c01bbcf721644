"""`forebay explain scaling` against a control port with recorded decisions."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from typing import Any
from urllib.parse import unquote

import pytest
from rich.console import Console
from typer.testing import CliRunner

from forebay_autoscaler.codec import record_object
from forebay_autoscaler.control import build_app, build_server
from forebay_autoscaler.decide import decide
from forebay_autoscaler.history import History, Record
from forebay_autoscaler.loop import Alone, Loop
from forebay_autoscaler.metrics import Metrics
from forebay_autoscaler.state import ServiceState
from forebay_cli.__main__ import app
from forebay_cli.decision_table import explanation
from forebay_cli.decisions import leading
from forebay_cli.errors import CliError
from tests.autoscaler.plant import service_policy
from tests.autoscaler.test_timelines import load_of
from tests.simulator.engine.process import free_port


def record(*, rate_per_s: float = 41.0, leads: bool = True, blind: bool = False) -> Record:
    policy, state = service_policy(budget_gpus=4), ServiceState()
    observation = load_of(rate_per_s, wanted=1)
    if blind:
        observation = replace(observation, signals=type(observation.signals)(), trouble="Prometheus does not answer")
    decision = decide(policy, state, observation, 10.0)
    return Record(datetime(2026, 1, 1, 12, tzinfo=UTC), leads, policy, state, observation, decision)


@pytest.fixture(scope="module")
def control_port() -> Iterator[str]:
    loop = Loop(None, None, Alone(), Metrics(), History(10), interval_s=10, clock=lambda: 100.0)
    loop.history.add([record()])
    port = free_port()
    server = build_server(build_app(loop), "127.0.0.1", port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started:
        assert time.monotonic() < deadline, "the control port does not open"
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)


def explained(*flags: str) -> str:
    result = CliRunner().invoke(app, ["explain", "scaling", *flags], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def shown(made: Mapping[str, Any]) -> str:
    console = Console(width=160, file=StringIO())
    console.print(explanation(made))
    return console.file.getvalue()


def test_a_decision_is_explained_from_what_was_asked_to_what_was_done(control_port):
    text = explained("llama-8b", "--autoscaler", control_port)
    assert "default/llama-8b (Auto)" in text
    assert "first token within 2 s, 25 ms a token, for 95.0% of requests; budget 4 GPUs" in text
    for label in ("requests per second", "one worker's limit", "with the backlog", "1 to 6", "ordered, not ready"):
        assert label in text
    assert "1 → 4 grow" in text
    assert "mixed  1 → 4: 41.0 req/s asked" in text
    assert "rejected 6 workers: the budget is 4 GPUs (budget)" in text


def test_the_record_itself_is_there_for_programs(control_port):
    (found,) = json.loads(explained("llama-8b", "--autoscaler", control_port, "-o", "json"))
    assert found["decision"]["pools"][0]["desired"] == 4
    assert found["policy"]["budget_gpus"] == 4


def test_what_is_unknown_is_said():
    text = shown(record_object(record(blind=True)))
    assert "Prometheus does not answer" in text
    assert "arrivals, pending" in text
    assert "attainment unknown" in text


def test_a_replica_that_does_not_lead_says_so():
    assert "by a replica that does not lead" in shown(record_object(record(leads=False)))
    one, other = [record_object(record(leads=False))], [record_object(record())]
    assert leading([one, other]) is other
    assert leading([[], one]) is one
    assert leading([[], []]) == []


def test_an_input_without_words_is_shown_by_its_name():
    made = record_object(record())
    made["decision"]["pools"][0]["demand"]["forecast_per_s"] = 57.25
    text = shown(made)
    assert "forecast per s" in text
    assert "57.2" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["nobody"], "decided nothing on default/nobody"),
        (["llama-8b", "-n", "elsewhere"], "decided nothing on elsewhere/llama-8b"),
        (["llama-8b", "-o", "yaml"], "--output is table or json"),
    ],
)
def test_what_cannot_be_explained_is_a_sentence(control_port, flags, message):
    with pytest.raises(CliError, match=message):
        explained(*flags, "--autoscaler", control_port)


def test_a_port_that_nobody_listens_on_is_a_sentence():
    with pytest.raises(CliError, match="no decisions from http://127"):
        explained("llama-8b", "--autoscaler", f"http://127.0.0.1:{free_port()}")


def test_a_cluster_that_cannot_be_reached_is_a_sentence(tmp_path):
    with pytest.raises(CliError, match="no cluster to ask"):
        explained("llama-8b", "--kubeconfig", str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, r"the API server refuses \(403\): listing pods in all namespaces, and `get` on `pods/proxy`, is needed"),
        (401, r"the API server refuses \(401\)"),
        (500, "the API server answers 500"),
        (200, "no autoscaler pod in this cluster"),
    ],
)
def test_what_the_api_server_refuses_is_told_with_the_right_that_lacks(tmp_path, status, message):
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(unquote(self.path))
            body = json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}],
            "users": [{"name": "x", "user": {"token": "t"}}],
        }
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps(config))
        with pytest.raises(CliError, match=message):
            CliRunner().invoke(
                app, ["explain", "scaling", "llama-8b", "--kubeconfig", str(file)], catch_exceptions=False
            )
        server.shutdown()
    selector = "labelSelector=app.kubernetes.io/name=forebay,app.kubernetes.io/component=autoscaler"
    assert asked
    assert all(selector in path for path in asked), "pods of other products are not asked"
