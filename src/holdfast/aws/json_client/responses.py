"""Turn a response into the dict that boto3 returns, or the ClientError that it raises."""

import json
from base64 import b64decode
from typing import Any
from zlib import crc32

from holdfast.aws.json_client.response_reader import HttpResponse, InvalidResponse


def parse_result(service: str, response: HttpResponse, attempt: int) -> dict[str, Any]:
    """Return the result of a call that succeeded. Raises InvalidResponse."""
    result = _parse_body(service, response)
    result["ResponseMetadata"] = _make_metadata(response, attempt)
    return result


def parse_error(
    service: str, operation: str, response: HttpResponse, attempt: int
) -> tuple[str, Exception]:
    """Return the error code of a call that failed, and the exception that boto3 raises."""
    from botocore.exceptions import ClientError

    try:
        details = _parse_body(service, response)
    except InvalidResponse:
        details = {}  # a proxy's page, for example; the status is the code
    code = str(details.pop("__type", "") or response.status)
    code = code.partition(":")[0].rpartition("#")[2]
    message = details.get("message") or details.get("Message") or ""
    error: dict[str, Any] = {"Message": message, "Code": code}
    # SQS adds the code of its older protocol, which is the one that boto3 shows.
    older_code, _, fault = response.headers.get("x-amzn-query-error", "").partition(";")
    if older_code and fault and ";" not in fault:
        details = details if older_code == code else {}  # boto3 knows no fields of older codes
        error |= {"QueryErrorCode": code, "Type": fault, "Code": older_code}
    metadata: Any = _make_metadata(response, attempt)
    # Last, because a member of the body must not replace what Holdfast reads.
    parsed: Any = {**details, "Error": error, "ResponseMetadata": metadata}
    return error["Code"], ClientError(parsed, operation)


def _make_metadata(response: HttpResponse, attempt: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "HTTPStatusCode": response.status,
        "HTTPHeaders": response.headers,
        "RetryAttempts": attempt - 1,
    }
    if (request_id := response.headers.get("x-amzn-requestid")) is not None:
        metadata["RequestId"] = request_id
    return metadata


def _parse_body(service: str, response: HttpResponse) -> dict[str, Any]:
    body = response.body
    if not body:
        return {}
    if (checksum := response.headers.get("x-amz-crc32")) and checksum != str(crc32(body)):
        raise InvalidResponse("its checksum does not match")
    try:
        return _parse_json(service, body)
    except (AttributeError, RecursionError, TypeError, ValueError):
        # No text of it, because it may quote the body.
        raise InvalidResponse("it is not a JSON object of the service") from None


def _parse_json(service: str, body: bytes) -> dict[str, Any]:
    parsed: Any = json.loads(body)
    if not isinstance(parsed, dict):
        raise TypeError
    # boto3 leaves out members that are null. Most bodies have none, so they are not searched.
    if b":null" in body or b": null" in body:
        parsed = _remove_nulls(parsed)
    if service == "sqs" and b'"BinaryValue"' in body:
        _decode_message_attributes(parsed)
    elif service == "dynamodb" and (b'"B"' in body or b'"BS"' in body):
        parsed = _decode_binary(parsed)
    return dict(parsed)


def _remove_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _remove_nulls(v) for name, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_remove_nulls(element) for element in value]
    return value


def _decode_message_attributes(parsed: dict[str, Any]) -> None:
    for message in parsed.get("Messages", ()):
        for attribute in message.get("MessageAttributes", {}).values():
            if "BinaryValue" in attribute:
                attribute["BinaryValue"] = b64decode(attribute["BinaryValue"])


def _decode_binary(value: Any) -> Any:
    """Decode the binary values of DynamoDB, which are {"B": "…"} and {"BS": ["…"]}.

    An attribute that is named B has a dict as its value, so it is not taken for one of them.
    """
    match value:
        case {"B": str(text)} if len(value) == 1:
            return {"B": b64decode(text)}
        case {"BS": list(texts)} if len(value) == 1 and all(isinstance(t, str) for t in texts):
            return {"BS": [b64decode(text) for text in texts]}
        case dict():
            return {name: _decode_binary(element) for name, element in value.items()}
        case list():
            return [_decode_binary(element) for element in value]
    return value
