"""The queue contract: what every queue promises, whatever it is made of."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from random import Random
from threading import Event, Lock
from typing import Any, ClassVar, Generic

from holdfast.core.backoff import Backoff
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import LeaseLost, NotLeased
from holdfast.core.events import Events
from holdfast.core.lease.lease import RELEASED, Lease, Renewal, Unanswered
from holdfast.core.queue.message import M, QueueMessage, lease_of

MAX_SECONDS = 10 * 366 * 86_400.0

Progress = Callable[[int], None]
"""Takes how many messages were dealt with since the last call."""


def no_progress(count: int) -> None:
    """Report progress to no one."""


class MessageState(Enum):
    """Where a message is. A delayed message is PENDING with a due time ahead."""

    PENDING = "pending"
    LEASED = "leased"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts for people. Each is exact when nothing moves while it is counted."""

    ready: int
    delayed: int
    leased: int
    expired: int  # of the leased: past their deadline, waiting to be taken over
    completed: int | None  # None where the queue keeps no books of it
    failed: int
    foreign: int = 0  # files that are not ours
    oldest_ready_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a message: the seed's lease.json."""

    worker_id: str
    timestamp: datetime  # since when
    attempt: int
    expires_at: datetime
    host: str = ""
    pid: int = 0
    last_seen: datetime | None = None


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """How one earlier attempt ended."""

    attempt: int
    outcome: str  # retried | lost | given back | dead-lettered | redriven
    at: datetime
    worker_id: str
    reason: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """One message as people see it."""

    id: str
    key: str  # the adapter's own name for this push of the id
    state: MessageState
    attempts: int
    fence: int  # how often it was claimed, charged or not
    where: str
    due_at: datetime | None = None
    holder: Holder | None = None
    reason: str | None = None
    past: Sequence[PastAttempt] = ()
    checkpoint: Any = None
    body: dict[str, Any] | None = field(default=None, repr=False)


class QueueManager(ABC, Generic[M]):
    """One contract over files, SQS and memory.

    Safe to share between threads. `ack`, `nack`, `release` and `dead_letter` settle a
    polled message: they raise NotLeased when it holds no lease, LeaseLost when the lease
    is gone (and then change nothing), and do nothing when the same object is settled the
    same way again.
    """

    renew_batch: int = 10
    poll_batch: int = 10
    """More than this is never worth asking of one `poll`."""

    gather_seconds: float = 0.0
    """How long it is worth waiting for more slots to poll for: a call has its price."""

    looks_until_empty: int = 1
    """How often in a row `stats` must say so before the queue may be taken for empty."""

    dead_lettered_by_poll: int = 0
    """How many messages `poll` dead-lettered by itself, in this object's life: malformed
    ones, and those out of attempts. No handler saw them, so a worker asks for them here."""

    returning_until: float = 0.0
    """Monotonic; until when something put back here may be hidden from `stats`."""

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {
            "books",  # counts are exact, and tell what was completed
            "checkpoint",
            "dedupe",
            "drop",
            "fence",  # the queue itself refuses a holder whose time is over
            "find",
            "history",
            "peek",
            "purge",
            "redrive_by_id",
            "refund",  # what is given back unstarted is not charged as an attempt
        }
    )
    """All a queue can have. One that cannot says so here, and its documentation why."""

    def __init__(
        self,
        name: str,
        *,
        lease_seconds: float,
        max_attempts: int,
        backoff: Backoff,
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
        self.events = events or Events()
        self._random = Random()
        self._poll_count = Lock()

    def check(self) -> None:
        """Raise ConfigError when this queue cannot be used at all: no such queue, no
        permission. What may pass is left to the calls themselves.
        """

    # -- producing

    def push(self, message: M, *, delay_seconds: float = 0.0) -> str:
        """Hand over one message; returns its id. After the return it cannot be lost.

        Raises MessageTooLarge, MalformedMessage or QueueUnavailable; then nothing was
        pushed.
        """
        return self.push_many([message], delay_seconds=delay_seconds)[0]

    @abstractmethod
    def push_many(self, messages: Iterable[M], *, delay_seconds: float = 0.0) -> list[str]:
        """Hand over many, for the price of few; the ids in order."""

    # -- consuming

    def poll(
        self, batch_size: int = 1, *, wait_seconds: float = 0.0, stop: Event | None = None
    ) -> list[M]:
        """Claim up to `batch_size` messages, oldest first as far as that is cheap.

        Returns at once when anything is there; otherwise waits up to `wait_seconds`, or
        until `stop` is set. Each message returned is leased to the caller for
        `lease_seconds`. One bad message never costs the others: what cannot be read goes
        to the dead letters, what is newer than the code is handed back, uncharged.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, not {batch_size}")
        claimed = self._claim(batch_size)
        if claimed or wait_seconds <= 0:
            return claimed
        return self._claim_patiently(batch_size, wait_seconds, stop or Event())

    def _claim_patiently(self, batch_size: int, wait_seconds: float, stop: Event) -> list[M]:
        give_up_at = self.clock.monotonic() + wait_seconds
        pause = 0.01
        while not stop.is_set() and (left := give_up_at - self.clock.monotonic()) > 0:
            if self.clock.wait(stop, min(pause, left)):
                break
            claimed = self._claim(batch_size)
            if claimed:
                return claimed
            pause = min(pause * 1.5, 0.25)
        return []

    @abstractmethod
    def _claim(self, limit: int) -> list[M]:
        """Claim what is there now, without waiting."""

    def ack(self, message: M) -> None:
        """The work is done: the message will not be delivered again."""
        if (lease := self._settling(message, "acked")) is not None:
            self._finish(lease, "acked", self._ack((lease,))[0])

    def ack_many(self, messages: Sequence[M]) -> None:
        """Ack each; the first LeaseLost is raised after all were tried."""
        lost: LeaseLost | None = None
        settling = []
        for message in messages:
            try:
                if (lease := self._settling(message, "acked")) is not None:
                    settling.append(lease)
            except LeaseLost as error:
                lost = lost or error
        for lease, result in zip(settling, self._ack(settling), strict=True):
            try:
                self._finish(lease, "acked", result)
            except LeaseLost as error:
                lost = lost or error
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
        """Not done: deliver again after `delay_seconds` (None: by the backoff).

        The attempt stays counted. It never dead-letters; `settle` and `poll` do.
        """
        if (lease := self._settling(message, "nacked")) is not None:
            if delay_seconds is None:
                delay_seconds = self.backoff.delay(lease.attempt, self._random)
            self._check_delay(delay_seconds)
            lost = self._nack(lease, max(0.0, delay_seconds), reason, detail)
            self._finish(lease, "nacked", lost)

    def release(self, message: M) -> None:
        """Give back what was not started: available at once, attempt not counted."""
        if (lease := self._settling(message, "given back")) is not None:
            self._finish(lease, "given back", self._release(lease))

    def dead_letter(self, message: M, reason: str, *, detail: str | None = None) -> None:
        """Never deliver again; keep it with `reason` for a person."""
        if (lease := self._settling(message, "dead-lettered")) is not None:
            self._finish(lease, "dead-lettered", self._dead_letter(lease, reason, detail))

    def extend(self, message: M, seconds: float | None = None) -> None:
        """Hold on for `seconds` from now (default: the lease). Raises LeaseLost."""
        lease = lease_of(message)
        seconds = self.lease_seconds if seconds is None else seconds
        self._check_seconds("seconds", seconds)
        asked_at = self.clock.monotonic()
        lease.check(asked_at)
        [answer] = self.renew([lease], seconds)
        lease.answered(answer, asked_at=asked_at, now=self.clock.monotonic(), seconds=seconds)
        lease.check(self.clock.monotonic())
        if isinstance(answer, Unanswered):
            raise TimeoutError(f"no answer to the renewal: {answer.reason}")

    @abstractmethod
    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """See LeaseSource.renew."""

    def save_checkpoint(self, message: M, checkpoint: Any) -> None:
        """Keep plain data for the next attempt, should there be one. Raises LeaseLost."""
        lease = lease_of(message)
        lease.check(self.clock.monotonic())
        self._save_checkpoint(lease, checkpoint)

    @abstractmethod
    def load_checkpoint(self, message: M) -> Any:
        """What an earlier attempt saved last, or None."""

    # -- what an adapter does for each verb: change the backend, nothing else.
    # A lease found gone is returned as LeaseLost, not raised: the caller closes it first.

    @abstractmethod
    def _ack(self, leases: Sequence[Lease]) -> Sequence[LeaseLost | None]: ...

    @abstractmethod
    def _nack(
        self, lease: Lease, delay_seconds: float, reason: str, detail: str | None
    ) -> LeaseLost | None: ...

    @abstractmethod
    def _release(self, lease: Lease) -> LeaseLost | None: ...

    @abstractmethod
    def _dead_letter(
        self, lease: Lease, reason: str, detail: str | None
    ) -> LeaseLost | None: ...

    @abstractmethod
    def _save_checkpoint(self, lease: Lease, checkpoint: Any) -> None: ...

    # -- for people

    @abstractmethod
    def stats(self) -> QueueStats: ...

    @abstractmethod
    def peek(self, state: MessageState, limit: int = 100) -> Iterator[MessageInfo]:
        """Messages in a state, oldest first where that is cheap. Changes nothing."""

    @abstractmethod
    def find(self, message_id: str) -> list[MessageInfo]:
        """Every push of this id that is still there, with all that is known of it."""

    def dead_letters(self, limit: int = 100) -> Iterator[MessageInfo]:
        return self.peek(MessageState.FAILED, limit)

    @abstractmethod
    def redrive(
        self, message_id: str | None = None, *, on_progress: Progress = no_progress
    ) -> int:
        """Put dead letters (all, or those of one id) back, attempts from 0; how many.

        `on_progress` is told how many more were dealt with, as often as that is known.
        """

    @abstractmethod
    def drop(self, message_id: str) -> int:
        """Remove the dead letters of one id for good; how many."""

    @abstractmethod
    def purge(self, older_than_seconds: float) -> int:
        """Remove messages completed longer ago than that; how many."""

    def close(self) -> None:
        """Let go of files and connections. Leases still held run out by themselves."""

    def __enter__(self) -> "QueueManager[M]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- numbers that no queue could keep are refused before anything happens

    def _check_seconds(self, name: str, seconds: float) -> None:
        if not 0 < seconds <= MAX_SECONDS:  # false for NaN, too
            raise ValueError(f"{name} must be above 0 and at most ten years, not {seconds}")

    def _check_delay(self, seconds: float) -> None:
        if not seconds <= MAX_SECONDS:
            raise ValueError(f"delay_seconds must be at most ten years, not {seconds}")

    # -- for adapters

    def _count_dead_letter(self) -> None:
        """Note that a poll dead-lettered a message; polls may run at the same time."""
        with self._poll_count:
            self.dead_lettered_by_poll += 1

    # -- the one place that guards settling

    def _settling(self, message: QueueMessage, how: str) -> Lease | None:
        """The lease to settle, or None when it was settled this way already."""
        lease = lease_of(message)
        if lease.state is RELEASED:
            if lease.reason == how:
                return None
            raise NotLeased(f"message {message.id!r} was {lease.reason} already")
        lease.check(self.clock.monotonic())
        return lease

    def _finish(self, lease: Lease, how: str, lost: LeaseLost | None) -> None:
        if lost is None:
            lease.release(how)
        else:
            lease.lose(str(lost))
            raise lost
