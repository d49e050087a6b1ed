"""Settings: their sources, the order of precedence, and all problems at once."""

from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from holdfast.errors import ConfigError
from holdfast.exports.commands.inspect import STORE_VARIABLE
from holdfast.exports.settings import ExportSettings
from holdfast.lease.backoff import Backoff
from holdfast.queues.settings import QueueOptions, QueueSettings, SqsSettings
from holdfast.settings import Settings, read_settings
from holdfast.variables import list_settings_kinds, warn_once


@pytest.mark.parametrize("text", ["", " "])
@pytest.mark.parametrize("kind", list_settings_kinds())
def test_an_empty_variable_means_the_default(kind: type[Settings], text: str) -> None:
    env = {kind.to_variable(name): text for name in kind.model_fields}
    assert read_settings(kind, env) == kind()


def test_the_caller_wins_over_the_url_and_the_url_over_the_environment() -> None:
    env = {
        "HOLDFAST_LEASE_SECONDS": "1",
        "HOLDFAST_MAX_ATTEMPTS": "1",
        "HOLDFAST_DATA_DIR": "/srv",
    }
    settings = read_settings(
        QueueSettings, env, {"lease_seconds": "2", "max_attempts": "2"}, {"lease_seconds": 3}
    )
    assert (settings.lease_seconds, settings.max_attempts, settings.data_dir) == (3, 2, "/srv")


def test_every_problem_is_reported_at_once_by_the_name_the_user_wrote() -> None:
    with pytest.raises(ConfigError) as raised:
        read_settings(
            QueueSettings,
            {"HOLDFAST_LEASE_SECONDS": "soon", "HOLDFAST_DURABILITY": "eternal"},
            {"dedupe": "maybe"},
            {"max_attempts": 0},
        )
    text = str(raised.value)
    assert "HOLDFAST_LEASE_SECONDS='soon'" in text
    assert "HOLDFAST_DURABILITY='eternal'" in text
    assert "?dedupe= in the queue's URL" in text
    assert "max_attempts=0" in text
    assert "\n" not in text


def test_an_unknown_setting_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"\?leese_seconds= .* the settings are lease_seconds, max"
    ):
        read_settings(QueueSettings, {}, {"leese_seconds": "5"})


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
def test_impossible_values_are_refused(name: str, bad: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read_settings(QueueSettings, {}, {name: bad})


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the warnings of the test, in a process that has logged none before."""
    warn_once.cache_clear()
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    "name",
    [
        *("HOLDFAST_QUEUE", "HOLDFAST_JOBS", "HOLDFAST_DEBUG"),  # which are read elsewhere
        *("HOLDFAST_CHAT_STORE", "HOLDFAST_DOWNLOADS"),  # settings of another kind
        *("HOLDFAST_OTHER", "HOLDFAST_CHAOS_SECONDS", "HOLDFAST_CHAT_SEEDS", "LEASE_SECOND"),
        *("HOLDFAST_URL", "HOLDFAST_SECRET", "HOLDFAST_HOST", "HOLDFAST_ENABLED"),
    ],
)
def test_a_variable_that_resembles_no_setting_is_ignored(
    name: str, warnings: Callable[[], list[str]]
) -> None:
    assert read_settings(QueueSettings, {name: "x"}) == QueueSettings()
    assert warnings() == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HOLDFAST_LEASE_SECOND", "HOLDFAST_LEASE_SECONDS"),
        ("HOLDFAST_LEASE", "HOLDFAST_LEASE_SECONDS"),
        ("HOLDFAST_DATADIR", "HOLDFAST_DATA_DIR"),
        ("HOLDFAST_QEUE", "HOLDFAST_QUEUE"),
        ("HOLDFAST_QUEUES", "HOLDFAST_QUEUE"),
        ("HOLDFAST_BACKOF", "HOLDFAST_BACKOFF"),
        ("HOLDFAST_WINDOW_SECONDS", "HOLDFAST_CHAT_WINDOW_SECONDS"),
    ],
)
def test_a_misspelt_variable_is_a_warning_with_the_right_name(
    name: str, meant: str, warnings: Callable[[], list[str]]
) -> None:
    for _ in range(2):  # it may be another program's, so the settings are read all the same
        assert read_settings(QueueSettings, {name: "secret"}) == QueueSettings()
    assert warnings() == [f"{name} is not a setting and has no effect; did you mean {meant}?"]


def test_the_typed_keywords_are_the_settings() -> None:
    assert list(get_type_hints(QueueOptions)) == list(SqsSettings.model_fields)


# -- backoff


@pytest.mark.parametrize(
    ("text", "backoff"),
    [
        ("5s,x2,max 10m", Backoff(5, 2, 600)),
        ("5s,x2,max10m", Backoff(5, 2, 600)),
        (" 5S, X1.5, MAX 10M ", Backoff(5, 1.5, 600)),
        ("30", Backoff(30)),
        ("0s", Backoff(0)),
        ("1m30s,x1", Backoff(90, 1)),
        ("1h,max 1h", Backoff(3600, max_seconds=3600)),
    ],
)
def test_a_backoff_is_the_first_delay_its_factor_and_its_maximum(
    text: str, backoff: Backoff
) -> None:
    assert read_settings(QueueSettings, {"HOLDFAST_BACKOFF": text}).backoff == backoff
    assert read_settings(QueueSettings, {}, {"backoff": text}).backoff == backoff
    assert read_settings(QueueSettings, {}, {}, {"backoff": backoff}).backoff == backoff


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("5s,max 10m,x2", "write it as 5s,x2,max 10m"),
        ("5s,2", "write it as 5s,x2,max 10m"),
        ("soon", "'soon' is not a duration"),
        ("-5s", "'-5s' is not a duration"),
        ("5s,max never", "' never' is not a duration"),
        ("5s,x0.5", "from x1 to x100, not x0.5"),
        ("5s,x1000", "from x1 to x100, not x1000"),
        ("10m", "the first delay, 600 s, is above the maximum, 300 s"),
    ],
)
def test_a_backoff_that_cannot_be_meant_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"HOLDFAST_BACKOFF='{text}': .*{problem}"):
        read_settings(QueueSettings, {"HOLDFAST_BACKOFF": text})


@pytest.mark.parametrize("value", [5, None, {"first_seconds": 5}])
def test_a_backoff_in_python_is_a_text_or_a_backoff(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^backoff=.*: write it as .*, or pass a Backoff$"):
        read_settings(QueueSettings, {}, {}, {"backoff": value})


# -- exports


def test_commands_and_settings_name_the_job_store_alike() -> None:
    assert ExportSettings.to_variable("jobs") == STORE_VARIABLE


def test_an_option_wins_over_its_variable_and_a_variable_over_the_default() -> None:
    env = {"WORKER_POOL_SIZE": "6", "HOLDFAST_DOWNLOADS": "2"}
    settings = read_settings(ExportSettings, env, given={"downloads": 3})
    assert (settings.worker_pool_size, settings.downloads, settings.task_attempts) == (6, 3, 3)


def test_hosts_are_separated_by_commas() -> None:
    settings = read_settings(
        ExportSettings, {"HOLDFAST_ALLOW_HOSTS": "files.internal:8080,,10.0.0.1"}
    )
    assert settings.allow_hosts == ("files.internal:8080", "10.0.0.1")
