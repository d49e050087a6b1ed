"""Sizes on SQS: which notes are dropped first, and what happens if a message does not fit."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from holdfast.errors import ConfigError, MalformedMessage, MessageTooLarge
from holdfast.events import Event, Events, LeaseAtRisk, PollFailed
from holdfast.queue.message import AnyMessage
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import ManualClock, SimulatedSqs
from holdfast.worker.outcome import Reject
from holdfast.worker.settle import SettleResult, settle
from holdfast.worker.worker import Worker
from support.sqs.calls import create_queue, set_redrive_policy

LEASE = 30.0
OLD_LIMIT = 262_144
MIB = 1_048_576

Queue = SQSQueue[Any]
OpenQueue = Callable[..., Queue]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


@pytest.fixture
def open_queue(sqs: SimulatedSqs, clock: ManualClock) -> OpenQueue:
    """Open `work`, whose queue for dead letters accepts `dead_bytes` at most."""

    def open_work(dead_bytes: int = OLD_LIMIT, *, receives: int = 6, **settings: Any) -> Queue:
        client = sqs.client()
        url, dead = create_queue(client, "work"), create_queue(client, "dead")
        set_redrive_policy(client, url, dead, receives)
        limit_size(sqs, "dead", dead_bytes)
        return SQSQueue("work", lease_seconds=LEASE, clock=clock, client=client, **settings)

    return open_work


@pytest.fixture
def queue(open_queue: OpenQueue) -> Queue:
    return open_queue()


def limit_size(sqs: SimulatedSqs, name: str, max_bytes: int) -> None:
    client = sqs.client()
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    client.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": str(max_bytes)})


def make_sized_message(size: int, **fields: Any) -> AnyMessage:
    """Make a message whose JSON has exactly `size` bytes."""
    message = AnyMessage(id="big", text="", **fields)
    message.text = "x" * (size - len(message.model_dump_json()))
    return message


def receive_dead_letter(sqs: SimulatedSqs) -> Any:
    client = sqs.client()
    url = client.get_queue_url(QueueName="dead")["QueueUrl"]
    [raw] = client.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    return raw


# -- notes are shortened to fit the queue for dead letters


@pytest.mark.parametrize("left", [0, 1, 60, 200, 300, 1_200, 5_000, 20_000])
def test_a_dead_letter_fits_a_queue_of_the_older_size_with_any_room_for_its_notes(
    queue: Queue, left: int
) -> None:
    queue.push(make_sized_message(OLD_LIMIT - left))
    queue.dead_letter(queue.poll()[0], "no use: " + "é" * 990, detail="ü" * 7_000)
    assert (queue.stats().leased, queue.stats().failed) == (0, 1)
    [view] = queue.dead_letters()
    assert view.id == "big"
    if left >= 300:
        assert (view.reason or "").startswith("no use: éé")
        assert view.attempts == 1


def test_the_detail_is_dropped_first_and_then_the_reason_is_shortened(
    queue: Queue,
) -> None:
    notes = []
    for left in (20_000, 3_000, 500):
        queue.push(make_sized_message(OLD_LIMIT - left))
        queue.dead_letter(queue.poll()[0], "no use " * 140, detail="d" * 7_000)
        [view] = queue.dead_letters()
        notes.append((len(view.reason or ""), len(view.past[0].detail or "")))
        assert queue.drop("big") == 1
    (reason, detail), (same_reason, less_detail), (less_reason, no_detail) = notes
    assert (reason, detail) == (980, 7_000)
    assert same_reason == 980
    assert 0 < less_detail < detail
    assert 100 <= less_reason < 980
    assert no_detail == 0


def test_attributes_of_the_sender_are_kept_before_the_detail(
    queue: Queue, sqs: SimulatedSqs
) -> None:
    client = sqs.client()
    own = {
        "Trace": {"DataType": "String", "StringValue": "t" * 2_000},
        "Seal": {"DataType": "Binary", "BinaryValue": bytes(2_000)},
    }
    body = make_sized_message(OLD_LIMIT - 5_000).model_dump_json()
    url = client.get_queue_url(QueueName="work")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=own)
    queue.dead_letter(queue.poll()[0], "no use", detail="d" * 7_000)
    kept = receive_dead_letter(sqs)["MessageAttributes"]
    assert {name: kept[name] for name in own} == own
    assert kept["HoldfastReason"]["StringValue"] == "no use"
    assert 0 < len(kept["HoldfastDetail"]["StringValue"]) < 1_000


def test_a_role_that_may_only_send_can_dead_letter(queue: Queue, sqs: SimulatedSqs) -> None:
    queue.push(make_sized_message(OLD_LIMIT - 500))
    [message] = queue.poll()
    sqs.faults.fail("GetQueueAttributes", "AccessDenied")
    queue.dead_letter(message, "no use", detail="d" * 7_000)
    assert (queue.stats().leased, queue.stats().failed) == (0, 1)


# -- a message that does not fit stays in its queue and blocks nothing


def test_a_message_too_large_for_its_dead_letters_frees_its_slot_at_once_and_is_not_lost(
    open_queue: OpenQueue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    events_seen: list[Event] = []
    queue = open_queue(receives=20)
    queue.push(make_sized_message(300_000))
    [message] = queue.poll()
    before = clock.monotonic()
    settled = settle(queue, message, Reject("no use"), Events(events_seen.append))
    assert settled is SettleResult.ABANDONED
    assert clock.monotonic() == before  # without waiting
    assert sqs.calls.count("SendMessage") == 1  # the push
    assert (queue.stats().leased, queue.stats().failed) == (1, 0)
    [event] = [event for event in events_seen if isinstance(event, LeaseAtRisk)]
    assert "300,000" in event.error
    assert "262,144" in event.error
    assert "MaximumMessageSize" in event.error
    clock.advance(LEASE + 1)
    assert queue.poll()[0].attempts == 2
    limit_size(sqs, "dead", MIB)  # as the error said


def test_once_the_dead_letter_queue_accepts_more_the_same_worker_dead_letters_it(
    open_queue: OpenQueue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    queue = open_queue(receives=20)
    queue.push(make_sized_message(300_000))
    with pytest.raises(MessageTooLarge):
        queue.dead_letter(queue.poll()[0], "no use")
    limit_size(sqs, "dead", MIB)
    clock.advance(LEASE + 1)
    queue.dead_letter(queue.poll()[0], "no use")
    assert (queue.stats().leased, queue.stats().failed) == (0, 1)


def test_a_dead_letter_queue_whose_limit_was_lowered_is_noticed(
    open_queue: OpenQueue, sqs: SimulatedSqs, clock: ManualClock
) -> None:
    queue = open_queue(MIB, receives=20)
    for size in (OLD_LIMIT - 10, OLD_LIMIT - 10):
        queue.push(make_sized_message(size))
    queue.dead_letter(queue.poll()[0], "no use")
    limit_size(sqs, "dead", OLD_LIMIT)
    [message] = queue.poll()
    with pytest.raises(MessageTooLarge, match="262,144"):
        queue.dead_letter(message, "no use", detail="d" * 7_000)
    clock.advance(LEASE + 1)
    queue.dead_letter(queue.poll()[0], "no use", detail="d" * 7_000)
    assert queue.stats().failed == 2


def test_an_exhausted_message_too_large_for_its_dead_letters_does_not_stop_the_polls(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    events_seen: list[Event] = []
    queue = open_queue(receives=20, max_attempts=1, events=Events(events_seen.append))
    queue.push(make_sized_message(300_000))
    queue.nack(queue.poll()[0], delay_seconds=0)
    queue.push(AnyMessage(id="small"))
    assert [message.id for message in queue.poll(10)] == ["small"]
    [event] = [event for event in events_seen if isinstance(event, PollFailed)]
    assert "262,144" in event.error
    assert (queue.stats().leased, queue.stats().failed) == (2, 0)


def test_a_worker_continues_with_the_next_message() -> None:
    client = SimulatedSqs().client()
    dead = client.create_queue(QueueName="work-dead", Attributes={"MaximumMessageSize": "1024"})
    client.create_queue(QueueName="work")
    queue: Queue = SQSQueue("work", client=client)
    queue.push_many([make_sized_message(5_000), AnyMessage(id="small")])
    done: list[str] = []

    def handle(message: AnyMessage, _: object) -> Reject | None:
        if message.id == "big":
            return Reject("no use")
        done.append(message.id)
        worker.stop()
        return None

    worker = Worker(queue, handle)
    worker.run()
    assert done == ["small"]
    answer = client.get_queue_attributes(
        QueueUrl=dead["QueueUrl"], AttributeNames=["ApproximateNumberOfMessages"]
    )
    assert answer["Attributes"]["ApproximateNumberOfMessages"] == "0"


def test_the_default_dead_letter_queue_accepts_the_sizes_its_source_accepts(
    sqs: SimulatedSqs, clock: ManualClock
) -> None:
    client = sqs.client()
    client.create_queue(QueueName="work")
    queue: Queue = SQSQueue("work", clock=clock, client=client)
    queue.push(AnyMessage())
    queue.dead_letter(queue.poll()[0], "no use")
    url = client.get_queue_url(QueueName="work-dead")["QueueUrl"]
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["MaximumMessageSize"])
    assert found["Attributes"] == {"MaximumMessageSize": str(MIB)}


# -- other sends


@pytest.mark.parametrize("many", [False, True])
def test_a_push_to_a_queue_whose_limit_was_lowered_names_the_real_limit(
    queue: Queue, sqs: SimulatedSqs, clock: ManualClock, many: bool
) -> None:
    queue.push(AnyMessage(id="first"))
    limit_size(sqs, "work", 2_048)
    before = clock.monotonic()
    with pytest.raises(MessageTooLarge, match=r"'big'.*5,000 bytes.*2,048"):
        _ = (
            queue.push_many([make_sized_message(5_000)])
            if many
            else queue.push(make_sized_message(5_000))
        )
    assert clock.monotonic() == before
    with pytest.raises(
        MessageTooLarge, match="2,048"
    ):  # the limit is known before the call now
        queue.push(make_sized_message(5_000))


def test_the_bytes_that_sqs_counts_are_those_that_are_sent(queue: Queue) -> None:
    """U+FFFE is sent as six bytes, while JSON has three."""
    with pytest.raises(MessageTooLarge, match="1,048,576"):
        queue.push(AnyMessage(text="\ufffe" * 200_000))
    queue.push(AnyMessage(id="fits", text="\ufffe" * 170_000))
    assert queue.poll()[0].id == "fits"


@pytest.mark.parametrize("message_id", [None, "big"])
def test_redriving_to_a_queue_whose_limit_was_lowered_raises_and_keeps_the_dead_letter(
    open_queue: OpenQueue, sqs: SimulatedSqs, message_id: str | None
) -> None:
    queue = open_queue(dead_letters="dead-by-name")
    sqs.client().create_queue(QueueName="dead-by-name")
    queue.push(make_sized_message(5_000))
    queue.dead_letter(queue.poll()[0], "no use")
    limit_size(sqs, "work", 2_048)
    reopened: Queue = SQSQueue("work", client=sqs.client(), dead_letters="dead-by-name")
    with pytest.raises(MessageTooLarge, match="2,048"):
        reopened.redrive(message_id)
    assert [view.id for view in queue.dead_letters()] == ["big"]


def test_a_copy_to_its_own_queue_loses_none_of_the_senders_attributes(
    open_queue: OpenQueue, sqs: SimulatedSqs
) -> None:
    queue = open_queue(dead_letters="dead-by-name")
    client = sqs.client()
    client.create_queue(QueueName="dead-by-name")
    own = {"Trace": {"DataType": "String", "StringValue": "t" * 2_000}}
    url = client.get_queue_url(QueueName="work")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody='{"id": "a"}', MessageAttributes=own)
    queue.dead_letter(queue.poll()[0], "no use")
    limit_size(sqs, "work", 1_024)
    reopened: Queue = SQSQueue("work", client=client, dead_letters="dead-by-name")
    with pytest.raises(MessageTooLarge, match="1,024"):
        reopened.redrive("a")


# -- refusals that a retry cannot fix


@pytest.mark.parametrize("code", ["InvalidMessageContents", "InvalidParameterValue"])
def test_a_message_that_sqs_refuses_is_not_reported_as_an_outage(
    queue: Queue, sqs: SimulatedSqs, code: str
) -> None:
    sqs.faults.fail("SendMessage", code)
    with pytest.raises(MalformedMessage, match=code):
        queue.push(AnyMessage(id="a"))


@pytest.mark.parametrize(
    "code", ["AWS.SimpleQueueService.UnsupportedOperation", "KMS.DisabledException"]
)
def test_a_dead_letter_that_is_refused_permanently_does_not_hold_its_slot(
    queue: Queue, sqs: SimulatedSqs, clock: ManualClock, code: str
) -> None:
    queue.push(AnyMessage(id="a"))
    [message] = queue.poll()
    sqs.faults.fail("SendMessage", code, times=inf)
    before = clock.monotonic()
    assert settle(queue, message, Reject("no use"), Events()) is SettleResult.ABANDONED
    assert clock.monotonic() - before < LEASE / 2
    sqs.faults.clear()
    sqs.faults.fail("SendMessage", code)
    with pytest.raises(ConfigError, match=code):
        queue.push(AnyMessage(id="b"))


def test_a_throttled_entry_is_sent_again_though_sqs_blames_its_sender(
    queue: Queue, sqs: SimulatedSqs
) -> None:
    sqs.faults.refuse("SendMessageBatch", "RequestThrottled")
    queue.push_many([AnyMessage(id="a"), AnyMessage(id="b")])
    assert queue.stats().ready == 2
