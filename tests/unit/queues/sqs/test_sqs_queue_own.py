"""Tests of SQSQueue beyond the contract that it shares with the other queues."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

import pytest

from holdfast.errors import ConfigError, LeaseLost, MessageTooLarge, QueueUnavailable
from holdfast.events import CheckpointNotKept, Event, Events, PollFailed
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import LeaseState, Refused, Renewed, Unanswered
from holdfast.queue.message import AnyMessage, QueueMessage, get_lease
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import ManualClock, SimulatedSqs
from holdfast.worker.settle import SettleResult
from holdfast.worker.worker import Worker
from support.sqs.calls import (
    create_queue,
    open_threads,
    receive,
    send,
    set_redrive_policy,
    wait_for_waiting_threads,
)

LEASE = 30.0

Queue = SQSQueue[Any]
OpenQueue = Callable[..., Queue]


class Order(QueueMessage):
    customer: str = "ada"
    number: int = 0


@pytest.fixture
def open_queue(sqs: SimulatedSqs, clock: ManualClock) -> OpenQueue:
    client = sqs.client()

    def open_work(name: str = "work", **settings: Any) -> Queue:
        create_queue(client, name)
        defaults = {"lease_seconds": LEASE, "clock": clock, "client": client}
        queue: Queue = SQSQueue(name, **defaults | settings)
        sqs.calls.clear()
        return queue

    return open_work


@pytest.fixture
def queue(open_queue: OpenQueue) -> Queue:
    return open_queue()


def push_count(queue: Queue, count: int) -> list[str]:
    return queue.push_many(AnyMessage(id=f"{number}") for number in range(count))


# -- few calls


@pytest.mark.requirement("R001-050", "R001-051")
def test_ten_messages_are_sent_received_and_deleted_in_one_call_each(
    queue: Queue, sqs: SimulatedSqs
) -> None:
    queue.push(AnyMessage())
    assert sqs.calls.count("SendMessage") == 1
    push_count(queue, 24)
    assert sqs.calls.count("SendMessageBatch") == 3
    messages = queue.poll(25)
    assert (len(messages), sqs.calls.count("ReceiveMessage")) == (25, 3)
    queue.ack_many(messages)
    assert sqs.calls.count("DeleteMessageBatch", "DeleteMessage") == 3


@pytest.mark.requirement("R001-052")
def test_acks_of_many_threads_are_sent_together(queue: Queue, sqs: SimulatedSqs) -> None:
    push_count(queue, 10)
    messages = queue.poll(10)
    together = threading.Barrier(10)

    def ack(message: AnyMessage) -> None:
        together.wait()
        queue.ack(message)

    with ThreadPoolExecutor(10) as threads:
        list(threads.map(ack, messages))
    assert sqs.calls.entries("DeleteMessageBatch") == 10
    assert sqs.calls.count("DeleteMessageBatch") <= 3
    assert queue.stats().leased == 0


def test_a_refused_ack_in_a_shared_batch_is_raised_in_its_own_thread_only(
    queue: Queue, sqs: SimulatedSqs
) -> None:
    push_count(queue, 4)
    messages = queue.poll(4)
    sqs.faults.refuse("DeleteMessageBatch", "ReceiptHandleIsInvalid", positions=(0,))
    together = threading.Barrier(4)

    def ack(message: AnyMessage) -> str:
        together.wait()
        try:
            queue.ack(message)
        except LeaseLost:
            return "lost"
        return "acked"

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(ack, messages)) == ["acked", "acked", "acked", "lost"]
    assert queue.stats().leased == 1


def test_a_single_ack_does_not_wait_for_others(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.queues.sqs.receipts.GATHER_SECONDS", 600.0)
    push_count(queue, 1)
    queue.ack(queue.poll()[0])  # waiting would take ten minutes
    assert queue.stats().leased == 0


# -- errors


def test_an_entry_that_fails_transiently_is_sent_again_alone(
    queue: Queue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    clock.auto_advance = True
    sqs.faults.refuse("SendMessageBatch", "InternalError", positions=(2, 5))
    push_count(queue, 10)
    assert sorted(int(message.id) for message in queue.poll(10)) == list(range(10))
    assert [call.entries for call in sqs.calls.select("SendMessageBatch")] == [10, 2]


def test_entries_that_are_refused_permanently_are_named(
    queue: Queue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    clock.auto_advance = True
    sqs.faults.refuse("SendMessageBatch", "InternalError", positions=(0,), times=99)
    with pytest.raises(QueueUnavailable, match=r"1 of the messages .*InternalError.*'0'"):
        push_count(queue, 4)


def test_one_refused_ack_of_many_does_not_undo_the_others(
    queue: Queue, sqs: SimulatedSqs
) -> None:
    push_count(queue, 5)
    messages = queue.poll(5)
    sqs.faults.refuse("DeleteMessageBatch", "InternalError", positions=(1,))
    with pytest.raises(QueueUnavailable, match="InternalError"):
        queue.ack_many(messages)
    sqs.calls.clear()
    queue.ack_many(messages)
    assert sqs.calls.entries("DeleteMessageBatch") == 1
    assert queue.stats().leased == 0


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("RequestThrottled", Unanswered),
        ("InternalError", Unanswered),
        ("ReceiptHandleIsInvalid", Refused),
        ("InvalidParameterValue", Refused),
        ("AWS.SimpleQueueService.MessageNotInflight", Refused),
    ],
)
def test_each_entry_of_a_renewal_is_judged_by_its_own_code(
    queue: Queue, sqs: SimulatedSqs, code: str, answer: type
) -> None:
    push_count(queue, 3)
    leases = [get_lease(message) for message in queue.poll(3)]
    sqs.faults.refuse("ChangeMessageVisibilityBatch", code, positions=(1,))
    answers = queue.renew(leases, LEASE)
    assert [type(one) for one in answers] == [Renewed, answer, Renewed]


def test_a_queue_that_is_gone_loses_the_lease_at_once(
    queue: Queue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    push_count(queue, 1)
    lease = get_lease(queue.poll()[0])
    client = sqs.client()
    client.delete_queue(QueueUrl=client.get_queue_url(QueueName="work")["QueueUrl"])
    keeper = LeaseKeeper(clock)
    keeper.hold(lease)
    clock.advance(LEASE / 3)
    assert keeper.tick().lost == 1
    assert "no such queue" in lease.reason


def test_throttling_is_tolerated_within_the_lease(
    queue: Queue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    push_count(queue, 1)
    lease = get_lease(queue.poll()[0])
    keeper = LeaseKeeper(clock)
    keeper.hold(lease)
    sqs.faults.fail("ChangeMessageVisibilityBatch", "RequestThrottled", times=4)
    while (
        clock.monotonic() < lease.deadline
        and sqs.calls.count("ChangeMessageVisibilityBatch") < 5
    ):
        clock.advance(0.25)
        keeper.tick()
    assert lease.state is LeaseState.HELD
    assert sqs.calls.count("ChangeMessageVisibilityBatch") == 5


def test_no_error_shows_the_receipt_or_the_body(queue: Queue, sqs: SimulatedSqs) -> None:
    queue.push(AnyMessage(id="a", secret="canary-body"))
    message = queue.poll()[0]
    handle = get_lease(message).handle.handle
    sqs.faults.fail("DeleteMessageBatch", "InternalError")
    with pytest.raises(QueueUnavailable) as caught:
        queue.ack(message)
    for text in (str(caught.value), repr(get_lease(message)), repr(get_lease(message).handle)):
        assert "canary-body" not in text
        assert handle not in text


def test_access_denied_names_the_permission(queue: Queue, sqs: SimulatedSqs) -> None:
    sqs.faults.fail("ReceiveMessage", "AccessDenied")
    with pytest.raises(ConfigError, match="sqs:ReceiveMessage"):
        queue.poll()


# -- delivered twice to one process


@pytest.mark.requirement("R003-002")
def test_a_message_delivered_twice_to_one_process_is_processed_once_with_its_newest_handle(
    queue: Queue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    push_count(queue, 1)
    message = queue.poll()[0]
    clock.advance(10)
    assert sqs.duplicate("work") == 1
    assert queue.poll() == []
    assert get_lease(message).deadline == clock.monotonic() + LEASE
    queue.ack(message)  # with the first handle this would be refused
    assert queue.stats().leased == 0


def test_a_message_whose_lease_expired_here_is_delivered_again(
    queue: Queue, clock: ManualClock
) -> None:
    push_count(queue, 1)
    [first] = queue.poll()
    clock.advance(LEASE + 1)
    [second] = queue.poll()
    assert second.attempts == 2
    with pytest.raises(LeaseLost):
        queue.ack(first)
    queue.ack(second)


# -- trust


def test_a_lease_counts_from_before_the_receive(
    queue: Queue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    clock.auto_advance = True
    push_count(queue, 1)
    sqs.faults.slow("ReceiveMessage", 4)
    asked_at = clock.monotonic()
    [message] = queue.poll()
    assert clock.monotonic() == asked_at + 4
    assert get_lease(message).deadline == asked_at + LEASE


def test_an_adopted_lease_counts_from_before_its_extension(
    queue: Queue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    clock.auto_advance = True
    push_count(queue, 1)
    raws = receive(sqs.client(), "work")
    sqs.faults.slow("ChangeMessageVisibilityBatch", 4)
    asked_at = clock.monotonic()
    [message] = queue.adopt_deliveries(raws)
    assert clock.monotonic() == asked_at + 4
    assert get_lease(message).deadline == asked_at + LEASE


def test_an_adoption_that_sqs_refuses_is_reported_and_not_raised(
    open_queue: OpenQueue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    clock.auto_advance = True
    reported: list[Event] = []
    queue = open_queue(events=Events(reported.append))
    push_count(queue, 1)
    raws = receive(sqs.client(), "work")
    sqs.faults.fail("ChangeMessageVisibilityBatch", "InternalError", times=math.inf)
    assert queue.adopt_deliveries(raws) == [SettleResult.ABANDONED]
    [failed] = reported
    assert isinstance(failed, PollFailed)
    assert sqs.calls.count("ChangeMessageVisibilityBatch") == 3


def test_calls_that_a_lease_depends_on_fail_fast(
    queue: Queue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    """Of the two clients, the one with the short timeout makes them."""
    clock.auto_advance = True
    queue._client._clients = sqs.client(), sqs.client(read_timeout_seconds=2)
    push_count(queue, 1)
    [message] = queue.poll()
    calls = {"ChangeMessageVisibilityBatch": queue.extend, "DeleteMessageBatch": queue.ack}
    for operation, call in calls.items():
        sqs.faults.slow(operation, 10)
        began = clock.monotonic()
        with pytest.raises(QueueUnavailable):
            call(message)
        assert clock.monotonic() == began + 2


def test_an_entry_without_a_response_may_be_tried_again(
    open_queue: OpenQueue, sqs: SimulatedSqs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may name an entry neither among the successful nor among the failed ones."""
    client = sqs.client()
    queue = open_queue(client=client)
    push_count(queue, 1)
    [message] = queue.poll()
    monkeypatch.setattr(client, "delete_message_batch", lambda **_: {}, raising=False)
    with pytest.raises(QueueUnavailable, match="NoAnswer"):
        queue.ack(message)
    monkeypatch.undo()
    queue.ack(message)
    assert queue.stats().leased == 0


def test_a_sent_entry_without_a_response_is_sent_again(
    open_queue: OpenQueue,
    sqs: SimulatedSqs,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the push the message cannot be lost."""
    clock.auto_advance = True
    client = sqs.client()
    queue = open_queue(client=client)
    send_batch, entries = client.send_message_batch, []

    def forget_first(**request: Any) -> Any:
        entries.append(len(request["Entries"]))
        return send_batch(**request) if len(entries) > 1 else {}

    monkeypatch.setattr(client, "send_message_batch", forget_first, raising=False)
    push_count(queue, 3)
    assert entries == [3, 3]
    assert queue.stats().ready == 3


def test_messages_that_were_received_are_returned_though_the_next_receive_fails(
    queue: Queue, sqs: SimulatedSqs
) -> None:
    push_count(queue, 15)
    sqs.faults.fail("ReceiveMessage", after=1)
    assert len(queue.poll(15)) == 10


def test_a_message_without_an_id_keeps_that_of_sqs_over_all_deliveries(
    queue: Queue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    sent = send(sqs.client(), "work", "{}")
    assert queue.poll()[0].id == sent["MessageId"]
    clock.advance(LEASE + 1)
    assert queue.poll()[0].id == sent["MessageId"]


# -- nack, and the extension that must not overtake it


def test_an_extension_in_progress_cannot_overtake_a_nack(
    queue: Queue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    push_count(queue, 1)
    [message] = queue.poll()
    lease = get_lease(message)
    sqs.faults.slow("ChangeMessageVisibilityBatch", 5)
    with open_threads(clock, 2) as threads:
        renewing = threads.submit(queue.renew, [lease], LEASE)
        wait_for_waiting_threads(clock)
        nacking = threads.submit(queue.nack, message, delay_seconds=0)
        with pytest.raises(TimeoutError):
            nacking.result(0.2)
        clock.advance(5)
        renewing.result(10)
        nacking.result(10)
    assert queue.stats().ready == 1


def test_a_message_that_is_being_settled_is_not_extended(
    queue: Queue, sqs: SimulatedSqs
) -> None:
    push_count(queue, 2)
    first, second = (get_lease(message) for message in queue.poll(2))
    with first.handle.lock:
        answers = queue.renew([first, second], LEASE)
    assert [type(answer) for answer in answers] == [Unanswered, Renewed]
    assert sqs.calls.entries("ChangeMessageVisibilityBatch") == 1


@pytest.mark.requirement("R001-053", "R001-054")
@pytest.mark.parametrize(("on_nack", "ready", "calls"), [("now", 1, 1), ("leave", 0, 0)])
def test_a_nack_without_a_delay_follows_on_nack(
    open_queue: OpenQueue,
    sqs: SimulatedSqs,
    clock: ManualClock,
    on_nack: str,
    ready: int,
    calls: int,
) -> None:
    """Leave it to its visibility timeout, or show it at once."""
    queue = open_queue(on_nack=on_nack)
    push_count(queue, 1)
    [message] = queue.poll()
    sqs.calls.clear()
    queue.nack(message)
    assert sqs.calls.count("ChangeMessageVisibilityBatch") == calls
    assert queue.stats().ready == ready
    clock.advance(LEASE + 1)
    assert queue.poll()[0].attempts == 2


def test_a_nack_is_never_longer_than_twelve_hours_from_the_receive(
    queue: Queue, clock: ManualClock
) -> None:
    push_count(queue, 1)
    [message] = queue.poll()
    clock.advance(LEASE - 1)
    queue.nack(message, delay_seconds=86_400)
    clock.advance(12 * 3600)
    assert queue.poll()[0].attempts == 2


# -- twelve hours


def test_a_lease_is_kept_for_twelve_hours_and_not_a_second_longer(
    open_queue: OpenQueue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    queue = open_queue(lease_seconds=600.0)
    push_count(queue, 1)
    claimed_at = clock.monotonic()
    lease = get_lease(queue.poll()[0])
    keeper = LeaseKeeper(clock)
    keeper.hold(lease)
    while lease.live:
        tick = keeper.tick()
        if tick.next_at < inf:
            clock.advance(max(0.0, tick.next_at - clock.monotonic()))
    assert lease.reason == "its cap of 43200 s is reached"
    assert clock.monotonic() - claimed_at == pytest.approx(43_200, abs=1)
    assert queue.poll() != []  # visible again only now
    assert sqs.calls.count("ChangeMessageVisibilityBatch") < 43_200 / 600 * 3 + 20


# -- long polls


def test_a_long_poll_ends_at_once_on_shutdown_and_gives_back_later_messages(
    open_queue: OpenQueue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    queue = open_queue(lease_seconds=90.0)
    stop = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        polling = threads.submit(queue.poll, 10, wait_seconds=20, stop=stop)
        while clock.waiting == 0:
            pass
        stop.set()
        assert polling.result(10) == []
    push_count(queue, 1)
    while clock.waiting or queue.stats().leased:
        pass
    assert queue.stats().ready == 1


@pytest.mark.requirement("R001-051", "R003-027")
def test_a_long_poll_leaves_most_of_the_lease(
    open_queue: OpenQueue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    clock.auto_advance = True
    queue = open_queue(lease_seconds=6.0)
    began = clock.monotonic()
    assert queue.poll(wait_seconds=5) == []
    assert clock.monotonic() - began == pytest.approx(6, abs=1)
    assert sqs.calls.count("ReceiveMessage") == 3  # two seconds each


# -- dead letters


def add_redrive_policy(sqs: SimulatedSqs, receives: int = 5, *, name: str = "work") -> None:
    client = sqs.client()
    set_redrive_policy(client, name, create_queue(client, "the-dead"), receives)


def test_dead_letters_go_to_the_queue_of_the_redrive_policy_with_their_reason(
    queue: Queue, sqs: SimulatedSqs
) -> None:
    add_redrive_policy(sqs)
    push_count(queue, 1)
    queue.dead_letter(queue.poll()[0], "the shop is closed", detail="Traceback …")
    [view] = queue.dead_letters()
    assert view.where.startswith("sqs:the-dead/")
    assert (view.id, view.attempts, view.reason) == ("0", 1, "the shop is closed")
    assert view.past[0].detail == "Traceback …"
    assert queue.redrive() == 1
    assert queue.poll()[0].attempts == 1


def test_messages_moved_by_the_redrive_policy_are_listed(
    queue: Queue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    add_redrive_policy(sqs, receives=2)
    push_count(queue, 1)
    for _ in range(2):
        assert queue.poll() != []
        clock.advance(LEASE + 1)
    assert queue.poll() == []
    [view] = queue.dead_letters()
    assert "redrive policy" in (view.reason or "")


def test_without_a_redrive_policy_the_first_dead_letter_creates_a_queue(
    queue: Queue, sqs: SimulatedSqs
) -> None:
    push_count(queue, 2)
    assert (queue.stats().failed, list(queue.dead_letters()), queue.redrive()) == (0, [], 0)
    assert sqs.calls.count("CreateQueue") == 0
    first, second = queue.poll(2)
    queue.dead_letter(first, "no use")
    queue.dead_letter(second, "no use either")
    assert sqs.calls.count("CreateQueue") == 1
    assert [view.where.split("/")[0] for view in queue.dead_letters()] == ["sqs:work-dead"] * 2
    assert queue.redrive() == 2
    assert queue.stats().ready == 2


def test_listing_hides_no_dead_letter(queue: Queue) -> None:
    push_count(queue, 12)
    for message in queue.poll(12):
        queue.dead_letter(message, "no use")
    for _ in range(3):
        assert len(list(queue.dead_letters())) == 12


def test_a_copy_is_kept_before_the_message_is_deleted_and_only_once(
    queue: Queue, sqs: SimulatedSqs
) -> None:
    push_count(queue, 1)
    [message] = queue.poll()
    sqs.faults.fail("DeleteMessageBatch", "InternalError")
    with pytest.raises(QueueUnavailable):
        queue.dead_letter(message, "no use")
    assert (queue.stats().leased, queue.stats().failed) == (
        1,
        1,
    )  # two messages instead of none
    queue.dead_letter(message, "no use")
    assert (queue.stats().leased, queue.stats().failed) == (0, 1)


def test_dead_lettering_with_a_lost_lease_leaves_no_copy(
    queue: Queue, sqs: SimulatedSqs
) -> None:
    push_count(queue, 1)
    [message] = queue.poll()
    sqs.faults.refuse("ChangeMessageVisibilityBatch", "ReceiptHandleIsInvalid")
    with pytest.raises(LeaseLost):
        queue.dead_letter(message, "no use")
    assert queue.stats().failed == 0


def test_a_message_that_cannot_be_dead_lettered_does_not_affect_the_others(
    open_queue: OpenQueue, sqs: SimulatedSqs
) -> None:
    events_seen: list[Event] = []
    queue = open_queue(events=Events(events_seen.append), model=Order)
    client = sqs.client()
    url = client.get_queue_url(QueueName="work")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="torn {")
    queue.push_many(Order(number=number) for number in range(9))
    sqs.faults.fail("CreateQueue", "AccessDenied")
    assert len(queue.poll(10)) == 9
    assert [type(event) for event in events_seen] == [PollFailed]


def test_a_worker_survives_a_poll_whose_only_message_cannot_be_dead_lettered(
    sqs: SimulatedSqs,
) -> None:
    client, errors, done = sqs.client(), list[str](), list[int]()
    send(client, create_queue(client, "work"), "torn {")
    sqs.faults.fail("CreateQueue", "AccessDenied", times=math.inf)

    def push_the_next(event: Event) -> None:
        if isinstance(event, PollFailed) and not errors:
            errors.append(event.error)
            queue.push(Order(number=7))

    def handle(order: Order) -> None:
        done.append(order.number)
        worker.stop()

    queue = SQSQueue("work", Order, client=client, events=Events(push_the_next))
    worker = Worker(queue, handle)
    assert worker.run().completed == 1
    assert done == [7]
    [error] = errors
    assert "sqs:CreateQueue" in error


def test_the_senders_attributes_survive_dead_letter_and_redrive(
    queue: Queue, sqs: SimulatedSqs
) -> None:
    client = sqs.client()
    url = client.get_queue_url(QueueName="work")["QueueUrl"]
    trace = {"Trace": {"DataType": "String", "StringValue": "1-2-3"}}
    client.send_message(QueueUrl=url, MessageBody='{"id": "a"}', MessageAttributes=trace)
    queue.dead_letter(queue.poll()[0], "no use")
    assert queue.redrive("a") == 1
    [raw] = client.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    assert raw["MessageAttributes"] == trace


@pytest.mark.parametrize(
    ("name", "has_policy"), [("work", False), ("work", True), ("work.fifo", False)]
)
@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("count", [0, 6])
def test_a_message_without_an_id_keeps_that_of_sqs_through_dead_letter_and_redrive(
    open_queue: OpenQueue,
    sqs: SimulatedSqs,
    name: str,
    has_policy: bool,
    by_id: bool,
    count: int,
) -> None:
    """Another program sent it, so its id is that of SQS, and each copy gets another."""
    queue, client = open_queue(name), sqs.client()
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    if has_policy:
        add_redrive_policy(sqs)
    number = {"DataType": "Number", "StringValue": "1"}
    attributes = {f"n{index}": number for index in range(count)}
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if queue.fifo else {}
    sent = client.send_message(
        QueueUrl=url, MessageBody='{"n": 1}', MessageAttributes=attributes, **ids
    )
    for _ in range(3):
        [message] = queue.poll()
        assert message.id == sent["MessageId"]
        queue.dead_letter(message, "no use", detail="and a detail")
        assert [letter.id for letter in queue.dead_letters()] == [message.id]
        assert queue.redrive(message.id if by_id else None) == 1


def test_a_malformed_message_keeps_its_id_as_a_dead_letter(
    open_queue: OpenQueue, sqs: SimulatedSqs
) -> None:
    queue, client = open_queue(), sqs.client()
    url = client.get_queue_url(QueueName="work")["QueueUrl"]
    sent = client.send_message(QueueUrl=url, MessageBody="no JSON")
    for _ in range(2):
        assert queue.poll() == []
        [letter] = queue.dead_letters()
        assert letter.id == sent["MessageId"]
        assert queue.redrive(letter.id) == 1


@pytest.mark.parametrize("value", ["two words", "ü", "a\nb", "a" * 129])
def test_an_attribute_that_is_no_id_of_sqs_is_not_taken_for_one(
    open_queue: OpenQueue, sqs: SimulatedSqs, value: str
) -> None:
    queue, client = open_queue(), sqs.client()
    url = client.get_queue_url(QueueName="work")["QueueUrl"]
    attribute = {"HoldfastId": {"DataType": "String", "StringValue": value}}
    sent = client.send_message(QueueUrl=url, MessageBody="{}", MessageAttributes=attribute)
    assert queue.poll()[0].id == sent["MessageId"]


@pytest.mark.parametrize("name", ["work", "work.fifo"])
def test_a_message_may_be_dead_lettered_again_minutes_after_its_redrive(
    open_queue: OpenQueue, name: str
) -> None:
    queue = open_queue(name)
    push_count(queue, 1)
    for _ in range(3):
        queue.dead_letter(queue.poll()[0], "no use")
        assert (queue.stats().leased, queue.stats().failed) == (0, 1)
        assert queue.redrive() == 1
    assert queue.poll() != []


def test_a_message_of_the_largest_size_reaches_the_dead_letters(
    queue: Queue,
) -> None:
    message = AnyMessage(id="big", text="")
    message.text = "x" * (1_048_576 - len(message.model_dump_json()))
    queue.push(message)
    queue.dead_letter(queue.poll()[0], "no use", detail="x" * 20_000)
    assert [view.id for view in queue.dead_letters()] == ["big"]
    assert queue.redrive("big") == 1
    assert queue.poll()[0].text == message.text


def test_queues_that_share_a_dead_letter_queue_use_only_their_own_messages(
    open_queue: OpenQueue, sqs: SimulatedSqs
) -> None:
    work, other = open_queue(), open_queue("other")
    add_redrive_policy(sqs)
    add_redrive_policy(sqs, name="other")
    for queue in (work, other):
        queue.push(AnyMessage(id=queue.name))
        queue.dead_letter(queue.poll()[0], "no use")
    assert [view.id for view in work.dead_letters()] == ["sqs:work"]
    assert (work.drop("sqs:other"), work.redrive("sqs:other")) == (0, 0)
    assert work.redrive() == 1
    assert [view.id for view in other.dead_letters()] == ["sqs:other"]


def test_a_dead_letter_that_could_not_be_removed_is_an_error(
    queue: Queue, sqs: SimulatedSqs
) -> None:
    push_count(queue, 1)
    queue.dead_letter(queue.poll()[0], "no use")
    for remove in (queue.drop, queue.redrive):
        sqs.faults.refuse("DeleteMessageBatch", "InternalError")
        with pytest.raises(QueueUnavailable, match=r"was not removed \(InternalError\)"):
            remove("0")
    assert queue.stats().failed == 1


# -- FIFO


def test_a_fifo_queue_keeps_one_order_for_all_without_group_by(
    open_queue: OpenQueue,
) -> None:
    queue = open_queue("one.fifo", model=Order)
    queue.push_many(Order(number=number) for number in range(5))
    first = queue.poll()
    assert first[0].number == 0
    assert queue.poll() == []  # the group waits for it

    queue = open_queue("many.fifo", model=Order, group_by="customer")
    queue.push_many(Order(customer=f"{n % 2}", number=n) for n in range(6))
    taken = {message.customer: message.number for message in queue.poll(2)}
    assert set(taken) <= {"0", "1"}
    assert all(number == int(customer) for customer, number in taken.items() if number < 2)


def test_a_push_whose_response_was_lost_is_stored_once_in_a_fifo_queue(
    open_queue: OpenQueue, sqs: SimulatedSqs
) -> None:
    queue = open_queue("work.fifo")
    sqs.faults.lose_reply("SendMessage")
    with pytest.raises(QueueUnavailable):
        queue.push(AnyMessage(id="a"))
    queue.push(AnyMessage(id="a"))
    assert len(queue.poll(10)) == 1


def test_fifo_ids_and_groups_may_be_any_text(open_queue: OpenQueue) -> None:
    queue = open_queue("work.fifo", model=Order, group_by="customer")
    for number, text in enumerate(["ünï", "a" * 500, "two words", "\n"]):
        queue.push(Order(id=f"{text}!", customer=text, number=number))
    assert sorted(message.number for message in queue.poll(10)) == [0, 1, 2, 3]


# -- settings and limits


@pytest.mark.parametrize(
    ("name", "settings", "caught"),
    [
        ("work", {"dedupe": True}, "FIFO"),
        ("work", {"group_by": "customer"}, "FIFO"),
        ("work.fifo", {"group_by": "nonsense", "model": Order}, "nonsense"),
        ("work", {"on_nack": "never"}, "never"),
        ("work", {"lease_seconds": 43_201.0}, "12 hours"),
        ("two words", {}, "two words"),
        ("a/b", {}, "a/b"),
        ("", {}, "1 to 80"),
        ("x" * 81, {}, "1 to 80"),
        ("../etc", {}, "etc"),
    ],
)
def test_settings_that_cannot_work_are_refused_early(
    sqs: SimulatedSqs, name: str, settings: dict[str, Any], caught: str
) -> None:
    with pytest.raises(ConfigError, match=caught):
        SQSQueue(name, client=sqs.client(), **settings)


def test_delays_longer_than_sqs_allows_are_refused(
    open_queue: OpenQueue,
) -> None:
    with pytest.raises(ValueError, match="at most 900"):
        open_queue().push(AnyMessage(), delay_seconds=901)
    with pytest.raises(ValueError, match="no delay per message"):
        open_queue("work.fifo").push(AnyMessage(), delay_seconds=1)


def test_the_queues_own_size_limit_applies(queue: Queue, sqs: SimulatedSqs) -> None:
    client = sqs.client()
    url = client.get_queue_url(QueueName="work")["QueueUrl"]
    client.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "2048"})
    with pytest.raises(MessageTooLarge, match="2,048"):
        queue.push(AnyMessage(text="x" * 2048))
    assert queue.stats().ready == 0


def test_large_messages_are_sent_in_batches_that_fit(
    queue: Queue,
) -> None:
    queue.push_many(AnyMessage(id=f"{n}", text="x" * 900_000) for n in range(4))
    assert queue.stats().ready == 4


def test_characters_that_sqs_refuses_are_carried(queue: Queue) -> None:
    text = "\x00 \x0b \ufffe \uffff 😀 \u202e"
    queue.push(AnyMessage(id="a", text=text))
    assert queue.poll()[0].text == text


def test_a_checkpoint_that_is_not_kept_is_reported_once(
    open_queue: OpenQueue,
) -> None:
    events_seen: list[Event] = []
    queue = open_queue(events=Events(events_seen.append))
    push_count(queue, 1)
    [message] = queue.poll()
    for page in range(3):
        queue.save_checkpoint(message, {"page": page})
    assert [type(event) for event in events_seen] == [CheckpointNotKept]
    assert queue.load_checkpoint(message) is None


def test_dead_letters_that_are_visible_again_before_the_last_was_received_are_listed_once(
    sqs: SimulatedSqs, clock: ManualClock, queue: Queue
) -> None:
    """Otherwise a long dead-letter queue, or a slow network, is listed without an end."""

    class SlowClient:
        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        def receive_message(self, **options: Any) -> Any:
            response = client.receive_message(**options)
            clock.advance(60)
            return response

    client = sqs.client()
    push_count(queue, 3)
    for message in queue.poll(3):
        queue.dead_letter(message, "no use")
    slow: Queue = SQSQueue("work", clock=clock, client=SlowClient())
    sqs.calls.clear()
    assert sorted(letter.id for letter in slow.dead_letters()) == ["0", "1", "2"]
    assert sqs.calls.count("ReceiveMessage") == 3  # the last two brought nothing new
