"""One call to a vendor's HTTP API, with the standard library only.

    a response               its status, whatever that is, and the JSON object of its body
    not handed over          TransientError: there was no connection, or it broke before the
                             last byte of the request, so the vendor cannot have acted on it
    no response              SendUnclear: the vendor may have acted on the request
    not an HTTP address      PermanentError

Nothing is retried, because retries would exceed the timeout, and Holdfast's own respect the
lock. Each call has a connection of its own: a pooled one may be closed already, and then it
would be unknown whether the vendor acted. Errors contain only the names of exceptions, because
their texts may quote an address, a key or a number.
"""

import encodings.idna  # noqa: F401  # a call would import it, and be longer in doubt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, InvalidURL
from typing import Any
from urllib.error import URLError
from urllib.request import HTTPErrorProcessor, Request, build_opener

from holdfast.chat.errors import PermanentError, SendUnclear, TransientError


@dataclass(frozen=True, slots=True)
class VendorResponse:
    """A response. `data` is empty if the body is not a JSON object."""

    status: int
    data: Mapping[str, Any] = field(repr=False)

    @property
    def is_success(self) -> bool:
        """Check whether the vendor did what it was asked."""
        return 200 <= self.status < 300


def build_request(
    address: str, path: str, headers: dict[str, str], data: bytes | None = None
) -> Request:
    """Return a request that posts the data, or without any reads.

    Raises PermanentError if the address is not one of HTTP.
    """
    if not address.startswith(("https://", "http://")):
        raise PermanentError("base_url must begin with https:// or http://")
    return Request(f"{address.rstrip('/')}{path}", data, headers)  # noqa: S310  # it is HTTP


def call_vendor(vendor: str, request: Request, timeout_seconds: float) -> VendorResponse:
    """Send the request and return the response.

    Raises TransientError, SendUnclear or PermanentError, as the table above says.
    """
    try:
        opener = build_opener(_ReturnEveryStatus)
        with opener.open(request, timeout=timeout_seconds) as response:
            return VendorResponse(response.status, _parse_object(response.read()))
    except InvalidURL:
        raise PermanentError("base_url is not a valid address") from None
    except URLError as error:  # only for what fails before the request is complete
        reason = type(error.reason).__name__
        raise TransientError(f"{vendor} cannot be reached: {reason}") from None
    except (OSError, HTTPException) as error:
        raise SendUnclear(f"{vendor} did not respond: {type(error).__name__}") from None


class _ReturnEveryStatus(HTTPErrorProcessor):
    """Returns redirects and errors like other responses, so that none is followed."""

    def http_response(self, request: Request, response: Any) -> Any:
        """Return the response."""
        return response

    https_response = http_response


def _parse_object(body: bytes) -> Mapping[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
