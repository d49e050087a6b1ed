"""Settings: where they come from, who wins, and every problem at once."""

import pytest

from holdfast.config import QueueSettings, queue_settings
from holdfast.core.errors import ConfigError


def test_nothing_given_means_the_defaults() -> None:
    settings = queue_settings({}, {}, {}, QueueSettings)
    assert settings == QueueSettings()
    assert (settings.lease_seconds, settings.max_attempts) == (60.0, 5)
    assert (settings.durability, settings.dedupe, settings.data_dir) == (
        "process",
        False,
        "data",
    )


def test_the_caller_wins_over_the_url_and_the_url_over_the_environment() -> None:
    env = {
        "HOLDFAST_LEASE_SECONDS": "1",
        "HOLDFAST_MAX_ATTEMPTS": "1",
        "HOLDFAST_DATA_DIR": "/srv",
    }
    settings = queue_settings(
        env, {"lease_seconds": "2", "max_attempts": "2"}, {"lease_seconds": 3}, QueueSettings
    )
    assert (settings.lease_seconds, settings.max_attempts, settings.data_dir) == (3, 2, "/srv")


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("1", True), ("yes", True), ("false", False), ("0", False)],
)
def test_yes_and_no_are_understood(text: str, value: bool) -> None:
    assert queue_settings({"HOLDFAST_DEDUPE": text}, {}, {}, QueueSettings).dedupe is value


def test_every_problem_is_told_at_once_by_the_name_the_person_wrote() -> None:
    with pytest.raises(ConfigError) as told:
        queue_settings(
            {"HOLDFAST_LEASE_SECONDS": "soon", "HOLDFAST_DURABILITY": "eternal"},
            {"dedupe": "maybe"},
            {"max_attempts": 0},
            QueueSettings,
        )
    text = str(told.value)
    assert "HOLDFAST_LEASE_SECONDS='soon'" in text
    assert "HOLDFAST_DURABILITY='eternal'" in text
    assert "?dedupe= in the queue's URL" in text
    assert "max_attempts=0" in text
    assert "\n" not in text


def test_an_unknown_setting_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"\?leese_seconds= .* there are lease_seconds, max"):
        queue_settings({}, {"leese_seconds": "5"}, {}, QueueSettings)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("lease_seconds", "0"),
        ("lease_seconds", "-1"),
        ("lease_seconds", "43201"),
        ("lease_seconds", "nan"),
        ("lease_seconds", "inf"),
        ("max_attempts", "0"),
        ("max_attempts", "1001"),
        ("max_attempts", "2.5"),
        ("durability", ""),
        ("data_dir", ""),
    ],
)
def test_what_could_never_work_is_refused(name: str, bad: str) -> None:
    with pytest.raises(ConfigError, match=name):
        queue_settings({}, {name: bad}, {}, QueueSettings)


def test_variables_of_others_are_none_of_our_business() -> None:
    assert queue_settings({"HOLDFAST_QUEUE": "x", "HOLDFAST_OTHER": "y"}, {}, {}, QueueSettings)
