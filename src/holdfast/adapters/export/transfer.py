"""One request by libcurl: where it connects, what it asks, what comes back.

libcurl is chosen for its speed and for one callback: it hands over the very address before
it connects, so what is judged is what is used. It calls back while `perform` runs; the
interpreter's lock is free in between, so slots of one process work side by side.

Redirects are not libcurl's to follow: each is a request of its own, judged like the first.

Bytes behind the declared end of a body may be a complete response. On a connection that is
used again, libcurl would read them as the response to the next request. Therefore

- a request whose bytes no checksum will prove has its own connection;
- other requests use only connections that served the same job;
- a body that is longer than declared fails, as far as the surplus has arrived by then.
"""

import os
import select
import socket
import ssl
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import pycurl

from holdfast.adapters.export import errors
from holdfast.adapters.export.cancellation import RunningDownload
from holdfast.adapters.export.errors import TaskError
from holdfast.adapters.export.response_head import HeadReader, ResponseHead, bad_answer
from holdfast.adapters.export.url_guard import CheckedUrl, UrlGuard

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUFFER = 256 << 10
_MOST_IDLE = 16  # handles, each with a connection and a buffer
_MAX_ASIDE = 64 << 10  # bytes of an error page that are read to keep the connection
_BODY_STATUSES = (200, 206)

_Server = tuple[str, str, int]
_Owner = tuple[str, _Server] | None  # the job and the server; None: a single request


class BodyReceiver(Protocol):
    """Takes the body of a 200 or 206."""

    def begin(self, answer: ResponseHead) -> None:
        """The head is there. Raises TaskError to have nothing of the body."""

    def write(self, data: bytes) -> None: ...


class DownloadRequest:
    """One request, and libcurl's callbacks for it. No exception may leave a callback: it
    would be printed and forgotten. They keep it, and `answer` raises it."""

    def __init__(
        self, place: CheckedUrl, guard: UrlGuard, receiver: BodyReceiver, run: RunningDownload
    ) -> None:
        self._place = place
        self._guard = guard
        self._receiver = receiver
        self._run = run
        self._head = HeadReader()
        self._error: BaseException | None = None
        self._let = False
        self._refused = False
        self._aside = 0
        self._opened: list[socket.socket] = []
        self._kept_fd = -1  # the connection that libcurl may use again
        self._received = 0  # bytes of the body, and those behind its end
        self._taken = 0

    def perform(self, curl: Any, headers: Sequence[str]) -> ResponseHead:
        """Send it. Raises TaskError, or OSError of the receiver."""
        curl.setopt(pycurl.URL, self._place.url)
        curl.setopt(pycurl.HTTPHEADER, ["Accept-Encoding: identity", "Accept: */*", *headers])
        curl.setopt(pycurl.OPENSOCKETFUNCTION, self._connect)
        curl.setopt(pycurl.HEADERFUNCTION, self._header)
        curl.setopt(pycurl.WRITEFUNCTION, self._body)
        curl.setopt(pycurl.XFERINFOFUNCTION, self._progress)
        curl.setopt(pycurl.DEBUGFUNCTION, self._debug)
        self._kept_fd = curl.getinfo(pycurl.ACTIVESOCKET)
        number = 0
        try:
            curl.perform()
        except pycurl.error as error:
            number = int(error.args[0])
        finally:
            for opened in self._opened:
                opened.close()
        return self._answer(number)

    def _connect(self, _purpose: int, address: Any) -> Any:
        try:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                host, port = address.addr[:2]
                if self._guard.lets(self._place, host, port):
                    self._let = True
                    opened = socket.socket(address.family, address.socktype, address.protocol)
                    self._opened.append(opened)  # pycurl works with a duplicate of it
                    return opened
            self._refused = True
        except Exception as error:
            self._error = error
        return pycurl.SOCKET_BAD

    def _header(self, line: bytes) -> int | None:
        try:
            before = self._head.answer
            answer = self._head.feed(line)
            if before is None and answer is not None and answer.status in _BODY_STATUSES:
                self._receiver.begin(answer)
                self._check_end(answer)
        except BaseException as error:
            self._error = error
            return -1
        return None

    def _body(self, data: bytes) -> int | None:
        try:
            return self._take(data)
        except BaseException as error:
            self._error = error
            return -1

    def _take(self, data: bytes) -> int | None:
        answer = self._head.answer
        if answer is None or answer.status not in _BODY_STATUSES:
            self._aside += len(data)
            return -1 if self._aside > _MAX_ASIDE else None
        self._receiver.write(data)
        self._taken += len(data)
        self._check_end(answer)
        return None

    def _debug(self, kind: int, data: bytes) -> None:
        if kind == pycurl.INFOTYPE_DATA_IN:
            self._received += len(data)

    def _check_end(self, answer: ResponseHead) -> None:
        """Raise TaskError when all declared bytes are taken and more bytes wait behind them.

        Behind TLS only libcurl can read what waits, and it does not look.
        """
        if self._taken == answer.length and self._place.scheme == "http":
            fds = [opened.fileno() for opened in self._opened] or [self._kept_fd]
            if any(map(_has_bytes, fds)):
                raise _longer()

    def _progress(self, *_: object) -> int:
        return 1 if self._run.stopped else 0

    def _answer(self, number: int) -> ResponseHead:
        """What came of it. What we know ourselves comes before what libcurl says."""
        self._run.check()
        if self._error is not None:
            raise self._error
        answer, host = self._head.answer, self._place.origin
        if answer is not None and answer.status not in _BODY_STATUSES:
            return answer
        if number and self._refused and not self._let:
            text = "its address is private or special; allow the host, if it is not the cloud's"
            raise TaskError("AddressRefused", f"{host}: {text}")
        if number or answer is None:
            raise errors.of_transfer(host, number or pycurl.E_GOT_NOTHING)
        if answer.length is not None and self._received > answer.length:
            raise _longer()  # libcurl read the surplus together with the body, and dropped it
        return answer


def _longer() -> TaskError:
    return bad_answer("more bytes came than it declared")


def _has_bytes(fd: int) -> bool:
    """Do bytes wait on this socket? The end of the connection is no byte."""
    with socket.socket(fileno=os.dup(fd)) as duplicate, suppress(OSError):
        return bool(duplicate.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    return False


class CurlHandles:
    """libcurl handles, each with one connection that it keeps open for the next request of
    the same job to the same server, or with none. Safe for threads."""

    def __init__(
        self, connect_seconds: float, stall_seconds: float, slowest_bytes_per_second: int
    ) -> None:
        self._connect_seconds = connect_seconds
        self._stall_seconds = stall_seconds
        self._slowest = slowest_bytes_per_second
        self._idle: list[tuple[_Owner, Any]] = []  # the one used last is the last
        self._lock = Lock()
        self._closed = False

    @contextmanager
    def one(self, place: CheckedUrl, job_id: str | None) -> "Iterator[Any]":
        """Lend a handle for one request. Its connection may have served the same job before;
        for None it is new, and it is closed behind the response."""
        owner = None if job_id is None else (job_id, place.server)
        curl = self._take(owner)
        try:
            yield curl
        finally:
            with self._lock:
                if self._closed:
                    curl.close()
                else:
                    self._idle.append((owner, curl))

    def _take(self, owner: _Owner) -> Any:
        with self._lock:
            for at in range(len(self._idle) - 1, -1, -1):
                if self._idle[at][0] == owner:
                    curl = self._idle.pop(at)[1]
                    if _is_quiet(curl):
                        return curl
                    curl.close()
                    break
            if len(self._idle) >= _MOST_IDLE:
                # To give it to another owner would give away its connection as well.
                self._idle.pop(0)[1].close()
            return self._made(owner)

    def forget(self, job_id: str) -> None:
        """Close the idle connections of a job: one of them brought wrong bytes. It may be one
        response behind, and would give every request the response to the one before."""
        with self._lock:
            for owner, curl in [*self._idle]:
                if owner is not None and owner[0] == job_id:
                    self._idle.remove((owner, curl))
                    curl.close()

    def _made(self, owner: _Owner) -> Any:
        curl = pycurl.Curl()
        for option, value in self._options():
            curl.setopt(option, value)
        curl.setopt(pycurl.FORBID_REUSE, int(owner is None))
        # DEBUGFUNCTION counts what came. Behind TLS it is called three times for 16 KiB,
        # which is too dear where a checksum proves the bytes anyway.
        curl.setopt(pycurl.VERBOSE, int(owner is None or owner[1][0] == "http"))
        return curl

    def _options(self) -> list[tuple[int, Any]]:
        options = [
            (pycurl.NOSIGNAL, 1),  # signals and threads do not mix
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            (pycurl.FOLLOWLOCATION, 0),
            # The environment's proxy would connect for us, and to anywhere.
            (pycurl.PROXY, ""),
            (pycurl.NETRC, pycurl.NETRC_IGNORED),
            (pycurl.PATH_AS_IS, 1),
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            (pycurl.HTTP_CONTENT_DECODING, 0),
            (pycurl.USERAGENT, "holdfast"),
            (pycurl.BUFFERSIZE, _BUFFER),
            (pycurl.MAXCONNECTS, 1),
            (pycurl.TCP_KEEPALIVE, 1),
            (pycurl.NOPROGRESS, 0),  # for XFERINFOFUNCTION, by which we stop
            (pycurl.CONNECTTIMEOUT_MS, max(1, round(self._connect_seconds * 1000))),
            (pycurl.LOW_SPEED_LIMIT, self._slowest),
            (pycurl.LOW_SPEED_TIME, max(1, round(self._stall_seconds))),
        ]
        # A wheel's libcurl knows the certificates of the machine it was built on.
        paths = ssl.get_default_verify_paths()
        options += [(pycurl.CAINFO, paths.cafile)] if paths.cafile else []
        options += [(pycurl.CAPATH, paths.capath)] if paths.capath else []
        return options

    def close(self) -> None:
        """Close the idle ones now, the others when they come back."""
        with self._lock:
            self._closed = True
            for _, curl in self._idle:
                curl.close()
            self._idle.clear()


def _is_quiet(curl: Any) -> bool:
    """Can its connection be used again? Not after the server closed it or sent more bytes."""
    if (fd := curl.getinfo(pycurl.ACTIVESOCKET)) < 0:
        return True
    look = select.poll()
    look.register(fd, select.POLLIN)
    return not look.poll(0)
