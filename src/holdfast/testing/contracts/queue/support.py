"""The names and helpers that the contract's tests use."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.events import Event
from holdfast.queue.info import MessageInfo, MessageState
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import AnyMessage, QueueMessage, get_lease
from holdfast.testing import ManualClock

LEASE = 30.0
"""The lease's length in these tests, in seconds."""

MUCH_LATER = 1_000.0
"""Longer than any lease, backoff or wait for newer code here."""

AnyQueue = QueueManager[Any]
MakeQueue = Callable[..., AnyQueue]
Inject = Callable[[AnyQueue, bytes], None]


class NoteMessage(QueueMessage):
    """A message with two fields."""

    text: str = ""
    number: int = 0


SETTLE: dict[str, Callable[[AnyQueue, Any], None]] = {
    "ack": lambda queue, message: queue.ack(message),
    "nack": lambda queue, message: queue.nack(message, delay_seconds=0),
    "release": lambda queue, message: queue.release(message),
    "dead_letter": lambda queue, message: queue.dead_letter(message, "no use"),
}
WHILE_HELD: dict[str, Callable[[AnyQueue, Any], None]] = {
    "extend": lambda queue, message: queue.extend(message),
    "save_checkpoint": lambda queue, message: queue.save_checkpoint(message, {"page": 1}),
}
VERBS = SETTLE | WHILE_HELD


class EventRecorder:
    """A subscriber that records all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def select(self, kind: type[Event]) -> list[Any]:
        """Return the recorded events of this type."""
        return [event for event in self.events if type(event) is kind]


def make_frozen_clock(clock: ManualClock) -> ManualClock:
    """Return a clock that shows the time of `clock` and never moves."""
    return ManualClock(clock.monotonic(), time=clock.time())


def poll_one(queue: AnyQueue) -> Any:
    """Poll the only message that there must be."""
    [message] = queue.poll()
    return message


def push_and_poll(queue: AnyQueue, **fields: Any) -> Any:
    """Push a message with these fields, and poll the only message that there must be."""
    queue.push(AnyMessage(**fields))
    return poll_one(queue)


def push_dead(queue: AnyQueue, *ids: str) -> None:
    """Push messages and dead-letter them."""
    queue.push_many(AnyMessage(id=message_id) for message_id in ids)
    for message in poll_all(queue):
        queue.dead_letter(message, "no use")


def iter_messages(queue: AnyQueue, batch_size: int = 10) -> Iterator[Any]:
    """Yield messages until a poll is empty; fail if that never happens."""
    for _ in range(1000):
        batch = queue.poll(batch_size)
        if not batch:
            return
        yield from batch
    pytest.fail("this queue never becomes empty")


def poll_all(queue: AnyQueue) -> list[Any]:
    """Poll all messages that are ready."""
    return list(iter_messages(queue))


def get_fence(message: QueueMessage) -> int:
    """Return the fence of the message's lease."""
    return get_lease(message).fence


def get_dead_letter(queue: AnyQueue) -> MessageInfo:
    """Return the only dead letter that there must be."""
    [view] = queue.dead_letters()
    return view


def take_snapshot(queue: AnyQueue) -> object:
    """Return everything that operators can see of a queue, to compare before and after."""
    views = [view for state in MessageState for view in queue.peek(state)]
    by_id = [queue.find(message_id) for message_id in sorted({view.id for view in views})]
    return queue.stats(), sorted(views, key=lambda view: view.key), by_id


def assert_completed(queue: AnyQueue, count: int) -> None:
    """Assert the number of completed messages; a queue without exact counts reports None."""
    expected = count if "exact_counts" in queue.capabilities else None
    assert queue.stats().completed == expected


def require_capabilities(queue: AnyQueue, *capabilities: str) -> None:
    """Skip the test unless the queue declares these; QueueContract.lacks fixes which it may."""
    if missing := set(capabilities) - queue.capabilities:
        pytest.skip(f"{type(queue).__name__} declares that it has no {', '.join(missing)}")
