"""Settings of conversations:  (MS-16, MS-27, MS-29)."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from holdfast.chat.model import Channel, ConversationPolicy
from holdfast.chat.settings import ChatSettings, read_trigger_settings
from holdfast.errors import ConfigError
from holdfast.settings import read_settings
from support.paths import ROOT

NUMBER = "+4930123456789"


def read_error(**values: str) -> str:
    """Return the error for these settings."""
    with pytest.raises(ConfigError) as caught:
        read_settings(
            ChatSettings,
            {ChatSettings.to_variable(name): text for name, text in values.items()},
        )
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_defaults_are_files_below_data_and_the_default_policy() -> None:
    settings = read_settings(ChatSettings, {})
    assert settings.policy == ConversationPolicy()
    assert settings.store_url == "data/chat.db"
    assert settings.outbox_folder == Path("data/outbox")
    assert settings.queue_urls == {
        Channel.WHATSAPP: "chat/whatsapp",
        Channel.SMS: "chat/sms",
        Channel.EMAIL: "chat/email",
    }


def test_all_of_it_moves_with_the_data_folder() -> None:
    settings = read_settings(ChatSettings, {"HOLDFAST_DATA_DIR": "/srv"})
    assert settings.store_url == "/srv/chat.db"
    assert settings.outbox_folder == Path("/srv/outbox")


@pytest.mark.requirement("R002-004")
def test_each_channel_has_the_queue_that_is_configured() -> None:
    env = {"HOLDFAST_CHAT_SMS_QUEUE": "sqs:SMSQueue?lease_seconds=90"}
    settings = read_settings(ChatSettings, env)
    assert settings.queue_urls[Channel.SMS] == env["HOLDFAST_CHAT_SMS_QUEUE"]
    leases = [entry.lease_seconds for entry in read_trigger_settings(settings, env)]
    assert sorted(leases) == [60, 60, 90]


@pytest.mark.parametrize("term", [entry.name for entry in fields(ConversationPolicy)])
def test_every_policy_field_has_a_variable_and_refuses_a_word(term: str) -> None:
    assert f"HOLDFAST_CHAT_{term.upper()}: " in read_error(**{term: "soon"})


@pytest.mark.parametrize("text", ["nan", "inf", "-1"])
@pytest.mark.parametrize("term", ["quiet_seconds", "writer_seconds", "remember_seconds"])
def test_waits_must_be_finite_and_not_negative(term: str, text: str) -> None:
    assert ChatSettings.to_variable(term) in read_error(**{term: text})


def test_every_problem_is_reported_at_once_by_its_variable() -> None:
    text = read_error(
        store="redis:x",
        whatsapp_queue="sqs:trigger.fifo?lease_seconds=5",
        webhook_url="holdfast.example",
        secrets_cache_seconds="-1",
        lock_seconds="nan",
        stage_seconds="60",
        most_fragments="41",
        inbound_queue="chat/sms",
    )
    named = set(re.findall(r"HOLDFAST_CHAT_\w+", text))
    assert named >= {
        "HOLDFAST_CHAT_STORE",
        "HOLDFAST_CHAT_WHATSAPP_QUEUE",
        "HOLDFAST_CHAT_WEBHOOK_URL",
        "HOLDFAST_CHAT_SECRETS_CACHE_SECONDS",
        "HOLDFAST_CHAT_LOCK_SECONDS",
        "HOLDFAST_CHAT_STAGE_SECONDS",
        "HOLDFAST_CHAT_MOST_FRAGMENTS",
        "HOLDFAST_CHAT_INBOUND_QUEUE",
    }


@pytest.mark.parametrize("name", ["sms_queue", "email_queue", "inbound_queue"])
@pytest.mark.parametrize("url", ["amqp:q", "q?lease_seconds=1&lease_seconds=2", "file:a%00b/q"])
def test_a_url_that_no_queue_can_have_is_found_before_anything_starts(
    name: str, url: str
) -> None:
    """It is reported with the other problems, and only what is wrong of it is shown."""
    text = read_error(**{name: url, "lock_seconds": "soon"})
    assert f"{ChatSettings.to_variable(name)}: " in text
    assert "HOLDFAST_CHAT_LOCK_SECONDS: " in text
    assert "a%00b" not in text


def test_valid_settings_are_not_reported_with_invalid_ones() -> None:
    """The default of a bad window is not compared with the maximum wait."""
    assert "MAX_WAIT" not in read_error(window_seconds="soon", max_wait_seconds="5")


@pytest.mark.parametrize("channel", list(Channel))
@pytest.mark.parametrize("url", ["sqs:a.fifo", "https://sqs.x/1/a.fifo?max_attempts=3"])
def test_a_fifo_queue_for_triggers_is_refused(channel: Channel, url: str) -> None:
    """It takes no delay for a single message (MS-29)."""
    assert "FIFO" in read_error(**{f"{channel}_queue": url})


def test_a_window_longer_than_a_queue_can_delay_is_refused() -> None:
    """SQS delays no message longer than 900 seconds (MS-29)."""
    text = read_error(window_seconds="901", max_wait_seconds="901")
    assert "HOLDFAST_CHAT_WINDOW_SECONDS must be between 0 and 900" in text


def test_staged_messages_outlive_their_trigger() -> None:
    """(MS-16)"""
    assert "HOLDFAST_CHAT_STAGE_SECONDS must be 14 days or more" in read_error(
        stage_seconds="86400", park_after_seconds="3600"
    )


def test_a_bad_setting_in_a_queues_url_is_found_without_opening_the_queue() -> None:
    env = {"HOLDFAST_CHAT_EMAIL_QUEUE": "sqs:mail?max_attempts=none"}
    with pytest.raises(ConfigError, match=r"HOLDFAST_CHAT_EMAIL_QUEUE: .*max_attempts"):
        read_trigger_settings(read_settings(ChatSettings, env), env)


# -- profiles


def test_profiles_are_json_or_a_json_file(tmp_path: Path) -> None:
    text = json.dumps({"*": {"ai_config": {"provider": "echo"}}})
    file = tmp_path / "profiles.json"
    file.write_text(text)
    settings = [
        read_settings(ChatSettings, {"HOLDFAST_CHAT_PROFILES": value})
        for value in (text, str(file))
    ]
    assert settings[0].profiles == settings[1].profiles
    [(address, profile)] = settings[0].profiles
    assert (address, profile.ai_config, profile.channel_config) == (
        "*",
        {"provider": "echo"},
        {},
    )


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([], "a JSON object is needed"),
        ({NUMBER: {}, "": {}}, "profile 2: the address is empty"),
        ({NUMBER: {"ai": {}}}, "profile 1: an object with channel_config and ai_config"),
        ({NUMBER: {"ai_config": NUMBER}}, "profile 1: .* must be objects"),
    ],
)
def test_a_bad_profile_is_named_by_its_place_and_not_by_its_address(
    value: object, why: str
) -> None:
    text = read_error(profiles=json.dumps(value))
    assert re.search(f"HOLDFAST_CHAT_PROFILES: {why}", text)
    assert NUMBER not in text


@pytest.mark.parametrize("text", ["{", "no-such-file.json", "/", "{" * 100_000])
def test_profiles_that_cannot_be_read_say_why(text: str) -> None:
    assert "HOLDFAST_CHAT_PROFILES: " in read_error(profiles=text)


def test_no_setting_that_may_be_private_is_shown() -> None:
    settings = read_settings(
        ChatSettings,
        {
            "HOLDFAST_CHAT_PROFILES": json.dumps({NUMBER: {}}),
            "HOLDFAST_CHAT_TWILIO_SECRET": "canary-secret",
        },
    )
    assert "canary" not in repr(settings)
    assert NUMBER not in repr(settings)


def test_the_example_profiles_can_be_read() -> None:
    path = ROOT / "examples/chat/profiles.json"
    assert len(read_settings(ChatSettings, {"HOLDFAST_CHAT_PROFILES": str(path)}).profiles) == 2
