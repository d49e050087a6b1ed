"""How a form names dead letters: by all that a queue needs to find them again."""

import re
from urllib.parse import quote, unquote

from starlette.exceptions import HTTPException

from holdfast.queue.info import MessageInfo, MessageState

_CHOICE = re.compile(r"([0-9A-Za-z-]{1,64}) ([0-9]{1,9}) ([0-9]{1,9}) ([!-~]+)")


def format_choice(message: MessageInfo) -> str:
    """Return the value by which a form names a dead letter.

    The id is quoted, because a form changes line breaks.
    """
    return f"{message.key} {message.fence} {message.attempts} {quote(message.id, safe='')}"


def parse_choices(choices: list[str]) -> list[MessageInfo]:
    """Return the dead letters that a form names. Raises 400 for a value of another form.

    A key becomes part of a path in a file queue, so it is checked here, too.
    """
    messages = []
    for choice in choices:
        if (match := _CHOICE.fullmatch(choice)) is None:
            raise HTTPException(400, "The form names a dead letter that cannot be one.")
        key, fence, attempts, message_id = match.groups()
        messages.append(
            MessageInfo(
                unquote(message_id),
                key,
                MessageState.FAILED,
                int(attempts),
                int(fence),
                where="",
            )
        )
    return messages
