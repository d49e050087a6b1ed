"""The settings of heartbeats:  (JB-45)."""

import pytest

from holdfast.errors import ConfigError
from holdfast.exports.settings import HeartbeatSettings
from holdfast.settings import read_settings

INTERVAL = "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS"
ENABLED = "STEP_FUNCTIONS_HEARTBEAT_ENABLED"
TIMEOUT = "STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS"
STALL = "HOLDFAST_STALL_SECONDS"


@pytest.mark.requirement(
    "R004-013", "R004-089", "R004-137", "R004-139", "R004-182", "R004-184", "R004-185"
)
def test_an_empty_environment_gives_the_defaults_of_the_seed() -> None:
    settings = read_settings(HeartbeatSettings, {"PATH": "/bin"})
    assert settings.interval_seconds == 30.0
    assert settings.enabled is True
    assert settings.heartbeat_timeout_seconds is None
    assert settings.stall_seconds == 3600.0
    assert settings.check_timeout() is None


@pytest.mark.requirement("R004-180", "R004-182")
def test_milliseconds_become_seconds() -> None:
    assert read_settings(HeartbeatSettings, {INTERVAL: "1500"}).interval_seconds == 1.5


@pytest.mark.requirement("R004-184")
@pytest.mark.parametrize(
    "text", ["999", "0", "-30000", "30s", "30.5", "1e4", "３００００", "true"]
)
def test_an_interval_is_a_whole_number_of_at_least_a_thousand(text: str) -> None:
    """(JB-45)."""
    with pytest.raises(ConfigError, match=INTERVAL):
        read_settings(HeartbeatSettings, {INTERVAL: text})


@pytest.mark.requirement("R004-181", "R004-183")
@pytest.mark.parametrize(
    ("words", "enabled"),
    [
        (["true", "TRUE", "1", "Yes", "on", " on "], True),
        (["false", "FALSE", "0", "No", "off"], False),
    ],
)
def test_words_that_enable_and_disable(words: list[str], enabled: bool) -> None:
    """(JB-45)."""
    for text in words:
        assert read_settings(HeartbeatSettings, {ENABLED: text}).enabled is enabled


@pytest.mark.requirement("R004-183", "R004-185")
@pytest.mark.parametrize("text", ["falsch", "2", "t", "y", "disabled", "None"])
def test_any_other_word_is_neither_true_nor_false(text: str) -> None:
    with pytest.raises(ConfigError, match=f"{ENABLED}=.*true, false"):
        read_settings(HeartbeatSettings, {ENABLED: text})


def test_the_stall_limit_can_be_switched_off() -> None:
    assert read_settings(HeartbeatSettings, {STALL: "never"}).stall_seconds is None
    assert read_settings(HeartbeatSettings, {STALL: "60"}).stall_seconds == 60.0


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(
            HeartbeatSettings, {INTERVAL: "30s", ENABLED: "maybe", TIMEOUT: "-1", STALL: "inf"}
        )
    for variable in (INTERVAL, ENABLED, TIMEOUT, STALL):
        assert f"{variable}=" in str(caught.value)
