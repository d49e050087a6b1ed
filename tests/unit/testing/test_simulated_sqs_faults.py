"""The SQS simulator: failures that a test scripts."""

import math

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from holdfast.testing import ManualClock, SimulatedSqs
from support.sqs.calls import (
    Client,
    count_messages,
    create_queue,
    extend,
    get_error_code,
    receive,
    receive_bodies,
    receive_handle,
    send,
)

# -- faults


def test_a_scripted_failure_has_no_effect_and_is_used_up(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    simulated_sqs.faults.fail("SendMessage", code="RequestThrottled", times=2, after=1)
    send(client, url)
    assert get_error_code(send, client, url) == "RequestThrottled"
    assert get_error_code(send, client, url) == "RequestThrottled"
    send(client, url)
    assert count_messages(client, url) == (2, 0, 0)


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


def test_a_network_can_be_down_for_a_number_of_calls(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    down = EndpointConnectionError(endpoint_url=client.meta.endpoint_url)
    simulated_sqs.faults.fail("SendMessage", error=down, times=math.inf)
    for _ in range(5):
        with pytest.raises(EndpointConnectionError):
            send(client, url)
    simulated_sqs.faults.clear()
    send(client, url)
    assert count_messages(client, url) == (1, 0, 0)


def test_a_lost_reply_had_its_effect(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    simulated_sqs.faults.lose_reply("SendMessage", after=1)
    send(client, url, "heard")
    with pytest.raises(ReadTimeoutError):
        send(client, url, "lost")
    assert receive_bodies(client, url) == ["heard", "lost"]


def test_a_lost_receive_leaves_its_messages_in_flight(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    send(client, url)
    simulated_sqs.faults.lose_reply("ReceiveMessage")
    with pytest.raises(ReadTimeoutError):
        receive(client, url)
    assert count_messages(client, url) == (0, 1, 0)


def test_single_entries_of_a_batch_can_be_refused(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    simulated_sqs.faults.refuse("SendMessageBatch", positions=(0, 2))
    entries = [{"Id": name, "MessageBody": name} for name in "abc"]
    answer = client.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == ["b"]
    failed = [(e["Id"], e["Code"], e["SenderFault"]) for e in answer["Failed"]]
    assert failed == [("a", "InternalError", False), ("c", "InternalError", False)]
    assert receive_bodies(client, url) == ["b"]
    simulated_sqs.faults.refuse("SendMessageBatch", code="AccessDenied")
    answer = client.send_message_batch(QueueUrl=url, Entries=entries[:1])
    assert "Successful" not in answer
    assert answer["Failed"][0]["SenderFault"] is True


def test_a_slow_reply_comes_late_and_its_effect_at_once() -> None:
    clock = ManualClock(auto_advance=True)
    sqs = SimulatedSqs(clock)
    client = sqs.client(read_timeout_seconds=5)
    url = create_queue(client)
    send(client, url)
    handle = receive_handle(client, url, VisibilityTimeout=2)
    sqs.faults.slow("ChangeMessageVisibility", 4)
    extend(client, url, handle, 10)  # the service acted in time, although the lease was shorter
    assert clock.monotonic() == 1_004
    assert count_messages(client, url) == (0, 1, 0)
    sqs.faults.slow("ChangeMessageVisibility", 6)
    with pytest.raises(ReadTimeoutError):
        extend(client, url, handle, 10)
    assert clock.monotonic() == 1_009


def test_a_fault_that_could_never_apply_is_refused(simulated_sqs: SimulatedSqs) -> None:
    with pytest.raises(ValueError, match="not 'SendMessages'"):
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
    assert receive(client, url) == []  # twice, not forever
    assert (
        get_error_code(extend, client, url, b["ReceiptHandle"], 60) == "ReceiptHandleIsInvalid"
    )
    extend(client, url, a["ReceiptHandle"], 60)
    assert simulated_sqs.duplicate("letters") == 2


def test_duplicating_twice_delivers_once_more(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    send(client, url)
    receive(client, url)
    simulated_sqs.duplicate("letters")
    simulated_sqs.duplicate("letters")
    assert len(receive(client, url, limit=1)) == 1
    assert receive(client, url, limit=1) == []


def test_only_messages_in_flight_can_be_duplicated(
    client: Client, url: str, simulated_sqs: SimulatedSqs
) -> None:
    send(client, url)
    assert simulated_sqs.duplicate("letters") == 0
    assert len(receive(client, url)) == 1
    assert receive(client, url) == []
    with pytest.raises(ValueError, match="no queue 'lettres'"):
        simulated_sqs.duplicate("lettres")
