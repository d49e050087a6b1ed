"""A conversation and what happens to it, as values.

    fragment ──▶ staged ─┐
    fragment ──▶ staged ─┼─ window over ─▶ batch ─▶ reply ─▶ history, both in one write
    fragment ──▶ staged ─┘                   └─ no retry helps ─▶ parked, for a person

Nothing here prints a body, a number or an address: `repr` leaves them out.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from holdfast.conversations.outbox import Outbox


class Channel(StrEnum):
    """How the customer is reached, and how much one message of it holds."""

    WHATSAPP = "whatsapp"
    SMS = "sms"
    EMAIL = "email"

    @classmethod
    def of(cls, primary_channel: str) -> "Channel":
        """By the form of the address: whatsapp:+4930…, +4930…, ada@example.org."""
        if primary_channel.startswith("whatsapp:"):
            return cls.WHATSAPP
        return cls.EMAIL if "@" in primary_channel else cls.SMS

    @property
    def longest(self) -> int:
        """Characters of one message; a longer reply is split."""
        return 100_000 if self is Channel.EMAIL else 1_600


class Status(StrEnum):
    """What Holdfast writes into `conversation_status`. Others may be there: they stay."""

    PROCESSING = "processing_reply"
    REPLY_SENT = "reply_sent"
    ERROR = "processing_error"
    PARKED = "parked"  # its last batch waits for a person; new messages are answered
    WITH_PERSON = "with_person"  # a person answers: every batch is parked


@dataclass(frozen=True, slots=True)
class ConversationKey:
    """`primary_channel` is the customer's address, as the seed has it."""

    primary_channel: str = field(repr=False)
    conversation_id: str

    @property
    def channel(self) -> Channel:
        return Channel.of(self.primary_channel)


# Seven digits are a phone number to whoever reads a log.
_ADDRESS = re.compile(r"@|\d(?:[ ().\-/]?\d){6}")


def redacted_id(conversation_id: str) -> str:
    """The id as logs may have it: one that looks like a number or an address is marked."""
    if conversation_id.isprintable() and not _ADDRESS.search(conversation_id):
        return conversation_id[:80]
    return "#" + mark_of(conversation_id)[:12]


_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")


def mark_of(*parts: str) -> str:
    """32 letters that stand for these texts and for no others. No digits: a row of them
    would look like somebody's number."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return digest[:32].translate(_LETTERS)


@dataclass(frozen=True, slots=True)
class Fragment:
    """One inbound text, staged. Times are seconds since the epoch."""

    key: ConversationKey
    message_sid: str
    body: str = field(repr=False)
    received_at: float
    staged_at: float
    media: tuple[str, ...] = ()  # content types of what came with it


@dataclass(frozen=True, slots=True)
class UnreadableFragment:
    """A staged row that is no fragment: written by somebody else, or damaged."""

    message_sid: str
    problem: str
    row: Mapping[str, Any] = field(repr=False)


Staged = Fragment | UnreadableFragment


@dataclass(frozen=True, slots=True)
class Window:
    """The wait that gathers fragments: the row of `conversations-trigger-lock`."""

    conversation_id: str
    trigger_id: str
    owner_sid: str  # whose message opened it
    opened_at: float
    expires_at: float  # over by then, whatever became of its trigger
    triggered: bool = False  # the trigger is surely in the queue


@dataclass(frozen=True, slots=True)
class LockGrant:
    """The lock of one conversation, as long as nobody took it over.

    `owner` is new with every acquisition, `fence` rises with each.
    """

    key: ConversationKey
    owner: str
    trigger_id: str
    fence: int


Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class HistoryMessage:
    """One message of the history. A user's one is a whole batch, merged."""

    role: Role
    body: str = field(repr=False)
    at: float
    message_sid: str  # of the batch's first fragment; the provider's for a reply
    details: Mapping[str, Any] = field(default_factory=dict)
    seq: int = 0  # from 1; given by the store


@dataclass(frozen=True, slots=True)
class Conversation:
    """The canonical row. `messages` is the tail of the history; the store has all of it."""

    key: ConversationKey
    channel_config: Mapping[str, Any] = field(default_factory=dict)
    ai_config: Mapping[str, Any] = field(default_factory=dict)
    status: str = ""
    previous_status: str = ""  # before the lock was taken
    messages: tuple[HistoryMessage, ...] = ()
    message_count: int = 0
    thread_id: str = ""  # `openai_thread_id`
    thread_mark: str = ""  # the last item of the thread that belongs to the history
    last_assistant_message_sid: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    outbox: Outbox | None = None
    lock_trigger: str = ""
    lock_expires_at: float = 0.0
    lock_fence: int = 0
    created_at: float = 0.0
    updated_at: float = 0.0

    def locked(self, now: float) -> bool:
        return self.status == Status.PROCESSING and self.lock_expires_at > now


# -- what acquiring the lock can come to


@dataclass(frozen=True, slots=True)
class LockAcquired:
    grant: LockGrant
    conversation: Conversation  # as it is now, read in the same write


@dataclass(frozen=True, slots=True)
class LockHeld:
    """Somebody else has it."""

    trigger_id: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class ConversationNotFound:
    """There is no such conversation, and none was made up."""


# -- how a batch ends


@dataclass(frozen=True, slots=True)
class Turn:
    """One batch and its reply: all that becomes history together."""

    sids: tuple[str, ...]
    user: HistoryMessage
    assistant: HistoryMessage
    thread_id: str
    thread_mark: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ParkedBatch:
    """A batch that waits for a person, with the reason and all that is known of it."""

    parked_id: str
    key: ConversationKey
    reason: str
    parked_at: float
    staged: tuple[Staged, ...]
    outbox: Outbox | None = None

    @property
    def sids(self) -> tuple[str, ...]:
        return tuple(one.message_sid for one in self.staged)


@dataclass(frozen=True, slots=True)
class WaitingConversation:
    """Staged rows of one conversation, as a listing saw them: perhaps a moment behind."""

    key: ConversationKey
    fragments: int
    oldest_staged_at: float


def parked_id_of(key: ConversationKey, sids: Iterable[str]) -> str:
    """The same for the same messages of the same conversation: parking twice is parking
    once, and nobody else's messages are taken for them."""
    return mark_of(key.primary_channel, key.conversation_id, *sorted(sids))[:16]
