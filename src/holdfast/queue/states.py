"""The states of a message, and how a message was settled."""

from enum import Enum
from typing import final


class MessageState(Enum):
    """The state of a message. A delayed message is PENDING with a due time in the future."""

    PENDING = "pending"
    LEASED = "leased"
    COMPLETED = "completed"
    FAILED = "failed"


@final
class SettleResult(Enum):
    """What happened to the message. WorkerReport has a count for each."""

    # Enum hashes by name in Python code, which is slow for a count per message.
    __hash__ = object.__hash__

    COMPLETED = "completed"
    RETRIED = "retried"
    DEAD_LETTERED = "dead-lettered"
    GIVEN_BACK = "given back"
    ABANDONED = "abandoned"
