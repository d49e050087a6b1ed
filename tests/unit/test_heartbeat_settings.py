"""Settings of heartbeats: R004-089, R004-137, R004-180 to R004-185, D-17, D-22, D-24, JB-45."""

import pytest

from holdfast.config.settings import heartbeat_settings
from holdfast.core.checks import CheckLevel
from holdfast.core.errors import ConfigError

INTERVAL = "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS"
ENABLED = "STEP_FUNCTIONS_HEARTBEAT_ENABLED"
TIMEOUT = "STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS"
STALL = "HOLDFAST_STALL_SECONDS"


def test_an_empty_environment_gives_the_defaults_of_the_seed() -> None:
    """R004-013, R004-089, R004-137, R004-139, R004-182, R004-184, R004-185."""
    settings = heartbeat_settings({"PATH": "/bin"})
    assert settings.interval_seconds == 30.0
    assert settings.enabled is True
    assert settings.heartbeat_timeout_seconds is None
    assert settings.stall_seconds == 3600.0
    assert settings.finding() is None


def test_milliseconds_become_seconds() -> None:
    """R004-180, R004-182."""
    assert heartbeat_settings({INTERVAL: "1500"}).interval_seconds == 1.5


@pytest.mark.parametrize(
    "text", ["999", "0", "-30000", "30s", "", "30.5", "1e4", "３００００", "true"]
)
def test_an_interval_is_a_whole_number_of_at_least_a_thousand(text: str) -> None:
    """R004-184, JB-45."""
    with pytest.raises(ConfigError, match=INTERVAL):
        heartbeat_settings({INTERVAL: text})


@pytest.mark.parametrize("text", ["true", "TRUE", "1", "Yes", "on", " on "])
def test_words_that_enable(text: str) -> None:
    """R004-181, R004-183, D-17."""
    assert heartbeat_settings({ENABLED: text}).enabled is True


@pytest.mark.parametrize("text", ["false", "FALSE", "0", "No", "off"])
def test_words_that_disable(text: str) -> None:
    """R004-181, R004-183, D-17, JB-45."""
    assert heartbeat_settings({ENABLED: text}).enabled is False


@pytest.mark.parametrize("text", ["", "falsch", "2", "t", "y", "disabled", "None"])
def test_any_other_word_is_neither_yes_nor_no(text: str) -> None:
    """D-17, R004-185."""
    with pytest.raises(ConfigError, match=f"{ENABLED}=.*true, false"):
        heartbeat_settings({ENABLED: text})


@pytest.mark.parametrize("timeout", ["59.9", "31", "30", "1"])
def test_an_interval_above_half_the_timeout_is_refused(timeout: str) -> None:
    """D-24."""
    with pytest.raises(ConfigError, match=rf"{INTERVAL}.*{TIMEOUT}.*90 or more"):
        heartbeat_settings({INTERVAL: "30000", TIMEOUT: timeout})


@pytest.mark.parametrize(
    ("timeout", "level", "words"),
    [
        ("60", CheckLevel.WARN, "little room"),
        ("89.9", CheckLevel.WARN, "little room"),
        ("90", CheckLevel.OK, "every 30 s"),
    ],
)
def test_half_the_timeout_is_allowed_and_a_third_is_advised(
    timeout: str, level: CheckLevel, words: str
) -> None:
    """D-22, R004-209, R004-217: 30 s / 60 s works, but not after one missed beat."""
    finding = heartbeat_settings({TIMEOUT: timeout}).finding()
    assert finding is not None
    assert (finding.level, words in finding.found) == (level, True)
    assert ("90" in finding.remedy) is (level is CheckLevel.WARN)


def test_a_stall_may_never_be_called() -> None:
    assert heartbeat_settings({STALL: "never"}).stall_seconds is None
    assert heartbeat_settings({STALL: "60"}).stall_seconds == 60.0


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        heartbeat_settings({INTERVAL: "30s", ENABLED: "maybe", TIMEOUT: "-1", STALL: "inf"})
    for variable in (INTERVAL, ENABLED, TIMEOUT, STALL):
        assert f"{variable}=" in str(caught.value)
