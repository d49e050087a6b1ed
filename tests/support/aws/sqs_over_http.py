"""SimulatedSqs behind real HTTP. It keeps what was sent and deleted."""

import json
from base64 import b64decode
from collections import Counter
from threading import Lock
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError

from holdfast.testing import SimulatedSqs
from support.aws.responses import Response, encode_blobs, make_query_error, make_success
from support.http_server import Ask


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
