"""The last messages of a history, as many as a conversation's row can always hold.

The whole history lies in rows of its own. The row of a conversation is read with every turn
and may not grow: DynamoDB takes 400 KB, and refuses the reply of a customer beyond that.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from holdfast.conversations.model import HistoryMessage

MOST_MESSAGES = 20
MAX_TAIL = 64_000  # characters of all bodies; four bytes each, at worst
MAX_BODY = 8_000  # characters of one; the rest is in the history
_ELLIPSIS = "…"


def recent_messages(
    messages: Sequence[HistoryMessage], new: Iterable[HistoryMessage]
) -> tuple[HistoryMessage, ...]:
    """The tail once these are added; the same whether they come one by one or together."""
    tail: list[HistoryMessage] = []
    room = MAX_TAIL
    for message in reversed([*messages, *new]):
        short = _shortened(message)
        room -= len(short.body)
        if room < 0 or len(tail) == MOST_MESSAGES:
            break
        tail.append(short)
    return tuple(reversed(tail))


def _shortened(message: HistoryMessage) -> HistoryMessage:
    if len(message.body) <= MAX_BODY:
        return message
    kept = message.body[: MAX_BODY - len(_ELLIPSIS)]
    return replace(message, body=kept + _ELLIPSIS)
