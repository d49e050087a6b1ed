"""Shared helpers of the sender tests."""

from typing import Any

from holdfast.chat.outbox import SentPart
from holdfast.chat.ports import ReplyPart, ReplySender, Secret


def send(sender: ReplySender, part: ReplyPart, secret: Secret, **how: Any) -> SentPart:
    """Connect and hand the part over, with nothing in between."""
    with sender.connect(part, secret, **how) as hand_over:
        return hand_over()
