"""The SQS simulator: its rules, its time, its failures on request.

What it shares with moto is in contracts/test_sqs_semantics.py; here is what only it does.
"""

import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    ParamValidationError,
    ReadTimeoutError,
)

from holdfast.testing import ManualClock, SimulatedSqs

Client = Any


@pytest.fixture
def client(simulated_sqs: SimulatedSqs) -> Client:
    return simulated_sqs.client()


def new_queue(client: Client, name: str = "letters", **attributes: Any) -> str:
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in attributes.items()}
    if name.endswith(".fifo"):
        texts["FifoQueue"] = "true"
    return client.create_queue(QueueName=name, Attributes=texts)["QueueUrl"]


@pytest.fixture
def url(client: Client) -> str:
    return new_queue(client)


def arn_of(client: Client, url: str) -> str:
    answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return answer["Attributes"]["QueueArn"]


def with_dead_letters(
    client: Client, max_receives: int = 1, suffix: str = ""
) -> tuple[str, str]:
    dead = new_queue(client, f"dead{suffix}")
    policy = {"deadLetterTargetArn": arn_of(client, dead), "maxReceiveCount": max_receives}
    return new_queue(client, f"letters{suffix}", RedrivePolicy=policy), dead


def send(client: Client, url: str, body: str = "x", **more: Any) -> dict[str, Any]:
    return client.send_message(QueueUrl=url, MessageBody=body, **more)


def send_fifo(
    client: Client, url: str, body: str, group: str = "g", **more: Any
) -> dict[str, Any]:
    more.setdefault("MessageDeduplicationId", body)
    return send(client, url, body, MessageGroupId=group, **more)


def receive(client: Client, url: str, limit: int = 10, **more: Any) -> list[dict[str, Any]]:
    answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=limit, **more)
    return answer.get("Messages", [])


def bodies(client: Client, url: str, **more: Any) -> list[str]:
    return [message["Body"] for message in receive(client, url, **more)]


def handle_of(client: Client, url: str, **more: Any) -> str:
    (message,) = receive(client, url, limit=1, **more)
    return message["ReceiptHandle"]


def delete(client: Client, url: str, handle: str) -> None:
    client.delete_message(QueueUrl=url, ReceiptHandle=handle)


def extend(client: Client, url: str, handle: str, seconds: int) -> None:
    client.change_message_visibility(
        QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds
    )


def counts(client: Client, url: str) -> tuple[int, int, int]:
    """Ready, in flight, delayed."""
    answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    kinds = ("", "NotVisible", "Delayed")
    ready, in_flight, delayed = (int(answer[f"ApproximateNumberOfMessages{k}"]) for k in kinds)
    return ready, in_flight, delayed


def code_of(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The code a call is refused with."""
    with pytest.raises(ClientError) as caught:
        call(*args, **kwargs)
    return caught.value.response["Error"]["Code"]


# -- errors and arguments, as boto3 has them


def test_an_error_looks_as_boto3_shows_it(client: Client) -> None:
    with pytest.raises(ClientError) as caught:
        receive(client, "https://sqs.us-east-1.amazonaws.com/123456789012/none")
    error = caught.value
    assert error.operation_name == "ReceiveMessage"
    assert error.response["Error"] == {
        "Message": "The specified queue does not exist.",
        "Code": "AWS.SimpleQueueService.NonExistentQueue",
        "QueryErrorCode": "QueueDoesNotExist",
        "Type": "Sender",
    }
    assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 400


@pytest.mark.parametrize(
    "request_",
    [
        {"MaxNumberOfMessages": 1},
        {"QueueUrl": "u", "VisibilityTimeout": 30.0},
        {"QueueUrl": "u", "WaitTimeSeconds": "20"},
        {"QueueUrl": "u", "Nonsense": 1},
    ],
)
def test_arguments_are_checked_as_botocore_does(client: Client, request_: Any) -> None:
    with pytest.raises(ParamValidationError):
        client.receive_message(**request_)


def test_a_call_with_wrong_arguments_never_reaches_the_service(
    client: Client, simulated_sqs: SimulatedSqs
) -> None:
    with pytest.raises(ParamValidationError):
        client.send_message(QueueUrl="u", MessageBody=7)
    assert len(simulated_sqs.calls) == 0


def test_a_client_sees_the_queues_of_its_region(
    client: Client, simulated_sqs: SimulatedSqs, url: str
) -> None:
    elsewhere = simulated_sqs.client("eu-central-1")
    assert elsewhere.meta.region_name == "eu-central-1"
    assert elsewhere.meta.endpoint_url == "https://sqs.eu-central-1.amazonaws.com"
    assert code_of(receive, elsewhere, url) == "AWS.SimpleQueueService.NonExistentQueue"
    assert elsewhere.list_queues().get("QueueUrls") is None
    assert client.list_queues()["QueueUrls"] == [url]


def test_the_same_seed_gives_the_same_ids(manual_clock: ManualClock) -> None:
    def ids(seed: int) -> tuple[str, str]:
        client = SimulatedSqs(manual_clock, seed=seed).client()
        url = new_queue(client)
        return send(client, url)["MessageId"], handle_of(client, url)

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


# -- receiving and holding


def test_a_receipt_that_ran_out_is_refused(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    send(client, url)
    handle = handle_of(client, url)
    manual_clock.advance(30)
    assert code_of(delete, client, url, handle) == "ReceiptHandleIsInvalid"
    assert code_of(extend, client, url, handle, 30) == (
        "AWS.SimpleQueueService.MessageNotInflight"
    )
    assert counts(client, url) == (1, 0, 0)


def test_a_superseded_receipt_is_refused_though_the_message_is_in_flight(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    send(client, url)
    stale = handle_of(client, url)
    manual_clock.advance(30)
    current = handle_of(client, url)
    assert stale != current
    assert code_of(delete, client, url, stale) == "ReceiptHandleIsInvalid"
    assert code_of(extend, client, url, stale, 60) == "ReceiptHandleIsInvalid"
    delete(client, url, current)
    assert counts(client, url) == (0, 0, 0)


def test_an_ignored_receipt_succeeds_and_does_nothing(manual_clock: ManualClock) -> None:
    client = SimulatedSqs(manual_clock, stale_handles="ignored").client()
    url = new_queue(client)
    send(client, url)
    stale = handle_of(client, url)
    manual_clock.advance(30)
    delete(client, url, stale)
    extend(client, url, stale, 600)
    assert counts(client, url) == (1, 0, 0)


def test_an_effective_receipt_deletes_what_somebody_else_holds(
    manual_clock: ManualClock,
) -> None:
    client = SimulatedSqs(manual_clock, stale_handles="effective").client()
    url = new_queue(client)
    send(client, url)
    stale = handle_of(client, url)
    manual_clock.advance(30)
    current = handle_of(client, url)
    delete(client, url, stale)
    assert counts(client, url) == (0, 0, 0)
    assert code_of(extend, client, url, current, 5) == "InvalidParameterValue"


def test_an_effective_receipt_hides_what_somebody_else_holds(
    manual_clock: ManualClock,
) -> None:
    client = SimulatedSqs(manual_clock, stale_handles="effective").client()
    url = new_queue(client)
    send(client, url)
    stale = handle_of(client, url)
    manual_clock.advance(30)
    handle_of(client, url)
    extend(client, url, stale, 600)
    manual_clock.advance(599)
    assert receive(client, url) == []
    manual_clock.advance(1)
    assert len(receive(client, url)) == 1


@pytest.mark.parametrize("mode", ["strict", "ignored", "effective"])
def test_a_fifo_queue_refuses_an_expired_receipt_in_every_mode(
    manual_clock: ManualClock, mode: Any
) -> None:
    client = SimulatedSqs(manual_clock, stale_handles=mode).client()
    url = new_queue(client, "letters.fifo")
    send_fifo(client, url, "a")
    handle = handle_of(client, url)
    manual_clock.advance(30)
    assert code_of(delete, client, url, handle) == "InvalidParameterValue"
    assert code_of(extend, client, url, handle, 30) == "InvalidParameterValue"


@pytest.mark.parametrize("mode", ["strict", "ignored", "effective"])
def test_a_handle_never_given_is_refused_in_every_mode(
    manual_clock: ManualClock, mode: Any
) -> None:
    client = SimulatedSqs(manual_clock, stale_handles=mode).client()
    url, other = new_queue(client), new_queue(client, "other")
    send(client, other)
    for handle in ("garbage", handle_of(client, other)):
        assert code_of(delete, client, url, handle) == "ReceiptHandleIsInvalid"
        assert code_of(extend, client, url, handle, 1) == "ReceiptHandleIsInvalid"


def test_an_unknown_way_of_going_stale_is_refused() -> None:
    with pytest.raises(ValueError, match="lenient"):
        SimulatedSqs(stale_handles="lenient")  # type: ignore[arg-type]


def test_twelve_hours_count_from_the_receive_and_more_is_refused(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    send(client, url)
    manual_clock.advance(3_600)  # waiting does not count
    handle = handle_of(client, url, VisibilityTimeout=43_200)
    manual_clock.advance(43_000)
    assert code_of(extend, client, url, handle, 201) == "InvalidParameterValue"
    extend(client, url, handle, 200)
    manual_clock.advance(199)
    assert receive(client, url) == []
    extend(client, url, handle, 1)
    manual_clock.advance(1)
    # The next holder has twelve hours of its own.
    extend(client, url, handle_of(client, url), 43_200)


def test_giving_back_wakes_a_long_poll(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    send(client, url)
    handle = handle_of(client, url)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receive, client, url, WaitTimeSeconds=20)
        until_waiting(manual_clock)
        extend(client, url, handle, 0)
        assert len(waiting.result(10)) == 1
    assert manual_clock.monotonic() == 1_000


# -- long polling


def until_waiting(clock: ManualClock, threads: int = 1) -> None:
    while clock.waiting < threads:
        pass


def test_a_long_poll_returns_at_once_when_a_message_arrives(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bodies, client, url, WaitTimeSeconds=20)
        until_waiting(manual_clock)
        send(client, url, "hello")
        assert waiting.result(10) == ["hello"]
    assert manual_clock.monotonic() == 1_000


def test_a_long_poll_returns_when_a_message_becomes_visible() -> None:
    clock = ManualClock(auto_advance=True)
    client = SimulatedSqs(clock).client()
    url = new_queue(client)
    send(client, url, "late", DelaySeconds=7)
    assert bodies(client, url, WaitTimeSeconds=20) == ["late"]
    assert clock.monotonic() == 1_007


def test_a_long_poll_ends_empty_after_its_wait_and_no_sooner() -> None:
    clock = ManualClock(auto_advance=True)
    client = SimulatedSqs(clock).client()
    url = new_queue(client, ReceiveMessageWaitTimeSeconds=3)
    send(client, url, DelaySeconds=900)
    assert receive(client, url) == []
    assert clock.monotonic() == 1_003
    assert receive(client, url, WaitTimeSeconds=20) == []
    assert clock.monotonic() == 1_023
    assert receive(client, url, WaitTimeSeconds=0) == []
    assert clock.monotonic() == 1_023


def test_one_message_goes_to_one_of_many_long_polls(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(bodies, client, url, WaitTimeSeconds=20) for _ in range(4)]
        until_waiting(manual_clock, threads=4)
        send(client, url, "one")
        until_waiting(manual_clock, threads=3)
        manual_clock.advance(20)
        assert sorted(future.result(10) for future in waiting) == [[], [], [], ["one"]]


def test_a_long_poll_on_a_deleted_queue_is_told(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(code_of, receive, client, url, WaitTimeSeconds=20)
        until_waiting(manual_clock)
        client.delete_queue(QueueUrl=url)
        assert waiting.result(10) == "AWS.SimpleQueueService.NonExistentQueue"


def test_many_threads_lose_and_double_nothing(client: Client, url: str) -> None:
    def produce(name: int) -> None:
        for number in range(25):
            send(client, url, f"{name}-{number}")

    def consume(_: int) -> list[str]:
        seen = []
        while messages := receive(client, url):
            for message in messages:
                seen.append(message["Body"])
                delete(client, url, message["ReceiptHandle"])
        return seen

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(produce, range(8)))
        seen = [body for some in pool.map(consume, range(8)) for body in some]
    assert sorted(seen) == sorted(f"{a}-{b}" for a in range(8) for b in range(25))
    assert counts(client, url) == (0, 0, 0)


# -- limits


def test_too_many_in_flight_is_told_to_short_polls_only() -> None:
    clock = ManualClock(auto_advance=True)
    client = SimulatedSqs(clock, in_flight_limit=2).client()
    url = new_queue(client)
    for body in "abc":
        send(client, url, body)
    first = receive(client, url)
    assert len(first) == 2
    assert code_of(receive, client, url) == "OverLimit"
    assert receive(client, url, WaitTimeSeconds=5) == []
    delete(client, url, first[0]["ReceiptHandle"])
    assert bodies(client, url) == ["c"]


def test_a_message_over_the_size_is_refused_attributes_counted(client: Client) -> None:
    url = new_queue(client, MaximumMessageSize=1024)
    attribute = {"kind": {"DataType": "String", "StringValue": "12345"}}  # 4 + 6 + 5 bytes
    send(client, url, "ä" * 504 + "x", MessageAttributes=attribute)
    too_long = "ä" * 505
    assert code_of(send, client, url, too_long, MessageAttributes=attribute) == (
        "InvalidParameterValue"
    )
    assert counts(client, url) == (1, 0, 0)


def test_a_batch_over_a_mebibyte_is_refused_whole(client: Client, url: str) -> None:
    def batch(last: int) -> Any:
        sizes = [104_857] * 9 + [last]
        entries = [{"Id": str(i), "MessageBody": "x" * n} for i, n in enumerate(sizes)]
        return client.send_message_batch(QueueUrl=url, Entries=entries)

    assert code_of(batch, 104_864) == "AWS.SimpleQueueService.BatchRequestTooLong"
    assert counts(client, url) == (0, 0, 0)
    assert len(batch(104_863)["Successful"]) == 10


@pytest.mark.parametrize("body", ["\x00", "a\x1fb", "\ufffe", "\ud800"])
def test_a_body_xml_cannot_carry_is_refused(client: Client, url: str, body: str) -> None:
    assert code_of(send, client, url, body) == "InvalidMessageContents"
    answer = client.send_message_batch(
        QueueUrl=url,
        Entries=[{"Id": "bad", "MessageBody": body}, {"Id": "good", "MessageBody": "\t𝄞"}],
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["good"]
    assert answer["Failed"][0]["Code"] == "InvalidMessageContents"


def test_an_empty_body_is_refused(client: Client, url: str) -> None:
    assert code_of(send, client, url, "") == "MissingParameter"


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("a b", {"DataType": "String", "StringValue": "x"}),
        ("a", {"DataType": "Text", "StringValue": "x"}),
        ("a", {"DataType": "String", "StringValue": ""}),
        ("a", {"DataType": "Binary", "StringValue": "x"}),
    ],
)
def test_a_bad_message_attribute_is_refused(
    client: Client, url: str, name: str, attribute: Any
) -> None:
    code = code_of(send, client, url, "x", MessageAttributes={name: attribute})
    assert code == "InvalidParameterValue"


def test_more_than_ten_message_attributes_are_refused(client: Client, url: str) -> None:
    attributes = {f"a{i}": {"DataType": "String", "StringValue": "x"} for i in range(11)}
    code = code_of(send, client, url, "x", MessageAttributes=attributes)
    assert code == "InvalidParameterValue"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MaxNumberOfMessages", 0),
        ("MaxNumberOfMessages", 11),
        ("WaitTimeSeconds", 21),
        ("WaitTimeSeconds", -1),
        ("VisibilityTimeout", 43_201),
        ("VisibilityTimeout", -1),
    ],
)
def test_a_receive_out_of_range_is_refused(
    client: Client, url: str, name: str, value: int
) -> None:
    code = code_of(client.receive_message, QueueUrl=url, **{name: value})
    assert code == "InvalidParameterValue"


def test_an_entry_that_asks_too_much_fails_alone(client: Client, url: str) -> None:
    send(client, url, "a")
    send(client, url, "b")
    a, b = (message["ReceiptHandle"] for message in receive(client, url))
    answer = client.change_message_visibility_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "a", "ReceiptHandle": a, "VisibilityTimeout": 43_201},
            {"Id": "b", "ReceiptHandle": b, "VisibilityTimeout": 0},
        ],
    )
    assert answer["Successful"] == [{"Id": "b"}]
    (failed,) = answer["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == (
        "a",
        "InvalidParameterValue",
        True,
    )


def test_no_answer_repeats_a_receipt_handle_in_its_text(client: Client, url: str) -> None:
    with pytest.raises(ClientError) as caught:
        delete(client, url, "secret-handle")
    assert "secret-handle" not in str(caught.value)


# -- retention and attributes


def test_a_message_is_gone_when_its_retention_is_over(
    client: Client, manual_clock: ManualClock
) -> None:
    url = new_queue(client, MessageRetentionPeriod=60)
    send(client, url, "old")
    manual_clock.advance(30)
    send(client, url, "young")
    manual_clock.advance(30)
    assert counts(client, url) == (1, 0, 0)
    assert bodies(client, url) == ["young"]


def test_holding_a_message_does_not_make_it_younger(
    client: Client, manual_clock: ManualClock
) -> None:
    url = new_queue(client, MessageRetentionPeriod=60)
    send(client, url)
    handle = handle_of(client, url, VisibilityTimeout=600)
    manual_clock.advance(60)
    assert counts(client, url) == (0, 0, 0)
    assert code_of(extend, client, url, handle, 5) == "InvalidParameterValue"
    delete(client, url, handle)


def test_system_attributes_are_given_when_asked_for(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    send(client, url, MessageGroupId="fair")
    manual_clock.advance(2)
    (message,) = receive(client, url, AttributeNames=["All"], VisibilityTimeout=0)
    assert message["Attributes"] == {
        "ApproximateFirstReceiveTimestamp": "1800000002000",
        "ApproximateReceiveCount": "1",
        "MessageGroupId": "fair",
        "SenderId": "AIDASIMULATEDSENDER00",
        "SentTimestamp": "1800000000000",
    }
    manual_clock.advance(3)
    names = ["ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp"]
    (message,) = receive(client, url, MessageSystemAttributeNames=names, VisibilityTimeout=0)
    assert message["Attributes"] == {
        "ApproximateFirstReceiveTimestamp": "1800000002000",
        "ApproximateReceiveCount": "2",
    }
    (message,) = receive(client, url)
    assert "Attributes" not in message


def test_the_checksum_of_attributes_is_the_one_aws_gives(client: Client, url: str) -> None:
    attributes = {"MyAttribute": {"DataType": "String", "StringValue": "foobar"}}
    sent = send(client, url, MessageAttributes=attributes)
    assert sent["MD5OfMessageAttributes"] == "adb59cd4678ea5a855436b949cd07ab6"


def test_stepping_the_wall_clock_moves_no_visibility(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    send(client, url)
    handle_of(client, url)
    manual_clock.step_time(86_400)
    assert receive(client, url) == []


def test_what_a_caller_does_to_an_answer_stays_with_it(client: Client, url: str) -> None:
    send(client, url, MessageAttributes={"a": {"DataType": "Number", "StringValue": "1"}})
    (first,) = receive(client, url, MessageAttributeNames=["All"], VisibilityTimeout=0)
    first["MessageAttributes"]["a"]["StringValue"] = "2"
    (second,) = receive(client, url, MessageAttributeNames=["All"])
    assert second["MessageAttributes"]["a"] == {"DataType": "Number", "StringValue": "1"}


# -- dead letters and their way back


def test_a_dead_letter_remembers_its_source_and_its_count(
    client: Client, manual_clock: ManualClock
) -> None:
    url, dead = with_dead_letters(client, max_receives=2)
    sent = send(client, url, "poison")
    for _ in range(2):
        assert bodies(client, url) == ["poison"]
        manual_clock.advance(30)
    assert counts(client, dead) == (0, 0, 0)  # it moves when it is next received
    assert receive(client, url) == []
    (message,) = receive(client, dead, AttributeNames=["All"])
    assert message["MessageId"] == sent["MessageId"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "3"
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(client, url)
    assert message["Attributes"]["SentTimestamp"] == "1800000000000"


def test_the_receipt_of_a_message_that_died_is_good_for_nothing(
    client: Client, manual_clock: ManualClock
) -> None:
    url, dead = with_dead_letters(client)
    send(client, url)
    handle = handle_of(client, url)
    manual_clock.advance(30)
    assert receive(client, url) == []
    assert code_of(extend, client, url, handle, 30) == "InvalidParameterValue"
    delete(client, url, handle)
    assert counts(client, dead) == (1, 0, 0)


def test_a_move_task_brings_dead_letters_back_as_new_messages(
    client: Client, manual_clock: ManualClock
) -> None:
    url, dead = with_dead_letters(client)
    sent = send(client, url, "again")
    receive(client, url, VisibilityTimeout=0)
    receive(client, url)
    client.start_message_move_task(SourceArn=arn_of(client, dead))
    (task,) = client.list_message_move_tasks(SourceArn=arn_of(client, dead))["Results"]
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 1)
    assert "TaskHandle" not in task
    (message,) = receive(client, url, AttributeNames=["ApproximateReceiveCount"])
    assert message["Body"] == "again"
    assert message["Attributes"] == {"ApproximateReceiveCount": "1"}
    assert message["MessageId"] != sent["MessageId"]
    assert counts(client, dead) == (0, 0, 0)


def test_a_move_task_with_a_rate_goes_on_by_the_clock(
    client: Client, manual_clock: ManualClock
) -> None:
    url, dead = with_dead_letters(client)
    for body in "abcd":
        send(client, url, body)
    receive(client, url, VisibilityTimeout=0)
    receive(client, url)
    source = arn_of(client, dead)
    handle = client.start_message_move_task(SourceArn=source, MaxNumberOfMessagesPerSecond=2)
    (task,) = client.list_message_move_tasks(SourceArn=source)["Results"]
    assert (task["Status"], task["TaskHandle"]) == ("RUNNING", handle["TaskHandle"])
    start = client.start_message_move_task
    assert code_of(start, SourceArn=source) == "InvalidParameterValue"
    manual_clock.advance(1)
    assert bodies(client, url) == ["a", "b"]
    assert counts(client, dead) == (2, 0, 0)
    manual_clock.advance(2)
    assert bodies(client, url) == ["c", "d"]
    (task,) = client.list_message_move_tasks(SourceArn=source)["Results"]
    assert task["Status"] == "COMPLETED"


def test_a_long_poll_hears_of_a_message_that_is_moved_back() -> None:
    clock = ManualClock(auto_advance=True)
    client = SimulatedSqs(clock).client()
    url, dead = with_dead_letters(client)
    send(client, url, "back")
    receive(client, url, VisibilityTimeout=0)
    receive(client, url)
    client.start_message_move_task(
        SourceArn=arn_of(client, dead), MaxNumberOfMessagesPerSecond=1
    )
    assert bodies(client, url, WaitTimeSeconds=20) == ["back"]
    assert clock.monotonic() == 1_001


def test_a_dead_letter_without_a_source_needs_a_destination(client: Client) -> None:
    url, dead = with_dead_letters(client)
    send(client, dead, "stray")
    source = arn_of(client, dead)
    client.start_message_move_task(SourceArn=source)
    (task,) = client.list_message_move_tasks(SourceArn=source)["Results"]
    assert (task["Status"], task["FailureReason"]) == (
        "FAILED",
        "CouldNotDetermineMessageSource",
    )
    client.start_message_move_task(SourceArn=source, DestinationArn=arn_of(client, url))
    assert bodies(client, url) == ["stray"]
    listed = client.list_message_move_tasks(SourceArn=source, MaxResults=10)["Results"]
    assert [task["Status"] for task in listed] == ["COMPLETED", "FAILED"]  # newest first


def test_a_move_task_needs_a_dead_letter_queue_that_exists(client: Client, url: str) -> None:
    start = client.start_message_move_task
    assert code_of(start, SourceArn=arn_of(client, url)) == "InvalidParameterValue"
    assert code_of(start, SourceArn="arn:aws:sqs:x:1:none") == "ResourceNotFoundException"


@pytest.mark.parametrize(
    "policy",
    ["[]x", '{"maxReceiveCount": 3}', '{"deadLetterTargetArn": "arn:none"}', "7"],
)
def test_a_redrive_policy_that_cannot_work_is_refused(
    client: Client, url: str, policy: str
) -> None:
    change = client.set_queue_attributes
    assert code_of(change, QueueUrl=url, Attributes={"RedrivePolicy": policy}) == (
        "InvalidParameterValue"
    )


def test_dead_letters_must_be_of_the_same_kind_and_there(client: Client) -> None:
    fifo = new_queue(client, "dead.fifo")
    for target in (arn_of(client, fifo), "arn:aws:sqs:us-east-1:123456789012:none"):
        policy = {"deadLetterTargetArn": target, "maxReceiveCount": 1}
        assert code_of(new_queue, client, "q", RedrivePolicy=policy) == "InvalidParameterValue"


# -- FIFO


def test_a_group_waits_while_its_first_is_in_flight(
    client: Client, manual_clock: ManualClock
) -> None:
    url = new_queue(client, "letters.fifo")
    for body, group in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        send_fifo(client, url, body, group)
    (first,) = receive(client, url, limit=1)
    assert first["Body"] == "a1"
    assert bodies(client, url) == ["b1"]
    assert receive(client, url) == []
    delete(client, url, first["ReceiptHandle"])
    assert bodies(client, url) == ["a2"]


def test_a_group_goes_out_together_and_comes_back_in_order(
    client: Client, manual_clock: ManualClock
) -> None:
    url = new_queue(client, "letters.fifo")
    for body in ("1", "2", "3"):
        send_fifo(client, url, body)
    messages = receive(client, url)
    assert [message["Body"] for message in messages] == ["1", "2", "3"]
    extend(client, url, messages[1]["ReceiptHandle"], 60)
    manual_clock.advance(30)
    # As recorded at AWS: what is before the one still held may go, what is after may not.
    assert bodies(client, url) == ["1"]


def test_the_next_of_a_group_is_delivered_to_a_long_poll_when_the_first_is_done(
    client: Client, manual_clock: ManualClock
) -> None:
    url = new_queue(client, "letters.fifo")
    send_fifo(client, url, "1")
    send_fifo(client, url, "2")
    handle = handle_of(client, url)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bodies, client, url, WaitTimeSeconds=20)
        until_waiting(manual_clock)
        delete(client, url, handle)
        assert waiting.result(10) == ["2"]


def test_a_deduplication_id_counts_for_five_minutes_even_when_deleted(
    client: Client, manual_clock: ManualClock
) -> None:
    url = new_queue(client, "letters.fifo")
    first = send_fifo(client, url, "once")
    delete(client, url, handle_of(client, url))
    manual_clock.advance(299)
    again = send_fifo(client, url, "once")
    assert (again["MessageId"], again["SequenceNumber"]) == (
        first["MessageId"],
        first["SequenceNumber"],
    )
    assert receive(client, url) == []
    manual_clock.advance(1)
    assert send_fifo(client, url, "once")["SequenceNumber"] > first["SequenceNumber"]
    assert bodies(client, url) == ["once"]


def test_deduplication_is_over_the_queue_or_over_each_group(client: Client) -> None:
    whole = new_queue(client, "whole.fifo")
    each = new_queue(client, "each.fifo", DeduplicationScope="messageGroup")
    for url in (whole, each):
        for group in ("a", "b"):
            send_fifo(client, url, "x", group)
    assert len(receive(client, whole)) == 1
    assert len(receive(client, each)) == 2


def test_fifo_ids_are_required_or_refused(client: Client, url: str) -> None:
    fifo = new_queue(client, "letters.fifo")
    by_content = new_queue(client, "content.fifo", ContentBasedDeduplication=True)
    assert code_of(send, client, fifo, "x") == "MissingParameter"
    assert code_of(send, client, fifo, "x", MessageGroupId="g") == "InvalidParameterValue"
    send(client, by_content, "x", MessageGroupId="g")
    assert code_of(send, client, url, "x", MessageDeduplicationId="d") == (
        "InvalidParameterValue"
    )
    assert code_of(send_fifo, client, fifo, "x", "not one word") == "InvalidParameterValue"


def test_a_fifo_queue_delays_all_or_none(client: Client, manual_clock: ManualClock) -> None:
    url = new_queue(client, "letters.fifo", DelaySeconds=5)
    assert code_of(send_fifo, client, url, "x", DelaySeconds=1) == "InvalidParameterValue"
    send_fifo(client, url, "x", DelaySeconds=0)
    assert counts(client, url) == (0, 0, 1)
    manual_clock.advance(5)
    assert bodies(client, url) == ["x"]


def test_an_exhausted_message_leaves_its_fifo_group_free(
    client: Client, manual_clock: ManualClock
) -> None:
    url, dead = with_dead_letters(client, suffix=".fifo")
    send_fifo(client, url, "poison")
    send_fifo(client, url, "fine")
    assert bodies(client, url, limit=1) == ["poison"]
    manual_clock.advance(30)
    assert bodies(client, url) == ["fine"]
    assert bodies(client, dead) == ["poison"]


# -- queues


def test_making_a_queue_otherwise_is_refused(client: Client, url: str) -> None:
    assert new_queue(client, VisibilityTimeout=30) == url
    assert code_of(new_queue, client, VisibilityTimeout=31) == "QueueAlreadyExists"


@pytest.mark.parametrize(
    ("name", "attributes", "code"),
    [
        ("no spaces", {}, "InvalidParameterValue"),
        ("x" * 81, {}, "InvalidParameterValue"),
        ("q", {"FifoQueue": "true"}, "InvalidParameterValue"),
        ("q", {"VisibilityTimeout": "43201"}, "InvalidAttributeValue"),
        ("q", {"MaximumMessageSize": "1048577"}, "InvalidAttributeValue"),
        ("q", {"DelaySeconds": "-1"}, "InvalidAttributeValue"),
        ("q", {"Colour": "red"}, "InvalidAttributeName"),
        ("q", {"ContentBasedDeduplication": "true"}, "InvalidAttributeName"),
    ],
)
def test_a_queue_that_cannot_be_is_refused(
    client: Client, name: str, attributes: dict[str, str], code: str
) -> None:
    assert code_of(client.create_queue, QueueName=name, Attributes=attributes) == code


def test_a_name_is_free_again_a_minute_after_its_queue_is_deleted(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    send(client, url)
    client.delete_queue(QueueUrl=url)
    manual_clock.advance(59)
    assert code_of(new_queue, client) == "AWS.SimpleQueueService.QueueDeletedRecently"
    manual_clock.advance(1)
    assert counts(client, new_queue(client)) == (0, 0, 0)


def test_a_queue_is_purged_once_a_minute(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    send(client, url)
    send(client, url)
    handle = handle_of(client, url)
    client.purge_queue(QueueUrl=url)
    assert counts(client, url) == (0, 0, 0)
    delete(client, url, handle)
    with pytest.raises(ClientError) as caught:
        client.purge_queue(QueueUrl=url)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    manual_clock.advance(60)
    client.purge_queue(QueueUrl=url)


def test_the_queues_attributes_are_those_of_aws(client: Client, url: str) -> None:
    answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    assert answer["Attributes"] == {
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "CreatedTimestamp": "1800000000",
        "DelaySeconds": "0",
        "LastModifiedTimestamp": "1800000000",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "QueueArn": "arn:aws:sqs:us-east-1:123456789012:letters",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true",
        "VisibilityTimeout": "30",
    }
    assert "Attributes" not in client.get_queue_attributes(QueueUrl=url)


def test_queues_are_listed_in_pages(client: Client) -> None:
    urls = [new_queue(client, f"q{i}") for i in range(3)]
    new_queue(client, "other")
    page = client.list_queues(QueueNamePrefix="q", MaxResults=2)
    assert page["QueueUrls"] == urls[:2]
    rest = client.list_queues(QueueNamePrefix="q", MaxResults=2, NextToken=page["NextToken"])
    assert rest["QueueUrls"] == urls[2:]
    assert "NextToken" not in rest


def test_dead_letters_know_whose_they_are(client: Client) -> None:
    url, dead = with_dead_letters(client)
    assert client.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]
    assert client.list_dead_letter_source_queues(QueueUrl=url)["queueUrls"] == []
    client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert client.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == []


# -- faults


def test_a_scripted_failure_has_no_effect_and_is_used_up(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    simulated_sqs.faults.fail("SendMessage", code="RequestThrottled", times=2, after=1)
    send(client, url)
    assert code_of(send, client, url) == "RequestThrottled"
    assert code_of(send, client, url) == "RequestThrottled"
    send(client, url)
    assert counts(client, url) == (2, 0, 0)


def test_failures_come_in_the_order_they_were_scripted(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    simulated_sqs.faults.fail("SendMessage", code="AccessDenied")
    simulated_sqs.faults.fail("SendMessage", code="InternalError")
    with pytest.raises(ClientError) as first:
        send(client, url)
    with pytest.raises(ClientError) as second:
        send(client, url)
    shown = [
        (e.value.response["Error"]["Code"], e.value.response["Error"]["Type"])
        for e in (first, second)
    ]
    assert shown == [("AccessDenied", "Sender"), ("InternalError", "Receiver")]
    assert second.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500


def test_a_network_can_be_down_until_it_is_not(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    down = EndpointConnectionError(endpoint_url=client.meta.endpoint_url)
    simulated_sqs.faults.fail("SendMessage", error=down, times=math.inf)
    for _ in range(5):
        with pytest.raises(EndpointConnectionError):
            send(client, url)
    simulated_sqs.faults.clear()
    send(client, url)
    assert counts(client, url) == (1, 0, 0)


def test_a_lost_reply_had_its_effect(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    simulated_sqs.faults.lose_reply("SendMessage", after=1)
    send(client, url, "heard")
    with pytest.raises(ReadTimeoutError):
        send(client, url, "lost")
    assert bodies(client, url) == ["heard", "lost"]


def test_a_lost_receive_leaves_its_messages_in_flight(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    send(client, url)
    simulated_sqs.faults.lose_reply("ReceiveMessage")
    with pytest.raises(ReadTimeoutError):
        receive(client, url)
    assert counts(client, url) == (0, 1, 0)


def test_single_entries_of_a_batch_can_be_refused(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    simulated_sqs.faults.refuse("SendMessageBatch", positions=(0, 2))
    entries = [{"Id": name, "MessageBody": name} for name in "abc"]
    answer = client.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == ["b"]
    failed = [(e["Id"], e["Code"], e["SenderFault"]) for e in answer["Failed"]]
    assert failed == [("a", "InternalError", False), ("c", "InternalError", False)]
    assert bodies(client, url) == ["b"]
    simulated_sqs.faults.refuse("SendMessageBatch", code="AccessDenied")
    answer = client.send_message_batch(QueueUrl=url, Entries=entries[:1])
    assert "Successful" not in answer
    assert answer["Failed"][0]["SenderFault"] is True


def test_a_slow_reply_comes_late_and_its_effect_at_once() -> None:
    clock = ManualClock(auto_advance=True)
    sqs = SimulatedSqs(clock)
    client = sqs.client(read_timeout_seconds=5)
    url = new_queue(client)
    send(client, url)
    handle = handle_of(client, url, VisibilityTimeout=2)
    sqs.faults.slow("ChangeMessageVisibility", 4)
    extend(client, url, handle, 10)  # in time at the service, although the lease was shorter
    assert clock.monotonic() == 1_004
    assert counts(client, url) == (0, 1, 0)
    sqs.faults.slow("ChangeMessageVisibility", 6)
    with pytest.raises(ReadTimeoutError):
        extend(client, url, handle, 10)
    assert clock.monotonic() == 1_009


def test_a_frozen_service_does_nothing_until_the_clients_time_is_up() -> None:
    clock = ManualClock(auto_advance=True)
    sqs = SimulatedSqs(clock)
    client = sqs.client(read_timeout_seconds=7)
    url = new_queue(client)
    sqs.faults.freeze()
    with pytest.raises(ReadTimeoutError):
        send(client, url)
    assert clock.monotonic() == 1_007
    sqs.faults.thaw()
    assert counts(client, url) == (0, 0, 0)


def test_a_thawed_service_answers_those_who_still_wait(
    client: Client, url: str, simulated_sqs: SimulatedSqs, manual_clock: ManualClock
) -> None:
    simulated_sqs.faults.freeze()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(send, client, url)
        until_waiting(manual_clock)
        simulated_sqs.faults.thaw()
        assert waiting.result(10)["MessageId"]
    assert counts(client, url) == (1, 0, 0)


def test_a_script_that_could_never_strike_is_refused(simulated_sqs: SimulatedSqs) -> None:
    with pytest.raises(ValueError, match="no operation 'SendMessages'"):
        simulated_sqs.faults.fail("SendMessages")
    with pytest.raises(ValueError, match="no entries"):
        simulated_sqs.faults.refuse("SendMessage")


def test_a_message_in_flight_can_be_delivered_twice(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    for body in "ab":
        send(client, url, body)
    a, b = receive(client, url)
    assert simulated_sqs.duplicate("letters", b["MessageId"]) == 1
    (again,) = receive(client, url, AttributeNames=["ApproximateReceiveCount"])
    assert again["MessageId"] == b["MessageId"]
    assert again["Attributes"] == {"ApproximateReceiveCount": "2"}
    assert receive(client, url) == []  # twice, not for ever
    assert code_of(extend, client, url, b["ReceiptHandle"], 60) == "ReceiptHandleIsInvalid"
    extend(client, url, a["ReceiptHandle"], 60)
    assert simulated_sqs.duplicate("letters") == 2


def test_only_what_is_in_flight_can_be_doubled(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    send(client, url)
    assert simulated_sqs.duplicate("letters") == 0
    assert len(receive(client, url)) == 1
    assert receive(client, url) == []
    with pytest.raises(ValueError, match="no queue 'lettres'"):
        simulated_sqs.duplicate("lettres")


# -- the journal


def test_the_journal_counts_calls_and_their_entries(
    client: Client, url: str, simulated_sqs: SimulatedSqs, manual_clock: ManualClock
) -> None:
    simulated_sqs.calls.clear()
    manual_clock.advance(5)
    entries = [{"Id": name, "MessageBody": name} for name in "abc"]
    client.send_message_batch(QueueUrl=url, Entries=entries)
    send(client, url)
    simulated_sqs.faults.fail("SendMessage")
    assert code_of(send, client, url) == "InternalError"
    calls = simulated_sqs.calls
    assert calls.count("SendMessage") == 2  # a call that fails was made
    assert calls.count("SendMessage", "SendMessageBatch") == len(calls) == 3
    assert calls.entries("SendMessageBatch") == 3
    assert (calls[0].operation, calls[0].queue) == ("SendMessageBatch", "letters")
    assert [call.at_seconds for call in calls] == [1_005, 1_005, 1_005]


def test_the_journal_keeps_neither_bodies_nor_handles(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    send(client, url, "secret-body")
    handle = handle_of(client, url)
    delete(client, url, handle)
    told = repr(list(simulated_sqs.calls))
    assert "DeleteMessage" in told
    assert "secret-body" not in told
    assert handle not in told
