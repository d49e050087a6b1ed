"""The demo's file server on the loopback address, slow and unreliable on purpose."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
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


class FileServer:
    """A server of files on 127.0.0.1 that keeps a list of all requests."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report = report
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
        self._files: dict[str, DemoFile] = {}
        self._http = _HttpServer(("127.0.0.1", 0), partial(_Connection, self))
        self._thread = Thread(target=partial(self._http.serve_forever, 0.1), daemon=True)

    @property
    def origin(self) -> str:
        """Return the host and the port."""
        return f"127.0.0.1:{self._http.server_port}"

    def add_files(self, files: Iterable[DemoFile]) -> None:
        """Set the files to serve."""
        self._files = {file.path: file for file in files}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.resume.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    # -- called by connections

    def record_request(self, path: str, start: int) -> tuple[FileRequest, DemoFile | None]:
        """Record a request, and return it with its file, if there is one."""
        with self._lock:
            self._counts[path] += 1
            request = FileRequest(path.removeprefix("/"), start, self._counts[path])
            self.requests.append(request)
        return request, self._files.get(path)

    def count_response(self, *, started: int = 0, sent: int = 0) -> None:
        """Add to the open responses and the sent bytes."""
        with self._lock:
            self.open += started
            self.sent += sent


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors, because killed clients are expected."""


class _Connection(BaseHTTPRequestHandler):
    """One connection and its requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, server: FileServer, *connection: Any) -> None:
        self._server = server
        super().__init__(*connection)

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        match = _FROM.fullmatch(self.headers.get("Range", ""))
        request, file = self._server.record_request(self.path, int(match[1]) if match else 0)
        SYSTEM_CLOCK.wait(self._server.closing, _LATENCY_SECONDS)
        if file is None or file.habit == "missing":
            self._refuse(404)
        elif file.habit == "busy" and request.number <= _BUSY_TIMES:
            self._server.report(f"the server is busy: 503 for {request.key}")
            self._refuse(503)
        else:
            self._server.count_response(started=1)
            try:
                self._send(request, file)
            finally:
                self._server.count_response(started=-1)

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, request: FileRequest, file: DemoFile) -> None:
        # Send the rest if the client's part is of the same file, or else the complete file.
        same = self.headers.get("If-Range") == file.etag
        start = request.start if same and request.start < len(file.data) else 0
        if file.habit == "cut" and self._server.cut.is_set():
            self._server.came_back.set()
        self._send_head(file, start)
        half = len(file.data) // 2
        if file.habit == "cut" and start < half and not self._server.cut.is_set():
            self._send_body(file.data[start:half])
            self._server.cut.set()
            self._server.report(f"the server cuts off {request.key} after {half:,} bytes")
            self.close_connection = True
        elif file.habit == "held" and start < half:
            self._send_body(file.data[start:half])
            self._server.holding.set()
            self._server.resume.wait()
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
        while sent < len(data) and not self._server.closing.is_set():
            self.wfile.write(data[sent : sent + _CHUNK])
            self._server.count_response(sent=min(_CHUNK, len(data) - sent))
            sent += _CHUNK
            ahead = started + sent / _BYTES_PER_SECOND - SYSTEM_CLOCK.monotonic()
            if ahead > 0:
                SYSTEM_CLOCK.wait(self._server.closing, ahead)
