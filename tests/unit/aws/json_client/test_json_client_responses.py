"""What a response means, where the comparison with boto3 does not show it."""

from zlib import crc32

import pytest

from holdfast.aws.json_client.responses import (
    HttpResponse,
    InvalidResponse,
    parse_error,
    parse_result,
)

BODY = b'{"Item": {"id": {"S": "canary"}}}'


def test_a_damaged_response_of_dynamodb_is_refused() -> None:
    """DynamoDB sends a checksum, and boto3 repeats a call whose response does not match it."""
    headers = {"x-amz-crc32": str(crc32(BODY))}
    result = parse_result("dynamodb", HttpResponse(200, headers, BODY), 1)
    assert result["Item"] == {"id": {"S": "canary"}}
    damaged = BODY.replace(b"canary", b"canarz")
    with pytest.raises(InvalidResponse, match="checksum"):
        parse_result("dynamodb", HttpResponse(200, headers, damaged), 1)


def test_an_error_whose_text_is_damaged_is_known_by_its_status() -> None:
    code, error = parse_error("sqs", "SendMessage", HttpResponse(503, {}, b"<html>canary"), 2)
    assert code == "503"
    assert "canary" not in str(error)
