"""One HTTP response: read from a socket, and turned into boto3's dict or ClientError.

http.client's parser of headers would take half of the CPU time of a call, and it would start
the timeout again with every byte. This one reads what the services send: a status line,
headers, and a body by length, in chunks or to the end of the connection.
"""

import json
import socket
from base64 import b64decode
from typing import Any, NamedTuple
from zlib import crc32

from holdfast.lease.clock import Clock

MAX_RESPONSE_BYTES = 64 * 1024 * 1024  # four times DynamoDB's largest response
_MAX_HEAD_BYTES = 64 * 1024
_RECEIVE_BYTES = 64 * 1024


class HttpResponse(NamedTuple):
    """A complete response. The names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class InvalidResponse(Exception):
    """The bytes of the server are not a complete response of the service.

    The text says why, without any part of it.
    """


class ResponseReader:
    """Reads one response from a socket, within one deadline and one size limit."""

    def __init__(self, sock: socket.socket, seconds: float, clock: Clock) -> None:
        self.sock = sock
        self._clock = clock
        self._deadline = clock.monotonic() + seconds
        self._buffer = bytearray()  # received and not yet read
        self.received = 0

    def read_response(self) -> tuple[HttpResponse, bool]:
        """Return the response, and whether the connection may be used again."""
        status, version, headers = self._read_head()
        while status == 100:
            status, version, headers = self._read_head()
        connection = headers.get("connection", "").lower()
        keeps_alive = (
            "close" not in connection if version == "HTTP/1.1" else "keep-alive" in connection
        )
        if status in (204, 304):
            body = b""
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            body = self._read_chunks()
        elif "content-length" in headers:
            body = self._read_exactly(_parse_size(headers["content-length"], 10))
        else:
            body, keeps_alive = self._read_to_end(), False
        # Bytes after the end belong to no request of ours.
        return HttpResponse(status, headers, body), keeps_alive and not self._buffer

    def _read_head(self) -> tuple[int, str, dict[str, str]]:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise InvalidResponse(f"its headers have more than {_MAX_HEAD_BYTES:,} bytes")
            self._receive()
        first, *lines = self._take(end + 4).decode("latin-1")[:-4].split("\r\n")
        version, _, rest = first.partition(" ")
        status = rest[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or not (
            status.isascii() and status.isdigit()
        ):
            raise InvalidResponse("it does not begin with a status line of HTTP/1.1")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return int(status), version, headers

    def _read_chunks(self) -> bytes:
        chunks = []
        while size := _parse_size(self._read_line().partition(";")[0], 16):
            chunks.append(self._read_exactly(size))
            self._read_line()
        while self._read_line():  # trailers
            pass
        return b"".join(chunks)

    def _read_line(self) -> str:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise InvalidResponse("a line of a chunked body is too long")
            self._receive()
        return self._take(end + 2)[:-2].decode("latin-1")

    def _read_exactly(self, size: int) -> bytes:
        if size > MAX_RESPONSE_BYTES:
            raise InvalidResponse(f"it has more than {MAX_RESPONSE_BYTES:,} bytes")
        while len(self._buffer) < size:
            self._receive()
        return self._take(size)

    def _read_to_end(self) -> bytes:
        try:
            while True:
                self._receive()
        except _Closed:
            if not self._buffer:  # a head that was cut looks the same
                raise
            return self._take(len(self._buffer))

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _receive(self) -> None:
        """Wait for bytes until the deadline, however slowly the server sends them."""
        seconds = self._deadline - self._clock.monotonic()
        if seconds <= 0:
            raise TimeoutError("the response was not complete in time")
        self.sock.settimeout(seconds)
        data = self.sock.recv(_RECEIVE_BYTES)
        if not data:
            if self.received:
                raise _Closed(
                    "the server closed the connection before the response was complete"
                )
            raise ConnectionResetError("the server closed the connection without a response")
        self.received += len(data)
        if self.received > MAX_RESPONSE_BYTES + _MAX_HEAD_BYTES:
            raise InvalidResponse(f"it has more than {MAX_RESPONSE_BYTES:,} bytes")
        self._buffer += data


class _Closed(InvalidResponse):
    """The server closed the connection within a response."""


def _parse_size(text: str, base: int) -> int:
    text = text.strip()
    if not text.isalnum() or not text.isascii():  # int() would accept -1, 1_0 and spaces
        raise InvalidResponse("the size of its body is not a number")
    try:
        return int(text, base)
    except ValueError:
        raise InvalidResponse("the size of its body is not a number") from None


# -- the content of a response


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
