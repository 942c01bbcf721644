"""docs/operator.md tells every setting, metric, condition reason and Event reason that the code has."""

import re
from dataclasses import fields
from pathlib import Path

from forebay_operator.metrics import Metrics
from forebay_operator.reconcile.reporting import STARTED
from forebay_operator.rootcause import Reason
from forebay_operator.settings import Settings, variable

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/operator.md").read_text()
SOURCE = ROOT / "operator/src/forebay_operator"


def told() -> set[str]:
    """Everything that the page marks as code."""
    return set(re.findall(r"`([^`]+)`", PAGE))


def test_every_setting_has_its_row_with_its_default():
    for one in fields(Settings):
        row = next((line for line in PAGE.splitlines() if line.startswith(f"| `{variable(one.name)}` |")), None)
        assert row, f"{variable(one.name)} is missing"
        shown = one.metadata["kind"].show(one.default)
        assert not shown or f"`{shown}`" in row, f"{variable(one.name)}: the default is {shown}"


def test_every_metric_has_its_row_with_its_labels():
    for family in Metrics().registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        row = next((line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")), None)
        assert row, f"{name} is missing"
        labels = {key for sample in family.samples for key in sample.labels} - {"le"}
        assert all(label in row for label in labels), f"{name}: labels {labels}"


def test_every_root_cause_is_explained():
    assert {reason.value for reason in Reason} <= told()


def test_every_other_reason_of_a_condition_is_explained():
    text = "".join(path.read_text() for path in [*sorted((SOURCE / "status").glob("*.py")), SOURCE / "fits.py"])
    reasons = set(re.findall(r'(?:TRUE|FALSE|UNKNOWN|awake|moving|READY|ROUTABLE),? "([A-Z][A-Za-z]+)"', text))
    assert len(reasons) > 8
    assert reasons <= told(), f"not explained: {sorted(reasons - told())}"


def test_every_event_is_explained():
    text = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    reasons = set(re.findall(r'reason="([A-Z][A-Za-z]+)"', text)) | set(STARTED.values()) | {"Ready"}
    assert len(reasons) > 6
    assert reasons <= told(), f"not explained: {sorted(reasons - told())}"
