"""A conversation and what happens to it, as values.

    fragment ──▶ staged ─┐
    fragment ──▶ staged ─┼─ window over ─▶ batch ─▶ reply ─▶ history, both in one write
    fragment ──▶ staged ─┘                   └─ no retry helps ─▶ parked, for an operator

`repr` leaves out bodies, numbers and addresses, so no value here prints them.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, get_args

from holdfast.chat.outbox import Outbox
from holdfast.errors import ConfigError


class Channel(StrEnum):
    """How the customer is reached, and how long one message may be."""

    WHATSAPP = "whatsapp"
    SMS = "sms"
    EMAIL = "email"

    @classmethod
    def from_address(cls, primary_channel: str) -> "Channel":
        """Return the channel of an address: whatsapp:+4930…, +4930…, ada@example.org."""
        if primary_channel.startswith("whatsapp:"):
            return cls.WHATSAPP
        return cls.EMAIL if "@" in primary_channel else cls.SMS

    @property
    def max_length(self) -> int:
        """Return the maximum of characters in one message; a longer reply is split."""
        return 100_000 if self is Channel.EMAIL else 1_600


class Status(StrEnum):
    """The values that Holdfast writes into `conversation_status`.

    Values that other programs wrote are left as they are.
    """

    PROCESSING = "processing_reply"
    REPLY_SENT = "reply_sent"
    ERROR = "processing_error"
    PARKED = "parked"  # its last batch waits for an operator; new messages are answered
    WITH_PERSON = "with_person"  # an operator answers, so every batch is parked


@dataclass(frozen=True, slots=True)
class ConversationKey:
    """The identity of a conversation; `primary_channel` is the customer's address."""

    primary_channel: str = field(repr=False)
    conversation_id: str

    @property
    def channel(self) -> Channel:
        """Return the channel of the customer's address."""
        return Channel.from_address(self.primary_channel)

    @property
    def log_name(self) -> str:
        """Return the conversation's id as logs may show it."""
        return redact_id(self.conversation_id)


# A reader of a log would take seven digits for a phone number.
_ADDRESS = re.compile(r"@|\d(?:[ ().\-/]?\d){6}")


def redact_id(conversation_id: str) -> str:
    """Return the id as logs may show it; a number or an address becomes a digest."""
    if conversation_id.isprintable() and not _ADDRESS.search(conversation_id):
        return conversation_id[:80]
    return "#" + digest_texts(conversation_id)[:12]


_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")


def digest_texts(*parts: str) -> str:
    """Return 32 letters that stand for exactly these texts.

    The result has no digits, because a row of them would look like a phone number.
    """
    text = "".join(f"{len(part)}:{part}" for part in parts)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return digest[:32].translate(_LETTERS)


@dataclass(frozen=True, slots=True)
class Fragment:
    """One staged inbound text. Times are seconds since the epoch."""

    key: ConversationKey
    message_sid: str
    body: str = field(repr=False)
    received_at: float
    staged_at: float
    media: tuple[str, ...] = ()  # content types of the attachments


@dataclass(frozen=True, slots=True)
class UnreadableFragment:
    """A staged row that cannot be read: another program wrote it, or it is damaged."""

    message_sid: str
    problem: str
    row: Mapping[str, Any] = field(repr=False)


Staged = Fragment | UnreadableFragment


@dataclass(frozen=True, slots=True)
class Window:
    """The delay that collects fragments, stored as a row of `conversations-trigger-lock`."""

    conversation_id: str
    trigger_id: str
    owner_sid: str  # the message that opened it
    opened_at: float
    expires_at: float  # its end, whatever happened to its trigger
    triggered: bool = False  # the trigger is certainly in the queue


@dataclass(frozen=True, slots=True)
class LockGrant:
    """The lock of one conversation, valid until another worker takes it over.

    Each acquisition has a new `owner` and a higher `fence`.
    """

    key: ConversationKey
    owner: str
    trigger_id: str
    fence: int


Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class HistoryMessage:
    """One message of the history. A user message is a complete batch, merged."""

    role: Role
    body: str = field(repr=False)
    at: float
    message_sid: str  # of the batch's first fragment, or the provider's id of a reply
    details: Mapping[str, Any] = field(default_factory=dict)
    seq: int = 0  # from 1, assigned by the store


@dataclass(frozen=True, slots=True)
class Conversation:
    """The canonical row of a conversation.

    `messages` is the end of the history; the store has the complete one.
    """

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

    def is_locked(self, now: float) -> bool:
        """Check whether a lock is held that has not expired."""
        return self.status == Status.PROCESSING and self.lock_expires_at > now


# The last turn of a history, in short, which a conversation's row keeps for other programs. The
# complete history is stored in rows of its own. The row is written five times in a turn, and
# DynamoDB charges each write by the size of the row, so it must stay small.
MAX_RECENT_MESSAGES = 2
MAX_RECENT_BODY = 160  # characters of one body
_ELLIPSIS = "…"


def keep_recent_messages(messages: Iterable[HistoryMessage]) -> tuple[HistoryMessage, ...]:
    """Return the last messages, shortened where necessary."""
    return tuple(_shorten(message) for message in [*messages][-MAX_RECENT_MESSAGES:])


def _shorten(message: HistoryMessage) -> HistoryMessage:
    if len(message.body) <= MAX_RECENT_BODY:
        return message
    kept = message.body[: MAX_RECENT_BODY - len(_ELLIPSIS)]
    return replace(message, body=kept + _ELLIPSIS)


# -- the results of acquiring the lock


@dataclass(frozen=True, slots=True)
class LockAcquired:
    """The caller has the lock now."""

    grant: LockGrant
    conversation: Conversation  # as it is now, read in the same write


@dataclass(frozen=True, slots=True)
class LockHeld:
    """Another caller has the lock."""

    trigger_id: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class ConversationNotFound:
    """There is no such conversation, and none was created."""


# -- how a batch ends


@dataclass(frozen=True, slots=True)
class Turn:
    """One batch and its reply, which become history together."""

    sids: tuple[str, ...]
    user: HistoryMessage
    assistant: HistoryMessage
    thread_id: str
    thread_mark: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ParkedBatch:
    """A batch that waits for an operator, with the reason and the state of its reply."""

    parked_id: str
    key: ConversationKey
    reason: str
    parked_at: float
    staged: tuple[Staged, ...]
    outbox: Outbox | None = None

    @property
    def sids(self) -> tuple[str, ...]:
        """Return the message ids of the batch."""
        return tuple(row.message_sid for row in self.staged)


@dataclass(frozen=True, slots=True)
class WaitingConversation:
    """A summary of one conversation's staged rows, which may be slightly out of date."""

    key: ConversationKey
    fragments: int
    oldest_staged_at: float


def make_parked_id(key: ConversationKey, sids: Iterable[str]) -> str:
    """Return the id under which these messages of this conversation are parked.

    The id depends on nothing else, so parking the same messages twice parks them once, and
    messages of another conversation never share it.
    """
    return digest_texts(key.primary_channel, key.conversation_id, *sorted(sids))[:16]


# -- the policy

DAY = 86_400.0
Doubt = Literal["if_missing", "at_most_once", "at_least_once"]


@dataclass(frozen=True, slots=True)
class ConversationPolicy:
    """The waits and limits of a conversation.

    window_seconds      how long the first message of a batch waits for others
    quiet_seconds       if a message came less than this ago, wait for more of them …
    max_wait_seconds    … but no longer than this after the first message
    lock_seconds        the lock's lease, which is renewed while the batch is answered
    in_doubt            what to do if it is unknown whether a reply was sent:
                        if_missing     send it again if the provider reports for a while that
                                       it does not have it; park it if that stays unknown
                        at_most_once   park it, unless the provider has it
                        at_least_once  send it again, unless the provider has it
    writer_seconds      the timeout of a call to the writer
    sender_seconds      the timeout of a call to the sender
    stage_seconds       how long staged rows are kept; longer than any queue keeps triggers
    remember_seconds    how long a processed message is recognised if it arrives again
    grace_seconds       how long after its time a trigger counts as lost
    park_after_seconds  messages that could not be answered for this long are parked
    most_fragments      the maximum of messages in a batch, because one write must hold it;
                        the others are answered in later turns
    """

    window_seconds: float = 10.0
    quiet_seconds: float = 2.0
    max_wait_seconds: float = 30.0
    lock_seconds: float = 60.0
    in_doubt: Doubt = "if_missing"
    writer_seconds: float = 60.0
    sender_seconds: float = 15.0
    stage_seconds: float = 21 * DAY
    remember_seconds: float = 30 * DAY
    grace_seconds: float = 60.0
    park_after_seconds: float = 3 * DAY
    most_fragments: int = 40

    def __post_init__(self) -> None:
        problems = [text for wrong, text in self._checks() if wrong]
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def look_up_delays(self) -> tuple[float, ...]:
        """Return the waits before each look-up of an unclear send, 30 s in all.

        They take at most half of `writer_seconds`, which an attempt that resumes with a
        look-up has to spare because it does not ask the writer.
        """
        unit_seconds = min(1.0, self.writer_seconds / 60)
        return tuple(factor * unit_seconds for factor in (1, 2, 4, 8, 15))

    def _checks(self) -> list[tuple[bool, str]]:
        return [
            (
                not 0 <= self.window_seconds <= 900,
                "window_seconds must be between 0 and 900: SQS delays no message longer",
            ),
            (self.quiet_seconds < 0, "quiet_seconds must be 0 or more"),
            (
                not self.window_seconds <= self.max_wait_seconds <= 900,
                "max_wait_seconds must be between window_seconds and 900",
            ),
            (not self.lock_seconds > 0, "lock_seconds must be above 0"),
            (
                self.in_doubt not in get_args(Doubt),
                f"in_doubt must be one of {', '.join(get_args(Doubt))}",
            ),
            (not self.writer_seconds > 0, "writer_seconds must be above 0"),
            (not self.sender_seconds > 0, "sender_seconds must be above 0"),
            (
                self.stage_seconds < 14 * DAY,
                "stage_seconds must be 14 days or more: a queue may keep a trigger so long",
            ),
            (
                not 0 < self.park_after_seconds < self.stage_seconds,
                "park_after_seconds must be below stage_seconds, or messages expire unanswered",
            ),
            (
                self.remember_seconds < self.stage_seconds,
                "remember_seconds must not be below stage_seconds",
            ),
            (not self.grace_seconds > 0, "grace_seconds must be above 0"),
            (not 1 <= self.most_fragments <= 40, "most_fragments must be between 1 and 40"),
        ]


@dataclass(frozen=True, slots=True)
class ConversationProfile:
    """The configuration that a new conversation starts with."""

    channel_config: dict[str, Any] = field(default_factory=dict)
    ai_config: dict[str, Any] = field(default_factory=dict)
