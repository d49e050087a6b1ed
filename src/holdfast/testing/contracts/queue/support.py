"""Words the promises are written in."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.core.events import Event
from holdfast.core.lease.lease import Lease
from holdfast.core.queue.manager import MessageInfo, MessageState, QueueManager
from holdfast.core.queue.message import QueueMessage, lease_of
from holdfast.testing import ManualClock

LEASE = 30.0
"""Seconds a lease lasts in these tests."""

MUCH_LATER = 1_000.0
"""Longer than any lease, backoff or hand-back here."""

AnyQueue = QueueManager[Any]
MakeQueue = Callable[..., AnyQueue]
Inject = Callable[[AnyQueue, bytes], None]


class NoteMessage(QueueMessage):
    text: str = ""
    number: int = 0


SETTLE: dict[str, Callable[[AnyQueue, Any], None]] = {
    "ack": lambda queue, message: queue.ack(message),
    "nack": lambda queue, message: queue.nack(message, delay_seconds=0),
    "release": lambda queue, message: queue.release(message),
    "dead_letter": lambda queue, message: queue.dead_letter(message, "no use"),
}
HOLD: dict[str, Callable[[AnyQueue, Any], None]] = {
    "extend": lambda queue, message: queue.extend(message),
    "save_checkpoint": lambda queue, message: queue.save_checkpoint(message, {"page": 1}),
}
VERBS = SETTLE | HOLD


class EventRecorder:
    """A subscriber that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


def standing_still(clock: ManualClock) -> ManualClock:
    """A clock that says what `clock` says now, and goes on saying it."""
    return ManualClock(clock.monotonic(), time=clock.time())


def poll_one(queue: AnyQueue) -> Any:
    """The one message there must be."""
    [message] = queue.poll()
    return message


def every(queue: AnyQueue, batch_size: int = 10) -> Iterator[Any]:
    """Poll until nothing comes, but not for ever."""
    for _ in range(1000):
        batch = queue.poll(batch_size)
        if not batch:
            return
        yield from batch
    pytest.fail("this queue never runs empty")


def poll_all(queue: AnyQueue) -> list[Any]:
    return list(every(queue))


def fence(message: QueueMessage) -> int:
    return lease_of(message).fence


def lease(message: QueueMessage) -> Lease:
    return lease_of(message)


def dead_letter(queue: AnyQueue) -> MessageInfo:
    """The one dead letter there must be."""
    [view] = queue.dead_letters()
    return view


def seen(queue: AnyQueue) -> object:
    """All that people can see of a queue, to compare before and after."""
    views = [view for state in MessageState for view in queue.peek(state)]
    found = [queue.find(message_id) for message_id in sorted({view.id for view in views})]
    return queue.stats(), sorted(views, key=lambda view: view.key), found


def must_have_completed(queue: AnyQueue, count: int) -> None:
    """So many, by the books; a queue without books must not claim to know."""
    expected = count if "books" in queue.capabilities else None
    assert queue.stats().completed == expected


def need(queue: AnyQueue, *capabilities: str) -> None:
    """Go on only if the queue says it can; QueueContract.lacks pins what it says."""
    if missing := set(capabilities) - queue.capabilities:
        pytest.skip(f"{type(queue).__name__} declares that it has no {', '.join(missing)}")
