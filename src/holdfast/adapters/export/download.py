"""One attempt at getting a file into its part.

- What is there already is not asked for again: `Range` from where we are, `If-Range` so
  that a file that changed comes whole.
- A body without a stated length ends when the connection does, so half of it looks like
  all. It is taken only when size or checksum will tell; else LengthUnknown.
- A body that is encoded (gzip) although we asked for the file as it is: taken as it comes
  when a checksum will tell; else EncodedBody.
"""

from dataclasses import dataclass
from urllib.parse import quote

from holdfast.adapters.export import errors
from holdfast.adapters.export.cancellation import RunningDownload
from holdfast.adapters.export.errors import TaskError
from holdfast.adapters.export.hosts import HostSlots
from holdfast.adapters.export.partial_files import PartialFile
from holdfast.adapters.export.response_head import ResponseHead, bad_answer
from holdfast.adapters.export.retries import retry_after
from holdfast.adapters.export.task_input import TaskInput
from holdfast.adapters.export.transfer import CurlHandles, DownloadRequest
from holdfast.adapters.export.url_guard import MOST_REDIRECTS, CheckedUrl, UrlGuard, read_url
from holdfast.core.clock import Clock

_REDIRECTS = (301, 302, 303, 307, 308)
# libcurl hands over 16 KiB at a time. To hash and write them one by one costs a third of
# the speed, in system calls and in waits for the interpreter's lock.
_GATHERED = 256 << 10


@dataclass(frozen=True, slots=True)
class Downloader:
    """Gets files. Safe for threads."""

    guard: UrlGuard
    handles: CurlHandles
    hosts: HostSlots
    max_bytes: int | None
    clock: Clock

    def fill(
        self, part: PartialFile, order: TaskInput, run: RunningDownload, *, alone: bool
    ) -> None:
        """Afterwards the part is whole. Raises TaskError or OSError; what came stays. `alone`:
        each request has its own connection."""
        if part.length is not None and part.size == part.length:
            part.whole = True  # the connection broke right behind the last byte
            return
        body = ResponseBody(part, order, self.max_bytes, run)
        try:
            job_id = None if alone else order.job_id
            answer = self._answer(read_url(order.url), body, run, job_id)
        finally:
            body.flush()
        self._judge(answer, body)

    def _answer(
        self, place: CheckedUrl, body: "ResponseBody", run: RunningDownload, job_id: str | None
    ) -> tuple[CheckedUrl, ResponseHead]:
        """The answer behind all redirects."""
        for _ in range(MOST_REDIRECTS + 1):
            request = DownloadRequest(place, self.guard, body, run)
            with (
                self.hosts.place(place.origin, run.still_waiting),
                self.handles.one(place, job_id) as curl,
            ):
                answer = request.perform(curl, body.wanted())
            location = answer.field("location")
            if answer.status not in _REDIRECTS or not location:
                return place, answer
            place = self.guard.redirected(place, _readable(location))
        text = f"{place.origin}: more than {MOST_REDIRECTS} redirects"
        raise TaskError("TooManyRedirects", text)

    def _judge(self, answered: tuple[CheckedUrl, ResponseHead], body: "ResponseBody") -> None:
        place, answer = answered
        if answer.status == 416 and body.resumed:
            body.part.restart()
            raise TaskError("RangeRefused", f"{place.origin}: it starts over", again=True)
        if answer.status not in (200, 206):
            after = retry_after(answer.field("retry-after"), self.clock.time())
            raise errors.of_status(place.origin, answer.status, after)
        body.end(place.origin)


def _readable(location: str) -> str:
    """Fields come as Latin-1; what is not ASCII in them is meant as UTF-8, mostly."""
    return location if location.isascii() else quote(location.encode("latin-1"), safe=_ASCII)


_ASCII = "".join(chr(code) for code in range(128))


class ResponseBody:
    """The body of one answer, on its way into the part."""

    def __init__(
        self, part: PartialFile, order: TaskInput, max_bytes: int | None, run: RunningDownload
    ) -> None:
        if part.size and not part.validator:
            part.restart()  # nothing says that the rest would be of the same file
        self.part = part
        self.resumed = part.size > 0
        self._order = order
        self._max_bytes = max_bytes
        self._run = run
        self._gathered: list[bytes] = []
        self._waiting = 0

    def wanted(self) -> list[str]:
        """Header lines that ask for the rest."""
        if not self.resumed:
            return []
        return [f"Range: bytes={self.part.size}-", f"If-Range: {self.part.validator}"]

    def begin(self, answer: ResponseHead) -> None:
        order, length = self._order, answer.length
        if answer.encoded and order.checksum is None:
            raise TaskError("EncodedBody", "the file comes encoded, and no checksum is known")
        if answer.status == 206:
            self._go_on(answer)
        else:
            self._start(answer)
        open_end = length is None and not answer.chunked
        if open_end and order.checksum is None and order.size is None:
            text = "no length is stated, and neither size nor checksum is known"
            raise TaskError("LengthUnknown", text)
        self._check_size(self.part.length or 0)

    def _start(self, answer: ResponseHead) -> None:
        if self.part.size:
            self.part.restart()
        self.part.begin(answer.validator, answer.length)
        if self.part.length is not None and self._order.size not in (None, self.part.length):
            raise self._order.wrong_size(self.part.length)

    def _go_on(self, answer: ResponseHead) -> None:
        """Raises TaskError unless it is the very rest of what we have."""
        part, said = self.part, answer.range
        if not self.resumed or said is None:
            raise bad_answer("it is a part of a file, and not the one we asked for")
        first, last, total = said
        fits = first == part.size and last == total - 1 and answer.is_of(part.validator or "")
        if not fits or part.length not in (None, total):
            part.restart()
            raise TaskError("RangeRefused", "the rest is of another file", again=True)
        part.length = total

    def write(self, data: bytes) -> None:
        self._gathered.append(data)
        self._waiting += len(data)
        told = self._run.moved(len(data))
        if told or self._waiting >= _GATHERED:
            self.flush()
            self._check_size(self.part.size)

    def flush(self) -> None:
        data = b"".join(self._gathered)
        self._gathered, self._waiting = [], 0
        if data:
            self.part.write(data)

    def _check_size(self, size: int) -> None:
        if self._max_bytes is not None and size > self._max_bytes:
            raise TaskError("TooLarge", f"more than {self._max_bytes} bytes are not allowed")
        if self._order.size is not None and size > self._order.size:
            raise self._order.wrong_size(size)

    def end(self, origin: str) -> None:
        """Nothing failed. Is it all?"""
        part = self.part
        self._check_size(part.size)
        expected = self._order.size if part.length is None else part.length
        if expected is not None and part.size < expected:
            raise errors.of_transfer(origin, 18)
        part.whole = True
