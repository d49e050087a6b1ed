"""Inbound messages: times in any form, hostile and incomplete input (MS-19)."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.chat.errors import InvalidInbound
from holdfast.chat.messages import Inbound, Trigger, parse_inbound, parse_time
from holdfast.chat.model import Channel, ConversationKey, digest_texts, redact_id

GOOD = {"message_sid": "SM1", "From": "whatsapp:+4930123456", "To": "whatsapp:+1", "body": "x"}
NOON = 1_800_000_000.0


@pytest.mark.requirement("R002-033")
@pytest.mark.parametrize(
    "written",
    [
        NOON,
        int(NOON),
        str(int(NOON)),
        NOON * 1000,
        str(int(NOON * 1000)),
        "2027-01-15T08:00:00Z",
        "2027-01-15T08:00:00.000+00:00",
        "2027-01-15 10:00:00+02:00",
        "2027-01-15T08:00:00",
        "Fri, 15 Jan 2027 03:00:00 -0500",
        datetime(2027, 1, 15, 8, tzinfo=UTC),
        datetime(2027, 1, 15, 9, tzinfo=timezone(timedelta(hours=1))),
    ],
)
def test_a_time_has_the_same_value_in_every_form(written):
    """Mixed formats, offsets and precisions sort in order of time (MS-19)."""
    assert parse_time(written) == NOON


NO_TIMES = ["", "yesterday", None, True, [], {}, float("nan"), "-5", 0, "9" * 40, "Fri, x"]
HUGE_TIMES = [
    10**400,
    -(10**400),
    "9" * 400,
    "Mon, 1 Jan 99999999999 00:00:00 +0000",
    "Mon, 1 Jan 2020 00:00:00 +99999999999999999999999",
    "1 Jan 2020 99999999999999:0:0",
    "٣٣٣٣٣٣٣٣٣٣",
]


@pytest.mark.requirement("R002-039")
@pytest.mark.parametrize("written", NO_TIMES + HUGE_TIMES)
def test_a_value_that_is_not_a_time_is_refused(written):
    with pytest.raises(ValueError, match="not a time"):
        parse_time(written)


@given(st.floats(min_value=1, max_value=9e10), st.floats(min_value=1, max_value=9e10))
def test_instants_compare_as_their_moments(left, right):
    texts = [datetime.fromtimestamp(at, UTC).isoformat() for at in (left, right)]
    first, second = map(parse_time, texts)
    assert (first < second) == (round(left, 6) < round(right, 6))


def test_a_message_has_the_customers_address_as_its_primary_channel():
    inbound = parse_inbound(GOOD)
    assert inbound.key.primary_channel == "whatsapp:+4930123456"
    assert inbound.key.channel is Channel.WHATSAPP
    assert inbound.key.conversation_id == digest_texts("whatsapp:+1", "whatsapp:+4930123456")


def test_a_conversation_id_that_is_given_is_kept():
    assert parse_inbound({**GOOD, "conversation_id": "c-1"}).key.conversation_id == "c-1"


@pytest.mark.requirement("R002-007", "R002-041")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"message_sid": ""}, "message_sid: is missing"),
        ({"message_sid": "a\nb"}, "message_sid: has a control character"),
        ({"message_sid": "x" * 300}, "more than 256"),
        ({"message_sid": 5}, "message_sid: is missing"),
        ({"From": None}, "From: is missing"),
        ({"From": "\x00"}, "control character"),
        ({"conversation_id": "a\x1bb"}, "conversation_id"),
        ({"To": "x" * 300}, "recipient"),
        ({"body": " \n "}, "empty"),
        ({"body": "x" * 64_001}, "64,000"),
        ({"body": "\ud800"}, "Unicode"),
        ({"body": 7}, "body"),
        ({"received_at": "soon"}, "not a time"),
        ({"received_at": 10**400}, "not a time"),
        ({"media": ["\ud800"]}, "control character"),
        ({"media": ["image/png\x00"]}, "control character"),
        ({"media": ["x" * 101]}, "too long"),
        ({"media": ["image/png"] * 101}, "more than 100"),
    ],
)
def test_a_message_that_could_not_be_answered_is_refused_with_the_reason(change, problem):
    """Validated before anything is stored. The error shows nothing of the input."""
    with pytest.raises(InvalidInbound, match=problem) as refused:
        parse_inbound({**GOOD, **change})
    assert "4930123456" not in str(refused.value)


def test_media_without_words_is_a_message():
    assert parse_inbound({**GOOD, "body": "", "media": ["image/png"]}).media == ("image/png",)


@pytest.mark.parametrize("text", ["\U0001f600 \u05e9\u05dc\u05d5\u05dd", "a\u202eb", "\x00x"])
def test_emoji_and_writing_from_the_right_are_texts_like_others(text):
    assert parse_inbound({**GOOD, "body": text}).body == text


def test_neither_body_nor_number_is_in_a_repr():
    """(I-MS-9)"""
    inbound = parse_inbound({**GOOD, "body": "canary"})
    trigger = Trigger(conversation_id="c", primary_channel=inbound.primary_channel)
    assert "canary" not in repr(inbound) + repr(inbound.key)
    assert "4930123456" not in repr(inbound) + repr(trigger) + repr(inbound.key)


@pytest.mark.requirement("R002-006", "R002-013", "R002-014", "R002-015")
def test_the_trigger_is_the_seeds_json_and_reads_what_others_send():
    """The two keys are enough, and further fields are ignored."""
    body = b'{"conversation_id": "c", "primary_channel": "+49", "more": 1}'
    trigger = Trigger.model_validate_json(body)
    assert (trigger.conversation_id, trigger.primary_channel) == ("c", "+49")
    assert trigger.key == ConversationKey("+49", "c")
    assert trigger.window == trigger.id


@pytest.mark.parametrize(
    ("conversation_id", "safe"),
    [
        ("c-17", True),
        (digest_texts("x"), True),
        ("+49 30 123456", False),
        ("ada@example.org", False),
    ],
)
def test_an_id_that_looks_like_an_address_is_marked_in_logs(conversation_id, safe):
    assert (redact_id(conversation_id) == conversation_id) is safe


@given(st.text(max_size=30), st.text(max_size=30))
def test_marks_tell_texts_apart_however_they_are_joined(left, right):
    assert digest_texts(left, right) == digest_texts(left, right)
    assert digest_texts(left + right) != digest_texts(left, right)
    assert not any(letter.isdigit() for letter in digest_texts(left))


@pytest.mark.parametrize(
    ("address", "channel"), [("whatsapp:+1", "whatsapp"), ("+1", "sms"), ("a@b", "email")]
)
def test_the_form_of_an_address_says_the_channel(address, channel):
    assert Channel.from_address(address) == channel


def test_inbound_travels_through_a_queue_and_back():
    inbound = Inbound.model_validate(GOOD)
    again = Inbound.model_validate_json(inbound.model_dump_json())
    assert again.key == inbound.key
    assert again.body == "x"


@pytest.mark.parametrize("window_id", ["\ud800", "a\x00b", "x" * 257])
def test_a_trigger_of_a_window_that_no_store_could_keep_is_refused(window_id):
    with pytest.raises(ValueError, match="window_id"):
        Trigger(conversation_id="c", primary_channel="+1", window_id=window_id)
