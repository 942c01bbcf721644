"""The chart's alerts: what they say, and on what they fire, by the real Prometheus over series that a test makes up."""

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from forebay_api.durations import parse_duration_s
from forebay_localcluster.locate import locate_programs
from forebay_localcluster.pins import Program
from tests.autoscaler.exporters import free_port
from tests.support.eventually import eventually
from tests.support.remote_write import Labels, write

ROOT = Path(__file__).resolve().parents[2]
FILES = [ROOT / "charts" / "forebay" / "files" / name for name in ("alerts.yaml", "alerts-autoscaler.yaml")]
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for path in FILES
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
STEP_S = 60
HOURS_6 = 6 * 60 + 30
"""Steps of a scenario."""


@pytest.mark.parametrize("name", RULES)
def test_an_alert_says_what_is_wrong_and_links_to_what_to_do(name):
    annotations = RULES[name]["annotations"]
    assert annotations["summary"].endswith(".")
    assert annotations["description"]
    assert RULES[name]["labels"]["severity"] in ("critical", "warning")
    page, _, anchor = annotations["runbook_url"].partition("#")
    headings = re.findall(r"^### (\w+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in {heading.lower() for heading in headings}


LISTED: dict[str, set[str]] = {
    metric: set(re.findall(r"`(\w+)`", labels))
    for metric, labels in re.findall(
        r"^\| `(\w+)` \| \w+ \| ([^|]*)\|", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE
    )
}
"""Labels of each metric."""
LISTED["up"] = {"job", "namespace", "pod", "model_service", "pool"}
"""Of the targets: docs/install.md gives workers the last two."""


def foreign_labels(expression: str) -> list[str]:
    """Labels that an expression selects or groups by and that the metric there does not have."""
    found = []
    for metric, selectors in re.findall(r"\b(forebay_\w+|up)\b(?:\{([^}]*)\})?", re.sub(r'"[^"]*"', '""', expression)):
        names = set(re.findall(r"(\w+)\s*[!=]", selectors))
        found += [f"{metric}{{{name}}}" for name in sorted(names - LISTED.get(metric, set()))]
    for group in re.finditer(r"by \(([^)]*)\) \(", expression):
        inner = expression[group.end() : end_of_group(expression, group.end())]
        names = set(group[1].split(", "))
        for metric in re.findall(r"\b(?:forebay_\w+|up)\b", re.sub(r'"[^"]*"', '""', inner)):
            found += [f"by {name}: {metric}" for name in sorted(names - LISTED.get(metric, set()))]
    return found


def end_of_group(text: str, start: int) -> int:
    depth = 1
    for at, letter in enumerate(text[start:], start):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return at
    raise AssertionError(f"a parenthesis is not closed: {text}")


@pytest.mark.parametrize("name", RULES)
def test_an_alert_is_about_metrics_that_exist_and_labels_that_they_have(name):
    for metric in re.findall(r"\bforebay_\w+", RULES[name]["expr"]):
        assert metric in LISTED, metric
    assert foreign_labels(RULES[name]["expr"]) == []


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ('sum by (namespace, pool) (rate(forebay_router_requests_total{verdict="bad"}[1h]))', ["by pool"]),
        ('forebay_router_workers{status=~"ready"}', ["forebay_router_workers{status}"]),
        ("max by (model) (min by (model, namespace) (forebay_router_objective_target))", ["by model", "by model"]),
    ],
)
def test_a_label_that_a_metric_does_not_have_is_found(expression, found):
    assert [one.partition(":")[0] for one in foreign_labels(expression)] == found


@dataclass
class World:
    """All series of a healthy installation: what each of them is at each minute."""

    values: dict[str, Callable[[int], float | None]] = field(default_factory=dict)
    """By series; None leaves a gap."""

    def series(self, end_s: float) -> dict[Labels, list[tuple[float, float]]]:
        """Every sample until a time."""
        made: dict[Labels, list[tuple[float, float]]] = {}
        for text, value in self.values.items():
            points = [(end_s - (HOURS_6 - n) * STEP_S, value(n)) for n in range(HOURS_6 + 1)]
            made[labels_of(text)] = [(at_s, number) for at_s, number in points if number is not None]
        return made


def labels_of(text: str) -> Labels:
    name, _, rest = text.partition("{")
    return (("__name__", name), *re.findall(r'(\w+)="([^"]*)"', rest))


WHO = 'namespace="team",model_service="chat"'
POOL = f'{WHO},pool="mixed",role="Mixed"'
REQUESTS = f"forebay_router_requests_total{{{WHO},verdict="


def worker_up(number: int) -> str:
    return f'up{{job="forebay-workers",pod="chat-{number}",{WHO},pool="mixed"}}'


def target(share: float) -> dict[str, Callable[[int], float]]:
    return {f"forebay_router_objective_target{{{WHO}}}": lambda _: share}


def few_bad(number: int, minutes: int) -> dict[str, Callable[[int], float]]:
    """All good, but for so many, once."""
    return {f'{REQUESTS}"good"}}': lambda n: 600.0 * n, f'{REQUESTS}"bad"}}': since(minutes, number)}


def healthy() -> World:
    """Ten requests a second, one of a thousand bad; target 99 %."""
    return World(
        {
            f'{REQUESTS}"good"}}': lambda n: 600.0 * n,
            f'{REQUESTS}"bad"}}': lambda n: 0.6 * n,
            f"forebay_router_requests_arrived_total{{{WHO}}}": lambda n: 600.0 * n,
            f"forebay_router_objective_target{{{WHO}}}": lambda _: 0.99,
            f'forebay_router_workers{{{POOL},state="ready"}}': lambda _: 3,
            f'forebay_router_workers_ejected{{{POOL},cause="frozen"}}': lambda _: 0,
            f'forebay_router_cache_index_workers{{{WHO},state="lost"}}': lambda _: 0,
            f'forebay_router_cache_index_workers{{{WHO},state="precise"}}': lambda _: 3,
            f"forebay_autoscaler_inputs_unknown{{{WHO}}}": lambda _: 0,
            f'forebay_autoscaler_needed_replicas{{{WHO},pool="mixed"}}': lambda _: 3,
            f'forebay_autoscaler_desired_replicas{{{WHO},pool="mixed"}}': lambda _: 3,
            'forebay_operator_leader{pod="operator-0"}': lambda _: 1,
            'forebay_operator_leader{pod="operator-1"}': lambda _: 0,
            'forebay_operator_workers_missing{namespace="team",worker_pool="chat-mixed"}': lambda _: 0,
            'forebay_operator_reconciliations_total{kind="WorkerPool",result="error"}': lambda _: 0,
            'up{job="forebay",namespace="forebay-system",pod="router-0"}': lambda _: 1,
            **{worker_up(number): lambda _: 1 for number in range(3)},
        }
    )


def since(minutes: int, value: float, before: float = 0.0) -> Callable[[int], float]:
    """A gauge that changed so many minutes before the end."""
    return lambda n: value if n > HOURS_6 - minutes else before


def growing(share_before: float, share: float, minutes: int) -> Callable[[int], float]:
    """A counter of ten a second in that share, which changed so many minutes before the end."""
    turn = HOURS_6 - minutes
    return lambda n: 600.0 * (share_before * min(n, turn) + share * max(0, n - turn))


def bad(share: float, minutes: int) -> dict[str, Callable[[int], float]]:
    return {
        f'{REQUESTS}"good"}}': growing(0.999, 1 - share, minutes),
        f'{REQUESTS}"bad"}}': growing(0.001, share, minutes),
    }


STOPPED = dict.fromkeys(('forebay_operator_leader{pod="operator-0"}',), since(10, 0, before=1))
SCENARIOS: dict[str, tuple[dict[str, Callable[[int], float | None]], set[str]]] = {
    "healthy": ({}, set()),
    "a minute of failures": (bad(1.0, 1), set()),
    "twenty minutes of failures": (bad(0.6, 20), {"ForebayObjectiveMissedFast"}),
    "failures that ended ten minutes ago": (
        {
            f'{REQUESTS}"good"}}': lambda n: 600.0 * n - bad(0.6, 40)[f'{REQUESTS}"bad"}}'](min(n, HOURS_6 - 10)),
            f'{REQUESTS}"bad"}}': lambda n: bad(0.6, 40)[f'{REQUESTS}"bad"}}'](min(n, HOURS_6 - 10)),
        },
        set(),
    ),
    "a little too many bad ones for hours": (bad(0.08, 340), {"ForebayObjectiveMissedSlowly"}),
    "a low target is met": ({**target(0.6), **bad(0.35, 380)}, set()),
    "a lower target is met": ({**target(0.4), **bad(0.55, 380)}, set()),
    "a low target is missed": (
        {**target(0.4), **bad(0.65, 380)},
        {"ForebayObjectiveMissedFast", "ForebayObjectiveMissedSlowly"},
    ),
    "all must be good, and one of many is not": ({**target(1), **few_bad(1, 4)}, set()),
    "all must be good, and ten in an hour are not": ({**target(1), **bad(10 / 36000, 60)}, set()),
    "all must be good, and one of fifty is not": (
        {**target(1), **bad(0.02, 380)},
        {"ForebayObjectiveMissedFast", "ForebayObjectiveMissedSlowly"},
    ),
    "a handful of bad ones among few": (
        {
            f'{REQUESTS}"good"}}': lambda n: 0.5 * n,
            f'{REQUESTS}"bad"}}': since(4, 4),
            f"forebay_router_requests_arrived_total{{{WHO}}}": lambda n: 0.5 * n,
        },
        set(),
    ),
    "a worker loads its model": ({worker_up(3): since(60, 0, before=1)}, set()),
    "ready workers cannot be scraped": ({worker_up(2): since(12, 0, before=1)}, {"ForebayTargetsDown"}),
    "no ready worker": (
        {f'forebay_router_workers{{{POOL},state="ready"}}': since(10, 0, before=3)},
        {"ForebayNoWorkers"},
    ),
    "asleep and not asked": (
        {
            f'forebay_router_workers{{{POOL},state="ready"}}': lambda _: 0,
            f"forebay_router_requests_arrived_total{{{WHO}}}": lambda _: 500.0,
        },
        set(),
    ),
    "an engine hangs": (
        {f'forebay_router_workers_ejected{{{POOL},cause="frozen"}}': since(8, 1)},
        {"ForebayWorkersEjected"},
    ),
    "an engine hung for two minutes": (
        {f'forebay_router_workers_ejected{{{POOL},cause="frozen"}}': since(2, 1)},
        set(),
    ),
    "KV events are lost": (
        {f'forebay_router_cache_index_workers{{{WHO},state="lost"}}': since(15, 2)},
        {"ForebayCacheIndexWrong"},
    ),
    "no node for two workers": (
        {'forebay_operator_workers_missing{namespace="team",worker_pool="chat-mixed"}': since(20, 2)},
        {"ForebayWorkersMissing"},
    ),
    "a webhook refuses": (
        {
            'forebay_operator_reconciliations_total{kind="WorkerPool",result="error"}': lambda n: max(
                0, n - HOURS_6 + 40
            )
        },
        {"ForebayReconcileFails"},
    ),
    "no operator leads": (dict(STOPPED), {"ForebayOperatorNoLeader"}),
    "the data is old": ({f"forebay_autoscaler_inputs_unknown{{{WHO}}}": since(12, 2)}, {"ForebayScalingHeld"}),
    "the pool is at its most and misses": (
        {f'forebay_autoscaler_needed_replicas{{{WHO},pool="mixed"}}': since(30, 5, before=3), **bad(0.03, 60)},
        {"ForebayPoolAtItsLimit"},
    ),
    "the pool is at its most and does": (
        {f'forebay_autoscaler_needed_replicas{{{WHO},pool="mixed"}}': since(30, 5, before=3)},
        set(),
    ),
    "a router cannot be scraped": (
        {'up{job="forebay",namespace="forebay-system",pod="router-0"}': since(12, 0, before=1)},
        {"ForebayTargetsDown"},
    ),
}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """Begins a Prometheus with the alerts, and no series yet, again and again."""
    running: list[subprocess.Popen[bytes]] = []

    def begin() -> str:
        stop(running)
        folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
        config = {"global": {"evaluation_interval": "1s"}, "rule_files": [str(path) for path in FILES]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        program = locate_programs()[Program.PROMETHEUS].path
        command = [
            *(str(program), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"),
            *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=error", "--web.enable-remote-write-receiver"),
        ]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: is_ready(url), bool, within_s=20, what="Prometheus is ready")
        return url

    yield begin
    stop(running)


def stop(running: list[subprocess.Popen[bytes]]) -> None:
    for process in running:
        process.kill()
        process.wait()
    running.clear()


def is_ready(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/-/ready", timeout=1).status_code == 200
    return False


def firing(url: str, end_s: float) -> set[str]:
    """Alerts whose expression has held at each minute of their `for` until a time, as Prometheus computes it."""
    found = set()
    for name, rule in RULES.items():
        if name == "ForebayAutoscalerNoDecision":  # compares with the time of the evaluation, and has a test of its own
            continue
        held_s = parse_duration_s(rule["for"])
        query = {"query": rule["expr"], "start": end_s - held_s, "end": end_s, "step": STEP_S}
        answer = httpx.post(f"{url}/api/v1/query_range", data=query, timeout=30).json()
        assert answer["status"] == "success", (name, answer)
        if any(len(one["values"]) == held_s / STEP_S + 1 for one in answer["data"]["result"]):
            found.add(name)
    return found


@pytest.mark.cluster
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_is_wrong_fires_its_alert_and_no_other(prometheus, scenario):
    changed, expected = SCENARIOS[scenario]
    world = healthy()
    assert changed.keys() <= {*world.values, worker_up(3)}
    world.values |= changed
    url, end_s = prometheus(), float(int(time.time()))
    write(url, world.series(end_s))
    assert firing(url, end_s) == expected


@pytest.mark.cluster
def test_prometheus_takes_the_rules_and_finds_nothing_that_lives_missing(prometheus):
    """Loaded as files and evaluated by itself: with nothing there, what must always be there is."""
    url = prometheus()

    def rules() -> dict[str, dict[str, Any]]:
        groups = httpx.get(f"{url}/api/v1/rules", timeout=5).json()["data"]["groups"]
        return {one["name"]: one for group in groups for one in group["rules"]}

    seen = eventually(
        rules, lambda seen: all(one["health"] == "ok" for one in seen.values()) and seen, within_s=20, what="evaluated"
    )
    assert set(seen) == set(RULES)
    assert {name: one["lastError"] for name, one in seen.items() if one.get("lastError")} == {}
    absent = {name for name, one in seen.items() if one["state"] in ("pending", "firing")}
    assert absent == {"ForebayOperatorNoLeader", "ForebayTargetsDown", "ForebayAutoscalerNoDecision"}
    told = [alert["annotations"]["summary"] for one in seen.values() for alert in one["alerts"]]
    assert "Prometheus does not get metrics of any pod (forebay)." in told
    assert not [text for text in told if "error" in text or "{{" in text], "templates are filled in"
    now_s = time.time()
    decided = {labels_of('forebay_autoscaler_last_decision_timestamp_seconds{pod="a"}'): [(now_s, now_s - 20)]}
    write(url, decided)
    expression = {"query": RULES["ForebayAutoscalerNoDecision"]["expr"]}
    assert httpx.post(f"{url}/api/v1/query", data=expression, timeout=5).json()["data"]["result"] == []
    late = {**expression, "time": str(now_s + 299)}
    assert httpx.post(f"{url}/api/v1/query", data=late, timeout=5).json()["data"]["result"]
