"""The lean client beside boto3, call by call, on a server that records what it receives.

boto3 is the oracle: both clients make the same call, and the server gives both the same
response. So no expected request or result is stored here.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from aws_responses import (
    COMMON_ERRORS,
    FOREIGN_ERRORS,
    ITEM,
    make_arguments,
    make_complete_response,
    make_errors,
)
from botocore.exceptions import BotoCoreError, ClientError
from client_maker import ClientMaker
from known_keys import FIRST, check_signature, parse_authorization

from holdfast.aws.json_client.settings import SERVICES
from support.aws.client_kinds import KINDS
from support.aws.sqs_over_http import Response, encode_blobs, make_success
from support.http_server import Ask, LoopbackServer

# Not signed and not needed: they are counters for AWS's own statistics.
_STATISTICS = {"amz-sdk-invocation-id", "amz-sdk-request", "user-agent"}
# They differ between two requests of the same client.
_OF_EACH_REQUEST = {"authorization", "x-amz-date"}

OPERATIONS = [
    (service, method)
    for service, table in SERVICES.items()
    for method in sorted(table.operations)
]

# Responses beside the complete one, by operation.
_FAILED = {"Id": "0", "SenderFault": True, "Code": "ReceiptHandleIsInvalid", "Message": "no"}
SUCCESSES: dict[str, list[object]] = {
    "delete_message_batch": [{"Successful": [{"Id": "1"}], "Failed": [_FAILED]}],
    "receive_message": [{"Messages": []}],
    "get_item": [{"Item": encode_blobs(ITEM)}, {"Item": {}}],
    "query": [
        {"Items": [], "Count": 0, "ScannedCount": 7, "LastEvaluatedKey": {}},
        {"Items": [], "Count": 0, "LastEvaluatedKey": {"id": {"B": "AP8="}}},
    ],
}
_NULLS = make_success({"QueueUrl": None, "Messages": None, "Item": None, "Table": None})
EMPTY = (make_success({}), Response("200 OK", b""), _NULLS)

LEAN_EXAMPLES = [
    ("sqs", "change_message_visibility"),
    ("sqs", "send_message_batch"),
    ("dynamodb", "put_item"),
    ("dynamodb", "transact_write_items"),
    ("stepfunctions", "send_task_success"),
]


@pytest.fixture(scope="module")
def pair() -> Iterator["Pair"]:
    with LoopbackServer() as server, pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in (*FIRST.env.items(), ("AWS_REGION", "eu-west-1")):
            monkeypatch.setenv(name, value)
        yield Pair(server)


class Pair:
    """A boto3 client and a lean client for each service, which call the same server."""

    def __init__(self, server: LoopbackServer) -> None:
        self.server = server
        makers = [ClientMaker(kind, server) for kind in KINDS]
        self._clients = {
            (maker.kind, service): maker.make_fail_fast(service)
            for maker in makers
            for service in SERVICES
        }

    def client(self, kind: str, service: str) -> Any:
        return self._clients[kind, service]

    def request(self, kind: str, service: str, method: str, arguments: Any) -> Ask:
        """Make the call and return the one request that the server received."""
        before = len(self.server.asks)
        getattr(self.client(kind, service), method)(**arguments)
        [ask] = self.server.asks[before:]
        return ask

    def result(self, kind: str, service: str, method: str, arguments: Any) -> Any:
        """Make the call and return its result, or what its error says."""
        return describe_result(lambda: getattr(self.client(kind, service), method)(**arguments))

    def compare(self, service: str, method: str, arguments: Any, response: Response) -> None:
        """Make the call with both clients and compare the results."""
        self.server.on("/", response)
        expected = self.result("boto3", service, method, arguments)
        actual = self.result("lean", service, method, arguments)
        if "response" in expected:
            # boto3 leaves out members of errors that it does not know, also their second text.
            actual["response"] = {
                name: actual["response"].get(name) for name in expected["response"]
            }
        assert actual == expected


def describe_result(call: Callable[[], Any]) -> Any:
    try:
        return _without_limit(call())
    except ClientError as error:  # boto3 raises a class of its own for each code
        return {
            "is": "ClientError",
            "text": str(error).replace(" (reached max retries: 0)", ""),
            "operation": error.operation_name,
            "response": _without_limit(error.response),
        }
    except BotoCoreError as error:
        return {"is": type(error).__name__, "text": str(error)}


def _without_limit(response: Any) -> Any:
    """Remove what boto3 adds to every response of a call that is tried once."""
    response["ResponseMetadata"].pop("MaxAttemptsReached", None)
    return response


# -- requests


@pytest.mark.parametrize("required_only", [False, True])
@pytest.mark.parametrize(("service", "method"), OPERATIONS)
def test_both_clients_send_the_same_request(
    pair: Pair, service: str, method: str, required_only: bool
) -> None:
    arguments = make_arguments(service, method, required_only=required_only)
    compare_requests(pair, service, method, arguments)


@pytest.mark.parametrize(
    ("service", "method", "arguments"),
    [
        ("sqs", "change_message_visibility", {"VisibilityTimeout": 0}),
        ("sqs", "receive_message", {"WaitTimeSeconds": 0, "MessageAttributeNames": []}),
        ("sqs", "send_message", {"MessageBody": "", "DelaySeconds": 0}),
        ("dynamodb", "query", {"ConsistentRead": False, "ScanIndexForward": False}),
    ],
)
def test_both_clients_send_values_that_are_zero_false_or_empty(
    pair: Pair, service: str, method: str, arguments: dict[str, object]
) -> None:
    required = make_arguments(service, method, required_only=True)
    compare_requests(pair, service, method, {**required, **arguments})


def compare_requests(pair: Pair, service: str, method: str, arguments: object) -> None:
    """Check that both clients make the same request, and sign it."""
    pair.server.on("/", make_complete_response(service, method))
    asks = {kind: pair.request(kind, service, method, arguments) for kind in KINDS}
    for ask in asks.values():
        check_signature(ask, FIRST)
    expected, actual = (describe_request(ask) for ask in asks.values())
    assert actual == expected


def describe_request(ask: Ask) -> Any:
    headers = {
        name: value
        for name, value in ask.headers.items()
        if name not in _STATISTICS | _OF_EACH_REQUEST | {"content-length"}
    }
    signature = parse_authorization(ask)
    del signature["signature"], signature["day"]
    body = json.loads(ask.body)
    if len(token := body.get("ClientRequestToken", "")) == 36:
        body["ClientRequestToken"] = f"UUID of version {UUID(token).version}"
    assert int(ask.headers["content-length"]) == len(ask.body)
    return {
        "line": (ask.method, ask.path, ask.query),
        "headers": headers,
        "signature": signature,
        "body": body,
    }


# -- results


@pytest.mark.parametrize(("service", "method"), OPERATIONS)
def test_both_clients_return_the_same_result(pair: Pair, service: str, method: str) -> None:
    arguments = make_arguments(service, method)
    complete = make_complete_response(service, method)
    others = map(make_success, SUCCESSES.get(method, ()))
    for response in (complete, *others, *EMPTY):
        pair.compare(service, method, arguments, response)


@pytest.mark.parametrize(("service", "method"), OPERATIONS)
def test_both_clients_raise_the_same_error(pair: Pair, service: str, method: str) -> None:
    for response in (*make_errors(service, method), *COMMON_ERRORS):
        pair.compare(service, method, make_arguments(service, method), response)


@pytest.mark.parametrize(("service", "method"), LEAN_EXAMPLES)
def test_both_clients_know_an_error_that_is_not_of_the_service_by_its_status(
    pair: Pair, service: str, method: str
) -> None:
    """boto3 puts the page of a proxy into its text; the lean client does not."""
    arguments = make_arguments(service, method)
    for response in FOREIGN_ERRORS:
        pair.server.on("/", response)
        results = [pair.result(kind, service, method, arguments) for kind in KINDS]
        for result in results:
            status = response.status.partition(" ")[0]
            assert result["response"]["Error"]["Code"] == status
            assert result["response"]["ResponseMetadata"]["HTTPStatusCode"] == int(status)
        assert "html" not in results[1]["text"]
