"""The demo's file server on the loopback address, slow and unreliable on purpose."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, Literal, Self

from holdfast.lease.clock import SYSTEM_CLOCK

_LATENCY_SECONDS = 0.1
_CHUNK = 64 << 10
_CHUNK_SECONDS = _CHUNK / (2 << 20)  # 2 MiB per second for one connection
_BUSY_TIMES = 2
_FROM = re.compile(r"bytes=(?P<start>[0-9]+)-")

Habit = Literal["good", "busy", "cut", "held", "missing"]


@dataclass(frozen=True)
class DemoFile:
    """A file of the server, with the id of its task and how the server behaves.

    busy: the first two requests get 503.
    cut: the first connection ends half-way.
    held: the response stops half-way until the server may continue.
    missing: every request gets 404.
    """

    task_id: str
    key: str
    url: str
    data: memoryview
    habit: Habit

    @cached_property
    def checksum(self) -> str:
        """Return the SHA-256."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(slots=True)
class FileRequest:
    """One request. `start` is its first byte, 0 for the complete file.

    `sent` and `is_open` are changed only by the thread of its connection.
    """

    key: str
    start: int
    number: int  # of the requests for this file, from 1
    sent: int = 0
    is_open: bool = False  # while the response is being sent


class FileServer(ThreadingHTTPServer):
    """A server of files on 127.0.0.1 that keeps a list of all requests."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.origin = f"127.0.0.1:{self.server_port}"
        self.report = report
        self.files: dict[str, DemoFile] = {}
        self.requests: list[FileRequest] = []
        self.holding = Event()  # set when a response was stopped half-way
        self.resume = Event()
        self.closing = Event()
        self._lock = Lock()
        self._thread = Thread(target=self.serve_forever, args=(0.1,), daemon=True)

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

    def record_request(self, key: str, start: int) -> FileRequest:
        """Record a request and return it. Connections call this."""
        with self._lock:
            number = 1 + sum(request.key == key for request in self.requests)
            request = FileRequest(key, start, number)
            self.requests.append(request)
        return request


class _Connection(BaseHTTPRequestHandler):
    """One connection and its requests."""

    server: FileServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        match = _FROM.fullmatch(self.headers.get("Range", ""))
        start = int(match["start"]) if match else 0
        request = self.server.record_request(self.path.removeprefix("/"), start)
        file = self.server.files.get(request.key)
        SYSTEM_CLOCK.wait(self.server.closing, _LATENCY_SECONDS)
        if file is None or file.habit == "missing":
            self._send_head(404)
        elif file.habit == "busy" and request.number <= _BUSY_TIMES:
            self.server.report(f"the server is busy: 503 for {request.key}")
            self._send_head(503)
        else:
            request.is_open = True
            try:
                self._send_file(request, file)
            finally:
                request.is_open = False

    def _send_file(self, request: FileRequest, file: DemoFile) -> None:
        size, half, etag = len(file.data), len(file.data) // 2, f'"{file.checksum[:16]}"'
        # Send the rest if the client's part is of the same file, or else the complete file.
        same = self.headers.get("If-Range") == etag
        start = request.start if same and request.start < size else 0
        if start:
            span = f"bytes {start}-{size - 1}/{size}"
            self._send_head(206, size - start, ETag=etag, Content_Range=span)
        else:
            self._send_head(200, size, ETag=etag)
        self._send_body(request, file.data[start:half])
        if file.habit == "cut" and request.number == 1:
            self.server.report(f"the server cuts off {request.key} after {half:,} bytes")
            self.close_connection = True
            return
        if file.habit == "held" and start < half:
            self.server.holding.set()
            self.server.resume.wait()
        self._send_body(request, file.data[max(start, half) :])

    def _send_head(self, status: int, length: int = 0, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _send_body(self, request: FileRequest, data: memoryview) -> None:
        for first in range(0, len(data), _CHUNK):
            request.sent += self.wfile.write(data[first : first + _CHUNK])
            if SYSTEM_CLOCK.wait(self.server.closing, _CHUNK_SECONDS):
                return
