"""The queue contract: what every queue guarantees, whatever its backend."""

from __future__ import annotations  # keeps annotations as text, which loads no types

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import dropwhile, islice
from random import Random
from threading import Event, Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, overload

from holdfast._lazy import lazy_exports
from holdfast.errors import (
    LeaseLost,
    MalformedMessage,
    MessageTooLarge,
    NotLeased,
    Unsupported,
)
from holdfast.events import Events
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.lease.lease import RELEASED, Lease, Renewal, Unanswered
from holdfast.queue.event_log import LoggedEvents
from holdfast.queue.message import M, Message, P, QueueMessage, get_lease
from holdfast.queue.states import MessageState as MessageState

if TYPE_CHECKING:
    from holdfast.queue.aio import AsyncQueue
    from holdfast.queue.info import Holder as Holder
    from holdfast.queue.info import MessageInfo as MessageInfo
    from holdfast.queue.info import MessagePage as MessagePage
    from holdfast.queue.info import PastAttempt as PastAttempt
    from holdfast.queue.info import QueueStats as QueueStats
    from holdfast.queue.info import QueueWorker as QueueWorker
    from holdfast.queue.tracing import Tracing

# What operators see is loaded on first use: a worker that only polls needs none of it.
_, __getattr__ = lazy_exports(
    __name__,
    {"queue.info": "Holder MessageInfo MessagePage PastAttempt QueueStats QueueWorker"},
)

MAX_SECONDS = 10 * 366 * 86_400.0
MAX_RESULT_BYTES = 64 * 1024
_MAX_BROWSED = 10_000  # messages that a queue without pages of its own reads
ANY_FIELDS: Mapping[str, str] = MappingProxyType({})

Progress = Callable[[int], None]
"""A function that is called with the number of messages handled since its last call."""


def ignore_progress(count: int) -> None:
    """Do nothing with the progress."""


def encode_result(result: Any) -> bytes:
    """Encode a result. Raises MalformedMessage if it is not JSON data, and MessageTooLarge."""
    try:
        text = json.dumps(result, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        encoded = text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedMessage(f"the result cannot be written as JSON: {error}") from None
    if len(encoded) > MAX_RESULT_BYTES:
        raise MessageTooLarge(
            f"the result is {len(encoded):,} bytes, the limit is {MAX_RESULT_BYTES:,}: store "
            "it elsewhere and return its address"
        )
    return encoded


class QueueManager(ABC, Generic[M]):
    """The contract of all queues: files, SQLite, SQS and memory.

    Threads may share a queue. `ack`, `nack`, `release` and `dead_letter` settle a polled
    message. They raise NotLeased if the message has no lease. They raise LeaseLost, and
    change nothing, if the lease is lost. Settling the same object again in the same way
    does nothing.

    A queue of your own implements `push_many`, `_claim`, `renew`, `_ack`, `_nack`,
    `_dead_letter` and `stats`, and lists in `capabilities` what else it implements. Test it
    with `holdfast.testing.contracts.QueueContract`, which also requires `peek` of dead
    letters and `redrive`. See docs/how-to/write-a-queue.md.
    """

    model: type[QueueMessage] | None = None
    """The type of the messages. A worker refuses a handler of another type; None is any."""

    renew_batch: int = 10
    """The maximum number of leases in one `renew` call."""

    poll_batch: int = 10
    """The largest useful `batch_size` of one `poll`."""

    can_prefetch: bool = True
    """Whether a worker may claim messages before it can start them."""

    slot_wait_seconds: float = 0.0
    """How long a worker waits for more free slots before it polls, to save calls."""

    min_empty_checks: int = 1
    """How many consecutive `stats` must show no message before the queue counts as empty."""

    dead_lettered_by_poll: int = 0
    """How many messages `poll` of this object dead-lettered by itself, because they were
    malformed or out of attempts. No handler saw them, so a worker counts them from here."""

    stats_stale_until: float = 0.0
    """Monotonic. Until then, a message returned to the queue may be missing in `stats`."""

    messaging_system: str = "holdfast"
    """The system that carries the messages, as OpenTelemetry names it."""

    tracing: Tracing | None = None
    """What shows the attempts at messages of this queue as spans."""

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {
            "cancel",
            "exact_counts",  # `stats` is exact and includes completed messages
            "checkpoint",
            "completions",  # when messages were completed
            "dedupe",
            "drop",
            "fence",  # the queue itself refuses calls of a stale holder
            "find",
            "history",
            "peek",
            "progress",  # when handlers beat last, and how far they are
            "purge",
            "redrive_by_id",
            "refund",  # a message given back unstarted is not charged an attempt
            "results",
            "search",
            "workers",  # which processes poll it
        }
    )
    """What this queue can do. A queue that lacks a capability leaves it out here, and its
    documentation says why."""

    def __init__(
        self,
        name: str,
        *,
        lease_seconds: float = 60.0,
        max_attempts: int = 5,
        backoff: Backoff = Backoff(),  # noqa: B008  # frozen
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
    ) -> None:
        self._check_seconds("lease_seconds", lease_seconds)
        if max_attempts < 1:
            raise ValueError(f"max_attempts must be 1 or more, not {max_attempts}")
        self.name = name
        self.lease_seconds = lease_seconds
        self.max_attempts = max_attempts
        self.backoff = backoff
        self.clock = clock
        self.events = events or LoggedEvents()
        self._random = Random()
        self._poll_count = Lock()

    def check(self) -> None:
        """Raise ConfigError if this queue can never be used: it is missing or forbidden.

        A transient error is not raised here. The calls themselves report it.
        """

    @cached_property
    def aio(self) -> AsyncQueue[M]:
        """The calls for async code, as in `await queue.aio.push(message)`."""
        from holdfast.queue.aio import AsyncQueue  # only async code pays for asyncio

        return AsyncQueue(self)

    # -- producing

    @overload
    def push(self, message: M, *, delay_seconds: float = 0.0) -> str: ...

    @overload
    def push(
        self: QueueManager[Message[P]], message: P, *, delay_seconds: float = 0.0
    ) -> str: ...

    def push(self, message: Any, *, delay_seconds: float = 0.0) -> str:
        """Push one message and return its id. After the return it cannot be lost.

        A queue of `Message[Enrich]` takes the payload too, an Enrich. Raises
        MessageTooLarge, MalformedMessage or QueueUnavailable if nothing was pushed.
        """
        if type(message) is not self.model and not isinstance(message, QueueMessage):
            message = Message(payload=message)
        return self._push(message, delay_seconds)

    def _push(self, message: M, delay_seconds: float) -> str:
        return self.push_many([message], delay_seconds=delay_seconds)[0]

    @abstractmethod
    def push_many(self, messages: Iterable[M], *, delay_seconds: float = 0.0) -> list[str]:
        """Push many messages with few calls, and return their ids in order."""

    # -- consuming

    def poll(
        self, batch_size: int = 1, *, wait_seconds: float = 0.0, stop: Event | None = None
    ) -> list[M]:
        """Claim up to `batch_size` messages, oldest first as far as that is cheap.

        Returns at once if a message is available. Otherwise it waits up to `wait_seconds`,
        or until `stop` is set. Each message returned is leased to the caller for
        `lease_seconds`. One bad message does not affect the others: a malformed message is
        dead-lettered, and one of a newer version of its model is given back uncharged.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, not {batch_size}")
        claimed = self._claim(batch_size)
        if claimed or wait_seconds <= 0:
            return claimed
        return self._claim_with_wait(batch_size, wait_seconds, stop or Event())

    def _claim_with_wait(self, batch_size: int, wait_seconds: float, stop: Event) -> list[M]:
        give_up_at = self.clock.monotonic() + wait_seconds
        pause = 0.01
        while not stop.is_set() and (left := give_up_at - self.clock.monotonic()) > 0:
            if self._wait_for_message(stop, min(pause, left)):
                break
            claimed = self._claim(batch_size)
            if claimed:
                return claimed
            pause = min(pause * 1.5, 0.25)
        return []

    def _wait_for_message(self, stop: Event, seconds: float) -> bool:
        """Wait before the next claim, and return whether `stop` is set."""
        return self.clock.wait(stop, seconds)

    @abstractmethod
    def _claim(self, limit: int) -> list[M]:
        """Claim up to `limit` available messages without waiting."""

    def ack(self, message: M) -> None:
        """Complete the message, so that it is not delivered again."""
        if (lease := self._begin_settle(message, "acked")) is None:
            return
        if (lost := self._ack((lease,))[0]) is None:
            lease.release("acked")
        else:
            self._finish_settle(lease, "acked", lost)

    def ack_many(self, messages: Sequence[M]) -> None:
        """Ack each message, then raise the first LeaseLost if there was one."""
        lost: LeaseLost | None = None
        settling = []
        for message in messages:
            try:
                if (lease := self._begin_settle(message, "acked")) is not None:
                    settling.append(lease)
            except LeaseLost as error:
                lost = lost or error
        for lease, result in zip(settling, self._ack(settling), strict=True):
            if result is None:
                lease.release("acked")
            else:
                lease.lose(str(result))
                lost = lost or result
        if lost is not None:
            raise lost

    def nack(
        self,
        message: M,
        *,
        delay_seconds: float | None = None,
        reason: str = "nacked",
        detail: str | None = None,
    ) -> None:
        """Deliver the message again after `delay_seconds`, or after the backoff if None.

        The attempt stays counted. This never dead-letters the message; `settle` and `poll`
        do that.
        """
        if (lease := self._begin_settle(message, "nacked")) is not None:
            if delay_seconds is None:
                delay_seconds = self.backoff.delay(lease.attempt, self._random)
            self._check_delay(delay_seconds)
            lost = self._nack(lease, max(0.0, delay_seconds), reason, detail)
            self._finish_settle(lease, "nacked", lost)

    def release(self, message: M) -> None:
        """Give back an unstarted message. It is available at once, its attempt not counted."""
        if (lease := self._begin_settle(message, "given back")) is not None:
            self._finish_settle(lease, "given back", self._release(lease))

    def dead_letter(self, message: M, reason: str, *, detail: str | None = None) -> None:
        """Store the message with `reason` for an operator, and never deliver it again."""
        if (lease := self._begin_settle(message, "dead-lettered")) is not None:
            self._finish_settle(
                lease, "dead-lettered", self._dead_letter(lease, reason, detail)
            )

    def extend(self, message: M, seconds: float | None = None) -> None:
        """Extend the lease to `seconds` from now, by default the queue's `lease_seconds`.

        Raises LeaseLost, or TimeoutError if it is unknown whether the lease was extended.
        """
        lease = get_lease(message)
        seconds = self.lease_seconds if seconds is None else seconds
        self._check_seconds("seconds", seconds)
        asked_at = self.clock.monotonic()
        lease.check(asked_at)
        [result] = self.renew([lease], seconds)
        lease.apply_renewal(
            result, asked_at=asked_at, now=self.clock.monotonic(), seconds=seconds
        )
        lease.check(self.clock.monotonic())
        if isinstance(result, Unanswered):
            raise TimeoutError(f"no response to the renewal: {result.reason}")

    @abstractmethod
    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Extend leases, as described at LeaseSource.renew."""

    def save_checkpoint(self, message: M, checkpoint: Any) -> None:
        """Store plain data for the next attempt. Raises LeaseLost."""
        lease = get_lease(message)
        lease.check(self.clock.monotonic())
        self._save_checkpoint(lease, checkpoint)

    def load_checkpoint(self, message: M) -> Any:
        """Return the checkpoint that an earlier attempt saved last, or None."""
        return None

    def save_result(self, message: M, result: Any) -> None:
        """Keep plain data with the message until it is purged. Call it before `ack`.

        A result counts when this attempt completes the message; one of an earlier attempt
        does not. A second call replaces the result. Raises LeaseLost, MalformedMessage if
        JSON cannot represent the result, and MessageTooLarge above MAX_RESULT_BYTES.
        """
        lease = get_lease(message)
        lease.check(self.clock.monotonic())
        self._save_result(lease, encode_result(result))

    def load_result(self, message_id: str) -> Any:
        """Return the newest result of a completed message of this id.

        Returns None if there is none: it is not completed, has no result, or was purged.
        """
        raise self._unsupported("keep results")

    # -- what an adapter implements for each verb: it changes the backend and nothing else.
    # If the lease is lost, return LeaseLost and do not raise it, because the caller must
    # first mark the lease as lost.

    @abstractmethod
    def _ack(self, leases: Sequence[Lease]) -> Sequence[LeaseLost | None]: ...

    @abstractmethod
    def _nack(
        self, lease: Lease, delay_seconds: float, reason: str, detail: str | None
    ) -> LeaseLost | None: ...

    def _release(self, lease: Lease) -> LeaseLost | None:
        return self._nack(lease, 0.0, "given back", None)

    @abstractmethod
    def _dead_letter(
        self, lease: Lease, reason: str, detail: str | None
    ) -> LeaseLost | None: ...

    def _save_checkpoint(self, lease: Lease, checkpoint: Any) -> None:
        raise self._unsupported("store checkpoints")

    def _save_result(self, lease: Lease, result: bytes) -> None:
        raise self._unsupported("keep results")

    # -- for operators

    @abstractmethod
    def stats(self) -> QueueStats:
        """Count the messages in each state."""

    def peek(self, state: MessageState, limit: int = 100) -> Iterator[MessageInfo]:
        """Yield messages in `state`, oldest first where that is cheap. Changes nothing."""
        raise self._unsupported("list its messages")

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

    def workers(self) -> list[QueueWorker]:
        """Return the processes that poll this queue or did so lately, the newest first."""
        raise self._unsupported("list its workers")

    def count_completed(self, minutes: int = 60) -> list[int]:
        """Return how many messages were completed in each of the last minutes, oldest first.

        Those that were purged since are not counted.
        """
        raise self._unsupported("tell when messages were completed")

    def find(self, message_id: str) -> list[MessageInfo]:
        """Return every stored push of this id, with all that is known about it."""
        raise self._unsupported("find a message by its id")

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
        raise self._unsupported("search its messages")

    def dead_letters(self, limit: int = 100) -> Iterator[MessageInfo]:
        """Yield dead letters. Changes nothing."""
        return self.peek(MessageState.FAILED, limit)

    def cancel(self, message_id: str) -> int:
        """Make the waiting and leased messages of one id dead letters; return how many.

        A lease is taken away: its fence rises, so the next renewal or settlement of its
        holder is refused, and the handler is told. Attempts, history and checkpoint are
        kept, and `redrive` puts the message back. Completed messages and dead letters stay
        as they are, so calling it twice does nothing more.
        """
        raise self._unsupported("cancel messages")

    def redrive(
        self, message_id: str | None = None, *, on_progress: Progress = ignore_progress
    ) -> int:
        """Put dead letters back, all of them or those of one id, and return how many.

        Their attempts count from 0 again. One that was cancelled while a worker held it is
        due only when the worker cannot trust its lease any more, which is at most one lease
        after the cancel. So no two handlers work on it at the same time. `on_progress` is
        called with the number of messages handled since its last call.
        """
        raise self._unsupported("redrive dead letters")

    def drop(self, message_id: str) -> int:
        """Delete the dead letters of one id and return how many there were."""
        raise self._unsupported("drop dead letters")

    def redrive_many(self, messages: Sequence[MessageInfo]) -> int:
        """Put these dead letters back, as `redrive` does, and return how many.

        Those that are not dead letters any more are left alone.
        """
        return sum(self.redrive(message_id) for message_id in _list_ids(messages))

    def drop_many(self, messages: Sequence[MessageInfo]) -> int:
        """Delete these dead letters, as `drop` does, and return how many."""
        return sum(self.drop(message_id) for message_id in _list_ids(messages))

    def purge(self, older_than_seconds: float) -> int:
        """Delete messages completed more than `older_than_seconds` ago; return how many."""
        raise self._unsupported("purge completed messages")

    def close(self) -> None:
        """Close files and connections. Leases that are still held run out by themselves."""

    def __enter__(self) -> QueueManager[M]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _unsupported(self, what: str) -> Unsupported:
        able = ", ".join(sorted(self.capabilities)) or "none"
        return Unsupported(f"queue {self.name!r} cannot {what} (its capabilities: {able})")

    # -- checks of numbers that no queue could store, made before anything happens

    def _check_seconds(self, name: str, seconds: float) -> None:
        if not 0 < seconds <= MAX_SECONDS:  # also false for NaN
            raise ValueError(f"{name} must be above 0 and at most ten years, not {seconds}")

    def _check_delay(self, seconds: float) -> None:
        if not seconds <= MAX_SECONDS:
            raise ValueError(f"delay_seconds must be at most ten years, not {seconds}")

    # -- for adapters

    def _count_dead_letter(self) -> None:
        """Count a message that `poll` dead-lettered. Polls may run at the same time."""
        with self._poll_count:
            self.dead_lettered_by_poll += 1

    # -- the only place that decides whether a message may be settled

    def _begin_settle(self, message: QueueMessage, how: str) -> Lease | None:
        """Return the lease to settle, or None if it was already settled in this way."""
        lease = get_lease(message)
        if lease.state is RELEASED:
            if lease.reason == how:
                return None
            raise NotLeased(f"message {message.id!r} was {lease.reason} already")
        lease.check(self.clock.monotonic())
        return lease

    def _finish_settle(self, lease: Lease, how: str, lost: LeaseLost | None) -> None:
        if lost is None:
            lease.release(how)
        else:
            lease.lose(str(lost))
            raise lost


def _list_ids(messages: Sequence[MessageInfo]) -> list[str]:
    """Return the ids of messages, each once, in their order."""
    return list(dict.fromkeys(message.id for message in messages))
