"""The queue contract: what every queue guarantees, whatever its backend."""

from __future__ import annotations  # keeps annotations as text, which loads no types

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, wraps
from random import Random
from threading import Event, Lock
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    TypedDict,
    TypeVar,
    overload,
)

from holdfast import events as ev
from holdfast.errors import (
    HoldfastError,
    LeaseLost,
    MalformedMessage,
    MessageTooLarge,
    NotLeased,
)
from holdfast.events import Events
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.lease.lease import RELEASED, Lease, Renewal, Unanswered
from holdfast.queue.admission import (
    NEWER_SCHEMA_DELAY_SECONDS,
    Delivery,
    PutBack,
    Rejected,
    decide,
)
from holdfast.queue.event_log import LoggedEvents
from holdfast.queue.message import (
    MAX_BYTES,
    AnyMessage,
    M,
    Message,
    MessageCodec,
    P,
    QueueMessage,
    SettleResult,
    Tracing,
    attach_headers,
    attach_lease,
    get_lease,
)
from holdfast.queue.message import MessageState as MessageState
from holdfast.queue.operator import Progress as Progress
from holdfast.queue.operator import QueueOperator
from holdfast.queue.operator import ignore_progress as ignore_progress

if TYPE_CHECKING:
    from holdfast.queue.aio import AsyncQueue
    from holdfast.queue.info import QueueStats  # a worker that only polls does not need it

MAX_SECONDS = 10 * 366 * 86_400.0
MAX_RESULT_BYTES = 64 * 1024

A = ParamSpec("A")
R = TypeVar("R")


def encode_result(result: Any) -> bytes:
    """Encode a result. Raises MalformedMessage if it is not JSON data, and MessageTooLarge."""
    text = _dump(result, "the result cannot be written as JSON", ensure_ascii=False)
    return _check_size("result", text, MAX_RESULT_BYTES, "return")


def encode_checkpoint(checkpoint: Any) -> bytes:
    """Encode a checkpoint. Raises MalformedMessage and MessageTooLarge as for a result."""
    text = _dump(checkpoint, "a checkpoint must be plain JSON data")
    return _check_size("checkpoint", text, MAX_BYTES, "save")


def _dump(value: Any, problem: str, **options: Any) -> bytes:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), **options).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedMessage(f"{problem}: {error}") from None


def _check_size(name: str, encoded: bytes, max_bytes: int, verb: str) -> bytes:
    if len(encoded) > max_bytes:
        raise MessageTooLarge(
            f"the {name} is {len(encoded):,} bytes, the limit is {max_bytes:,}: store it "
            f"elsewhere and {verb} its address"
        )
    return encoded


def _operate(
    method: Callable[Concatenate[QueueOperator, A], R],
) -> Callable[Concatenate[QueueManager[Any], A], R]:
    """Return the method of a queue that calls this method of its operator."""

    def call(queue: QueueManager[Any], /, *args: A.args, **kwargs: A.kwargs) -> R:
        operate: Callable[A, R] = getattr(queue.operator, method.__name__)
        return operate(*args, **kwargs)

    return wraps(method)(call)


class QueueKeywords(TypedDict, total=False):
    """The keywords that all queues take."""

    lease_seconds: float
    max_attempts: int
    backoff: Backoff
    clock: Clock
    events: Events | None


class QueueManager(ABC, Generic[M]):
    """The contract of all queues: files, SQLite, SQS and memory.

    Threads may share a queue. `ack`, `nack`, `release` and `dead_letter` settle a polled
    message. They raise NotLeased if the message has no lease. They raise LeaseLost, and
    change nothing, if the lease is lost. Settling the same object again in the same way
    does nothing.

    A queue of your own implements `push_many`, `_claim`, `renew`, `_ack`, `_nack`,
    `_dead_letter` and `stats`, sets `operator`, and lists in `capabilities` what else it
    implements. Test it with `holdfast.testing.contracts.QueueContract`, which requires of an
    operator `peek` of dead letters and `redrive`. See docs/how-to/write-a-queue.md.
    """

    model: type[QueueMessage]
    """The type of the messages. A worker refuses a handler of another type."""

    max_hold_seconds: float | None = None
    """For how long a message can be held at most, however often its lease is renewed."""

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

    operator: QueueOperator
    """What people see of this queue and do to its messages, as in `queue.operator.find(id)`.
    The queue has the same methods, as in `queue.find(id)`."""

    def __init__(
        self,
        name: str,
        model: type[M] = AnyMessage,  # type: ignore[assignment]  # the default of M
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
        self.operator = QueueOperator(name, self.capabilities)
        self.model = model
        self._codec: MessageCodec[M] = MessageCodec(model)
        self.lease_seconds = lease_seconds
        self.max_attempts = max_attempts
        self.backoff = backoff
        self.clock = clock
        self.events = events or LoggedEvents()
        self._has_refunds = "refund" in self.capabilities
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
        claimed = self._claim_messages(batch_size)
        if claimed or wait_seconds <= 0:
            return claimed
        return self._claim_with_wait(batch_size, wait_seconds, stop or Event())

    def _claim_messages(self, limit: int) -> list[M]:
        """Claim messages without waiting. Those claimed before an error are returned."""
        claimed: list[M] = []
        missing = limit
        try:
            while missing > 0:
                deliveries = self._claim(missing)
                claimed += self._admit_all(deliveries)
                if len(deliveries) < missing:
                    break
                missing = limit - len(claimed)
        except HoldfastError:
            if not claimed:
                raise
        return claimed

    def _claim_with_wait(self, batch_size: int, wait_seconds: float, stop: Event) -> list[M]:
        give_up_at = self.clock.monotonic() + wait_seconds
        pause = 0.01
        while not stop.is_set() and (left := give_up_at - self.clock.monotonic()) > 0:
            if self._wait_for_message(stop, min(pause, left)):
                break
            claimed = self._claim_messages(batch_size)
            if claimed:
                return claimed
            pause = min(pause * 1.5, 0.25)
        return []

    def _wait_for_message(self, stop: Event, seconds: float) -> bool:
        """Wait before the next claim, and return whether `stop` is set."""
        return self.clock.wait(stop, seconds)

    @abstractmethod
    def _claim(self, limit: int) -> Sequence[Delivery]:
        """Claim up to `limit` available messages without waiting.

        Messages whose lease has ended are claimed as well. If an error comes after some were
        claimed, return those.
        """

    # -- admitting: the only place that decides which messages a handler may get

    def _admit_all(self, deliveries: Sequence[Delivery]) -> list[M]:
        """Return the messages that handlers may get.

        If one can be neither delivered nor settled, it comes back when its lease ends. The
        error is raised only if there are no other messages, which must not be affected.
        """
        messages: list[M] = []
        fault: HoldfastError | None = None
        for delivery in deliveries:
            try:
                message = self._admit(delivery, self.max_attempts)
            except HoldfastError as error:
                fault = error
                continue
            if type(message) is not SettleResult:
                messages.append(message)
            elif message is SettleResult.DEAD_LETTERED:
                with self._poll_count:  # polls may run at the same time
                    self.dead_lettered_by_poll += 1
        if fault is not None:
            if not messages:
                raise fault
            self.events.emit(ev.PollFailed(self.name, str(fault)))
        return messages

    def _admit(self, delivery: Delivery, max_attempts: float) -> M | SettleResult:
        """Return the message with its lease, or how it was settled instead."""
        verdict = decide(delivery, self._codec, max_attempts, self._has_refunds)
        if type(verdict) is PutBack or type(verdict) is Rejected:  # faster than isinstance
            return self._refuse(delivery, verdict)
        lease = self._make_lease(delivery, verdict.id, delivery.attempt)
        attach_lease(verdict, lease)
        if delivery.headers is not None:
            attach_headers(verdict, delivery.headers)
        return verdict

    def _refuse(self, delivery: Delivery, verdict: PutBack | Rejected) -> SettleResult:
        is_charged = isinstance(verdict, Rejected) and not verdict.is_exhausted
        attempt = delivery.attempt if is_charged else delivery.attempt - 1
        lease = self._make_lease(delivery, verdict.message_id, attempt)
        if isinstance(verdict, PutBack):
            self._release(lease, NEWER_SCHEMA_DELAY_SECONDS)
            self.events.emit(
                ev.SchemaTooNew(self.name, lease.message_id, delivery.attempt, verdict.version)
            )
            return SettleResult.GIVEN_BACK
        why = self._explain_exhausted(delivery) if verdict.is_exhausted else ""
        if self._dead_letter(lease, verdict.reason + why, None) is not None:
            return SettleResult.ABANDONED
        self.events.emit(
            ev.DeadLettered(self.name, lease.message_id, attempt, reason=verdict.log_reason)
        )
        return SettleResult.DEAD_LETTERED

    def _make_lease(self, delivery: Delivery, message_id: str, attempt: int) -> Lease:
        claimed_at, held = delivery.claimed_at, self.max_hold_seconds
        if delivery.taken_over_from is not None:
            self.events.emit(
                ev.TakenOver(self.name, message_id, delivery.attempt, delivery.taken_over_from)
            )
        return Lease(  # by position, which is faster than by keyword
            self,
            delivery.handle,
            message_id,
            attempt,
            delivery.fence,
            claimed_at,
            self.lease_seconds,
            None if held is None else claimed_at + held,
        )

    def _explain_exhausted(self, delivery: Delivery) -> str:
        """Return what to add to the reason of a message that is out of attempts."""
        return "; the last worker lost its lease" if delivery.taken_over_from else ""

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
        raise self.operator.make_unsupported("keep results")

    # -- what an adapter implements for each verb: it changes the backend and nothing else.
    # If the lease is lost, return LeaseLost and do not raise it, because the caller must
    # first mark the lease as lost. Afterwards `lease.attempt` claims are charged; the other
    # claims, up to the fence, are not.

    @abstractmethod
    def _ack(self, leases: Sequence[Lease]) -> Sequence[LeaseLost | None]: ...

    @abstractmethod
    def _nack(
        self, lease: Lease, delay_seconds: float, reason: str, detail: str | None
    ) -> LeaseLost | None: ...

    def _release(self, lease: Lease, delay_seconds: float = 0.0) -> LeaseLost | None:
        """Make the message claimable again after the delay, its claim not charged."""
        return self._nack(lease, delay_seconds, "given back", None)

    @abstractmethod
    def _dead_letter(
        self, lease: Lease, reason: str, detail: str | None
    ) -> LeaseLost | None: ...

    def _save_checkpoint(self, lease: Lease, checkpoint: Any) -> None:
        raise self.operator.make_unsupported("store checkpoints")

    def _save_result(self, lease: Lease, result: bytes) -> None:
        raise self.operator.make_unsupported("keep results")

    # -- for operators

    @abstractmethod
    def stats(self) -> QueueStats:
        """Count the messages in each state."""

    peek = _operate(QueueOperator.peek)
    browse = _operate(QueueOperator.browse)
    dead_letters = _operate(QueueOperator.dead_letters)
    workers = _operate(QueueOperator.workers)
    count_completed = _operate(QueueOperator.count_completed)
    find = _operate(QueueOperator.find)
    find_push = _operate(QueueOperator.find_push)
    search = _operate(QueueOperator.search)
    cancel = _operate(QueueOperator.cancel)
    redrive = _operate(QueueOperator.redrive)
    redrive_many = _operate(QueueOperator.redrive_many)
    drop = _operate(QueueOperator.drop)
    drop_many = _operate(QueueOperator.drop_many)
    purge = _operate(QueueOperator.purge)

    def close(self) -> None:
        """Close files and connections. Leases that are still held run out by themselves."""

    def __enter__(self) -> QueueManager[M]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- checks of numbers that no queue could store, made before anything happens

    def _check_seconds(self, name: str, seconds: float) -> None:
        if not 0 < seconds <= MAX_SECONDS:  # also false for NaN
            raise ValueError(f"{name} must be above 0 and at most ten years, not {seconds}")

    def _check_delay(self, seconds: float) -> None:
        if not seconds <= MAX_SECONDS:
            raise ValueError(f"delay_seconds must be at most ten years, not {seconds}")

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
