"""Settings: one table for environment, command line and help."""

import pytest

from forebay_operator.errors import SettingError
from forebay_operator.settings import Settings, flag, load_settings, variable


def test_defaults_work():
    settings = load_settings([], {})
    assert settings.namespaces == ()
    assert settings.identity
    assert settings.lease_namespace
    assert settings.control[1] == 9090


def test_a_flag_wins_over_the_environment_and_that_over_the_default():
    environment = {"FOREBAY_RESYNC": "1m", "FOREBAY_LEASE_NAME": "other"}
    settings = load_settings(["--resync", "90s"], environment)
    assert settings.resync_s == 90.0
    assert settings.lease_name == "other"


def test_values_are_parsed_into_base_units():
    environment = {
        "FOREBAY_NAMESPACES": "team-a, team-b,",
        "FOREBAY_CONTROL": "[::1]:0",
        "FOREBAY_PROBE_PERIOD": "1m30s",
        "FOREBAY_LOG_LEVEL": "debug",
        "FOREBAY_LEADER_ELECTION": "False",
        "FOREBAY_WORKER_HOST": "$(POD_IP)",
    }
    settings = load_settings([], environment)
    assert settings.namespaces == ("team-a", "team-b")
    assert settings.control == ("::1", 0)
    assert settings.probe_period_s == 90
    assert settings.log_level == "DEBUG"
    assert settings.leader_election is False
    assert settings.worker_host == "$(POD_IP)"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("FOREBAY_RESYNC", "5 minutes", "a duration"),
        ("FOREBAY_CONTROL", "9090", "HOST:PORT"),
        ("FOREBAY_LOG_LEVEL", "LOUD", "DEBUG, INFO"),
        ("FOREBAY_LEADER_ELECTION", "maybe", "true or false"),
        ("FOREBAY_RECONCILERS", "0", "1 or more"),
        ("FOREBAY_RESYNC", "0s", "1s or more"),
        ("FOREBAY_PROBE_PERIOD", "400ms", "whole seconds, 1 or more"),
        ("FOREBAY_PRESTOP_DELAY", "1500ms", "whole seconds, 0 or more"),
        ("FOREBAY_LEASE_RENEW_DEADLINE", "20s", "below the lease duration"),
    ],
)
def test_an_error_names_the_setting_and_what_is_expected(name, value, words):
    with pytest.raises(SettingError) as raised:
        load_settings([], {name: value})
    assert name in str(raised.value)
    assert words in str(raised.value)


def test_help_tells_every_setting_with_its_variable_and_default(capsys):
    with pytest.raises(SystemExit) as ended:
        load_settings(["--help"], {})
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in Settings.__dataclass_fields__:
        assert flag(name) in text
        assert variable(name) in text
    assert "[FOREBAY_LEASE_DURATION] Default: 10s." in text
