"""Texts about conversations that the command line and the web console show.

Phone numbers and addresses are masked, because screens are shared, filmed and pasted into
tickets.
"""

import re

from holdfast.chat.model import Conversation, Fragment, Staged, Status, redact_id

_NUMBER = re.compile(r"\+?\d[\d ().\-/]{5,}\d")


def mask_address(address: str) -> str:
    """Return whatsapp:+49…89 or a…@example.org. Text that is not a number stays."""
    name, at, host = address.rpartition("@")
    if at:
        return f"{name[:1]}…@{host}"
    return _NUMBER.sub(lambda number: f"{number[0][:3]}…{number[0][-2:]}", address)


def format_status(conversation: Conversation, now: float) -> str:
    """Return the conversation's status."""
    if conversation.status != Status.PROCESSING:
        return conversation.status or "new"
    if conversation.is_locked(now):
        return "being answered"
    return "interrupted; the next trigger takes over"


def format_body(staged: Staged) -> str:
    """Return the text of a staged message, with the kinds of its media."""
    if not isinstance(staged, Fragment):
        return f"(cannot be read: {staged.problem})"
    media = "".join(f" [{kind}]" for kind in staged.media)
    return f"{staged.body}{media}"


def get_received_at(staged: Staged) -> float:
    """Return when a staged message was received, or 0 if it cannot be read."""
    return staged.received_at if isinstance(staged, Fragment) else 0.0


def has_id_prefix(conversation: Conversation, name: str) -> bool:
    """Return whether the id begins with `name`, as stored or as lists show it redacted."""
    known = conversation.key.conversation_id
    return bool(name) and (known.startswith(name) or redact_id(known).startswith(name))
