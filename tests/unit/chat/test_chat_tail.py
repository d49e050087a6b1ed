"""The recent messages in a conversation's row (MS-10, I-MS-10)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.chat.model import (
    MAX_RECENT_BODY,
    MAX_RECENT_CHARACTERS,
    MAX_RECENT_MESSAGES,
    HistoryMessage,
    keep_recent_messages,
)

LENGTHS = st.lists(
    st.sampled_from([0, 1, 500, 3_200, 7_999, 8_000, 8_001, 60_000]), max_size=60
)


def messages(lengths: list[int]) -> list[HistoryMessage]:
    return [
        HistoryMessage("user", f"{seq % 10}" * length, 1.0, f"m{seq}", seq=seq)
        for seq, length in enumerate(lengths, 1)
    ]


def test_a_short_history_is_its_own_tail() -> None:
    few = messages([10, 20, 30])
    assert keep_recent_messages((), few) == tuple(few)
    assert keep_recent_messages(few[:2], few[2:]) == tuple(few)
    assert keep_recent_messages((), ()) == ()


@pytest.mark.requirement("R002-069")
def test_of_many_messages_the_last_twenty_are_the_tail() -> None:
    many = messages([5] * 50)
    assert keep_recent_messages((), many) == tuple(many[-20:])


def test_a_long_text_is_cut_and_says_so() -> None:
    at_most, too_long = messages([MAX_RECENT_BODY, MAX_RECENT_BODY + 1])
    kept, cut = keep_recent_messages((), [at_most, too_long])
    assert kept == at_most
    assert len(cut.body) == MAX_RECENT_BODY
    assert cut.body == too_long.body[: MAX_RECENT_BODY - 1] + "…"
    assert (cut.seq, cut.message_sid) == (too_long.seq, too_long.message_sid)


def test_of_long_messages_fewer_are_kept() -> None:
    assert [
        message.seq for message in keep_recent_messages((), messages([7_999] * 12))
    ] == list(range(5, 13))
    assert [
        message.seq for message in keep_recent_messages((), messages([8_000] * 12))
    ] == list(range(5, 13))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(lengths=LENGTHS, cut=st.integers(0, 60))
def test_any_tail_is_bounded_and_the_same_however_it_grew(lengths: list[int], cut: int) -> None:
    all_messages = messages(lengths)
    recent = keep_recent_messages((), all_messages)
    assert len(recent) <= MAX_RECENT_MESSAGES
    assert sum(len(message.body) for message in recent) <= MAX_RECENT_CHARACTERS
    assert [message.seq for message in recent] == [
        message.seq for message in all_messages[len(all_messages) - len(recent) :]
    ]
    assert len(recent) >= min(len(all_messages), MAX_RECENT_CHARACTERS // MAX_RECENT_BODY)
    assert (
        keep_recent_messages(keep_recent_messages((), all_messages[:cut]), all_messages[cut:])
        == recent
    )
    grown: tuple[HistoryMessage, ...] = ()
    for message in all_messages:
        grown = keep_recent_messages(grown, [message])
    assert grown == recent
