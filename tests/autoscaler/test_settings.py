"""Command line and environment."""

from pathlib import Path

import pytest

from forebay_autoscaler.__main__ import trusted
from forebay_autoscaler.errors import AutoscalerError
from forebay_autoscaler.settings import build_parser, documented_options, parse_settings

URL = "http://prometheus.monitoring:9090"
DOCS = Path(__file__).resolve().parents[2] / "docs" / "autoscaler.md"


def test_only_prometheus_must_be_given():
    settings = parse_settings([f"--prometheus-url={URL}"], {})
    assert settings.interval_s == 10
    assert settings.tuning.rate_window_s == 60
    assert settings.tuning.drain_horizon_s == 15
    assert settings.attainment_window_s == 300
    assert settings.status_interval_s == 10
    assert settings.namespaces == ()
    assert (settings.control_host, settings.control_port) == ("0.0.0.0", 9090)
    assert settings.elects
    assert settings.identity


def test_the_environment_stands_in_for_options_and_options_win():
    environment = {
        "FOREBAY_PROMETHEUS_URL": "http://other:9090",
        "FOREBAY_INTERVAL": "2s",
        "FOREBAY_RATE_WINDOW": "15s",
        "FOREBAY_BURST_WINDOW": "5s",
        "FOREBAY_NAMESPACES": "a, b",
        "FOREBAY_LEADER_ELECTION": "false",
        "POD_NAME": "autoscaler-0",
    }
    settings = parse_settings([f"--prometheus-url={URL}", "--control=[::1]:9999"], environment)
    assert settings.prometheus_url == URL
    assert settings.interval_s == 2
    assert settings.tuning.rate_window_s == 15
    assert settings.attainment_window_s == 75
    assert settings.status_interval_s == 5
    assert settings.namespaces == ("a", "b")
    assert (settings.control_host, settings.control_port) == ("::1", 9999)
    assert not settings.elects
    assert settings.identity == "autoscaler-0"


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ([], {}, "--prometheus-url (or FOREBAY_PROMETHEUS_URL) is required, such as http://"),
        (["--prometheus-url=prometheus:9090"], {}, "is not a URL such as"),
        ([f"--prometheus-url={URL}", "--interval=ten"], {}, "--interval: 'ten' is not a duration"),
        ([f"--prometheus-url={URL}", "--interval=0s"], {}, "must be longer than zero"),
        ([f"--prometheus-url={URL}"], {"FOREBAY_INTERVAL": "x"}, "'x' is not a duration"),
        ([f"--prometheus-url={URL}", "--control=9090"], {}, "is not HOST:PORT"),
        ([f"--prometheus-url={URL}", "--history=0"], {}, "is not a whole number above zero"),
        ([f"--prometheus-url={URL}", "--burst-window=2m"], {}, "--burst-window must not be longer than --rate-window"),
        ([f"--prometheus-url={URL}", "--log-level=loud"], {}, "is none of DEBUG"),
        ([f"--prometheus-url={URL}", "--leader-election=maybe"], {}, "neither true nor false"),
    ],
)
def test_a_wrong_setting_ends_with_a_sentence(arguments, environment, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_settings(arguments, environment)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "", "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"])
def test_an_authority_that_cannot_be_used_ends_with_the_flags_name(tmp_path, text):
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(AutoscalerError, match=f"--prometheus-ca-file {path}"):
        trusted(str(path))


def test_help_names_every_variable():
    text = build_parser({}).format_help()
    for flag, variable, _, _ in documented_options():
        assert flag in text
        assert variable in text.replace("\n", " ").replace("  ", "")


def test_every_option_is_documented():
    text = DOCS.read_text(encoding="utf-8")
    for flag, _, default, _ in documented_options():
        row = next((line for line in text.splitlines() if line.startswith(f"| `{flag}`")), None)
        assert row is not None, f"{flag} is missing in docs/autoscaler.md"
        assert default is None or default == "" or f"`{default}`" in row, f"default of {flag}: {default}"
