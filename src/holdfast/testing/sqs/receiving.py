"""ReceiveMessage, whose long polls follow the clock, and the calls with its receipts.

A receipt becomes stale when its message becomes visible again or is received again. AWS does
not promise what happens with a stale receipt. All three of these happen:

    strict      the call is refused
    ignored     the call succeeds without an effect
    effective   the call still deletes or hides the message, even if another receiver has it

FIFO queues always refuse.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, Literal

from holdfast.core.clock import Clock
from holdfast.testing.sqs.batch import Response
from holdfast.testing.sqs.errors import (
    ServiceError,
    expired_handle_error,
    invalid_handle_error,
    message_gone_error,
    not_in_flight_error,
    out_of_range_error,
)
from holdfast.testing.sqs.message import SYSTEM_ATTRIBUTES, StoredMessage
from holdfast.testing.sqs.moves import MessageMoves
from holdfast.testing.sqs.queue import SimulatedQueue
from holdfast.testing.sqs.registry import QueueRegistry

MAX_VISIBILITY_SECONDS = 43_200
MAX_WAIT_SECONDS = 20
MAX_MESSAGES = 10

StaleHandles = Literal["strict", "ignored", "effective"]


@dataclass(frozen=True, slots=True)
class ReceiveRequest:
    """The parameters of a receive, with the queue's defaults filled in."""

    limit: int
    visibility_seconds: int
    wait_seconds: int
    system_attributes: tuple[str, ...]
    own_attributes: tuple[str, ...]


class ReceiveCalls:
    """The receive operation. It takes the service's lock itself, and not while it waits."""

    def __init__(
        self,
        registry: QueueRegistry,
        moves: MessageMoves,
        clock: Clock,
        lock: AbstractContextManager[Any],
        in_flight_limit: int,
    ) -> None:
        self._registry = registry
        self._moves = moves
        self._clock = clock
        self._lock = lock
        self._in_flight_limit = in_flight_limit

    def receive(self, region: str, params: dict[str, Any]) -> Response:
        """Handle ReceiveMessage."""
        with self._lock:
            request = _parse_request(self._registry.find(region, params["QueueUrl"]), params)
        deadline = self._clock.monotonic() + request.wait_seconds
        while True:
            waiter = Event()
            with self._lock:
                now = self._clock.monotonic()
                self._moves.move_due()
                # Looked up each time, because it may be deleted during the wait.
                queue = self._registry.find(region, params["QueueUrl"])
                messages = self._take(queue, request, now)
                if messages or now >= deadline:
                    return _make_response(messages, request)
                queue.waiters.add(waiter)
                next_look = min(deadline, queue.next_change_at(), self._moves.next_change_at())
            self._wait(queue, waiter, next_look - now)

    def _wait(self, queue: SimulatedQueue, waiter: Event, seconds: float) -> None:
        try:
            self._clock.wait(waiter, seconds)
        finally:
            with self._lock:
                queue.waiters.discard(waiter)

    def _take(
        self, queue: SimulatedQueue, request: ReceiveRequest, now: float
    ) -> list[StoredMessage]:
        queue.settle(now)
        room = self._in_flight_limit - queue.in_flight
        if room <= 0:
            return _refuse_over_limit(queue, request)
        redrive = queue.settings.redrive
        dead_letters = self._registry.find_by_arn(redrive.target_arn) if redrive else None
        delivered, exhausted = queue.take(
            min(request.limit, room),
            request.visibility_seconds,
            redrive.max_receives if redrive and dead_letters else float("inf"),
            now,
            self._wall_ms(),
        )
        for message in exhausted:
            assert dead_letters is not None
            dead_letters.add(self._to_dead_letter(message, queue, now))
        return delivered

    def _to_dead_letter(
        self, message: StoredMessage, source: SimulatedQueue, now: float
    ) -> StoredMessage:
        """Return the message as a dead letter, with the same id and count, visible at once.

        Its age continues, except in a FIFO queue, where AWS restarts it.
        """
        dead = replace(message, visible_at=now, source_arn=source.arn, handle="")
        if source.settings.is_fifo:
            return replace(dead, sent_at=now, sent_ms=self._wall_ms())
        return dead

    def _wall_ms(self) -> int:
        return int(self._clock.time() * 1000)


def _refuse_over_limit(queue: SimulatedQueue, request: ReceiveRequest) -> list[StoredMessage]:
    """Return no message, or raise OverLimit for a short poll of a standard queue."""
    if request.wait_seconds or queue.settings.is_fifo:
        return []
    raise ServiceError("OverLimit", "Too many messages are in flight.")


def _make_response(messages: list[StoredMessage], request: ReceiveRequest) -> Response:
    """Make the response. AWS omits a list that would be empty."""
    selected = [
        m.to_response(request.system_attributes, request.own_attributes) for m in messages
    ]
    return {"Messages": selected} if selected else {}


def _parse_request(queue: SimulatedQueue, params: dict[str, Any]) -> ReceiveRequest:
    names = [
        *(params.get("AttributeNames") or ()),
        *(params.get("MessageSystemAttributeNames") or ()),
    ]
    if unknown := [name for name in names if name not in (*SYSTEM_ATTRIBUTES, "All")]:
        raise ServiceError("InvalidAttributeName", f"Unknown Attribute {unknown[0]}.")
    return ReceiveRequest(
        limit=_read_in_range("MaxNumberOfMessages", params, 1, (1, MAX_MESSAGES)),
        visibility_seconds=_read_in_range(
            "VisibilityTimeout",
            params,
            queue.settings.get_number("VisibilityTimeout"),
            (0, MAX_VISIBILITY_SECONDS),
        ),
        wait_seconds=_read_in_range(
            "WaitTimeSeconds",
            params,
            queue.settings.get_number("ReceiveMessageWaitTimeSeconds"),
            (0, MAX_WAIT_SECONDS),
        ),
        system_attributes=tuple(names),
        own_attributes=tuple(params.get("MessageAttributeNames") or ()),
    )


def _read_in_range(
    name: str, params: dict[str, Any], default: int, bounds: tuple[int, int]
) -> int:
    value = params.get(name)
    low, high = bounds
    if value is None:
        return default
    if not low <= value <= high:
        raise out_of_range_error(name, value, f"Must be between {low} and {high}, if provided.")
    return int(value)


class ReceiptCalls:
    """The operations that take a receipt. The caller must hold the service's lock."""

    def __init__(self, clock: Clock, stale_handles: StaleHandles) -> None:
        self._clock, self._stale_handles = clock, stale_handles

    def delete(self, queue: SimulatedQueue, entry: dict[str, Any]) -> Response:
        """Handle DeleteMessage, or one entry of DeleteMessageBatch."""
        number = self._find_number(queue, entry)
        message = queue.get(number)
        # Deleting a message that is gone already succeeds.
        if message is not None and self._has_effect(
            queue, message, entry, invalid_handle_error()
        ):
            queue.delete(number)
        return {}

    def change(self, queue: SimulatedQueue, entry: dict[str, Any]) -> Response:
        """Handle ChangeMessageVisibility, or one entry of its batch."""
        default = queue.settings.get_number("VisibilityTimeout")
        seconds = entry.get("VisibilityTimeout", default)
        if not 0 <= seconds <= MAX_VISIBILITY_SECONDS:
            raise out_of_range_error(
                "VisibilityTimeout", seconds, f"Must be between 0 and {MAX_VISIBILITY_SECONDS}."
            )
        number = self._find_number(queue, entry)
        message = queue.get(number)
        if message is None:
            raise message_gone_error()
        is_latest = message.handle == entry["ReceiptHandle"]
        refusal = not_in_flight_error() if is_latest else invalid_handle_error()
        if self._has_effect(queue, message, entry, refusal):
            queue.hide(number, self._compute_visible_at(message, seconds))
        return {}

    def _compute_visible_at(self, message: StoredMessage, seconds: int) -> float:
        """Return when the message is visible again; refuse more than twelve hours in all."""
        until = self._clock.monotonic() + seconds
        if until - message.received_at > MAX_VISIBILITY_SECONDS:
            raise out_of_range_error(
                "VisibilityTimeout",
                seconds,
                "Total VisibilityTimeout for the message is beyond the limit "
                f"[{MAX_VISIBILITY_SECONDS} seconds]",
            )
        return until

    def _find_number(self, queue: SimulatedQueue, entry: dict[str, Any]) -> int:
        queue.settle(self._clock.monotonic())
        number = queue.receipts.get(entry["ReceiptHandle"])
        if number is None:
            raise invalid_handle_error()
        return number

    def _has_effect(
        self,
        queue: SimulatedQueue,
        message: StoredMessage,
        entry: dict[str, Any],
        refusal: ServiceError,
    ) -> bool:
        """Return whether this receipt has an effect. Raises if it is stale and refused."""
        is_visible = message.visible_at <= self._clock.monotonic()
        if not is_visible and message.handle == entry["ReceiptHandle"]:
            return True
        if queue.settings.is_fifo:
            raise expired_handle_error()
        if self._stale_handles == "strict":
            raise refusal
        return self._stale_handles == "effective"
