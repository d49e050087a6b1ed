"""The demo's file server on the loopback address, slow and unreliable on purpose."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, Self

from holdfast.cli.demo.export.files import DemoFile
from holdfast.core.clock import SYSTEM_CLOCK

_LATENCY_SECONDS = 0.1
_BYTES_PER_SECOND = 2 << 20  # of one connection
_CHUNK = 64 << 10
_BUSY_TIMES = 2
_FROM = re.compile(r"bytes=([0-9]+)-")


@dataclass(frozen=True, slots=True)
class FileRequest:
    """One request. `start` is its first byte, 0 for the complete file."""

    key: str
    start: int
    number: int  # of the requests for this file, from 1


class FileServer(ThreadingHTTPServer):
    """A server of files on 127.0.0.1 that keeps a list of all requests."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.report = report
        self.files: dict[str, DemoFile] = {}  # by path
        self.requests: list[FileRequest] = []
        self.sent = 0
        self.open = 0  # responses that are being sent
        self.cut = Event()  # set when the connection was cut
        self.came_back = Event()  # set when the client that was cut off has returned
        self.holding = Event()  # set while a response is stopped half-way
        self.resume = Event()
        self.closing = Event()
        self._lock = Lock()
        self._counts: Counter[str] = Counter()
        self._thread = Thread(target=partial(self.serve_forever, 0.1), daemon=True)

    @property
    def origin(self) -> str:
        """Return the host and the port."""
        return f"127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.resume.set()
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors, because killed clients are expected."""

    # -- called by connections

    def record_request(self, path: str, start: int) -> tuple[FileRequest, DemoFile | None]:
        """Record a request, and return it with its file, if there is one."""
        with self._lock:
            self._counts[path] += 1
            request = FileRequest(path.removeprefix("/"), start, self._counts[path])
            self.requests.append(request)
        return request, self.files.get(path)

    def count_response(self, *, started: int = 0, sent: int = 0) -> None:
        """Add to the open responses and the sent bytes."""
        with self._lock:
            self.open += started
            self.sent += sent


class _Connection(BaseHTTPRequestHandler):
    """One connection and its requests."""

    server: FileServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        match = _FROM.fullmatch(self.headers.get("Range", ""))
        request, file = self.server.record_request(self.path, int(match[1]) if match else 0)
        SYSTEM_CLOCK.wait(self.server.closing, _LATENCY_SECONDS)
        if file is None or file.habit == "missing":
            self._refuse(404)
        elif file.habit == "busy" and request.number <= _BUSY_TIMES:
            self.server.report(f"the server is busy: 503 for {request.key}")
            self._refuse(503)
        else:
            self.server.count_response(started=1)
            try:
                self._send(request, file)
            finally:
                self.server.count_response(started=-1)

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, request: FileRequest, file: DemoFile) -> None:
        # Send the rest if the client's part is of the same file, or else the complete file.
        same = self.headers.get("If-Range") == file.etag
        start = request.start if same and request.start < len(file.data) else 0
        if file.habit == "cut" and self.server.cut.is_set():
            self.server.came_back.set()
        self._send_head(file, start)
        half = len(file.data) // 2
        if file.habit == "cut" and start < half and not self.server.cut.is_set():
            self._send_body(file.data[start:half])
            self.server.cut.set()
            self.server.report(f"the server cuts off {request.key} after {half:,} bytes")
            self.close_connection = True
        elif file.habit == "held" and start < half:
            self._send_body(file.data[start:half])
            self.server.holding.set()
            self.server.resume.wait()
            self._send_body(file.data[half:])
        else:
            self._send_body(file.data[start:])

    def _send_head(self, file: DemoFile, start: int) -> None:
        size = len(file.data)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(size - start))
        self.send_header("ETag", file.etag)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.end_headers()

    def _send_body(self, data: memoryview) -> None:
        started, sent = SYSTEM_CLOCK.monotonic(), 0
        while sent < len(data) and not self.server.closing.is_set():
            self.wfile.write(data[sent : sent + _CHUNK])
            self.server.count_response(sent=min(_CHUNK, len(data) - sent))
            sent += _CHUNK
            ahead = started + sent / _BYTES_PER_SECOND - SYSTEM_CLOCK.monotonic()
            if ahead > 0:
                SYSTEM_CLOCK.wait(self.server.closing, ahead)
