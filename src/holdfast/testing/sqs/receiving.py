"""ReceiveMessage, with long polling on the clock."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

from holdfast.core.clock import Clock
from holdfast.testing.sqs.batch import Answer
from holdfast.testing.sqs.errors import ServiceError, out_of_range
from holdfast.testing.sqs.message import SYSTEM_ATTRIBUTES, StoredMessage
from holdfast.testing.sqs.moves import MessageMoves
from holdfast.testing.sqs.queue import SimulatedQueue
from holdfast.testing.sqs.registry import QueueRegistry

MAX_VISIBILITY_SECONDS = 43_200
MAX_WAIT_SECONDS = 20
MAX_MESSAGES = 10


@dataclass(frozen=True, slots=True)
class ReceiveRequest:
    """What a receive asks for, the queue's defaults filled in."""

    limit: int
    visibility_seconds: int
    wait_seconds: int
    system_attributes: tuple[str, ...]
    own_attributes: tuple[str, ...]


class ReceiveCalls:
    """Takes the service's lock itself: it must not hold it while it waits."""

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

    def receive(self, region: str, params: dict[str, Any]) -> Answer:
        with self._lock:
            wanted = _wanted(self._registry.find(region, params["QueueUrl"]), params)
        deadline = self._clock.monotonic() + wanted.wait_seconds
        while True:
            waiter = Event()
            with self._lock:
                now = self._clock.monotonic()
                self._moves.progress()
                # Looked up each time: it may be deleted while somebody waits for it.
                queue = self._registry.find(region, params["QueueUrl"])
                messages = self._take(queue, wanted, now)
                if messages or now >= deadline:
                    return _answer(messages, wanted)
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
        self, queue: SimulatedQueue, wanted: ReceiveRequest, now: float
    ) -> list[StoredMessage]:
        queue.settle(now)
        room = self._in_flight_limit - queue.in_flight
        if room <= 0:
            return _over_limit(queue, wanted)
        redrive = queue.settings.redrive
        dead_letters = self._registry.by_arn(redrive.target_arn) if redrive else None
        taken = queue.take(
            min(wanted.limit, room),
            wanted.visibility_seconds,
            redrive.max_receives if redrive and dead_letters else float("inf"),
            now,
            self._wall_ms(),
        )
        for message in taken.exhausted:
            assert dead_letters is not None
            dead_letters.add(self._dead(message, queue, now))
        return taken.delivered

    def _dead(
        self, message: StoredMessage, source: SimulatedQueue, now: float
    ) -> StoredMessage:
        """As it enters the dead letters: same id, same count, visible at once.

        Its age goes on counting, but starts anew in a FIFO queue: so AWS has it.
        """
        dead = replace(message, visible_at=now, source_arn=source.arn, handle="")
        if source.settings.is_fifo:
            return replace(dead, sent_at=now, sent_ms=self._wall_ms())
        return dead

    def _wall_ms(self) -> int:
        return int(self._clock.time() * 1000)


def _over_limit(queue: SimulatedQueue, wanted: ReceiveRequest) -> list[StoredMessage]:
    """Short polls of a standard queue are told; others find nothing."""
    if wanted.wait_seconds or queue.settings.is_fifo:
        return []
    raise ServiceError("OverLimit", "Too many messages are in flight.")


def _answer(messages: list[StoredMessage], wanted: ReceiveRequest) -> Answer:
    """AWS leaves out the list when it would be empty."""
    shown = [m.answer(wanted.system_attributes, wanted.own_attributes) for m in messages]
    return {"Messages": shown} if shown else {}


def _wanted(queue: SimulatedQueue, params: dict[str, Any]) -> ReceiveRequest:
    names = [
        *(params.get("AttributeNames") or ()),
        *(params.get("MessageSystemAttributeNames") or ()),
    ]
    if unknown := [name for name in names if name not in (*SYSTEM_ATTRIBUTES, "All")]:
        raise ServiceError("InvalidAttributeName", f"Unknown Attribute {unknown[0]}.")
    return ReceiveRequest(
        limit=_in_range("MaxNumberOfMessages", params, 1, (1, MAX_MESSAGES)),
        visibility_seconds=_in_range(
            "VisibilityTimeout",
            params,
            queue.settings.visibility_seconds,
            (0, MAX_VISIBILITY_SECONDS),
        ),
        wait_seconds=_in_range(
            "WaitTimeSeconds", params, queue.settings.wait_seconds, (0, MAX_WAIT_SECONDS)
        ),
        system_attributes=tuple(names),
        own_attributes=tuple(params.get("MessageAttributeNames") or ()),
    )


def _in_range(name: str, params: dict[str, Any], default: int, bounds: tuple[int, int]) -> int:
    value = params.get(name)
    low, high = bounds
    if value is None:
        return default
    if not low <= value <= high:
        raise out_of_range(name, value, f"Must be between {low} and {high}, if provided.")
    return int(value)
