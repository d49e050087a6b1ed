"""Call an operation of an AWS service, and accept only the service's response.

A gateway, a captive portal or a wrong endpoint may respond with status 200 in the service's
place. Both clients would return that as an empty success: a message would count as sent, a row
as written, a file as stored, a task as completed. So every adapter calls here, with either
client.

A response needs the members that its operation always returns. If an operation may return
none, the header `x-amzn-RequestId` must prove that the service responded. AWS, moto, ministack
and LocalStack send it with every response. ElasticMQ does not, so its empty responses are not
accepted.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.aws.json_client.responses import InvalidResponse

# What a response looks like. A dict lists members; those in _Optional may be missing. A list
# with one element describes every element. Texts have at least one character.
_Shape = Any


class _Optional:
    """A member that may be missing."""

    def __init__(self, shape: _Shape) -> None:
        self.shape = shape


_MAYBE_TEXT = _Optional(str)
_MAYBE_DICT = _Optional(dict)
_FAILED = _Optional([{"Id": str, "Code": _MAYBE_TEXT}])
_BATCH = {"Successful": _Optional([{"Id": str}]), "Failed": _FAILED}
_SENT = {"MessageId": str, "MD5OfMessageBody": _MAYBE_TEXT}
_MESSAGE = {
    "MessageId": str,
    "ReceiptHandle": str,
    "Body": str,
    "Attributes": _MAYBE_DICT,
    "MessageAttributes": _MAYBE_DICT,
}
_ROW = {"Attributes": _MAYBE_DICT}
_STORED = {"ETag": str}  # every S3 server names the version of an object
_ROWS = {"Items": [dict], "LastEvaluatedKey": _MAYBE_DICT}

# By boto3's method name. An operation that is not here may return anything.
_SHAPES: Mapping[str, dict[str, _Shape]] = {
    # SQS
    "change_message_visibility_batch": _BATCH,
    "create_queue": {"QueueUrl": str},
    "delete_message_batch": _BATCH,
    "get_queue_attributes": {"Attributes": dict},
    "get_queue_url": {"QueueUrl": str},
    "list_queues": {"QueueUrls": _Optional([str])},
    "receive_message": {"Messages": _Optional([_MESSAGE])},
    "send_message": _SENT,
    "send_message_batch": {"Successful": _Optional([{"Id": str, **_SENT}]), "Failed": _FAILED},
    # DynamoDB
    "batch_get_item": {"Responses": dict, "UnprocessedKeys": _MAYBE_DICT},
    "batch_write_item": {"UnprocessedItems": _MAYBE_DICT},
    "delete_item": _ROW,
    "describe_table": {"Table": dict},
    "describe_time_to_live": {"TimeToLiveDescription": dict},
    "get_item": {"Item": _MAYBE_DICT},
    "put_item": _ROW,
    "query": _ROWS,
    "scan": _ROWS,
    "update_item": _ROW,
    # S3
    "complete_multipart_upload": _STORED,
    "create_multipart_upload": {"UploadId": str},
    "get_object": _STORED,
    "head_object": _STORED,
    "put_object": _STORED,
    "upload_part": _STORED,
    # Secrets Manager
    "get_secret_value": {"ARN": str},
}


def call_checked(client: Any, operation: str, **arguments: Any) -> Mapping[str, Any]:
    """Call an operation by boto3's method name and return its response.

    Raises InvalidResponse, without any text of the response, if it is not the service's.
    """
    method = getattr(client, operation)
    try:
        response: Mapping[str, Any] = method(**arguments)
    except (AttributeError, RecursionError, TypeError, ValueError):
        # boto3 parses a body of another type without checking it. No cause, because its text
        # may quote the body.
        raise InvalidResponse("it is not a JSON object of the service") from None
    _check_response(operation, response)
    return response


def _check_response(operation: str, response: Any) -> None:
    """Raise InvalidResponse if the response cannot be the service's."""
    shape = _SHAPES.get(operation, {})
    if not shape and not isinstance(response, dict):
        return  # of a stub: nothing of it is read
    if not _fits(response, shape):
        raise InvalidResponse(f"it lacks what {operation} returns")
    metadata = response.get("ResponseMetadata") or {}
    is_over_http = "HTTPHeaders" in metadata  # a stub's response is not
    if is_over_http and "RequestId" not in metadata and not shape.keys() & response.keys():
        raise InvalidResponse("it has neither content nor a request id of the service")


def _fits(value: Any, shape: _Shape) -> bool:
    if shape is str:
        return isinstance(value, str) and value != ""
    if shape is dict:
        return isinstance(value, dict)
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(element, shape[0]) for element in value)
    return isinstance(value, dict) and all(
        _fits(value[name], member.shape if isinstance(member, _Optional) else member)
        if name in value
        else isinstance(member, _Optional)
        for name, member in shape.items()
    )
