"""One set of assertions about SQS, on the simulator and on moto.

Two independent implementations that agree are more reliable than one. Where moto is known to
differ from AWS, `Behaviour` says how. The assertions run there as well, with moto's response,
so that a corrected moto is noticed.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
import time_machine
from botocore.exceptions import ClientError
from moto import mock_aws

from holdfast.testing import ManualClock, SimulatedSqs
from support.sqs.calls import (
    count_messages,
    create_queue,
    create_queue_with_dead_letters,
    delete,
    extend,
    get_arn,
    get_error_code,
    receive,
    receive_bodies,
    receive_handle,
    send,
    send_fifo,
)

START = 1_800_000_000.0


@dataclass(frozen=True)
class Ground:
    client: Any
    advance: Callable[[float], None]
    is_exact: bool = True  # it behaves as AWS where implementations differ
    stale_receipts_work: bool = False


def open_simulated(stale_handles: Any) -> Iterator[Ground]:
    clock = ManualClock(time=START)
    sqs = SimulatedSqs(clock, stale_handles=stale_handles)
    is_effective = stale_handles == "effective"
    yield Ground(sqs.client(), clock.advance, stale_receipts_work=is_effective)


def open_moto() -> Iterator[Ground]:
    with time_machine.travel(START, tick=False) as traveller, mock_aws():
        client = boto3.client("sqs", region_name="us-east-1")
        yield Ground(client, traveller.shift, is_exact=False, stale_receipts_work=True)


GROUNDS: dict[str, Callable[[], Iterator[Ground]]] = {
    "simulated": lambda: open_simulated("strict"),
    "simulated with effective receipts": lambda: open_simulated("effective"),
    "moto": open_moto,
}


@pytest.fixture(params=GROUNDS)
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    yield from GROUNDS[request.param]()


@pytest.fixture
def client(ground: Ground) -> Any:
    return ground.client


@pytest.fixture
def url(client: Any) -> str:
    return create_queue(client)


def get_refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return the error code without its prefix, which moto sometimes omits."""
    return get_error_code(call, *args, **kwargs).removeprefix("AWS.SimpleQueueService.")


# -- sending


def test_a_response_has_the_checksum_of_the_body(client: Any, url: str) -> None:
    checksum = hashlib.md5("grüße".encode(), usedforsecurity=False).hexdigest()
    assert send(client, url, "grüße")["MD5OfMessageBody"] == checksum
    (message,) = receive(client, url)
    assert (message["Body"], message["MD5OfBody"]) == ("grüße", checksum)


@pytest.mark.parametrize(
    ("names", "seen"),
    [
        ([], []),
        (["a.x"], ["a.x"]),
        (["a.*"], ["a.x", "a.y"]),
        ([".*"], ["a.x", "a.y", "b"]),
        (["All"], ["a.x", "a.y", "b"]),
    ],
)
def test_attributes_are_given_by_name_prefix_or_all(
    client: Any, url: str, names: list[str], seen: list[str]
) -> None:
    value = {"DataType": "String", "StringValue": "1"}
    send(client, url, MessageAttributes=dict.fromkeys(("a.x", "a.y", "b"), value))
    (message,) = receive(client, url, MessageAttributeNames=names)
    assert sorted(message.get("MessageAttributes", {})) == seen


def test_a_delayed_message_waits_its_time(ground: Ground, client: Any) -> None:
    url = create_queue(client, DelaySeconds=60)
    send(client, url, "late")
    send(client, url, "now", DelaySeconds=0)
    assert count_messages(client, url) == (1, 0, 1)
    assert receive_bodies(client, url, VisibilityTimeout=600) == ["now"]
    ground.advance(59)
    assert receive(client, url) == []
    ground.advance(2)
    assert receive_bodies(client, url) == ["late"]


def test_a_delay_of_more_than_fifteen_minutes_is_refused(client: Any, url: str) -> None:
    assert get_refusal(send, client, url, DelaySeconds=901) == "InvalidParameterValue"
    send(client, url, DelaySeconds=900)
    assert count_messages(client, url) == (0, 0, 1)


def test_a_delay_out_of_range_fails_its_entry_alone(client: Any, url: str) -> None:
    answer = client.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "good", "MessageBody": "good"},
            {"Id": "bad", "MessageBody": "bad", "DelaySeconds": 901},
        ],
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["good"]
    (failed,) = answer["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == (
        "bad",
        "InvalidParameterValue",
        True,
    )
    assert receive_bodies(client, url) == ["good"]


def test_a_message_over_the_size_is_refused(ground: Ground, client: Any) -> None:
    url = create_queue(client, MaximumMessageSize=1024)
    send(client, url, "x" * 1024)
    assert get_refusal(send, client, url, "x" * 1025) == "InvalidParameterValue"
    in_bytes = get_refusal(send, client, url, "ä" * 1000) == "InvalidParameterValue"
    assert in_bytes is ground.is_exact
    attribute = {"a": {"DataType": "String", "StringValue": "x"}}
    counted = get_refusal(send, client, url, "x" * 1020, MessageAttributes=attribute)
    assert bool(counted) is ground.is_exact


def test_a_message_over_the_size_fails_its_entry(ground: Ground, client: Any) -> None:
    url = create_queue(client, MaximumMessageSize=1024)
    entries = [
        {"Id": "good", "MessageBody": "x"},
        {"Id": "bad", "MessageBody": "x" * 1025},
    ]
    code = get_refusal(client.send_message_batch, QueueUrl=url, Entries=entries)
    alone = ground.is_exact
    assert code == ("" if alone else "InvalidParameterValue")
    assert count_messages(client, url) == (int(alone), 0, 0)


def test_a_body_must_be_text_xml_can_carry(ground: Ground, client: Any, url: str) -> None:
    code = get_refusal(send, client, url, "a\x01b")
    assert code == ("InvalidMessageContents" if ground.is_exact else "")
    code = get_refusal(send, client, url, "")
    assert code == ("MissingParameter" if ground.is_exact else "")


# -- batches


def test_a_batch_has_one_to_ten_entries_with_ids_of_their_own(client: Any, url: str) -> None:
    def batch(*ids: str) -> str:
        entries = [{"Id": entry_id, "MessageBody": "x"} for entry_id in ids]
        return get_refusal(client.send_message_batch, QueueUrl=url, Entries=entries)

    assert batch() == "EmptyBatchRequest"
    assert batch(*map(str, range(11))) == "TooManyEntriesInBatchRequest"
    assert batch("a", "b", "a") == "BatchEntryIdsNotDistinct"
    assert batch("a:b") == "InvalidBatchEntryId"
    assert count_messages(client, url) == (0, 0, 0)
    assert batch(*map(str, range(10))) == ""
    assert count_messages(client, url) == (10, 0, 0)


def test_a_batch_of_renewals_has_one_to_ten_entries(
    ground: Ground, client: Any, url: str
) -> None:
    def batch(size: int) -> str:
        entries = [
            {"Id": str(i), "ReceiptHandle": "h", "VisibilityTimeout": 1} for i in range(size)
        ]
        return get_refusal(
            client.change_message_visibility_batch, QueueUrl=url, Entries=entries
        )

    assert batch(0) == ("EmptyBatchRequest" if ground.is_exact else "")
    assert batch(11) == ("TooManyEntriesInBatchRequest" if ground.is_exact else "")


def test_a_bad_receipt_fails_its_entry_alone(ground: Ground, client: Any, url: str) -> None:
    send(client, url)
    handle = receive_handle(client, url)
    entries = [
        {"Id": "bad", "ReceiptHandle": "never given"},
        {"Id": "good", "ReceiptHandle": handle},
    ]
    longer = [{**entry, "VisibilityTimeout": 60} for entry in entries]
    for answer in (
        client.change_message_visibility_batch(QueueUrl=url, Entries=longer),
        client.delete_message_batch(QueueUrl=url, Entries=entries),
    ):
        assert answer["Successful"] == [{"Id": "good"}]
        (failed,) = answer["Failed"]
        assert (failed["Id"], failed["Code"], failed["SenderFault"]) == (
            "bad",
            "ReceiptHandleIsInvalid",
            True,
        )
    assert count_messages(client, url) == (0, 0, 0)


def test_a_list_that_would_be_empty_is_omitted(ground: Ground, client: Any, url: str) -> None:
    entries = [{"Id": "a", "MessageBody": "x"}]
    answer = client.send_message_batch(QueueUrl=url, Entries=entries)
    assert ("Failed" not in answer) is ground.is_exact
    assert not answer.get("Failed")


# -- receiving and holding


def test_a_received_message_is_hidden_for_its_visibility(ground: Ground, client: Any) -> None:
    url = create_queue(client, VisibilityTimeout=60)
    send(client, url)
    first = receive_handle(client, url)
    assert count_messages(client, url) == (0, 1, 0)
    ground.advance(59)
    assert receive(client, url) == []
    ground.advance(2)
    assert count_messages(client, url) == (1, 0, 0)
    second = receive_handle(client, url, VisibilityTimeout=600)
    assert second != first
    ground.advance(599)
    assert receive(client, url) == []


def test_an_empty_receive_has_no_list(client: Any, url: str) -> None:
    assert "Messages" not in client.receive_message(QueueUrl=url)


def test_a_receive_brings_one_unless_asked_for_more(client: Any, url: str) -> None:
    for body in "abc":
        send(client, url, body)
    assert len(client.receive_message(QueueUrl=url)["Messages"]) == 1
    assert len(receive(client, url)) == 2


def test_extending_counts_from_now(ground: Ground, client: Any, url: str) -> None:
    send(client, url)
    handle = receive_handle(client, url)
    ground.advance(20)
    extend(client, url, handle, 30)
    ground.advance(29)
    assert receive(client, url) == []
    ground.advance(2)
    assert len(receive(client, url)) == 1


def test_giving_back_makes_it_visible(ground: Ground, client: Any, url: str) -> None:
    send(client, url)
    extend(client, url, receive_handle(client, url), 0)
    ground.advance(0.01)
    assert len(receive(client, url)) == 1


def test_a_deleted_message_stays_deleted_and_deleting_again_succeeds(
    ground: Ground, client: Any, url: str
) -> None:
    send(client, url)
    handle = receive_handle(client, url)
    delete(client, url, handle)
    delete(client, url, handle)
    ground.advance(31)
    assert receive(client, url) == []


def test_extending_a_deleted_message_is_refused(client: Any, url: str) -> None:
    send(client, url)
    handle = receive_handle(client, url)
    delete(client, url, handle)
    # moto responds that it never gave the handle; AWS responds that the message is gone.
    assert get_refusal(extend, client, url, handle, 30) in (
        "InvalidParameterValue",
        "ReceiptHandleIsInvalid",
    )


def test_receives_are_counted(ground: Ground, client: Any, url: str) -> None:
    send(client, url)
    for count in ("1", "2", "3"):
        (message,) = receive(client, url, AttributeNames=["ApproximateReceiveCount"])
        assert message["Attributes"] == {"ApproximateReceiveCount": count}
        ground.advance(31)


def test_timestamps_are_in_milliseconds(ground: Ground, client: Any, url: str) -> None:
    send(client, url)
    ground.advance(5)
    (message,) = receive(client, url, MessageSystemAttributeNames=["All"])
    assert message["Attributes"]["SentTimestamp"] == "1800000000000"
    assert message["Attributes"]["ApproximateFirstReceiveTimestamp"] == "1800000005000"


def test_a_handle_never_given_is_refused(client: Any, url: str) -> None:
    assert get_refusal(delete, client, url, "garbage") == "ReceiptHandleIsInvalid"
    assert get_refusal(extend, client, url, "garbage", 1) == "ReceiptHandleIsInvalid"


@pytest.mark.parametrize("seconds_lost", [31, 62])
def test_a_stale_receipt_may_still_work(
    ground: Ground, client: Any, url: str, seconds_lost: int
) -> None:
    send(client, url)
    stale = receive_handle(client, url)
    ground.advance(31)
    if seconds_lost > 31:
        receive_handle(client, url)  # another receiver has it now
    works = ground.stale_receipts_work
    assert (get_refusal(extend, client, url, stale, 60) == "") is works
    assert (get_refusal(delete, client, url, stale) == "") is works
    assert sum(count_messages(client, url)) == (0 if works else 1)


def test_more_than_twelve_hours_is_refused(ground: Ground, client: Any, url: str) -> None:
    send(client, url)
    handle = receive_handle(client, url)
    assert get_refusal(extend, client, url, handle, 43_201) == "InvalidParameterValue"
    extend(client, url, handle, 43_200)
    ground.advance(40_000)
    assert get_refusal(extend, client, url, handle, 3_201) == "InvalidParameterValue"
    extend(client, url, handle, 3_200)


def test_twelve_hours_count_from_the_receive(ground: Ground, client: Any, url: str) -> None:
    send(client, url)
    ground.advance(3_600)
    code = get_refusal(extend, client, url, receive_handle(client, url), 43_200)
    assert (code != "") is not ground.is_exact


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MaxNumberOfMessages", 0),
        ("MaxNumberOfMessages", 11),
        ("WaitTimeSeconds", 21),
        ("VisibilityTimeout", 43_201),
    ],
)
def test_a_receive_out_of_range_is_refused(
    client: Any, url: str, name: str, value: int
) -> None:
    code = get_refusal(client.receive_message, QueueUrl=url, **{name: value})
    assert code == "InvalidParameterValue"


def test_a_message_is_gone_when_its_retention_is_over(ground: Ground, client: Any) -> None:
    url = create_queue(client, MessageRetentionPeriod=60)
    send(client, url)
    ground.advance(61)
    assert receive(client, url) == []


# -- dead letters


def test_a_message_received_too_often_becomes_a_dead_letter(
    ground: Ground, client: Any
) -> None:
    url, dead = create_queue_with_dead_letters(client, max_receives=2)
    attribute = {"a": {"DataType": "String", "StringValue": "1"}}
    sent = send(client, url, "poison", MessageAttributes=attribute)
    for _ in range(2):
        assert receive_bodies(client, url) == ["poison"]
        ground.advance(31)
    assert receive(client, url) == []
    (message,) = receive(client, dead, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert message["MessageId"] == sent["MessageId"]
    assert message["MessageAttributes"] == attribute
    assert message["Attributes"]["ApproximateReceiveCount"] == "3"
    named = "DeadLetterQueueSourceArn" in message["Attributes"]
    assert named is ground.is_exact


def test_a_redrive_policy_needs_a_target_and_a_count(client: Any, url: str) -> None:
    for policy in ({"maxReceiveCount": 3}, {"deadLetterTargetArn": get_arn(client, url)}):
        attributes = {"RedrivePolicy": json.dumps(policy)}
        code = get_refusal(client.set_queue_attributes, QueueUrl=url, Attributes=attributes)
        assert code == "InvalidParameterValue"


# -- FIFO


def test_a_group_waits_while_one_of_its_messages_is_in_flight(client: Any) -> None:
    url = create_queue(client, "letters.fifo")
    for body, group in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        send_fifo(client, url, body, group)
    (first,) = receive(client, url, limit=1)
    assert first["Body"] == "a1"
    assert receive_bodies(client, url) == ["b1"]
    delete(client, url, first["ReceiptHandle"])
    assert receive_bodies(client, url) == ["a2"]


def test_a_group_comes_in_order(ground: Ground, client: Any) -> None:
    url = create_queue(client, "letters.fifo")
    for body in "123":
        send_fifo(client, url, body)
    assert receive_bodies(client, url) == ["1", "2", "3"]
    assert receive(client, url) == []
    ground.advance(31)
    in_order = receive_bodies(client, url) == ["1", "2", "3"]
    assert in_order is ground.is_exact


def test_a_duplicate_is_not_stored_for_five_minutes(ground: Ground, client: Any) -> None:
    url = create_queue(client, "letters.fifo")
    send_fifo(client, url, "once")
    ground.advance(299)
    send_fifo(client, url, "once")
    assert count_messages(client, url) == (1, 0, 0)
    ground.advance(2)
    send_fifo(client, url, "once")
    assert count_messages(client, url) == (2, 0, 0)


def test_a_duplicate_of_a_deleted_message_is_not_stored(ground: Ground, client: Any) -> None:
    url = create_queue(client, "letters.fifo")
    send_fifo(client, url, "once")
    delete(client, url, receive_handle(client, url))
    send_fifo(client, url, "once")
    remembers = ground.is_exact
    assert receive_bodies(client, url) == ([] if remembers else ["once"])


def test_content_can_be_the_deduplication_id(client: Any) -> None:
    url = create_queue(client, "letters.fifo", ContentBasedDeduplication="true")
    for body in ("a", "a", "b"):
        send(client, url, body, MessageGroupId="g")
    messages = receive(client, url, AttributeNames=["All"])
    assert [message["Body"] for message in messages] == ["a", "b"]
    assert messages[0]["Attributes"]["MessageGroupId"] == "g"
    assert messages[0]["Attributes"]["MessageDeduplicationId"] == (
        hashlib.sha256(b"a").hexdigest()
    )


def test_a_fifo_message_needs_its_ids_and_has_no_delay(client: Any) -> None:
    url = create_queue(client, "letters.fifo")
    assert get_refusal(send, client, url, "x") == "MissingParameter"
    assert get_refusal(send, client, url, "x", MessageGroupId="g") == "InvalidParameterValue"
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    assert get_refusal(send, client, url, "x", DelaySeconds=1, **ids) == "InvalidParameterValue"


def test_a_fifo_receipt_expires(ground: Ground, client: Any) -> None:
    url = create_queue(client, "letters.fifo")
    send_fifo(client, url, "a")
    handle = receive_handle(client, url)
    ground.advance(31)
    code = get_refusal(delete, client, url, handle)
    assert code == ("InvalidParameterValue" if ground.is_exact else "")


# -- queues


def test_a_call_to_a_missing_queue_is_refused(client: Any, url: str) -> None:
    with pytest.raises(ClientError) as caught:
        send(client, url + "-not")
    error = caught.value
    assert error.operation_name == "SendMessage"
    assert error.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert get_refusal(client.get_queue_url, QueueName="none") == "NonExistentQueue"


def test_creating_a_queue_again_succeeds_only_with_the_same_attributes(
    client: Any, url: str
) -> None:
    assert create_queue(client, VisibilityTimeout=30) == url
    assert client.get_queue_url(QueueName="letters")["QueueUrl"] == url
    assert get_refusal(create_queue, client, VisibilityTimeout=31) == "QueueAlreadyExists"


def test_purging_removes_all_messages(client: Any, url: str) -> None:
    send(client, url)
    send(client, url, DelaySeconds=900)
    receive_handle(client, url)
    client.purge_queue(QueueUrl=url)
    assert count_messages(client, url) == (0, 0, 0)


def test_attributes_change_what_comes_after(ground: Ground, client: Any, url: str) -> None:
    client.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "5"})
    send(client, url)
    receive_handle(client, url)
    ground.advance(6)
    assert len(receive(client, url)) == 1
