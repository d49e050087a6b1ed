"""Arguments and responses of Amazon's services by AWS's own description, and errors."""

import gzip
import json
from collections.abc import Callable
from functools import cache
from threading import Event
from typing import Any

from botocore import xform_name
from botocore.loaders import Loader
from botocore.model import ServiceModel

from support.aws.sqs_over_http import (
    WORDS,
    Response,
    encode_blobs,
    make_error,
    make_query_error,
    make_success,
)
from support.http_server import Ask, Route, Wire, redirect, status

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/letters"
RECEIPT = "AQEB-receipt-canary+/=="
TOKEN = "AQCE-token-canary"
BODY = 'body-canary "quoted" \\ \n\t Grüße 東京 🎉 \u2028 \x7f é'
ITEM = {
    "id": {"S": BODY},
    "empty": {"S": ""},
    "count": {"N": "123456789012345678901234567890.12345678"},
    "raw": {"B": b"\x00\x01\xfe\xff"},
    "none": {"NULL": True},
    "flag": {"BOOL": False},
    "texts": {"SS": ["a", "ü"]},
    "numbers": {"NS": ["1", "-2.5E+7"]},
    "raws": {"BS": [b"", b"\xff"]},
    "list": {"L": [{"S": "x"}, {"L": []}, {"M": {}}, {"B": b"deep"}]},
    "map": {"M": {"deep": {"M": {"deeper": {"B": b"\x80"}, "B": {"S": "named B"}}}}},
}

_MAX_DEPTH = 8
_NEVER_SENT = {"BinaryListValues", "StringListValues"}  # SQS reserves them for later
_OWN_VALUES = {
    "Message": WORDS,
    "QueueUrl": QUEUE,
    "ReceiptHandle": RECEIPT,
    "message": WORDS,
    "taskToken": TOKEN,
}
_VALUES = {
    "blob": b"\x00\xff bytes",
    "boolean": True,
    "double": 1.5,
    "float": 1.5,
    "integer": 9_007_199_254_740_993,
    "long": 9_007_199_254_740_993,
    "timestamp": 1_789_000_000.125,
}


# -- by AWS's description, which botocore ships


def make_arguments(service: str, method: str, *, required_only: bool = False) -> dict[str, Any]:
    """Return arguments in which every parameter of the operation has a value."""
    shape = _get_operation(service, method).input_shape
    arguments: dict[str, Any] = _fill(shape, 0)
    return {
        name: value
        for name, value in arguments.items()
        if not required_only or name in shape.required_members
    }


def make_complete_response(service: str, method: str) -> Response:
    """Return a response in which every member of the operation's output has a value."""
    shape = _get_operation(service, method).output_shape
    return make_success({} if shape is None else encode_blobs(_fill(shape, 0)))


def make_errors(service: str, method: str) -> list[Response]:
    """Return all errors of the operation, each with a value for every member."""
    return [
        _make_modelled_error(service, shape)
        for shape in _get_operation(service, method).error_shapes
    ]


def _make_modelled_error(service: str, shape: Any) -> Response:
    code, members = f"com.amazonaws.{service}#{shape.name}", encode_blobs(_fill(shape, 0))
    if service != "sqs":
        return make_error(code, **members)
    return make_query_error(code, shape.name, **members)


@cache
def _get_operation(service: str, method: str) -> Any:
    model = ServiceModel(Loader().load_service_model(service, "service-2"), service)
    [name] = [name for name in model.operation_names if xform_name(name) == method]
    return model.operation_model(name)


def _fill(shape: Any, depth: int) -> Any:
    """Return a value of this shape; values of DynamoDB are complete items."""
    if shape.name == "AttributeValue":
        return {"M": ITEM}
    match shape.type_name:
        case "structure":
            return {} if depth > _MAX_DEPTH else _fill_members(shape, depth)
        case "list":
            return [_fill(shape.member, depth + 1), _fill(shape.member, depth + 1)]
        case "map":
            return {"first": _fill(shape.value, depth + 1), "zweites ü": _fill(shape.value, 99)}
        case "string":
            return shape.enum[0] if shape.enum else f"{shape.name}: {BODY}"
        case simple:
            return _VALUES[simple]


def _fill_members(shape: Any, depth: int) -> dict[str, Any]:
    return {
        member.serialization.get("name", name): _OWN_VALUES.get(name, _fill(member, depth + 1))
        for name, member in shape.members.items()
        if name not in _NEVER_SENT
    }


# -- errors that every service may answer, and those of what stands before the service

COMMON_ERRORS = (
    make_error("com.amazon.coral.service#AccessDeniedException", Message="Wörter"),
    make_error("com.amazon.coral.service#ExpiredTokenException"),
    make_error("NoText", more="m"),
    make_error("ThrottlingException:http://internal.amazon.com/coral/"),
    make_error("ServiceUnavailable", status="503 Service Unavailable"),
    make_error("x#TooManyRequestsException", status="429 Too Many Requests"),
    make_error("com.amazonaws.sqs#OverLimit", "x-amzn-query-error: no separator"),
    make_error("com.amazonaws.sqs#OverLimit", "x-amzn-query-error: a;b;c"),
    make_error("com.amazonaws.sqs#OverLimit", "x-amzn-query-error: "),
    make_query_error("com.amazonaws.sqs#Internal", "InternalFailure", fault="Receiver"),
    make_query_error("com.amazonaws.sqs#QueueDoesNotExist", "AWS.SQS.NonExistentQueue"),
    Response("400 Bad Request", b'{"code": "InTheMemberCode", "message": "m"}'),
    Response("400 Bad Request", b"{}", ("x-amzn-ErrorType: FromTheHeader:http://x/",)),
    Response("400 Bad Request", b""),
)
FOREIGN_ERRORS = (
    Response("403 Forbidden", b"<html><h1>Your proxy says no</h1></html>"),
    Response("413 Request Entity Too Large", b"<html><h1>413</h1></html>"),
    Response("500 Internal Server Error", b""),
    Response("502 Bad Gateway", b"<html><h1>Bad Gateway</h1></html>"),
    Response("503 Service Unavailable", b"not JSON {"),
    Response("504 Gateway Timeout", b""),
)


# -- broken responses, as routes of a LoopbackServer; none says what became of the call

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\n"
_HTML = b"<html><body><h1>Please sign in to the network</h1></body></html>"


def send_bytes(data: bytes, then: Callable[[Wire], None] = Wire.close) -> Route:
    """Send these bytes, whatever is asked, and then close the connection."""

    def route(ask: Ask, wire: Wire) -> None:
        wire.send(data)
        then(wire)

    return route


def _half_close(ask: Ask, wire: Wire) -> None:
    wire.half_close()
    wire.hang()


def close_after(respond: Route) -> Route:
    """Respond, and close the connection without saying so."""

    def route(ask: Ask, wire: Wire) -> None:
        respond(ask, wire)
        wire.close()

    return route


def drip(ask: Ask, wire: Wire) -> None:
    """Send a correct response so slowly that each byte comes in time, and the last late."""
    wire.send(_HEAD + b"Content-Length: 1000\r\n\r\n{}")
    for _ in range(998):  # for 50 s, unless the client closes
        Event().wait(0.05)
        wire.send(b" ")


def drip_head(ask: Ask, wire: Wire) -> None:
    """Send the head as slowly."""
    wire.send(_HEAD)
    for _ in range(998):
        Event().wait(0.05)
        wire.send(b"X: y\r\n")


# The connection breaks, so no client can know more.
CONNECTIONS: dict[str, Route] = {
    "closed": lambda ask, wire: wire.close(),
    "reset": lambda ask, wire: wire.reset(),
    "half closed": _half_close,
    "cut in the body": send_bytes(_HEAD + b'Content-Length: 100\r\n\r\n{"a"'),
    "cut in a chunk": send_bytes(_HEAD + b'Transfer-Encoding: chunked\r\n\r\n50\r\n{"a"'),
    "cut before the last chunk": send_bytes(
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
    ),
    "not HTTP": send_bytes(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n"),
    "silent": lambda ask, wire: wire.hang(),
}

# What comes is no complete response of the service, but boto3 takes it for an empty one.
CONTENTS: dict[str, Route] = {
    "cut in the head": send_bytes(_HEAD),
    "cut after the head": send_bytes(_HEAD + b"\r\n"),
    "deep JSON": status("200 OK", body=b'{"a":' + b"[" * 100_000),
    "HTML": status("200 OK", "Content-Type: text/html", body=_HTML),
    "cut JSON": status("200 OK", body=b'{"Messages": [{"MessageId": "x'),
    "a JSON list": status("200 OK", body=b'[{"MessageId": "x"}]'),
    "a JSON text": status("200 OK", body=b'"x"'),
    "not UTF-8": status("200 OK", body=b'{"QueueUrl": "\xff\xfe"}'),
    "gzip": status(
        "200 OK", "Content-Encoding: gzip", body=gzip.compress(json.dumps({}).encode())[:-9]
    ),
}

REDIRECTS = {
    line: redirect("/elsewhere", line)
    for line in ("301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Moved")
}
