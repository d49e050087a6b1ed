"""Responses of Amazon's services: complete ones by AWS's own description, and every error."""

import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from botocore import xform_name

from support.aws.calls import BODY, ITEM, RECEIPT, get_model
from support.http_server import Ask, Wire

_MAX_DEPTH = 8
_NEVER_SENT = {"BinaryListValues", "StringListValues"}  # SQS reserves them for later
REQUEST_ID = "6f1c4e8a-5a1b-4bfa-9a53-0d7a5d1a2b3c"


@dataclass(frozen=True)
class Response:
    """A response as it goes over the wire."""

    status: str
    body: bytes
    fields: tuple[str, ...] = ()

    def __call__(self, ask: Ask, wire: Wire) -> None:
        wire.head(
            self.status,
            f"x-amzn-RequestId: {REQUEST_ID}",
            "Content-Type: application/x-amz-json-1.0",
            f"Content-Length: {len(self.body)}",
            *self.fields,
        )
        wire.send(self.body)


def make_success(content: object) -> Response:
    """Return a response with status 200."""
    return Response("200 OK", json.dumps(content).encode())


def make_error(
    code: str,
    *fields: str,
    status: str = "400 Bad Request",
    message: str | None = "Wörter of the service",
    key: str = "message",
    **more: object,
) -> Response:
    """Return an error. `fields` are header fields; `more` are members beside the code."""
    content = {"__type": code, **({} if message is None else {key: message}), **more}
    return Response(status, json.dumps(content).encode(), fields)


def make_query_error(code: str, old_code: str, fault: str = "Sender", **more: Any) -> Response:
    """Return an error of SQS, with the code of its old protocol in a header field."""
    return make_error(code, f"x-amzn-query-error: {old_code};{fault}", **more)


# -- complete responses


def make_complete_response(service: str, method: str) -> Response:
    """Return a response in which every member of the operation's output has a value."""
    model = get_model(service)
    [name] = [name for name in model.operation_names if xform_name(name) == method]
    shape = model.operation_model(name).output_shape
    return make_success({} if shape is None else _fill(shape, 0))


def _fill(shape: Any, depth: int) -> Any:
    """Return a JSON value of this shape; values of DynamoDB are complete items."""
    if shape.name == "AttributeValue":
        return encode_blobs({"M": ITEM})
    match shape.type_name:
        case "structure":
            return {} if depth > _MAX_DEPTH else _fill_members(shape, depth)
        case "list":
            return [_fill(shape.member, depth + 1), _fill(shape.member, depth + 1)]
        case "map":
            return {"first": _fill(shape.value, depth + 1), "zweites ü": _fill(shape.value, 99)}
        case "string":
            return shape.enum[0] if shape.enum else f"{shape.name}: {BODY}"
        case "blob":
            return b64encode(b"\x00\xff" + shape.name.encode()).decode()
        case "timestamp":
            return 1_789_000_000.125
        case "boolean":
            return True
        case "integer" | "long":
            return 9_007_199_254_740_993
        case "double" | "float":
            return 1.5
    raise AssertionError(f"no value for {shape}")


def _fill_members(shape: Any, depth: int) -> dict[str, Any]:
    return {
        member.serialization.get("name", name): _fill(member, depth + 1)
        for name, member in shape.members.items()
        if name not in _NEVER_SENT
    }


def encode_blobs(value: Any) -> Any:
    """Return the value with its bytes in base64, as the services send them."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, dict):
        return {name: encode_blobs(member) for name, member in value.items()}
    if isinstance(value, list):
        return [encode_blobs(member) for member in value]
    return value


# -- representative responses, beside the complete one, by operation

_FAILED = {
    "Id": "0",
    "SenderFault": True,
    "Code": "ReceiptHandleIsInvalid",
    "Message": "The input receipt handle is invalid.",
}
_REASONS = [
    {"Code": "None"},
    {"Code": "ConditionalCheckFailed", "Message": "no", "Item": encode_blobs(ITEM)},
    {"Code": "TransactionConflict", "Message": "Transaction is ongoing for the item"},
    {"Code": "ConditionalCheckFailed", "Message": "The conditional request failed"},
]

SUCCESSES: dict[str, tuple[Response, ...]] = {
    "delete_message_batch": (
        make_success({"Successful": [{"Id": "1"}], "Failed": [_FAILED]}),
        make_success({"Failed": [_FAILED]}),
    ),
    "receive_message": (
        make_success({"Messages": []}),
        make_success(
            {
                "Messages": [
                    {
                        "MessageId": "m",
                        "ReceiptHandle": RECEIPT,
                        "MD5OfBody": "x",
                        "Body": BODY,
                        "Attributes": {"ApproximateReceiveCount": "2"},
                        "MessageAttributes": {
                            "raw": {"DataType": "Binary", "BinaryValue": "AP8="},
                            "text": {"DataType": "String", "StringValue": "Grüße"},
                        },
                    }
                ]
            }
        ),
    ),
    "get_item": (make_success({"Item": encode_blobs(ITEM)}), make_success({"Item": {}})),
    "query": (
        make_success({"Items": [], "Count": 0, "ScannedCount": 7, "LastEvaluatedKey": {}}),
        make_success({"Items": [], "Count": 0, "LastEvaluatedKey": {"id": {"B": "AP8="}}}),
    ),
    "batch_write_item": (
        make_success(
            {"UnprocessedItems": {"t": [{"PutRequest": {"Item": encode_blobs(ITEM)}}]}}
        ),
    ),
}

_NULLS = make_success({"QueueUrl": None, "Messages": None, "Item": None, "Table": None})
EMPTY = (make_success({}), Response("200 OK", b""), _NULLS)

_DYNAMODB = "com.amazonaws.dynamodb.v20120810#"

ERRORS: dict[str, tuple[Response, ...]] = {
    "sqs": (
        make_query_error(
            "com.amazonaws.sqs#QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"
        ),
        make_query_error("com.amazonaws.sqs#ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid"),
        make_query_error(
            "com.amazonaws.sqs#MessageNotInflight",
            "AWS.SimpleQueueService.MessageNotInflight",
        ),
        make_query_error(
            "com.amazonaws.sqs#InvalidParameterValueException", "InvalidParameterValue"
        ),
        make_query_error(
            "com.amazonaws.sqs#RequestThrottled", "RequestThrottled", status="403 Forbidden"
        ),
        make_query_error("com.amazonaws.sqs#Internal", "InternalFailure", fault="Receiver"),
        make_error("com.amazonaws.sqs#OverLimit", "x-amzn-query-error: no separator"),
        make_error("com.amazonaws.sqs#OverLimit", "x-amzn-query-error: a;b;c"),
        make_error("com.amazonaws.sqs#OverLimit", "x-amzn-query-error: "),
    ),
    "dynamodb": (
        make_error(
            f"{_DYNAMODB}ConditionalCheckFailedException",
            message="The conditional request failed",
            Item=encode_blobs(ITEM),
        ),
        make_error(f"{_DYNAMODB}ConditionalCheckFailedException"),
        make_error(
            f"{_DYNAMODB}TransactionCanceledException",
            key="Message",
            CancellationReasons=_REASONS,
        ),
        make_error(f"{_DYNAMODB}TransactionCanceledException"),
        make_error(f"{_DYNAMODB}TransactionInProgressException", key="Message"),
        make_error(f"{_DYNAMODB}TransactionConflictException"),
        make_error(f"{_DYNAMODB}ProvisionedThroughputExceededException"),
        make_error(f"{_DYNAMODB}ResourceNotFoundException"),
        make_error(f"{_DYNAMODB}ResourceInUseException"),
        make_error("com.amazon.coral.validate#ValidationException"),
        make_error("com.amazon.coral.availability#ThrottlingException"),
        make_error(f"{_DYNAMODB}RequestLimitExceeded"),
        make_error(f"{_DYNAMODB}InternalServerError", status="500 Internal Server Error"),
    ),
    "stepfunctions": (
        make_error("TaskTimedOut", message="Task Timed Out: 'Provided task does not exist'"),
        make_error("TaskDoesNotExist"),
        make_error("InvalidToken", message="Invalid Token: 'Invalid token'"),
        make_error("InvalidOutput"),
        make_error("StateMachineDoesNotExist"),
        make_error("ThrottlingException"),
        make_error("KmsThrottlingException", kmsKeyState="DISABLED"),
    ),
}

# What every service may answer.
COMMON_ERRORS = (
    make_error("com.amazon.coral.service#AccessDeniedException", key="Message"),
    make_error("com.amazon.coral.service#ExpiredTokenException"),
    make_error("com.amazon.coral.service#UnrecognizedClientException"),
    make_error("InvalidSignatureException", message="The signature does not match"),
    make_error("NoText", message=None),
    make_error("ThrottlingException:http://internal.amazon.com/coral/"),
    make_error("ServiceUnavailable", status="503 Service Unavailable"),
    make_error("x#TooManyRequestsException", status="429 Too Many Requests"),
    Response("400 Bad Request", b'{"code": "InTheMemberCode", "message": "m"}'),
    Response("400 Bad Request", b"{}", ("x-amzn-ErrorType: FromTheHeader:http://x/",)),
    Response("400 Bad Request", b""),
)

# Errors of what stands between the client and the service.
FOREIGN_ERRORS = (
    Response("403 Forbidden", b"<html><h1>Your proxy says no</h1></html>"),
    Response("413 Request Entity Too Large", b"<html><h1>413</h1></html>"),
    Response("500 Internal Server Error", b""),
    Response("502 Bad Gateway", b"<html><h1>Bad Gateway</h1></html>"),
    Response("503 Service Unavailable", b"not JSON {"),
    Response("504 Gateway Timeout", b""),
)
