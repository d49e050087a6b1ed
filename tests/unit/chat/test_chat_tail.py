"""The recent messages in a conversation's row (MS-10, I-MS-10)."""

import pytest

from holdfast.chat.model import MAX_RECENT_BODY, HistoryMessage, keep_recent_messages


def messages(lengths: list[int]) -> list[HistoryMessage]:
    return [
        HistoryMessage("user", f"{seq % 10}" * length, 1.0, f"m{seq}", seq=seq)
        for seq, length in enumerate(lengths, 1)
    ]


@pytest.mark.requirement("R002-069")
@pytest.mark.parametrize("number", [0, 1, 2, 50])
def test_the_last_turn_is_the_tail(number: int) -> None:
    many = messages([5] * number)
    assert keep_recent_messages(many) == tuple(many[-2:])


def test_a_long_text_is_cut_and_says_so() -> None:
    at_most, too_long = messages([MAX_RECENT_BODY, MAX_RECENT_BODY + 1])
    kept, cut = keep_recent_messages([at_most, too_long])
    assert kept == at_most
    assert len(cut.body) == MAX_RECENT_BODY
    assert cut.body == too_long.body[: MAX_RECENT_BODY - 1] + "…"
    assert (cut.seq, cut.message_sid) == (too_long.seq, too_long.message_sid)
