"""A message of a FIFO queue that waits for newer code uses up no attempts."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.events import DeadLettered, Event, Events
from holdfast.queue.message import QueueMessage, Upgrader, get_lease
from holdfast.queues.sqs import SQSQueue
from holdfast.queues.sqs.receipts import compute_wait_seconds, count_possible_waits
from holdfast.testing import ManualClock, SimulatedSqs
from holdfast.worker.outcome import Retry
from holdfast.worker.settle import SettleResult, settle
from support.sqs.calls import create_queue, set_redrive_policy

LEASE = 60.0
NAME = "work.fifo"

Queue = SQSQueue[Any]
OpenQueue = Callable[..., Queue]


class Order1(QueueMessage):
    schema_version: int = 1


class Order2(QueueMessage):
    upgraders: ClassVar[Mapping[int, Upgrader]] = {1: lambda data: data}
    schema_version: int = 2


@pytest.fixture
def open_queue(sqs: SimulatedSqs, clock: ManualClock) -> OpenQueue:
    client = sqs.client()
    create_queue(client, NAME)

    def open_model(model: type[QueueMessage], **settings: Any) -> Queue:
        return SQSQueue(
            NAME, model, lease_seconds=LEASE, clock=clock, client=client, **settings
        )

    return open_model


def poll_too_old(queue: Queue, clock: ManualClock, polls: int, step_seconds: int = 1) -> None:
    """Let a worker that is too old poll so many times."""
    for _ in range(polls):
        assert queue.poll() == []
        clock.advance(step_seconds)


@given(st.lists(st.floats(min_value=1, max_value=1.5), max_size=60))
def test_the_time_since_the_first_receive_allows_for_all_waits_there_were(
    stretched: list[float],
) -> None:
    """Each wait takes its time or longer; this clock may differ by a quarter of it."""
    seconds = sum(
        compute_wait_seconds(n) * stretch for n, stretch in enumerate(stretched, start=1)
    )
    assert count_possible_waits(seconds * 0.75) >= len(stretched)


def test_a_wait_is_one_that_sqs_accepts_however_often_it_was_received() -> None:
    waits = [compute_wait_seconds(receives) for receives in range(1, 1_001)]
    assert waits[:4] == [60, 120, 240, 480]
    assert max(waits) < 12 * 3600


@pytest.mark.parametrize(("minutes", "receives"), [(1, 6), (5, 6), (30, 6), (60, 7), (480, 10)])
def test_after_a_rolling_deployment_the_new_code_gets_the_first_attempt(
    open_queue: OpenQueue,
    sqs: SimulatedSqs,
    clock: ManualClock,
    minutes: int,
    receives: int,
) -> None:
    client = sqs.client()
    set_redrive_policy(client, NAME, create_queue(client, "dead.fifo"), receives)
    newer = open_queue(Order2)
    newer.push_many([Order2(id="a"), Order2(id="b")])
    poll_too_old(open_queue(Order1), clock, minutes, step_seconds=60)
    for _ in range(minutes + 1):  # it is hidden for no longer than the deployment took
        if orders := newer.poll():
            break
        clock.advance(60)
    assert [(order.id, order.attempts) for order in orders] == [("a", 1)]
    assert newer.stats().failed == 0
    newer.ack(orders[0])
    assert [order.id for order in newer.poll()] == ["b"]  # in its order


def test_a_failure_after_the_wait_is_counted_as_the_first(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    heard: list[Event] = []
    newer = open_queue(Order2, max_attempts=3)
    newer.push(Order2(id="a"))
    poll_too_old(open_queue(Order1, max_attempts=3), clock, 600)
    clock.advance(600)
    [order] = newer.poll()
    settled = settle(newer, order, Retry(0, "busy"), Events(heard.append))
    assert settled is SettleResult.RETRIED
    assert not [event for event in heard if isinstance(event, DeadLettered)]


def test_the_fence_rises_with_every_receive(open_queue: OpenQueue, clock: ManualClock) -> None:
    newer = open_queue(Order2)
    newer.push(Order2(id="a"))
    poll_too_old(open_queue(Order1), clock, 200)
    clock.advance(600)
    fences = []
    for _ in range(3):
        [order] = newer.poll()
        fences.append(get_lease(order).fence)
        newer.nack(order, delay_seconds=0)
    assert fences == [4, 5, 6]


def test_a_message_that_kills_its_workers_reaches_the_dead_letters_though_it_could_have_waited(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    newer = open_queue(Order2, max_attempts=3)
    newer.push(Order2(id="killer"))
    deliveries = 0
    while newer.poll():
        deliveries += 1
        assert deliveries < 20
        clock.advance(LEASE + 1)
    [view] = newer.dead_letters()
    assert view.attempts == 3
    assert 3 <= deliveries <= 8


def test_quick_failures_are_all_counted(open_queue: OpenQueue) -> None:
    newer = open_queue(Order2, max_attempts=3)
    newer.push(Order2(id="a"))
    attempts = []
    while orders := newer.poll():
        attempts.append(orders[0].attempts)
        newer.nack(orders[0], delay_seconds=0)
    assert attempts == [1, 2, 3]
    assert newer.stats().failed == 1
