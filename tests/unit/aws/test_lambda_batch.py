"""sqs_batch: the result of each record of a batch, and the invocation's threads."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import inf
from threading import Event
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from holdfast import ConfigError, Context, Reject, Retry
from holdfast.events import DeadLettered, Retried
from holdfast.lambdas import sqs_batch
from holdfast.testing import ManualClock
from support.aws.event_source import EventSource, LambdaContext, Task, numbers
from support.waiting import wait_until

EXTEND = "ChangeMessageVisibilityBatch"


@pytest.fixture
def own_threads() -> Callable[[], list[str]]:
    """Return a function that lists the threads of Holdfast that the test has started."""
    earlier = set(threading.enumerate())  # a long poll of another test may still wait

    def list_threads() -> list[str]:
        started = set(threading.enumerate()) - earlier
        return [thread.name for thread in started if thread.name.startswith("holdfast")]

    return list_threads


@pytest.fixture
def source(clock: ManualClock) -> EventSource:
    return EventSource(clock)


@pytest.fixture
def fifo(clock: ManualClock) -> EventSource:
    return EventSource(clock, fifo=True)


def invoke(
    source: EventSource,
    handler: Any,
    event: Any = None,
    *,
    seconds: float = 900,
    **options: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run one invocation and Lambda's cleanup, and return event and response.

    Threads have a quarter of the reserve to end, in real time.
    """
    options.setdefault("reserve_seconds", 80)
    event = source.receive() if event is None else event
    entry = sqs_batch(handler, queue=source.queue, clock=source.clock, **options)
    answer = entry(event, LambdaContext(source.clock, seconds))
    source.delete_the_done(event, answer)
    return event, answer


@contextmanager
def invoked(
    source: EventSource, handler: Any, *, seconds: float = 900, **options: Any
) -> Iterator[Callable[[], list[int]]]:
    """Run it in a thread, so that the test can advance the clock; call the result to join."""
    event = source.receive()
    entry = sqs_batch(handler, queue=source.queue, clock=source.clock, **options)
    context = LambdaContext(source.clock, seconds)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(entry, event, context)
        yield lambda: numbers(event, running.result(20))


def fail(message: Task) -> None:
    raise RuntimeError("it does not work")


def reject(message: Task) -> Reject:
    return Reject(f"canary {message.n}")


# -- what is logged and reported


def test_on_error_gets_each_exception_and_what_follows(source: EventSource) -> None:
    source.send(1, 2)
    failures: list[tuple[BaseException, Retried | DeadLettered]] = []
    invoke(source, fail, on_error=lambda *failure: failures.append(failure))
    assert [str(error) for error, _ in failures] == ["it does not work"] * 2
    assert [event.message_id for _, event in failures] == ["task-1", "task-2"]
    assert {type(event) for _, event in failures} == {Retried}


def test_on_error_that_fails_does_not_change_the_response(source: EventSource) -> None:
    source.send(1)

    def broken(error: BaseException, event: object) -> None:
        raise OSError("the tracker is down")

    event, answer = invoke(source, fail, on_error=broken)
    assert numbers(event, answer) == [1]


def test_a_handler_that_fails_is_logged_with_its_traceback_and_without_the_message(
    source: EventSource, caplog: pytest.LogCaptureFixture
) -> None:
    source.send(1, 2)
    source.send(3, body='{"id": "task-3", "n": "canary"}')  # malformed: n is no number
    event = source.receive()
    invoke(source, fail, {"Records": event["Records"][:1]})
    invoke(source, reject, {"Records": event["Records"][1:]})
    assert "RuntimeError: it does not work" in caplog.text
    assert "the handler rejected it" in caplog.text
    assert "malformed" in caplog.text
    receipts = [record["receiptHandle"] for record in event["Records"]]
    for private in ("canary", *receipts):
        assert private not in caplog.text


# -- the result of a record


def test_done_records_are_left_for_lambda_to_delete(source: EventSource) -> None:
    source.send(1, 2, 3)
    handled: list[int] = []
    event = source.receive()
    entry = sqs_batch(
        lambda m: handled.append(m.n), Task, queue=source.queue, clock=source.clock
    )
    assert entry(event, LambdaContext(source.clock, 900)) == {"batchItemFailures": []}
    assert handled == [1, 2, 3]
    assert source.sqs.calls.count("DeleteMessage", "DeleteMessageBatch") == 0
    assert source.hidden() == 3


def test_a_failed_record_is_reported_and_comes_back_after_its_backoff(
    source: EventSource, clock: ManualClock
) -> None:
    source.send(1, 2, 3)

    def handle(message: Task) -> Retry | None:
        return Retry(after_seconds=40) if message.n == 2 else None

    event, answer = invoke(source, handle)
    assert numbers(event, answer) == [2]
    clock.advance(39)
    assert source.visible() == 0
    clock.advance(1)
    assert source.visible() == 1


def test_an_exception_is_a_failure_and_waits_by_the_backoff(
    source: EventSource, clock: ManualClock
) -> None:
    source.send(1)
    event, answer = invoke(source, fail)
    assert numbers(event, answer) == [1]
    assert source.visible() == 0
    clock.advance(2)  # the first backoff is a second at most, rounded up
    assert source.visible() == 1


def test_a_rejected_record_is_a_dead_letter_and_no_failure(source: EventSource) -> None:
    source.send(1, 2)
    event, answer = invoke(source, lambda m: Reject("no such country") if m.n == 1 else None)
    assert numbers(event, answer) == []
    assert source.dead() == ["no such country"]
    assert source.visible() + source.hidden() == 0


def test_a_record_that_fails_too_often_is_a_dead_letter(
    clock: ManualClock,
) -> None:
    source = EventSource(clock, max_attempts=2)
    source.send(1)
    for failures in ([1], []):
        event, answer = invoke(source, fail)
        assert numbers(event, answer) == failures
        clock.advance(300)
    [reason] = source.dead()
    assert reason.startswith("failed 2 times")


def test_a_malformed_record_does_not_touch_the_other_nine(source: EventSource) -> None:
    source.send(*range(1, 10))
    source.send(0, body="no JSON")
    handled: list[int] = []
    event = source.receive()
    entry = sqs_batch(
        lambda m: handled.append(m.n), Task, queue=source.queue, clock=source.clock
    )
    assert entry(event, LambdaContext(source.clock, 900)) == {"batchItemFailures": []}
    assert sorted(handled) == list(range(1, 10))
    assert [reason[:9] for reason in source.dead()] == ["malformed"]


def test_a_malformed_record_that_cannot_be_moved_is_a_failure(source: EventSource) -> None:
    source.send(0, body="no JSON")
    source.sqs.faults.fail("SendMessage", "InternalError", times=inf)
    event = source.receive()
    entry = sqs_batch(fail, Task, queue=source.queue, clock=source.clock)
    answer = entry(event, LambdaContext(source.clock, 900))
    assert len(answer["batchItemFailures"]) == 1
    assert source.hidden() == 1


def test_a_record_newer_than_the_code_is_not_taken_for_done(source: EventSource) -> None:
    source.send(1, body=Task(id="x", n=1, schema_version=9).model_dump_json())
    event = source.receive()
    handled: list[int] = []
    entry = sqs_batch(
        lambda m: handled.append(m.n), Task, queue=source.queue, clock=source.clock
    )
    answer = entry(event, LambdaContext(source.clock, 900))
    assert len(answer["batchItemFailures"]) == 1
    assert handled == []


def test_a_message_that_came_twice_in_a_batch_is_handled_once(source: EventSource) -> None:
    source.send(1)
    first = source.receive()
    source.sqs.duplicate("tasks")
    event = {"Records": first["Records"] + source.receive()["Records"]}
    handled: list[int] = []
    _, answer = invoke(source, lambda m: handled.append(m.n), event, model=Task)
    assert handled == [1]
    assert answer == {"batchItemFailures": []}


def test_the_senders_attributes_go_along_to_the_dead_letters(source: EventSource) -> None:
    attributes = {"tenant": {"DataType": "String", "StringValue": "acme"}}
    body = Task(id="x", n=1).model_dump_json()
    source.client.send_message(
        QueueUrl=source.url, MessageBody=body, MessageAttributes=attributes
    )
    invoke(source, lambda m: Reject("no"))
    url = source.client.get_queue_url(QueueName="tasks-dead")["QueueUrl"]
    answer = source.client.receive_message(QueueUrl=url, MessageAttributeNames=["All"])
    assert answer["Messages"][0]["MessageAttributes"]["tenant"]["StringValue"] == "acme"


def test_the_handler_sees_which_attempt_this_is(
    source: EventSource, clock: ManualClock
) -> None:
    source.send(1)
    attempts: list[int] = []

    def handle(message: Task, ctx: Context) -> Retry:
        attempts.append(ctx.attempt)
        return Retry(0)

    for _ in range(3):
        invoke(source, handle)
    assert attempts == [1, 2, 3]


# -- all records are renewed, from the start until the response


def test_all_records_are_extended_before_the_first_is_started(
    source: EventSource, clock: ManualClock
) -> None:
    source.send(*range(25))
    event = source.receive()
    clock.advance(29)  # they waited in Lambda's poller, so one second is left
    source.sqs.calls.clear()
    before: list[list[int]] = []

    def handle(message: Task) -> None:
        before.append([call.entries for call in source.sqs.calls.select(EXTEND)])
        clock.advance(1)

    _, answer = invoke(source, handle, event)
    assert before[0] == [10, 10, 5]
    assert answer == {"batchItemFailures": []}


def test_no_record_comes_back_while_others_are_worked_on(
    source: EventSource, clock: ManualClock
) -> None:
    """Neither waiting nor done records are visible; Lambda deletes after the response."""
    source.send(1, 2, 3, 4)

    def handle(message: Task) -> None:
        for _ in range(4):  # four times 25 s: more than a lease, four times over
            renewals = source.sqs.calls.count(EXTEND)
            clock.advance(25)
            wait_until(lambda: source.sqs.calls.count(EXTEND) > renewals)  # noqa: B023
        assert source.visible() == 0
        assert source.hidden() == 4

    event, answer = invoke(source, handle)
    assert numbers(event, answer) == []
    assert source.hidden() == 0


def test_a_record_whose_lease_was_lost_is_neither_handled_nor_done(
    source: EventSource, clock: ManualClock
) -> None:
    source.send(1)
    event = source.receive()
    clock.advance(31)  # visible again
    source.send(2)
    other = source.receive()  # both are leased by another consumer
    source.send(3)
    event["Records"] += source.receive()["Records"]
    handled: list[int] = []
    _, answer = invoke(source, lambda m: handled.append(m.n), event, model=Task)
    assert handled == [3]
    assert numbers(event, answer) == [1]
    assert len(other["Records"]) == 2
    assert source.hidden() == 2  # the leases of the other consumer are unchanged


def test_an_extension_that_sqs_throttled_is_requested_again(
    source: EventSource, clock: ManualClock
) -> None:
    source.send(1, 2)
    source.sqs.faults.refuse(EXTEND, "RequestThrottled", positions=(1,))
    with invoked(source, lambda m: None, model=Task) as failures:
        wait_until(lambda: clock.waiting > 0)
        clock.advance(1)
        assert failures() == []


def test_an_sqs_that_cannot_be_reached_makes_all_records_failures() -> None:
    clock = ManualClock(auto_advance=True)
    source = EventSource(clock)
    source.send(1, 2, 3)
    event = source.receive()
    down = EndpointConnectionError(endpoint_url="https://sqs")
    source.sqs.faults.fail(EXTEND, error=down, times=inf)
    handled: list[int] = []
    entry = sqs_batch(lambda m: handled.append(m.n), Task, queue=source.queue, clock=clock)
    answer = entry(event, LambdaContext(clock, 900))
    assert numbers(event, answer) == [1, 2, 3]
    assert handled == []


def test_asking_an_sqs_that_does_not_answer_ends_with_the_time_there_is() -> None:
    clock = ManualClock(auto_advance=True)
    source = EventSource(clock)
    source.send(*range(40))
    event = source.receive()
    source.sqs.faults.slow(EXTEND, 100.0, times=inf)  # longer than the client's timeout
    source.queue = type(source.queue)(
        source.url, Task, client=source.sqs.client(read_timeout_seconds=1.25), clock=clock
    )
    context = LambdaContext(clock, 15)
    answer = sqs_batch(fail, Task, queue=source.queue, clock=clock)(event, context)
    assert len(answer["batchItemFailures"]) == 40
    assert context.get_remaining_time_in_millis() > 0


def test_a_record_lost_while_it_waits_is_not_started(
    source: EventSource, clock: ManualClock
) -> None:
    source.send(1, 2)
    source.sqs.faults.refuse(EXTEND, "ReceiptHandleIsInvalid", positions=(1,), after=1)
    handled: list[int] = []

    def handle(message: Task) -> None:
        handled.append(message.n)
        clock.advance(25)
        wait_until(lambda: source.sqs.calls.count(EXTEND) == 2)

    event, answer = invoke(source, handle)
    assert handled == [1]
    assert numbers(event, answer) == [2]


def test_work_whose_lease_was_lost_does_not_count(
    source: EventSource, clock: ManualClock
) -> None:
    source.send(1)
    source.sqs.faults.refuse(EXTEND, "ReceiptHandleIsInvalid", after=1)

    def handle(message: Task, ctx: Context) -> None:
        clock.advance(25)
        assert ctx.lost.wait(20)

    event, answer = invoke(source, handle)
    assert numbers(event, answer) == [1]


# -- the function's end


def test_a_record_that_cannot_be_started_in_time_is_released_at_once(
    source: EventSource, clock: ManualClock
) -> None:
    source.send(1, 2, 3, 4)
    handled: list[int] = []

    def handle(message: Task) -> None:
        handled.append(message.n)
        clock.advance(26)

    event, answer = invoke(source, handle, seconds=56, reserve_seconds=5)
    assert handled == [1, 2]  # 56, 30, then 4 are left
    assert numbers(event, answer) == [3, 4]
    assert source.visible() == 2


def test_a_function_called_too_late_gives_everything_back(source: EventSource) -> None:
    source.send(1, 2)
    handled: list[int] = []
    event, answer = invoke(source, lambda m: handled.append(m.n), seconds=50, model=Task)
    assert handled == []
    assert numbers(event, answer) == [1, 2]
    assert source.visible() == 2


def test_waiting_records_are_released_while_another_is_still_handled(
    source: EventSource, clock: ManualClock
) -> None:
    source.send(1, 2, 3)

    def handle(message: Task, ctx: Context) -> None:
        clock.advance(16)
        wait_until(lambda: source.visible() == 2)
        assert ctx.stopping.wait(20)

    event, answer = invoke(source, handle, seconds=20, reserve_seconds=5)
    assert numbers(event, answer) == [2, 3]


def test_no_record_is_started_with_less_time_than_a_handler_may_take(
    source: EventSource, clock: ManualClock
) -> None:
    source.send(1, 2)
    handled: list[int] = []

    def handle(message: Task) -> None:
        handled.append(message.n)
        clock.advance(10)

    event, answer = invoke(source, handle, seconds=44, reserve_seconds=5, timeout_seconds=30)
    assert handled == [1]  # 34 s are left, 35 would be needed
    assert numbers(event, answer) == [2]


def test_a_handler_that_overruns_is_reported_before_lambda_kills_the_function(
    source: EventSource,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    own_threads: Callable[[], list[str]],
) -> None:
    source.send(1, 2)
    end, seen = Event(), Event()
    context = LambdaContext(clock, 60)

    def handle(message: Task, ctx: Context) -> None:
        seen.set()
        end.wait(30)

    event = source.receive()
    entry = sqs_batch(handle, queue=source.queue, clock=clock, reserve_seconds=1)
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING, "holdfast"):
        running = pool.submit(entry, event, context)
        assert seen.wait(20)
        clock.advance(55)
        assert not running.done()  # there is time left
        clock.advance(4.6)  # beyond the cut-off; 0.4 s are left
        answer = running.result(20)
    assert context.get_remaining_time_in_millis() > 0
    assert numbers(event, answer) == [1, 2]
    assert "batch_overrun" in caplog.text
    calls = len(source.sqs.calls)
    end.set()  # the thread that could not be killed ends, and settles nothing
    wait_until(lambda: not own_threads())
    assert len(source.sqs.calls) == calls


def test_a_handler_that_takes_too_long_loses_its_record(
    source: EventSource, clock: ManualClock
) -> None:
    source.send(1, 2)
    handled: list[int] = []

    async def handle(message: Task) -> None:
        if message.n == 1:
            clock.advance(11)
            await asyncio.sleep(30)  # cancelled
        handled.append(message.n)

    with invoked(source, handle, timeout_seconds=10) as failures:
        wait_until(lambda: _moved(clock) and handled == [2])
        assert failures() == [1]


def _moved(clock: ManualClock) -> bool:
    clock.advance(0.1)  # the invocation checks the clock ten times a second
    return True


def test_without_a_lambda_context_there_is_no_end(source: EventSource) -> None:
    source.send(1)
    event = source.receive()
    entry = sqs_batch(lambda m: None, Task, queue=source.queue, clock=source.clock)
    assert entry(event, None) == {"batchItemFailures": []}


# -- nothing survives the invocation


async def quick(message: Task) -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("handler", [fail, quick, lambda m: Reject("no")])
def test_no_thread_survives_the_invocation(
    source: EventSource, handler: Any, own_threads: Callable[[], list[str]]
) -> None:
    source.send(*range(12))
    invoke(source, handler, concurrency=4, model=Task)
    assert own_threads() == []


def test_nothing_is_renewed_after_the_answer(source: EventSource, clock: ManualClock) -> None:
    source.send(1, 2)
    invoke(source, lambda m: Retry(after_seconds=5) if m.n == 1 else None)
    calls = source.sqs.calls.count(EXTEND)
    for _ in range(5):
        clock.advance(30)
        threading.Event().wait(0.02)  # a keeper would need a millisecond
    assert source.sqs.calls.count(EXTEND) == calls
    assert source.visible() == 1


def test_a_coroutine_is_cancelled_at_the_end_and_leaves_no_thread(
    source: EventSource, clock: ManualClock, own_threads: Callable[[], list[str]]
) -> None:
    source.send(1)

    async def handle(message: Task) -> None:
        clock.advance(41)  # beyond the cut-off at 40, within the lease
        await asyncio.sleep(60)

    event, answer = invoke(source, handle, seconds=60, reserve_seconds=40)
    assert numbers(event, answer) == [1]
    assert own_threads() == []


# -- FIFO


def test_a_group_stops_at_its_first_failure_and_the_others_go_on(fifo: EventSource) -> None:
    fifo.send(1, 2, 3, group="a")
    fifo.send(11, 12, group="b")
    handled: list[int] = []

    def handle(message: Task) -> Retry | None:
        handled.append(message.n)
        return Retry(after_seconds=20) if message.n == 2 else None

    event, answer = invoke(fifo, handle)
    assert handled == [1, 2, 11, 12]
    assert numbers(event, answer) == [2, 3]


def test_a_group_that_failed_comes_back_in_order_and_not_before_its_backoff(
    fifo: EventSource, clock: ManualClock
) -> None:
    fifo.send(1, 2, 3, group="a")
    invoke(fifo, lambda m: Retry(after_seconds=20))
    assert fifo.receive() == {"Records": []}  # 2 and 3 are visible, and wait for 1
    clock.advance(20)
    again = fifo.receive()
    assert [Task.model_validate_json(r["body"]).n for r in again["Records"]] == [1, 2, 3]


def test_a_group_is_worked_on_one_by_one_whatever_the_concurrency(fifo: EventSource) -> None:
    fifo.send(1, 2, 3, 4, group="a")
    fifo.send(11, 12, 13, 14, group="b")
    together = threading.Barrier(2, timeout=20)
    handled: list[int] = []
    running: set[int] = set()

    def handle(message: Task) -> None:
        running.add(message.n // 10)
        together.wait()  # the two groups at once
        assert running == {0, 1}
        together.wait()
        handled.append(message.n)

    event, answer = invoke(fifo, handle, concurrency=8)
    assert numbers(event, answer) == []
    assert [n for n in handled if n < 10] == [1, 2, 3, 4]
    assert [n for n in handled if n > 10] == [11, 12, 13, 14]


def test_a_dead_letter_does_not_block_its_group(fifo: EventSource) -> None:
    fifo.send(1, 2, group="a")
    handled: list[int] = []

    def handle(message: Task) -> Reject | None:
        handled.append(message.n)
        return Reject("no") if message.n == 1 else None

    event, answer = invoke(fifo, handle)
    assert handled == [1, 2]
    assert numbers(event, answer) == []


def test_records_behind_a_lost_record_are_not_started(fifo: EventSource) -> None:
    fifo.send(1, 2, 3, group="a")
    fifo.sqs.faults.refuse(EXTEND, "ReceiptHandleIsInvalid", positions=(1,))
    handled: list[int] = []

    def handle(message: Task) -> None:
        handled.append(message.n)

    event, answer = invoke(fifo, handle)
    assert handled == [1]
    assert numbers(event, answer) == [2, 3]


def test_waiting_behind_a_failing_head_does_not_make_a_dead_letter(clock: ManualClock) -> None:
    """SQS counts receives, and records behind the head are received as often."""
    source = EventSource(clock, fifo=True, max_attempts=2)
    source.send(1, 2, group="a")
    for _ in range(2):
        event = source.receive()
        invoke(source, lambda m: Retry(0), {"Records": event["Records"][:1]})
        clock.advance(60)
    handled: list[int] = []
    invoke(source, lambda m: handled.append(m.n), model=Task)
    assert handled == [2]  # received for the third time, started for the first
    assert [reason[:6] for reason in source.dead()] == ["failed"]


def test_a_group_id_orders_nothing_on_a_standard_queue(source: EventSource) -> None:
    source.send(1, 2, group="tenant")
    event, answer = invoke(source, lambda m: Retry(0) if m.n == 1 else None)
    assert numbers(event, answer) == [1]


# -- calls and settings


@pytest.mark.parametrize(
    "event", [None, {}, {"Records": None}, {"httpMethod": "GET"}, {"Records": [{"s3": {}}]}]
)
def test_an_event_that_is_not_of_sqs_is_a_mistake(source: EventSource, event: Any) -> None:
    entry = sqs_batch(fail, queue=source.queue, clock=source.clock)
    with pytest.raises(ValueError, match="not an SQS event"):
        entry(event, None)


def test_an_empty_batch_is_done(source: EventSource) -> None:
    entry = sqs_batch(fail, queue=source.queue, clock=source.clock)
    assert entry({"Records": []}, None) == {"batchItemFailures": []}


def test_a_record_without_a_receipt_is_a_failure_and_the_others_go_on(
    source: EventSource,
) -> None:
    source.send(1, 2)
    event = source.receive()
    del event["Records"][0]["receiptHandle"]
    entry = sqs_batch(lambda m: None, Task, queue=source.queue, clock=source.clock)
    assert numbers(event, entry(event, LambdaContext(source.clock, 900))) == [1]
    assert [call.entries for call in source.sqs.calls.select(EXTEND)] == [
        1
    ]  # no call to SQS is made


def test_a_warm_function_handles_one_batch_after_the_other(
    source: EventSource, own_threads: Callable[[], list[str]]
) -> None:
    entry = sqs_batch(
        lambda m: None, Task, queue=source.queue, clock=source.clock, reserve_seconds=80
    )
    for n in range(3):
        source.send(n)
        event = source.receive()
        answer = entry(event, LambdaContext(source.clock, 900))
        source.delete_the_done(event, answer)
        assert (answer, own_threads()) == ({"batchItemFailures": []}, [])
    assert source.hidden() == source.visible() == 0


def test_a_source_that_cannot_be_opened_makes_all_records_failures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    record = {
        "messageId": "m1",
        "receiptHandle": "secret-receipt",
        "body": "secret-body",
        "eventSourceARN": "arn:aws:kinesis:us-east-1:123456789012:stream/x",
    }
    answer = sqs_batch(fail)({"Records": [record]}, None)
    assert answer == {"batchItemFailures": [{"itemIdentifier": "m1"}]}
    assert "is not the ARN of an SQS queue" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"reserve_seconds": 0}, "reserve_seconds"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"lease_seconds": 0}, "lease_seconds"),
        ({"leese_seconds": 5}, "leese_seconds"),
    ],
)
def test_settings_that_could_never_work_are_refused_when_the_function_loads(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        sqs_batch(fail, **options)


def test_a_handler_that_cannot_be_called_is_refused_when_the_function_loads() -> None:
    with pytest.raises(ConfigError, match="handler takes"):
        sqs_batch(lambda a, b, c: None)


def test_settings_together_with_a_queue_object_are_refused(source: EventSource) -> None:
    with pytest.raises(ConfigError, match="of its own"):
        sqs_batch(fail, queue=source.queue, lease_seconds=5)
