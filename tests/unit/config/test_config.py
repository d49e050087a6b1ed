"""Settings: their sources, the order of precedence, and all problems at once."""

import re
from itertools import pairwise
from typing import Any

import pytest

from holdfast.config.chat import ChatSettings
from holdfast.config.export import ExportSettings, read_export_settings
from holdfast.config.heartbeat import HeartbeatSettings
from holdfast.config.queue import QueueSettings, SqsSettings
from holdfast.config.reading import Settings, read_settings
from holdfast.core.errors import ConfigError
from support.paths import ROOT


def test_nothing_given_means_the_defaults() -> None:
    settings = read_settings(QueueSettings, {})
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
    settings = read_settings(
        QueueSettings, env, {"lease_seconds": "2", "max_attempts": "2"}, {"lease_seconds": 3}
    )
    assert (settings.lease_seconds, settings.max_attempts, settings.data_dir) == (3, 2, "/srv")


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("1", True), ("yes", True), ("false", False), ("0", False)],
)
def test_yes_and_no_are_understood(text: str, value: bool) -> None:
    assert read_settings(QueueSettings, {"HOLDFAST_DEDUPE": text}).dedupe is value


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


def test_unknown_variables_are_ignored() -> None:
    assert read_settings(QueueSettings, {"HOLDFAST_QUEUE": "x", "HOLDFAST_OTHER": "y"})


# -- exports


def test_an_option_wins_over_its_variable_and_a_variable_over_the_default() -> None:
    env = {"WORKER_POOL_SIZE": "6", "HOLDFAST_DOWNLOADS": "2"}
    settings = read_export_settings(env, {"downloads": 3})
    assert (settings.worker_pool_size, settings.downloads, settings.per_host) == (6, 3, 16)


def test_hosts_are_separated_by_commas() -> None:
    settings = read_export_settings(
        {"HOLDFAST_ALLOW_HOSTS": "files.internal:8080,,10.0.0.1"}, {}
    )
    assert settings.allow_hosts == ("files.internal:8080", "10.0.0.1")


# -- the page

PAGE = ROOT / "docs/reference/settings.md"


def read_page() -> dict[str, list[str]]:
    """Return the defaults on the page, by variable."""
    defaults: dict[str, list[str]] = {}
    for row in re.findall(r"^\| (.+) \|$", PAGE.read_text(), re.MULTILINE):
        cells = [cell.strip().strip("`") for cell in row.split(" | ")]
        for name, default in pairwise(cells):
            if re.fullmatch(r"[A-Z]+(_[A-Z]+)+", name):
                defaults.setdefault(name, []).append(default)
    return defaults


def format_default(default: Any) -> str:
    if default is None or default == ():
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if isinstance(default, str) else f"{default:.15g}"


@pytest.mark.requirement("R004-031", "R004-207")
@pytest.mark.parametrize("kind", [SqsSettings, ExportSettings, HeartbeatSettings])
def test_every_setting_is_on_the_page_with_its_default(kind: type[Settings]) -> None:
    page = read_page()
    for name, field in kind.model_fields.items():
        defaults = page.get(kind.to_variable(name), [])
        assert defaults, f"{name} is not on the page"
        if name != "dead_letters":  # whose default depends on the queue
            assert set(defaults) == {format_default(field.default)}, name


def test_every_setting_on_the_page_exists() -> None:
    known = {
        kind.to_variable(name)
        for kind in (SqsSettings, ExportSettings, HeartbeatSettings, ChatSettings)
        for name in kind.model_fields
    }
    assert set(read_page()) == known
