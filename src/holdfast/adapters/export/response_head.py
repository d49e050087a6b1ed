"""The head of an HTTP answer, and what it says about the body behind it."""

import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from holdfast.adapters.export.errors import TaskError

_MOST_BYTES = 64 << 10  # of a head; an endless one must not fill the memory
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: |\r|\n|$)")
_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_NUMBER = re.compile(r"[0-9]{1,19}")
# A date counts in seconds: a file that changed twice within one has the same date. When it
# is a minute old, that second is over for every clock involved.
_SETTLED_SECONDS = 60


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A final head: status, and fields by lower-case name, all values of each."""

    status: int
    fields: dict[str, list[str]]

    def field(self, name: str) -> str | None:
        values = self.fields.get(name)
        return values[0] if values else None

    @property
    def length(self) -> int | None:
        """Bytes of the body, if the head says so. Raises TaskError when it says two things."""
        said = set(self.fields.get("content-length", ()))
        if self.chunked or not said:
            return None
        number = said.pop()
        if said or not _NUMBER.fullmatch(number):
            raise bad_answer("it states its length in two ways, or in none")
        return int(number)

    @property
    def chunked(self) -> bool:
        return "transfer-encoding" in self.fields

    @property
    def encoded(self) -> bool:
        """Are the bytes something else than the file?"""
        content = (self.field("content-encoding") or "identity").lower()
        transfer = (self.field("transfer-encoding") or "chunked").lower()
        return content != "identity" or transfer != "chunked"

    @property
    def range(self) -> tuple[int, int, int] | None:
        """First byte, last byte, size of the whole file."""
        match = _RANGE.fullmatch(self.field("content-range") or "")
        return None if match is None else (int(match[1]), int(match[2]), int(match[3]))

    @property
    def validator(self) -> str | None:
        """What makes sure that the rest is of the same file: for If-Range."""
        etag = self.field("etag")
        if etag:
            return etag if etag.startswith('"') and etag.endswith('"') else None
        changed = self.field("last-modified")
        if changed and _older(changed, self.field("date")):
            return changed
        return None

    def is_of(self, validator: str) -> bool:
        return validator in (self.field("etag"), self.field("last-modified"))


def _older(changed: str, now: str | None) -> bool:
    try:
        age = parsedate_to_datetime(now or "") - parsedate_to_datetime(changed)
    except (TypeError, ValueError):
        return False
    return age.total_seconds() >= _SETTLED_SECONDS


class HeadReader:
    """Reads lines until the head of the final answer is whole; provisional ones go by."""

    def __init__(self) -> None:
        self.answer: ResponseHead | None = None
        self._status = 0
        self._fields: dict[str, list[str]] = {}
        self._bytes = 0

    def feed(self, line: bytes) -> ResponseHead | None:
        """The head, once it is whole. Raises TaskError. Lines behind the body (trailers) mean
        nothing to us."""
        self._bytes += len(line)
        if self._bytes > _MOST_BYTES:
            raise bad_answer("its head does not end")
        if self.answer is not None:
            return self.answer
        if line.startswith(b"HTTP/"):
            self._begin(line)
        elif line.strip():
            self._take(line.decode("latin-1"))
        elif self._status >= 200:
            self.answer = ResponseHead(self._status, self._fields)
        return self.answer

    def _begin(self, line: bytes) -> None:
        match = _STATUS.match(line)
        if match is None:
            raise bad_answer("it begins with no status we know")
        self._status, self._fields = int(match[1]), {}

    def _take(self, line: str) -> None:
        name, colon, value = line.partition(":")
        if colon and name and not name[0].isspace():
            self._fields.setdefault(name.lower(), []).append(value.strip())


def bad_answer(problem: str) -> TaskError:
    return TaskError("BadAnswer", f"the answer cannot be trusted: {problem}")
