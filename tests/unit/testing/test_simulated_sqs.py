"""The SQS simulator: requests that it accepts and refuses, and its responses.

Behaviour that it shares with moto is tested in contracts/test_sqs_semantics.py.
"""

from typing import Any

import pytest
from botocore.exceptions import ClientError, ParamValidationError

from holdfast.testing import ManualClock, SimulatedSqs
from support.sqs.calls import (
    Client,
    count_messages,
    create_queue,
    delete,
    extend,
    get_error_code,
    receive,
    receive_handle,
    send,
)

# -- errors and arguments, as boto3 has them


@pytest.mark.parametrize(
    "request_",
    [
        {"MaxNumberOfMessages": 1},
        {"QueueUrl": "u", "VisibilityTimeout": 30.0},
        {"QueueUrl": "u", "WaitTimeSeconds": "20"},
        {"QueueUrl": "u", "Nonsense": 1},
    ],
)
def test_arguments_are_checked_as_botocore_does_before_the_service_is_called(
    client: Client, simulated_sqs: SimulatedSqs, request_: Any
) -> None:
    with pytest.raises(ParamValidationError):
        client.receive_message(**request_)
    assert len(simulated_sqs.calls) == 0


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


def test_a_url_of_another_account_is_not_this_queue(client: Client, url: str) -> None:
    foreign = url.replace("123456789012", "999999999999")
    assert get_error_code(receive, client, foreign) == "AWS.SimpleQueueService.NonExistentQueue"
    assert receive(client, "letters") == []  # a bare name is enough


def test_the_same_seed_gives_the_same_ids(manual_clock: ManualClock) -> None:
    def ids(seed: int) -> tuple[str, str]:
        client = SimulatedSqs(manual_clock, seed=seed).client()
        url = create_queue(client)
        return send(client, url)["MessageId"], receive_handle(client, url)

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


# -- limits


def test_a_message_over_the_size_is_refused_attributes_counted(client: Client) -> None:
    url = create_queue(client, MaximumMessageSize=1024)
    attribute = {"kind": {"DataType": "String", "StringValue": "12345"}}  # 4 + 6 + 5 bytes
    send(client, url, "ä" * 504 + "x", MessageAttributes=attribute)
    too_long = "ä" * 505
    assert get_error_code(send, client, url, too_long, MessageAttributes=attribute) == (
        "InvalidParameterValue"
    )
    assert count_messages(client, url) == (1, 0, 0)


def test_a_batch_over_a_mebibyte_is_refused_completely(client: Client, url: str) -> None:
    def batch(last: int) -> Any:
        sizes = [104_857] * 9 + [last]
        entries = [{"Id": str(i), "MessageBody": "x" * n} for i, n in enumerate(sizes)]
        return client.send_message_batch(QueueUrl=url, Entries=entries)

    assert get_error_code(batch, 104_864) == "AWS.SimpleQueueService.BatchRequestTooLong"
    assert count_messages(client, url) == (0, 0, 0)
    assert len(batch(104_863)["Successful"]) == 10


@pytest.mark.parametrize("body", ["\x00", "a\x1fb", "\ufffe", "\ud800"])
def test_a_body_xml_cannot_carry_is_refused(client: Client, url: str, body: str) -> None:
    assert get_error_code(send, client, url, body) == "InvalidMessageContents"
    answer = client.send_message_batch(
        QueueUrl=url,
        Entries=[{"Id": "bad", "MessageBody": body}, {"Id": "good", "MessageBody": "\t𝄞"}],
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["good"]
    assert answer["Failed"][0]["Code"] == "InvalidMessageContents"


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
    code = get_error_code(send, client, url, "x", MessageAttributes={name: attribute})
    assert code == "InvalidParameterValue"


def test_more_than_ten_message_attributes_are_refused(client: Client, url: str) -> None:
    attributes = {f"a{i}": {"DataType": "String", "StringValue": "x"} for i in range(11)}
    code = get_error_code(send, client, url, "x", MessageAttributes=attributes)
    assert code == "InvalidParameterValue"


def test_no_response_repeats_a_receipt_handle_in_its_text(client: Client, url: str) -> None:
    with pytest.raises(ClientError) as caught:
        delete(client, url, "secret-handle")
    assert "secret-handle" not in str(caught.value)


# -- retention and attributes


def test_holding_a_message_does_not_make_it_younger(
    client: Client, manual_clock: ManualClock
) -> None:
    url = create_queue(client, MessageRetentionPeriod=60)
    send(client, url)
    handle = receive_handle(client, url, VisibilityTimeout=600)
    manual_clock.advance(60)
    assert count_messages(client, url) == (0, 0, 0)
    assert get_error_code(extend, client, url, handle, 5) == "InvalidParameterValue"
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


def test_stepping_the_wall_clock_moves_no_visibility(
    client: Client, url: str, manual_clock: ManualClock
) -> None:
    send(client, url)
    receive_handle(client, url)
    manual_clock.step_time(86_400)
    assert receive(client, url) == []


def test_changes_to_a_response_do_not_affect_the_service(client: Client, url: str) -> None:
    send(client, url, MessageAttributes={"a": {"DataType": "Number", "StringValue": "1"}})
    (first,) = receive(client, url, MessageAttributeNames=["All"], VisibilityTimeout=0)
    first["MessageAttributes"]["a"]["StringValue"] = "2"
    (second,) = receive(client, url, MessageAttributeNames=["All"])
    assert second["MessageAttributes"]["a"] == {"DataType": "Number", "StringValue": "1"}


# -- queues


@pytest.mark.parametrize(
    ("name", "attributes", "code"),
    [
        ("no spaces", {}, "InvalidParameterValue"),
        ("x" * 81, {}, "InvalidParameterValue"),
        ("q", {"FifoQueue": "true"}, "InvalidParameterValue"),
    ],
)
def test_a_queue_with_invalid_settings_is_refused(
    client: Client, name: str, attributes: dict[str, str], code: str
) -> None:
    assert get_error_code(client.create_queue, QueueName=name, Attributes=attributes) == code


def test_the_queues_attributes_are_those_of_aws(client: Client, url: str) -> None:
    answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    assert answer["Attributes"] == {
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "QueueArn": "arn:aws:sqs:us-east-1:123456789012:letters",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true",
        "VisibilityTimeout": "30",
    }
    assert "Attributes" not in client.get_queue_attributes(QueueUrl=url)


def test_queues_are_listed_in_pages(client: Client) -> None:
    urls = [create_queue(client, f"q{i}") for i in range(3)]
    create_queue(client, "other")
    page = client.list_queues(QueueNamePrefix="q", MaxResults=2)
    assert page["QueueUrls"] == urls[:2]
    rest = client.list_queues(QueueNamePrefix="q", MaxResults=2, NextToken=page["NextToken"])
    assert rest["QueueUrls"] == urls[2:]
    assert "NextToken" not in rest


# -- the log of calls


def test_the_call_log_counts_calls_and_their_entries(
    client: Client, url: str, simulated_sqs: SimulatedSqs, manual_clock: ManualClock
) -> None:
    simulated_sqs.calls.clear()
    manual_clock.advance(5)
    entries = [{"Id": name, "MessageBody": name} for name in "abc"]
    client.send_message_batch(QueueUrl=url, Entries=entries)
    send(client, url)
    simulated_sqs.faults.fail("SendMessage")
    assert get_error_code(send, client, url) == "InternalError"
    calls = simulated_sqs.calls
    assert calls.count("SendMessage") == 2  # a call that fails counts
    assert calls.count("SendMessage", "SendMessageBatch") == len(calls) == 3
    assert calls.entries("SendMessageBatch") == 3
    assert (calls[0].operation, calls[0].queue) == ("SendMessageBatch", "letters")
    assert [call.at_seconds for call in calls] == [1_005, 1_005, 1_005]


def test_the_call_log_has_no_bodies_and_no_handles(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    send(client, url, "secret-body")
    handle = receive_handle(client, url)
    delete(client, url, handle)
    printed = repr(list(simulated_sqs.calls))
    assert "DeleteMessage" in printed
    assert "secret-body" not in printed
    assert handle not in printed
