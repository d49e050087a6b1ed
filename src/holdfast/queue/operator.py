"""The operator's port: what people see of a queue, and what they do to its messages."""

from __future__ import annotations  # keeps annotations as text, which loads no types

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile, islice
from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.errors import Unsupported
from holdfast.queue.message import MessageState

if TYPE_CHECKING:
    from holdfast.queue.info import MessageInfo, MessagePage, QueueWorker

_MAX_BROWSED = 10_000  # messages that a queue without pages of its own reads
ANY_FIELDS: Mapping[str, str] = MappingProxyType({})

Progress = Callable[[int], None]
"""A function that is called with the number of messages handled since its last call."""


def ignore_progress(count: int) -> None:
    """Do nothing with the progress."""


class QueueOperator:
    """The raw access of operators to one queue: `queue.operator`.

    A queue overrides what it can do, and lists it in its `capabilities`. The rest raises
    Unsupported.
    """

    def __init__(self, name: str, capabilities: frozenset[str]) -> None:
        self.name, self._capabilities = name, capabilities

    def peek(self, state: MessageState, limit: int = 100) -> Iterator[MessageInfo]:
        """Yield messages in `state`, oldest first where that is cheap. Changes nothing."""
        raise self.make_unsupported("list its messages")

    def browse(
        self, state: MessageState, *, after: str | None = None, limit: int = 50
    ) -> MessagePage:
        """Return up to `limit` messages in `state`, without bodies, that follow `after`.

        `after` is that of the page before. A queue orders them as it can read them fast: the
        SQLite queue returns the newest dead letters and the leases that end first. Raises
        Unsupported as `peek` does. Changes nothing.
        """
        from holdfast.queue.info import MessagePage

        messages = self.peek(state, limit + 1 if after is None else _MAX_BROWSED)
        if after is not None:
            messages = islice(
                dropwhile(lambda message: message.key != after, messages), 1, None
            )
        page = [replace(message, body=None) for message in islice(messages, limit + 1)]
        return MessagePage(page[:limit], page[limit - 1].key if len(page) > limit else None)

    def dead_letters(self, limit: int = 100) -> Iterator[MessageInfo]:
        """Yield dead letters. Changes nothing."""
        return self.peek(MessageState.FAILED, limit)

    def workers(self) -> list[QueueWorker]:
        """Return the processes that poll this queue or did so lately, the newest first."""
        raise self.make_unsupported("list its workers")

    def count_completed(self, minutes: int = 60) -> list[int]:
        """Return how many messages were completed in each of the last minutes, oldest first.

        Those that were purged since are not counted.
        """
        raise self.make_unsupported("tell when messages were completed")

    def find(self, message_id: str) -> list[MessageInfo]:
        """Return every stored push of this id, with all that is known about it."""
        raise self.make_unsupported("find a message by its id")

    def find_push(self, key: str) -> MessageInfo | None:
        """Return the push with this key, with all that is known about it, or None.

        A queue that finds keys faster than ids overrides it.
        """
        return next((message for message in self.find(key) if message.key == key), None)

    def search(
        self,
        state: MessageState | None = None,
        *,
        where: Mapping[str, str] = ANY_FIELDS,
        error: str | None = None,
        limit: int = 100,
        on_progress: Progress = ignore_progress,
    ) -> Iterator[MessageInfo]:
        """Yield the messages in `state`, or in any state, that have these fields and error.

        `where` maps names of the body's fields to values. A dotted name is that of a field,
        or reaches into objects. A string is compared as it is; true, false, null and numbers
        by their JSON text. An object or a list equals no value. `error` is text that the
        message's reason or that of a past attempt contains, in upper or lower case.
        A message that moves during the search may be missing. Changes nothing.
        """
        from holdfast.queue.info import select_messages

        states = MessageState if state is None else (state,)
        messages = self.scan(states, with_history=error is not None)
        return islice(select_messages(messages, where, error, on_progress), limit)

    def scan(
        self, states: Iterable[MessageState], *, with_history: bool
    ) -> Iterator[MessageInfo]:
        """Yield all messages in these states, if asked with their past attempts.

        `search` reads them here.
        """
        raise self.make_unsupported("search its messages")

    def cancel(self, message_id: str) -> int:
        """Make the waiting and leased messages of one id dead letters; return how many.

        A lease is taken away: its fence rises, so the next renewal or settlement of its
        holder is refused, and the handler is told. Attempts, history and checkpoint are
        kept, and `redrive` puts the message back. Completed messages and dead letters stay
        as they are, so calling it twice does nothing more.
        """
        raise self.make_unsupported("cancel messages")

    def redrive(
        self, message_id: str | None = None, *, on_progress: Progress = ignore_progress
    ) -> int:
        """Put dead letters back, all of them or those of one id, and return how many.

        Their attempts count from 0 again. One that was cancelled while a worker held it is
        due only when the worker cannot trust its lease any more, which is at most one lease
        after the cancel. So no two handlers work on it at the same time. `on_progress` is
        called with the number of messages handled since its last call.
        """
        raise self.make_unsupported("redrive dead letters")

    def redrive_many(self, messages: Sequence[MessageInfo]) -> int:
        """Put these dead letters back, as `redrive` does, and return how many.

        Those that are not dead letters any more are left alone.
        """
        return sum(self.redrive(message_id) for message_id in _list_ids(messages))

    def drop(self, message_id: str) -> int:
        """Delete the dead letters of one id and return how many there were."""
        raise self.make_unsupported("drop dead letters")

    def drop_many(self, messages: Sequence[MessageInfo]) -> int:
        """Delete these dead letters, as `drop` does, and return how many."""
        return sum(self.drop(message_id) for message_id in _list_ids(messages))

    def purge(self, older_than_seconds: float) -> int:
        """Delete messages completed more than `older_than_seconds` ago; return how many."""
        raise self.make_unsupported("purge completed messages")

    def make_unsupported(self, what: str) -> Unsupported:
        """Return the error of a queue that lacks a capability."""
        able = ", ".join(sorted(self._capabilities)) or "none"
        return Unsupported(f"queue {self.name!r} cannot {what} (its capabilities: {able})")


def _list_ids(messages: Sequence[MessageInfo]) -> list[str]:
    """Return the ids of messages, each once, in their order."""
    return list(dict.fromkeys(message.id for message in messages))
