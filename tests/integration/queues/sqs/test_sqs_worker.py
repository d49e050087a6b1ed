"""A worker on SQSQueue and the simulator, in real time and with real threads."""

import os
import signal
import threading
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.events import DeadLettered, Event, Events
from holdfast.queue.message import AnyMessage, QueueMessage, get_lease
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import SimulatedSqs
from holdfast.worker.outcome import Reject, Retry
from holdfast.worker.runner import Context
from holdfast.worker.worker import Worker

LEASE = 30.0


Queue = SQSQueue[Any]


class Order(QueueMessage):
    customer: str = "ada"
    number: int = 0


def open_queue(name: str = "work", *args: Any, **options: Any) -> Queue:
    """Return a new queue whose counts are exact, so that one check shows that it is empty."""
    client = SimulatedSqs().client()
    fifo = {"Attributes": {"FifoQueue": "true"}} if name.endswith(".fifo") else {}
    client.create_queue(QueueName=name, **fifo)
    queue: Queue = SQSQueue(name, *args, client=client, **options)
    queue.min_empty_checks = 1
    return queue


def push_count(queue: Queue, count: int) -> list[str]:
    return queue.push_many(AnyMessage(id=f"{number}") for number in range(count))


@pytest.mark.requirement("R003-025")
def test_a_worker_never_receives_more_than_it_has_free_slots() -> None:
    queue = open_queue(lease_seconds=LEASE)
    push_count(queue, 40)
    held = most = 0
    lock = threading.Lock()

    def handle(_: AnyMessage, __: object) -> None:
        nonlocal most
        with lock:
            most = max(most, queue.stats().leased)

    report = Worker(queue, handle, concurrency=3, prefetch=0).run(until_empty=True)
    assert report.completed == 40
    assert held <= most <= 3


def test_one_empty_response_does_not_count_as_an_empty_queue() -> None:
    queue = open_queue(lease_seconds=3.0)
    queue.min_empty_checks = SQSQueue.min_empty_checks
    assert queue.min_empty_checks == 3
    looked = []
    stats = queue.stats

    def counted() -> Any:
        looked.append(1)
        if len(looked) == 2:
            push_count(queue, 1)  # it arrives after one empty receive
        return stats()

    queue.stats = counted  # type: ignore[method-assign]
    report = Worker(queue, lambda _, __: None).run(until_empty=True)
    assert report.completed == 1


def test_messages_of_one_group_are_processed_one_by_one_in_order() -> None:
    queue = open_queue("work.fifo", Order, group_by="customer")
    queue.push_many(Order(customer=f"{n % 3}", number=n) for n in range(30))
    seen: dict[str, list[int]] = {"0": [], "1": [], "2": []}
    busy: set[str] = set()
    side_by_side = []

    def handle(order: Order, _: object) -> None:
        if order.customer in busy:
            side_by_side.append(order.number)
        busy.add(order.customer)
        seen[order.customer].append(order.number)
        threading.Event().wait(0.005)
        busy.discard(order.customer)

    assert Worker(queue, handle, concurrency=8).run(until_empty=True).completed == 30
    assert side_by_side == []
    assert all(numbers == sorted(numbers) for numbers in seen.values())


@pytest.mark.requirement("R001-048")
def test_a_worker_retries_rejects_and_completes() -> None:
    events_seen: list[Event] = []
    queue = open_queue("work", Order, on_nack="now")
    queue.push_many(Order(id=f"{number}", number=number) for number in range(12))

    def handle(order: Order, _: object) -> Reject | None:
        if order.number == 3:
            return Reject("no such order")
        if order.number == 5 and order.attempts == 1:
            raise RuntimeError("later")
        return None

    worker = Worker(queue, handle, concurrency=4, events=Events(events_seen.append))
    report = worker.run(until_empty=True)
    assert (report.completed, report.retried, report.dead_lettered) == (11, 1, 1)
    assert [view.id for view in queue.dead_letters()] == ["3"]
    assert [event.message_id for event in events_seen if isinstance(event, DeadLettered)] == [
        "3"
    ]


def report_cap(_: AnyMessage, ctx: Context) -> Reject:
    return Reject(f"{ctx.max_seconds_left:.0f}")


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_the_handler_can_read_how_long_the_message_can_be_held(isolation: Any) -> None:
    queue = open_queue()
    push_count(queue, 1)
    Worker(queue, report_cap, isolation=isolation).run(until_empty=True)
    [view] = queue.dead_letters()
    assert 43_000 < int(view.reason or 0) <= 43_200


def test_a_run_until_empty_waits_for_messages_it_nacked_itself() -> None:
    queue = open_queue()
    push_count(queue, 1)

    def handle(message: AnyMessage, _: object) -> Retry | None:
        return Retry(after_seconds=3) if message.attempts == 1 else None

    report = Worker(queue, handle).run(until_empty=True)
    assert (report.retried, report.completed) == (1, 1)


def test_a_worker_on_a_missing_queue_fails_at_once() -> None:
    queue: Queue = SQSQueue("nowhere", client=SimulatedSqs().client())
    with pytest.raises(ConfigError, match="no such queue"):
        Worker(queue, lambda _, __: None).run()


def test_a_fork_receives_a_message_that_its_parent_held_at_the_fork() -> None:
    """The copy of the parent's lease must not swallow a delivery to the child."""
    client = SimulatedSqs().client()
    url = client.create_queue(QueueName="work")["QueueUrl"]
    queue: Queue = SQSQueue("work", lease_seconds=LEASE, client=client)
    push_count(queue, 1)
    [held] = queue.poll()
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)  # a deadlocked child ends by itself
        code = 1
        try:
            # The simulator was copied too, so the parent's nack is repeated here.
            handle = get_lease(held).handle.handle
            client.change_message_visibility(
                QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0
            )
            [message] = queue.poll()
            queue.ack(message)
            code = 0 if (message.id, message.attempts) == ("0", 2) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    queue.ack(held)  # the parent still holds its message
