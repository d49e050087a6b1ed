"""One attempt to download a file into its partial file.

- Bytes that are on disk are not requested again. `Range` asks for the rest, and `If-Range`
  makes the server send a file that has changed from its beginning.
- A body without a declared length ends when the connection does, so an incomplete body
  looks complete. It is accepted only if the size or a checksum is known, because they show
  the difference. Otherwise the error is LengthUnknown.
- A body may be encoded (gzip) although the request asked for the plain file. It is accepted
  as it comes if a checksum is known. Otherwise the error is EncodedBody.
"""

from dataclasses import dataclass
from urllib.parse import quote

from holdfast.exports.downloads.partial_files import PartialFile
from holdfast.exports.downloads.response_head import ResponseHead, make_bad_response
from holdfast.exports.downloads.task import (
    RunningDownload,
    TaskError,
    from_curl_code,
    from_http_status,
)
from holdfast.exports.downloads.transfer import CurlHandles, DownloadRequest
from holdfast.exports.downloads.url_guard import MAX_REDIRECTS, CheckedUrl, UrlGuard, parse_url

_REDIRECTS = (301, 302, 303, 307, 308)
# libcurl hands over 16 KiB at a time. To hash and write each piece by itself would cost a
# third of the speed, in system calls and in waits for the interpreter's lock.
_BUFFER_BYTES = 256 << 10
_WRITE_INTERVAL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Downloader:
    """Downloads files. Safe for threads."""

    guard: UrlGuard
    handles: CurlHandles
    max_bytes: int | None

    def download(self, part: PartialFile, run: RunningDownload, own_connection: bool) -> None:
        """Complete the part. With `own_connection`, each request has its own connection.

        Raises TaskError or OSError. The bytes that were received stay in the part.
        """
        if part.length is not None and part.size == part.length:
            part.complete = True  # the connection broke directly after the last byte
            return
        body = ResponseBody(part, run, self.max_bytes)
        try:
            checked_url, head = self._fetch(body, run, own_connection)
        finally:
            body.flush()
        self._check_response(checked_url, head, body)

    def _fetch(
        self, body: "ResponseBody", run: RunningDownload, own_connection: bool
    ) -> tuple[CheckedUrl, ResponseHead]:
        """Follow all redirects; return the last URL and the head of its response."""
        job_id = None if own_connection else run.task.job_id
        checked_url = parse_url(run.task.url)
        for _ in range(MAX_REDIRECTS + 1):
            request = DownloadRequest(checked_url, self.guard, body, run)
            with self.handles.lend(checked_url, job_id) as curl:
                head = request.perform(curl, body.get_range_headers())
            location = head.get_field("location")
            if head.status not in _REDIRECTS or not location:
                return checked_url, head
            checked_url = self.guard.follow_redirect(checked_url, _encode_location(location))
        text = f"{checked_url.origin}: more than {MAX_REDIRECTS} redirects"
        raise TaskError("TooManyRedirects", text)

    def _check_response(
        self, checked_url: CheckedUrl, head: ResponseHead, body: "ResponseBody"
    ) -> None:
        if head.status == 416 and body.resumed:
            body.part.restart()
            text = f"{checked_url.origin}: the download starts over"
            raise TaskError("RangeRefused", text, retryable=True)
        if head.status not in (200, 206):
            raise from_http_status(checked_url.origin, head.status, head.retry_after)
        body.finish(checked_url.origin)


def _encode_location(location: str) -> str:
    """Percent-encode what is not ASCII: fields come as Latin-1 and mostly mean UTF-8."""
    return location if location.isascii() else quote(location.encode("latin-1"), safe=_ASCII)


_ASCII = "".join(chr(code) for code in range(128))


class ResponseBody:
    """The body of one response, on its way into the part."""

    def __init__(self, part: PartialFile, run: RunningDownload, max_bytes: int | None) -> None:
        if part.size and not part.validator:
            part.restart()  # without a validator, the rest may be of another file
        self.part = part
        self.resumed = part.size > 0
        self._run = run
        self._task = run.task
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._written_at = run.clock.monotonic()

    def get_range_headers(self) -> list[str]:
        """Return the header lines that request the rest of the file."""
        if not self.resumed:
            return []
        return [f"Range: bytes={self.part.size}-", f"If-Range: {self.part.validator}"]

    def begin(self, head: ResponseHead) -> None:
        """Prepare the part for the body. Raises TaskError if the body is not acceptable."""
        task, length = self._task, head.length
        if head.is_encoded and task.checksum is None:
            raise TaskError("EncodedBody", "the file comes encoded, and no checksum is known")
        if head.status == 206:
            self._continue(head)
        else:
            self._start(head, length)
        has_open_end = length is None and not head.is_chunked
        if has_open_end and task.checksum is None and task.size is None:
            text = "no length is declared, and neither size nor checksum is known"
            raise TaskError("LengthUnknown", text)
        self._check_size(self.part.length or 0)

    def _start(self, head: ResponseHead, length: int | None) -> None:
        if self.part.size:
            self.part.restart()
        self.part.begin(head.validator, length)
        expected = self._task.size
        if self.part.length is not None and expected not in (None, self.part.length):
            raise self._task.make_size_error(self.part.length)

    def _continue(self, head: ResponseHead) -> None:
        """Raise TaskError unless the body is exactly the rest of the part's file."""
        part, content_range = self.part, head.range
        if not self.resumed or content_range is None:
            raise make_bad_response("it is a range of a file, but not the requested range")
        first, last, total = content_range
        fits = first == part.size and last == total - 1 and head.validator == part.validator
        if not fits or part.length not in (None, total):
            part.restart()
            raise TaskError("RangeRefused", "the rest is of another file", retryable=True)
        part.length = total

    def write(self, data: bytes) -> None:
        """Add bytes, and write them to the part when there are enough of them."""
        self._buffer += data
        if len(self._buffer) >= _BUFFER_BYTES:
            self._write_out()

    def write_if_due(self) -> None:
        """Write out what was received, unless that was done a moment ago.

        So of a slow body, too, most bytes are on disk when the process is killed.
        """
        due_at = self._written_at + _WRITE_INTERVAL_SECONDS
        if self._buffer and self._run.clock.monotonic() >= due_at:
            self._write_out()

    def _write_out(self) -> None:
        self.flush()
        self._check_size(self.part.size)

    def flush(self) -> None:
        """Write all buffered bytes to the part, and report them."""
        data, self._buffer = self._buffer, bytearray()
        if data:
            self.part.write(memoryview(data))
            self._written_at = self._run.clock.monotonic()
            self._run.report(len(data))

    def _check_size(self, size: int) -> None:
        if self._max_bytes is not None and size > self._max_bytes:
            raise TaskError("TooLarge", f"more than {self._max_bytes} bytes are not allowed")
        if self._task.size is not None and size > self._task.size:
            raise self._task.make_size_error(size)

    def finish(self, origin: str) -> None:
        """Mark the part as complete. Raises TaskError if bytes are missing."""
        part = self.part
        self._check_size(part.size)
        expected = self._task.size if part.length is None else part.length
        if expected is not None and part.size < expected:
            raise from_curl_code(origin, 18)
        part.complete = True
