"""The head of an HTTP response, and what it says about the body behind it."""

import re
from dataclasses import dataclass

from holdfast.exports.downloads.task import TaskError

_MAX_HEAD_BYTES = 64 << 10  # an endless head must not fill the memory
_STATUS = re.compile(rb"HTTP/1\.[01] (?P<status>[1-9][0-9]{2})(?: |\r|\n|$)")
_RANGE = re.compile(
    r"bytes (?P<first>[0-9]{1,19})-(?P<last>[0-9]{1,19})/(?P<total>[0-9]{1,19})"
)
_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A final head: its status, and all values of each field by lower-case name."""

    status: int
    fields: dict[str, list[str]]

    def get_field(self, name: str) -> str | None:
        """Return the first value of a field, or None."""
        values = self.fields.get(name)
        return values[0] if values else None

    @property
    def length(self) -> int | None:
        """The declared length of the body, or None.

        Raises TaskError if the head declares two lengths, or one that is not a number.
        """
        declared = set(self.fields.get("content-length", ()))
        if self.is_chunked or not declared:
            return None
        number = declared.pop()
        if declared or not _NUMBER.fullmatch(number):
            raise make_bad_response("it declares two lengths, or one that is not a number")
        return int(number)

    @property
    def is_chunked(self) -> bool:
        """Whether the body comes in chunks, without a length."""
        return "transfer-encoding" in self.fields

    @property
    def is_encoded(self) -> bool:
        """Whether the bytes of the body differ from those of the file."""
        content = (self.get_field("content-encoding") or "identity").lower()
        transfer = (self.get_field("transfer-encoding") or "chunked").lower()
        return content != "identity" or transfer != "chunked"

    @property
    def range(self) -> tuple[int, int, int] | None:
        """The first byte, the last byte and the size of the complete file, or None."""
        match = _RANGE.fullmatch(self.get_field("content-range") or "")
        if match is None:
            return None
        return int(match["first"]), int(match["last"]), int(match["total"])

    @property
    def validator(self) -> str | None:
        """The value for If-Range, which ensures that the rest is of the same file: its ETag.

        A weak one (W/) does not name the bytes.
        """
        etag = self.get_field("etag") or ""
        return etag if etag.startswith('"') and etag.endswith('"') else None

    @property
    def retry_after(self) -> float:
        """The seconds that the server asks to wait, or 0 if it gives no number of them."""
        text = self.get_field("retry-after") or ""
        return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0


class HeadReader:
    """Reads lines until the final head is complete, and skips provisional (1xx) heads."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self._status = 0
        self._lines: list[bytes] = []
        self._bytes = 0

    def feed(self, line: bytes) -> ResponseHead | None:
        """Add a line; return the head once it is complete. Raises TaskError.

        Lines behind the body (trailers) are ignored.
        """
        self._bytes += len(line)
        if self._bytes > _MAX_HEAD_BYTES:
            raise make_bad_response(f"its head has more than {_MAX_HEAD_BYTES} bytes")
        if self.head is not None:
            return self.head
        if line.startswith(b"HTTP/"):
            self._begin(line)
        elif not line.isspace():
            self._lines.append(line)
        elif self._status >= 200:
            self.head = ResponseHead(self._status, _parse_fields(self._lines))
        return self.head

    def _begin(self, line: bytes) -> None:
        match = _STATUS.match(line)
        if match is None:
            raise make_bad_response("it does not begin with an HTTP status")
        self._status, self._lines = int(match["status"]), []


def _parse_fields(lines: list[bytes]) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if colon and name and not name[0].isspace():
            fields.setdefault(name.lower(), []).append(value.strip())
    return fields


def make_bad_response(problem: str) -> TaskError:
    """Return the error of a response that cannot be trusted."""
    return TaskError("BadAnswer", f"the response cannot be trusted: {problem}")
