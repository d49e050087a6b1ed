"""The demo's own file server: on the loopback, slow on purpose, and not always well."""

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
class Ask:
    """One request. `start`: from which byte on; 0 for a whole file."""

    key: str
    start: int
    number: int  # of this file, from 1


class FileServer:
    """Serves files to whoever asks on 127.0.0.1, and keeps a list of who asked for what."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.asks: list[Ask] = []
        self.sent = 0
        self.open = 0  # answers that are under way
        self.cut = Event()  # a connection was cut, once
        self.came_back = Event()  # and whoever was cut off has asked again
        self.holding = Event()  # a file stopped half-way, to be let go
        self.let_go = Event()
        self.closing = Event()
        self._lock = Lock()
        self._counts: Counter[str] = Counter()
        self._files: dict[str, DemoFile] = {}
        self._http = _Http(("127.0.0.1", 0), partial(_Answer, self))
        self._thread = Thread(target=partial(self._http.serve_forever, 0.1), daemon=True)

    @property
    def origin(self) -> str:
        return f"127.0.0.1:{self._http.server_port}"

    def offer(self, files: Iterable[DemoFile]) -> None:
        self._files = {file.path: file for file in files}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.let_go.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    # -- for the answers

    def asked(self, path: str, start: int) -> tuple[Ask, DemoFile | None]:
        with self._lock:
            self._counts[path] += 1
            ask = Ask(path.removeprefix("/"), start, self._counts[path])
            self.asks.append(ask)
        return ask, self._files.get(path)

    def note_answer(self, *, under_way: int = 0, sent: int = 0) -> None:
        with self._lock:
            self.open += under_way
            self.sent += sent


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error of ours."""


class _Answer(BaseHTTPRequestHandler):
    """One connection, and what is asked on it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, house: FileServer, *connection: Any) -> None:
        self._house = house
        super().__init__(*connection)

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        match = _FROM.fullmatch(self.headers.get("Range", ""))
        ask, file = self._house.asked(self.path, int(match[1]) if match else 0)
        SYSTEM_CLOCK.wait(self._house.closing, _LATENCY_SECONDS)
        if file is None or file.habit == "missing":
            self._refuse(404)
        elif file.habit == "busy" and ask.number <= _BUSY_TIMES:
            self._house.tell(f"the server is busy: 503 for {ask.key}")
            self._refuse(503)
        else:
            self._house.note_answer(under_way=1)
            try:
                self._send(ask, file)
            finally:
                self._house.note_answer(under_way=-1)

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, ask: Ask, file: DemoFile) -> None:
        # The rest, when it is still the rest of what they have; else all of it.
        same = self.headers.get("If-Range") == file.etag
        start = ask.start if same and ask.start < len(file.data) else 0
        if file.habit == "cut" and self._house.cut.is_set():
            self._house.came_back.set()
        self._head(file, start)
        half = len(file.data) // 2
        if file.habit == "cut" and start < half and not self._house.cut.is_set():
            self._body(file.data[start:half])
            self._house.cut.set()
            self._house.tell(f"the server cuts off {ask.key} after {half:,} bytes")
            self.close_connection = True
        elif file.habit == "held" and start < half:
            self._body(file.data[start:half])
            self._house.holding.set()
            self._house.let_go.wait()
            self._body(file.data[half:])
        else:
            self._body(file.data[start:])

    def _head(self, file: DemoFile, start: int) -> None:
        size = len(file.data)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(size - start))
        self.send_header("ETag", file.etag)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.end_headers()

    def _body(self, data: memoryview) -> None:
        begun, sent = SYSTEM_CLOCK.monotonic(), 0
        while sent < len(data) and not self._house.closing.is_set():
            self.wfile.write(data[sent : sent + _CHUNK])
            self._house.note_answer(sent=min(_CHUNK, len(data) - sent))
            sent += _CHUNK
            ahead = begun + sent / _BYTES_PER_SECOND - SYSTEM_CLOCK.monotonic()
            if ahead > 0:
                SYSTEM_CLOCK.wait(self._house.closing, ahead)
