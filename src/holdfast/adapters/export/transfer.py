"""One request by libcurl: where it connects, what it asks, what comes back.

libcurl is chosen for its speed and for one callback: it hands over the very address before
it connects, so what is judged is what is used. It calls back while `perform` runs; the
interpreter's lock is free in between, so slots of one process work side by side.

Redirects are not libcurl's to follow: each is a request of its own, judged like the first.
"""

import select
import socket
import ssl
from collections.abc import Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import pycurl

from holdfast.adapters.export import troubles
from holdfast.adapters.export.answer import Answer, HeadReader
from holdfast.adapters.export.guard import Guard, Place
from holdfast.adapters.export.stopping import Run
from holdfast.adapters.export.troubles import Trouble

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUFFER = 256 << 10
_MOST_IDLE = 16  # handles, each with a connection and a buffer
_LONGEST_ASIDE = 64 << 10  # bytes of an error page that are read to keep the connection
_BODY_STATUSES = (200, 206)

_Server = tuple[str, str, int]


class Receiver(Protocol):
    """Takes the body of a 200 or 206."""

    def begin(self, answer: Answer) -> None:
        """The head is there. Raises Trouble to have nothing of the body."""

    def write(self, data: bytes) -> None: ...


class Request:
    """One request, and libcurl's callbacks for it. No exception may leave a callback: it
    would be printed and forgotten. They keep it, and `answer` raises it."""

    def __init__(self, place: Place, guard: Guard, receiver: Receiver, run: Run) -> None:
        self._place = place
        self._guard = guard
        self._receiver = receiver
        self._run = run
        self._head = HeadReader()
        self._error: BaseException | None = None
        self._let = False
        self._refused = False
        self._aside = 0

    def perform(self, curl: Any, headers: Sequence[str]) -> Answer:
        """Send it. Raises Trouble, or OSError of the receiver."""
        curl.setopt(pycurl.URL, self._place.url)
        curl.setopt(pycurl.HTTPHEADER, ["Accept-Encoding: identity", "Accept: */*", *headers])
        curl.setopt(pycurl.OPENSOCKETFUNCTION, self._connect)
        curl.setopt(pycurl.HEADERFUNCTION, self._header)
        curl.setopt(pycurl.WRITEFUNCTION, self._body)
        curl.setopt(pycurl.XFERINFOFUNCTION, self._progress)
        number = 0
        try:
            curl.perform()
        except pycurl.error as error:
            number = int(error.args[0])
        return self._answer(number)

    def _connect(self, _purpose: int, address: Any) -> Any:
        try:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                host, port = address.addr[:2]
                if self._guard.lets(self._place, host, port):
                    self._let = True
                    return socket.socket(address.family, address.socktype, address.protocol)
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
            return -1 if self._aside > _LONGEST_ASIDE else None
        self._receiver.write(data)
        return None

    def _progress(self, *_: object) -> int:
        return 1 if self._run.stopped else 0

    def _answer(self, number: int) -> Answer:
        """What came of it. What we know ourselves comes before what libcurl says."""
        self._run.check()
        if self._error is not None:
            raise self._error
        answer, host = self._head.answer, self._place.origin
        if answer is not None and answer.status not in _BODY_STATUSES:
            return answer
        if number and self._refused and not self._let:
            text = "its address is private or special; allow the host to fetch from it"
            raise Trouble("AddressRefused", f"{host}: {text}")
        if number or answer is None:
            raise troubles.of_transfer(host, number or pycurl.E_GOT_NOTHING)
        return answer


class Handles:
    """libcurl handles, each with one connection that it keeps open for the next request to
    the same server. Safe for threads."""

    def __init__(
        self, connect_seconds: float, stall_seconds: float, slowest_bytes_per_second: int
    ) -> None:
        self._connect_seconds = connect_seconds
        self._stall_seconds = stall_seconds
        self._slowest = slowest_bytes_per_second
        self._idle: list[tuple[_Server, Any]] = []  # the one used last is the last
        self._lock = Lock()
        self._closed = False

    @contextmanager
    def one(self, place: Place) -> "Iterator[Any]":
        curl = self._take(place.server)
        try:
            yield curl
        finally:
            with self._lock:
                if self._closed:
                    curl.close()
                else:
                    self._idle.append((place.server, curl))

    def _take(self, server: _Server) -> Any:
        with self._lock:
            for at in range(len(self._idle) - 1, -1, -1):
                if self._idle[at][0] == server:
                    return _checked(self._idle.pop(at)[1])
            if len(self._idle) >= _MOST_IDLE:
                return self._idle.pop(0)[1]
            return self._made()

    def _made(self) -> Any:
        curl = pycurl.Curl()
        for option, value in self._options():
            curl.setopt(option, value)
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


def _checked(curl: Any) -> Any:
    """A server that said more than it stated, or closed, has no second request here: what
    is left over would be taken for the answer to it."""
    left = False
    if (fd := curl.getinfo(pycurl.ACTIVESOCKET)) >= 0:
        look = select.poll()
        look.register(fd, select.POLLIN)
        left = bool(look.poll(0))
    curl.setopt(pycurl.FRESH_CONNECT, int(left))
    return curl
