"""A gateway that responds with status 200 in a service's place, to clients of both kinds.

boto3 takes most of these for empty successes, and so does the lean client for some.
"""

import json
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
from aws_responses import CONTENTS, QUEUE, RECEIPT
from client_maker import ClientMaker, call_queue, send_success

from holdfast.aws.heartbeat import SQSHeartbeat, visibility_timeout_of
from holdfast.errors import QueueUnavailable, StoreUnavailable
from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.exports.errors import CallbackUnclear
from holdfast.queue.manager import MessageState
from holdfast.queue.message import AnyMessage
from holdfast.queues.listing import list_queue_names
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import ManualClock, SimulatedSqs
from support.aws.sqs_over_http import REQUEST_ID, SqsOverHttp, make_success
from support.dynamodb.jobs import make_job
from support.http_server import Ask, LoopbackServer, Route, Wire, status
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until

GATEWAYS: dict[str, Route] = {
    **CONTENTS,
    "an empty body": status("200 OK"),
    "an empty object": status("200 OK", "Content-Type: application/json", body=b"{}"),
    "an object": status("200 OK", "Content-Type: application/json", body=b'{"ok": true}'),
    "no content": status("204 No Content"),
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


@pytest.fixture
def sqs(clock: ManualClock) -> SqsOverHttp:
    service = SqsOverHttp(SimulatedSqs(clock))
    service.client.create_queue(QueueName="work")
    return service


@pytest.fixture
def queue(maker: ClientMaker, clock: ManualClock) -> SQSQueue[AnyMessage]:
    return SQSQueue("work", clock=clock, client=maker.make_fail_fast())


@pytest.fixture
def respond_instead(server: LoopbackServer, sqs: SqsOverHttp) -> Callable[..., None]:
    """Let SQS respond, except to these operations."""

    def set_route(route: Route, *operations: str) -> None:
        def choose(ask: Ask, wire: Wire) -> None:
            operation = ask.headers["x-amz-target"].rpartition(".")[2]
            (route if operation in operations else sqs(ask))(ask, wire)

        server.on("/", choose)

    return set_route


RespondInstead = Callable[..., None]


@pytest.mark.parametrize("name", GATEWAYS)
def test_a_response_that_is_not_of_the_service_is_no_success(
    maker: ClientMaker, server: LoopbackServer, clock: ManualClock, name: str
) -> None:
    server.on("/", GATEWAYS[name])
    with pytest.raises(QueueUnavailable):
        call_queue(maker.make_fail_fast())
    with pytest.raises(CallbackUnclear):
        send_success(maker.make_fail_fast("stepfunctions"))
    jobs = DynamoDBJobs(client=maker.make_fail_fast("dynamodb"), clock=clock)
    with pytest.raises(StoreUnavailable):
        jobs.save(make_job(clock))
    with pytest.raises(StoreUnavailable):  # and not "there is no such job"
        jobs.find_by_id("job")
    assert len(server.asks) == 4


@pytest.mark.parametrize("name", GATEWAYS)
def test_every_call_to_sqs_notices_a_response_that_is_not_of_sqs(
    maker: ClientMaker, server: LoopbackServer, queue: SQSQueue[AnyMessage], name: str
) -> None:
    server.on("/", GATEWAYS[name])
    client = maker.make_fail_fast()
    for call in (
        lambda: queue.push(AnyMessage(id="a")),
        lambda: queue.push_many([AnyMessage(id="a")]),
        lambda: queue.poll(),
        lambda: queue.stats(),
        lambda: list(queue.peek(MessageState.FAILED)),
        lambda: list(list_queue_names("w", client)),
        lambda: visibility_timeout_of(QUEUE, client),
    ):
        with pytest.raises(QueueUnavailable):
            call()


@pytest.mark.parametrize("name", GATEWAYS)
def test_a_heartbeat_trusts_no_extension_that_sqs_did_not_confirm(
    maker: ClientMaker, server: LoopbackServer, name: str
) -> None:
    server.on("/", GATEWAYS[name])
    client = maker.make_fail_fast()
    with SQSHeartbeat(QUEUE, RECEIPT, 100, 300, client=client, initial_beat=True) as heartbeat:
        wait_until(lambda: heartbeat.transient_errors == 1)


OTHER_MD5 = "0" * 32
BAD_COPIES: dict[str, object] = {
    "no id": {"MD5OfMessageBody": OTHER_MD5},
    "an empty id": {"MessageId": ""},
    "an id that is no text": {"MessageId": 7},
    "the MD5 of another body": {"MessageId": "a", "MD5OfMessageBody": OTHER_MD5},
}
ROUTES = GATEWAYS | {name: make_success(content) for name, content in BAD_COPIES.items()}


@pytest.mark.parametrize("name", ROUTES)
def test_a_message_is_not_deleted_before_sqs_has_confirmed_its_copy(
    queue: SQSQueue[AnyMessage],
    sqs: SqsOverHttp,
    respond_instead: RespondInstead,
    name: str,
) -> None:
    respond_instead(ROUTES[name])
    queue.push(AnyMessage(id="a"))
    [message] = queue.poll()
    respond_instead(ROUTES[name], "SendMessage")
    with pytest.raises(QueueUnavailable):
        queue.push(AnyMessage(id="b"))
    with pytest.raises(QueueUnavailable):
        queue.dead_letter(message, reason="bad")
    assert not sqs.deleted
    respond_instead(ROUTES[name])
    queue.dead_letter(message, reason="bad")
    assert [letter.id for letter in queue.peek(MessageState.FAILED)] == ["a"]


def accept(*ids: str, kind: str = "Successful") -> dict[str, object]:
    return {kind: [{"Id": id, "MessageId": id} for id in ids]}


BAD_BATCHES: dict[str, object] = {
    "none": accept(),
    "one is missing": accept("1"),
    "counted from the end": accept("-1", "-2"),
    "another call's": accept("0", "1", "2"),
    "one twice": accept("0", "1", "1"),
    "one in both lists": accept("0", "1") | accept("1", kind="Failed"),
    "a number": {"Successful": [{"Id": 0, "MessageId": "a"}, {"Id": 1, "MessageId": "b"}]},
    "not a list": {"Successful": {"Id": "0", "MessageId": "a"}},
    "other numerals": accept("0", "\u0661"),
    "no message id": {"Successful": [{"Id": "0"}, {"Id": "1"}]},
    "the MD5 of another body": {
        "Successful": [
            {"Id": id, "MessageId": id, "MD5OfMessageBody": OTHER_MD5} for id in ("0", "1")
        ]
    },
}

FOR_SENT_ONES = {"no message id", "the MD5 of another body"}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_an_entry_that_a_batch_response_does_not_confirm_was_not_sent(
    queue: SQSQueue[AnyMessage], respond_instead: RespondInstead, name: str
) -> None:
    respond_instead(make_success(BAD_BATCHES[name]), "SendMessageBatch")
    with pytest.raises(QueueUnavailable):
        queue.push_many([AnyMessage(id="a"), AnyMessage(id="b")])


@pytest.mark.parametrize("name", sorted(BAD_BATCHES.keys() - FOR_SENT_ONES))
def test_an_ack_that_a_batch_response_does_not_confirm_is_not_done(
    queue: SQSQueue[AnyMessage], respond_instead: RespondInstead, name: str
) -> None:
    bad = make_success(BAD_BATCHES[name])
    respond_instead(bad)
    queue.push_many([AnyMessage(id="a"), AnyMessage(id="b")])
    messages = queue.poll(2)
    respond_instead(bad, "DeleteMessageBatch")
    with pytest.raises(QueueUnavailable):
        queue.ack_many(messages)


BAD_MESSAGES = {
    "no handle": {"MessageId": "a", "Body": "{}"},
    "no id": {"ReceiptHandle": "a", "Body": "{}"},
    "no body": {"MessageId": "a", "ReceiptHandle": "a"},
    "a text": "a",
    "attributes that are a text": {
        "MessageId": "a",
        "ReceiptHandle": "a",
        "Body": "{}",
        "Attributes": "a",
    },
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_a_delivery_without_its_members_is_an_outage(
    queue: SQSQueue[AnyMessage], respond_instead: RespondInstead, name: str
) -> None:
    respond_instead(make_success({"Messages": [BAD_MESSAGES[name]]}), "ReceiveMessage")
    with pytest.raises(QueueUnavailable):
        queue.poll()


def test_content_or_a_request_id_proves_a_response(
    queue: SQSQueue[AnyMessage], respond_instead: RespondInstead
) -> None:
    """SQS sends no content if a queue is empty; ElasticMQ sends no request id."""
    no_messages = json.dumps({"Messages": []}).encode()
    for route in (
        status("200 OK", body=no_messages),
        status("200 OK", f"x-amzn-RequestId: {REQUEST_ID}"),
    ):
        respond_instead(route, "ReceiveMessage")
        assert queue.poll() == []


def test_the_error_names_the_problem_and_quotes_nothing(
    maker: ClientMaker, server: LoopbackServer
) -> None:
    server.on("/", status("200 OK", body=b'{"canary": "canary"}'))
    with pytest.raises(QueueUnavailable, match="another server may have responded") as caught:
        call_queue(maker.make_fail_fast())
    assert "canary" not in f"{caught.value} {caught.value.__cause__}"


def test_a_stub_needs_no_request_id() -> None:
    """Tests of users give clients that call no service."""

    called = Event()

    class Stub:
        def change_message_visibility(self, **arguments: Any) -> None:
            called.set()

    with SQSHeartbeat(QUEUE, RECEIPT, 100, 300, client=Stub(), initial_beat=True) as heartbeat:
        assert called.wait(WAIT_TIMEOUT_SECONDS)
    assert heartbeat.transient_errors == 0
