"""The ports of conversations: a store, a writer, a sender, secrets, providers."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from holdfast.chat.errors import PermanentError
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    ConversationNotFound,
    Fragment,
    HistoryMessage,
    LockAcquired,
    LockGrant,
    LockHeld,
    ParkedBatch,
    Staged,
    Turn,
    WaitingConversation,
    Window,
)
from holdfast.chat.outbox import Outbox, SentPart, WriterAnswer


class ConversationStore(ABC):
    """The store of conversations, their staged messages, windows and locks.

    It is safe for threads, processes and hosts. Every method promises:
    - It is one transaction.
    - If it raises StoreUnavailable, it is unknown whether the call was carried out. It is
      safe to call again.
    - Times are given by the caller and compared by value. A row whose `expires_at` has passed
      may still be stored, but it counts as gone.
    - Reads see the latest write, except `waiting`, `parked` and `conversations`.
    Methods that take a `grant` raise LockLost, and change nothing, unless that grant still
    holds the lock: same owner, same fence, status `processing_reply`.
    """

    # -- staging

    @abstractmethod
    def create(self, conversation: Conversation) -> bool:
        """Store the key, configs, status and times of a new conversation.

        Returns False, and changes nothing, if it exists already.
        """

    @abstractmethod
    def stage(self, fragment: Fragment, *, expires_at: float) -> bool:
        """Store the fragment once by its `message_sid`.

        Returns False, and changes nothing, if it is staged already.
        """

    @abstractmethod
    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        """Open this window, or return False because another one is open.

        Three kinds of windows do not block a new one: a window that expired
        (`expires_at < now`), a window of the same `owner_sid` that is not triggered, and a
        window that was opened before `untriggered_before` and is not triggered. In the last
        case the process that opened it crashed before it could send the trigger.
        """

    @abstractmethod
    def mark_triggered(self, window: Window) -> None:
        """Record that the window's trigger is in the queue.

        Does nothing if the window is no longer open.
        """

    @abstractmethod
    def window(self, conversation_id: str) -> Window | None:
        """Return the window's row, whether it expired or not."""

    @abstractmethod
    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        """Close the window, so that the next message opens another one.

        Does nothing unless it is the window of that trigger.
        """

    # -- the lock

    @abstractmethod
    def acquire(
        self,
        key: ConversationKey,
        *,
        owner: str,
        trigger_id: str,
        now: float,
        expires_at: float,
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        """Take the lock if it is free or expired (`lock_expires_at <= now`).

        Then the status is `processing_reply`, `previous_status` is what the status was before
        (kept when an expired lock is taken over), and the fence is higher than ever before.
        """

    @abstractmethod
    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        """Hold the lock longer.

        Returns False if the grant no longer holds the lock, or if the lock expired.
        """

    @abstractmethod
    def release(self, grant: LockGrant, status: str | None) -> None:
        """Release the lock without a reply; the outbox stays for the next owner.

        With status None the conversation gets back the status it had before, or the one an
        operator set meanwhile.
        """

    # -- the batch

    @abstractmethod
    def staged(self, conversation_id: str) -> list[Staged]:
        """Return every staged row, in any order, however many pages that takes."""

    @abstractmethod
    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        """Return those of these sids that are in the history or parked already."""

    @abstractmethod
    def note(self, grant: LockGrant, outbox: Outbox, thread_id: str) -> None:
        """Store the state of the reply, and the thread it is written in."""

    @abstractmethod
    def finish(
        self,
        grant: LockGrant,
        turn: Turn,
        *,
        now: float,
        remember_until: float,
        parked_id: str | None = None,
    ) -> None:
        """Turn a batch and its reply into history, in one write.

        Afterwards both messages are in the history, numbered and in order. The tokens are
        added up, and the thread and `last_assistant_message_sid` are set. The turn's sids are
        remembered as processed until `remember_until`, and their staged rows are gone. The
        outbox is gone, the lock is free, and the status is `reply_sent`.

        With `parked_id` the batch that this conversation has parked under that id is removed,
        too. If there is none, ParkedNotFound is raised and nothing is changed.
        """

    @abstractmethod
    def drop_staged(self, conversation_id: str, sids: Collection[str]) -> None:
        """Remove staged rows that were processed before."""

    # -- for operators

    @abstractmethod
    def park(
        self, grant: LockGrant | None, parked: ParkedBatch, *, remember_until: float
    ) -> None:
        """Keep a batch for an operator, in one write.

        Afterwards the batch is stored, its staged rows are gone, and its sids count as
        processed. With a grant the outbox is gone, too, the lock is free, and the status is
        `parked`, or `with_person` if it was that before. If a reply was written, the thread's
        mark moves behind it, because it does not belong to the next batch.

        Without a grant only these rows are changed, and the conversation need not exist.
        Messages that count as processed already are not parked again, but their rows are
        removed. The id then becomes that of the messages that are left. Parking the same
        batch again changes nothing.
        """

    @abstractmethod
    def parked(self) -> Iterator[ParkedBatch]:
        """Return every parked batch, the oldest first where that is cheap."""

    @abstractmethod
    def unpark(
        self, parked_id: str, *, back_to_stage: bool, now: float, expires_at: float
    ) -> ParkedBatch:
        """Remove a parked batch and return it.

        With `back_to_stage` its fragments are staged again (`staged_at` is `now`), and its
        sids no longer count as processed. Raises ParkedNotFound.
        """

    @abstractmethod
    def get(self, key: ConversationKey) -> Conversation | None:
        """Return the conversation as the last write left it."""

    @abstractmethod
    def conversations(self, conversation_id: str | None = None) -> Iterator[Conversation]:
        """Return all conversations, or those with that id.

        The most recently changed comes first where that is cheap.
        """

    @abstractmethod
    def set_status(self, key: ConversationKey, status: str) -> bool:
        """Set the status for an operator who takes over or hands back.

        Returns False if there is no such conversation. While a batch is being answered, the
        status becomes `previous_status`, so that the operator's decision holds when the lock
        is released. A reply that is already being sent is still sent.
        """

    @abstractmethod
    def history(
        self, key: ConversationKey, *, before: int | None = None, limit: int = 50
    ) -> list[HistoryMessage]:
        """Return up to `limit` messages in order: the last ones, or the last before a seq."""

    # -- for the sweeper

    @abstractmethod
    def waiting(self) -> Iterator[WaitingConversation]:
        """Return every conversation that has staged rows.

        The listing may be slightly out of date. Rows that cannot be read are counted.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""

    def __enter__(self) -> "ConversationStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- secrets


class Secret:
    """Named values such as `account_sid` and `auth_token`, never printed or pickled.

    Only the call to the provider uses `reveal`. No other method shows a value.
    """

    __slots__ = ("_name", "_values")

    def __init__(self, name: str, values: Mapping[str, str]) -> None:
        self._name = name  # its reference, for messages
        self._values = dict(values)

    def reveal(self, field: str) -> str:
        """Return the value of a field.

        Raises PermanentError, which names the field, if the secret has no such value.
        """
        if not (value := self._values.get(field)):
            raise PermanentError(f"secret {self._name!r} has no {field!r}")
        return value

    def __contains__(self, field: object) -> bool:
        return bool(self._values.get(str(field)))

    def __repr__(self) -> str:
        return f"<Secret {self._name!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret must not be pickled")


NO_SECRET = Secret("none", {})  # for providers that need none


def parse_secret(reference: str, text: str) -> Secret:
    """Return the secret that the text contains.

    Raises PermanentError, whose message never contains the text.
    """
    text = text.strip()
    if not text:
        raise PermanentError(f"secret {reference!r} is empty")
    if not text.startswith("{"):
        return Secret(reference, {"api_key": text, "password": text})
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise PermanentError(f"secret {reference!r} is not valid JSON") from None
    if wrong := [name for name, value in values.items() if not isinstance(value, str)]:
        raise PermanentError(
            f"secret {reference!r}: the value of {wrong[0][:40]!r} is not a text"
        )
    return Secret(reference, values)


class SecretStore(Protocol):
    """The source of secrets."""

    def get(self, reference: str) -> Secret:
        """Return the secret of that reference.

        Raises PermanentError if there is none, and TransientError if the source cannot be
        reached.
        """

    def forget(self, reference: str) -> None:
        """Drop the cached secret, so that the next `get` fetches it again."""


# -- providers


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """A merged batch, for the writer."""

    thread_id: str
    thread_mark: str  # later items of the thread come from earlier attempts
    text: str = field(repr=False)
    # True if an earlier attempt may have been answered and its response was lost. Compare the
    # text, because an item behind the mark may also belong to a batch that was parked before
    # its answer was noted.
    again: bool = False


class ReplyWriter(Protocol):
    """The writer of replies.

    Its methods raise TransientError, AuthenticationFailed or PermanentError; `write` also
    raises ThreadGone.
    """

    secret_fields: tuple[str, ...]
    """The fields its secret must have. They are checked before any call that costs money."""

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        """Open a thread for a conversation that has none.

        Returns '' if this writer does not use threads.
        """

    def write(
        self,
        question: ReplyRequest,
        config: Mapping[str, Any],
        secret: Secret,
        *,
        timeout_seconds: float,
    ) -> WriterAnswer:
        """Return the reply, even if it is empty.

        With `again` the thread is inspected first, so that a question which is answered there
        already is neither asked nor paid for twice.
        """


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """One message to be sent: part `index` of the reply to a batch."""

    key: ConversationKey
    config: Mapping[str, Any] = field(repr=False)  # the conversation's channel_config
    text: str = field(repr=False)
    reference: str  # always the same for this part, and unique to it
    index: int = 0


class ReplySender(Protocol):
    """The sender of replies over one provider."""

    secret_fields: tuple[str, ...]
    """The fields its secret must have."""

    repeatable: bool
    """True if sending a part again, by its reference, cannot send it twice."""

    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> AbstractContextManager[Callable[[], SentPart]]:
        """Do everything that can be done before the part is handed over.

        That is: import the provider's library, check the part, connect and log in. Raises
        PermanentError (refused for good), TransientError or AuthenticationFailed.

        The block receives the call that hands the part over, and makes it at most once. That
        call raises the same errors (then the part was certainly not sent), or SendUnclear.
        Nothing may be sent before that call. `SendingReply` is noted just before it, so a
        process that is killed earlier leaves no unclear send behind. Leaving the block closes
        what was opened, and raises nothing.
        """

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        """Return the part as the provider has it, if it was sent after `since`.

        Messages whose sids are `known` belong to other parts. Returns None if the provider
        does not have the part. Raises SendStatusUnknown, TransientError or
        AuthenticationFailed.
        """


class ProviderSource(Protocol):
    """The writers and senders by the names that configs use. Each is made on first use."""

    @property
    def secrets(self) -> SecretStore:
        """Return the source of the providers' secrets."""

    def writer(self, name: str) -> ReplyWriter:
        """Return the writer `openai` or `echo`.

        Raises PermanentError for an unknown name or an extra that is not installed.
        """

    def sender(self, name: str) -> ReplySender:
        """Return the sender `twilio`, `smtp` or `outbox`. Raises the same as `writer`."""
