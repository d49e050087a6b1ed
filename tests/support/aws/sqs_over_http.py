"""Responses of AWS, and SimulatedSqs over HTTP, which keeps what was sent and deleted."""

import json
from base64 import b64decode, b64encode
from collections import Counter
from dataclasses import dataclass
from threading import Lock
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError

from holdfast.testing import SimulatedSqs
from support.http_server import Ask, Wire

REQUEST_ID = "6f1c4e8a-5a1b-4bfa-9a53-0d7a5d1a2b3c"
WORDS = "Wörter of the service"


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
    code: str, *fields: str, status: str = "400 Bad Request", **members: object
) -> Response:
    """Return an error. `fields` are header fields; `members` are those beside the code."""
    members = members or {"message": WORDS}
    return Response(status, json.dumps({"__type": code, **members}).encode(), fields)


def make_query_error(code: str, old_code: str, fault: str = "Sender", **more: Any) -> Response:
    """Return an error of SQS, with the code of its old protocol in a header field."""
    return make_error(code, f"x-amzn-query-error: {old_code};{fault}", **more)


class SqsOverHttp:
    """A service that executes each request in the simulator."""

    def __init__(self, sqs: SimulatedSqs | None = None) -> None:
        self.client = (sqs or SimulatedSqs()).client()
        self.deleted: Counter[str] = Counter()  # by receipt, each delete that was executed
        self.sent: list[str] = []  # the ids that Holdfast gave to the messages
        self._lock = Lock()

    def __call__(self, ask: Ask) -> Response:
        operation = ask.headers["x-amz-target"].rpartition(".")[2]
        request = _decode_blobs(json.loads(ask.body))
        try:
            result = getattr(self.client, xform_name(operation))(**request)
        except ClientError as error:
            return _make_refusal(error.response)
        del result["ResponseMetadata"]
        with self._lock:
            self._note(operation, request.get("Entries", ()), result)
        return make_success(encode_blobs(result))

    def _note(self, operation: str, entries: Any, result: Any) -> None:
        if operation == "SendMessageBatch":
            self.sent += [json.loads(entry["MessageBody"])["id"] for entry in entries]
        elif operation == "DeleteMessageBatch":
            handles = {entry["Id"]: entry["ReceiptHandle"] for entry in entries}
            self.deleted.update(handles[done["Id"]] for done in result.get("Successful", ()))


def _make_refusal(response: Any) -> Response:
    details = response["Error"]
    return make_query_error(
        f"com.amazonaws.sqs#{details['QueryErrorCode']}",
        details["Code"],
        details["Type"],
        status=f"{response['ResponseMetadata']['HTTPStatusCode']} Refused",
    )


def _decode_blobs(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode_blobs(member) for member in value]
    if not isinstance(value, dict):
        return value
    return {
        name: b64decode(member) if name == "BinaryValue" else _decode_blobs(member)
        for name, member in value.items()
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
