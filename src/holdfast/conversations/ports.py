"""What conversations need from the world: a store, a writer, a sender, secrets, queues."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.conversations.model import (
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
from holdfast.conversations.outbox import Outbox, SentPart, WriterAnswer
from holdfast.conversations.secret import Secret


class ConversationStore(ABC):
    """Conversations, what is staged for them, their windows and locks.

    Safe for threads, processes and hosts. Promises of every method:
    - it is one transaction;
    - StoreUnavailable: nobody knows whether it was done; it is safe to call again;
    - times are given by the caller and compared by value: a row that should be gone by its
      `expires_at` may still be there, and counts as gone;
    - reads see what was written last, but for `waiting`, `parked` and `conversations`.
    Methods that take a `grant` raise LockLost, and change nothing, unless the lock is still
    that grant's: same owner, same fence, status `processing_reply`.
    """

    # -- staging

    @abstractmethod
    def create(self, conversation: Conversation) -> bool:
        """Store its key, configs, status and times. False: it is there, and stays."""

    @abstractmethod
    def stage(self, fragment: Fragment, *, expires_at: float) -> bool:
        """Store it once by its `message_sid`. False: it is staged already, and stays."""

    @abstractmethod
    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        """Open this window unless another one is open. False: another one is.

        Not in the way: one that expired (`expires_at < now`), one of the same `owner_sid`
        that is not triggered, and one that was opened before `untriggered_before` and is
        not triggered: whoever opened it died before he could send its trigger.
        """

    @abstractmethod
    def mark_triggered(self, window: Window) -> None:
        """Its trigger is in the queue. Nothing happens when it is not open any more."""

    @abstractmethod
    def window(self, conversation_id: str) -> Window | None:
        """The window's row, expired or not."""

    @abstractmethod
    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        """Whoever comes from now on opens another one. Nothing happens unless it is the
        window of that trigger."""

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

        Then the status is `processing_reply`, `previous_status` what it was before (kept
        when an expired lock is taken over), and the fence is one higher than ever.
        """

    @abstractmethod
    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        """Hold the lock longer. False: it is not this grant's any more, or it expired."""

    @abstractmethod
    def release(self, grant: LockGrant, status: str | None) -> None:
        """Give the lock back without a reply; the outbox stays for the next owner.

        None: with the status it had, or the one a person gave it meanwhile.
        """

    # -- the batch

    @abstractmethod
    def staged(self, conversation_id: str) -> list[Staged]:
        """Every staged row, whatever number of pages that takes; in any order."""

    @abstractmethod
    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        """Those of these sids that are in the history, or parked, already."""

    @abstractmethod
    def note(self, grant: LockGrant, outbox: Outbox, thread_id: str) -> None:
        """Write down how far the reply has come, and which thread it is written in."""

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
        """In one write: both messages are in the history, in order, numbered; tokens are
        added up, thread and `last_assistant_message_sid` set; its sids are remembered as
        processed until `remember_until`; their staged rows are gone; the outbox is gone;
        the lock is free and the status `reply_sent`.

        With `parked_id` what this conversation has parked under it is gone, too;
        ParkedNotFound, and nothing changed, when there is none.
        """

    @abstractmethod
    def drop_staged(self, conversation_id: str, sids: Collection[str]) -> None:
        """Remove staged rows that were processed before."""

    # -- for people

    @abstractmethod
    def park(
        self, grant: LockGrant | None, parked: ParkedBatch, *, remember_until: float
    ) -> None:
        """In one write: `parked` is kept, its staged rows are gone, its sids count as
        processed; with a grant the outbox is gone, too, the lock is free and the status
        `parked`, or `with_person` where it was that before. The thread's mark moves behind
        a reply that was written: it is nothing of the next batch.

        Without a grant nothing but these rows is touched, and the conversation need not
        exist; those of its messages that count as processed already are not parked again,
        their rows are gone all the same, and the id is that of the messages that are left.
        Parking the same again changes nothing.
        """

    @abstractmethod
    def parked(self) -> Iterator[ParkedBatch]:
        """All that is parked, the oldest first where that is cheap."""

    @abstractmethod
    def unpark(
        self, parked_id: str, *, back_to_stage: bool, now: float, expires_at: float
    ) -> ParkedBatch:
        """Take it out; with `back_to_stage` its fragments are staged again (`staged_at`
        is `now`) and its sids are not processed any more. Raises ParkedNotFound.
        """

    @abstractmethod
    def get(self, key: ConversationKey) -> Conversation | None:
        """The conversation as the last write left it."""

    @abstractmethod
    def conversations(self, conversation_id: str | None = None) -> Iterator[Conversation]:
        """All, or those with that id, the latest first where that is cheap."""

    @abstractmethod
    def set_status(self, key: ConversationKey, status: str) -> bool:
        """For a person who takes over or hands back. False: there is no such conversation.

        While a batch is being answered it becomes `previous_status`, so that the person's
        word stands when the lock is given back; a reply already on its way still goes out.
        """

    @abstractmethod
    def history(
        self, key: ConversationKey, *, before: int | None = None, limit: int = 50
    ) -> list[HistoryMessage]:
        """Up to `limit` messages in order, the last ones, or the last ones before a seq."""

    # -- for the sweeper

    @abstractmethod
    def waiting(self) -> Iterator[WaitingConversation]:
        """Who has staged rows. May be a moment behind; rows that cannot be read count."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""

    def __enter__(self) -> "ConversationStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """A merged batch, for the writer."""

    thread_id: str
    thread_mark: str  # what comes after it in the thread is of earlier tries
    text: str = field(repr=False)
    # An earlier try may have been answered without us hearing it. Compare the text: what is
    # behind the mark may also be of a batch that was parked before its answer was noted.
    again: bool = False


class ReplyWriter(Protocol):
    """Writes the reply. Raises Passing, Unauthorised, Permanent; `write` ThreadGone, too."""

    secret_fields: tuple[str, ...]
    """What its secret must have: looked at before anything is paid for."""

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        """A thread for a conversation that has none; '' when this writer keeps none."""

    def write(
        self,
        question: ReplyRequest,
        config: Mapping[str, Any],
        secret: Secret,
        *,
        timeout_seconds: float,
    ) -> WriterAnswer:
        """The reply. An empty one is returned as it is. With `again` the thread is looked
        at first: what is answered there already is neither asked nor paid twice."""


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """One message to be sent: part `index` of the reply to a batch."""

    key: ConversationKey
    config: Mapping[str, Any] = field(repr=False)  # the conversation's channel_config
    text: str = field(repr=False)
    reference: str  # the same for the same part, and for no other
    index: int = 0


class ReplySender(Protocol):
    """Sends the reply over one provider."""

    secret_fields: tuple[str, ...]
    """What its secret must have."""

    repeatable: bool
    """Sending a part again, by its reference, sends nothing twice."""

    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> AbstractContextManager[Callable[[], SentPart]]:
        """Do all that can be done before the part is handed over: import the provider's
        library, check the part, connect, log in. Raises Permanent (refused for good),
        Passing or Unauthorised.

        The block is given the call that hands the part over, and makes it at most once. It
        raises the same (surely not sent), or SendUnclear. Until that call nothing may be
        sent: `Sending` is noted just before it, and a process that is killed earlier leaves
        no doubt behind. Leaving the block closes what was opened, and raises nothing.
        """

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        """The part as the provider has it, if it was sent after `since`; messages whose
        sids are `known` belong to other parts. None: it has none. Raises CannotTell,
        Passing, Unauthorised."""


class SecretStore(Protocol):
    def get(self, reference: str) -> Secret:
        """Raises Permanent when there is none, Passing when nobody answered."""

    def forget(self, reference: str) -> None:
        """Fetch it anew next time."""


class ProviderSource(Protocol):
    """Who writes and who sends, by the names that configs use. Made on first use."""

    @property
    def secrets(self) -> SecretStore: ...

    def writer(self, name: str) -> ReplyWriter:
        """`openai` or `echo`. Raises Permanent for a name nobody knows or an extra that is
        not installed."""

    def sender(self, name: str) -> ReplySender:
        """`twilio`, `smtp` or `outbox`. Raises as `writer`."""
