"""The last messages of a history, as many as a conversation's row can always hold.

The complete history is stored in rows of its own. The row of a conversation is read with
every turn and must not grow: DynamoDB accepts at most 400 KB, and a larger row would block
the customer's next reply.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from holdfast.conversations.model import HistoryMessage

MAX_MESSAGES = 20
MAX_CHARACTERS = 64_000  # of all bodies; each character takes at most four bytes
MAX_BODY = 8_000  # characters of one body; the complete text is in the history
_ELLIPSIS = "…"


def keep_recent_messages(
    messages: Sequence[HistoryMessage], new: Iterable[HistoryMessage]
) -> tuple[HistoryMessage, ...]:
    """Return the last messages after `new` is added, shortened where necessary.

    The result is the same whether new messages are added one by one or together.
    """
    kept: list[HistoryMessage] = []
    room = MAX_CHARACTERS
    for message in reversed([*messages, *new]):
        short = _shorten(message)
        room -= len(short.body)
        if room < 0 or len(kept) == MAX_MESSAGES:
            break
        kept.append(short)
    return tuple(reversed(kept))


def _shorten(message: HistoryMessage) -> HistoryMessage:
    if len(message.body) <= MAX_BODY:
        return message
    kept = message.body[: MAX_BODY - len(_ELLIPSIS)]
    return replace(message, body=kept + _ELLIPSIS)
