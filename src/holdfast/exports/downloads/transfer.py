"""One request by libcurl: the connection, the request and the response.

libcurl is chosen for its speed and for one callback, which gets the exact address before
libcurl connects. So the address that is checked is the address that is used. libcurl calls
back while `perform` runs. The interpreter's lock is free in between, so the worker slots of
one process work side by side.

libcurl does not follow redirects. Each redirect is a request of its own, which is checked
like the first.

Bytes behind the declared end of a body may be a complete response. On a connection that is
used again, libcurl would read them as the response to the next request. Therefore

- a request whose bytes cannot be checked by a checksum has its own connection;
- other requests use only connections that served the same job, and on which nothing arrived
  since.

A body ends where its head says. The bytes behind it belong to no file.
"""

import select
import socket
from collections.abc import Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import pycurl

from holdfast.exports.downloads.response_head import HeadReader, ResponseHead
from holdfast.exports.downloads.task import RunningDownload, TaskError, from_curl_code
from holdfast.exports.downloads.url_guard import CheckedUrl, UrlGuard, explain_refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.exports.downloads.download import ResponseBody

_BUFFER_BYTES = 256 << 10
_CONNECT_SECONDS = 10
_MIN_BYTES_PER_SECOND = 256
_MAX_IDLE_HANDLES = 16  # handles, each with a connection and a buffer
_MAX_ERROR_PAGE_BYTES = 64 << 10  # bytes of an error page that are read to keep the connection
_BODY_STATUSES = (200, 206)

_Server = tuple[str, str, int]
_Owner = tuple[str, _Server] | None  # the job and the server; None: a single request


class DownloadRequest:
    """One request, and libcurl's callbacks for it.

    No exception may leave a callback, because pycurl would print and drop it. The callbacks
    keep it, and `_get_response` raises it.
    """

    def __init__(
        self,
        checked_url: CheckedUrl,
        guard: UrlGuard,
        receiver: "ResponseBody",
        run: RunningDownload,
    ) -> None:
        self._checked_url = checked_url
        self._guard = guard
        self._receiver = receiver
        self._run = run
        self._reader = HeadReader()
        self._error: BaseException | None = None
        self._has_allowed = False
        self._refused_address: str | None = None
        self._error_page_bytes = 0
        self._opened: list[socket.socket] = []
        self._has_body = False  # the body of a 200 or 206 follows

    def perform(self, curl: Any, headers: Sequence[str]) -> ResponseHead:
        """Send the request and return the head of the response.

        Raises TaskError, or an OSError of the receiver.
        """
        curl.setopt(pycurl.URL, self._checked_url.url)
        curl.setopt(pycurl.HTTPHEADER, ["Accept-Encoding: identity", "Accept: */*", *headers])
        curl.setopt(pycurl.OPENSOCKETFUNCTION, self._open_socket)
        curl.setopt(pycurl.HEADERFUNCTION, self._receive_header)
        curl.setopt(pycurl.WRITEFUNCTION, self._receive_body)
        curl.setopt(pycurl.XFERINFOFUNCTION, self._check_progress)
        number = 0
        try:
            curl.perform()
        except pycurl.error as error:
            number = int(error.args[0])
        finally:
            for opened in self._opened:
                opened.close()
        return self._get_response(number)

    def _open_socket(self, _purpose: int, address: Any) -> Any:
        try:
            is_ip = address.family in (socket.AF_INET, socket.AF_INET6)
            host, port = address.addr[:2] if is_ip else ("", 0)
            if self._guard.can_connect(self._checked_url, host, port):
                self._has_allowed = True
                opened = socket.socket(address.family, address.socktype, address.protocol)
                self._opened.append(opened)  # pycurl works with a duplicate of it
                return opened
            self._refused_address = host
        except Exception as error:
            self._error = error
        return pycurl.SOCKET_BAD

    def _receive_header(self, line: bytes) -> int | None:
        try:
            before = self._reader.head
            response = self._reader.feed(line)
            if before is None and response is not None and response.status in _BODY_STATUSES:
                self._has_body = True
                self._receiver.begin(response)
        except BaseException as error:
            self._error = error
            return -1
        return None

    def _receive_body(self, data: bytes) -> int | None:
        # libcurl calls this for every 16 KiB, so it does as little as possible.
        try:
            if not self._has_body:
                return self._skip_error_page(data)
            self._receiver.write(data)
        except BaseException as error:
            self._error = error
            return -1
        return None

    def _skip_error_page(self, data: bytes) -> int | None:
        self._error_page_bytes += len(data)
        return -1 if self._error_page_bytes > _MAX_ERROR_PAGE_BYTES else None

    def _check_progress(self, *_: object) -> bool:
        """Return whether to end the transfer. libcurl calls this at least once a second."""
        try:
            self._receiver.write_if_due()
        except BaseException as error:
            self._error = error
            return True
        return self._run.is_stopped

    def _get_response(self, number: int) -> ResponseHead:
        """Return the response or raise the error.

        Errors that the callbacks know come before libcurl's, because they are more exact.
        """
        self._run.check()
        if self._error is not None:
            raise self._error
        response, host = self._reader.head, self._checked_url.origin
        if response is not None and response.status not in _BODY_STATUSES:
            return response
        if number and self._refused_address is not None and not self._has_allowed:
            text = explain_refusal(self._checked_url, self._refused_address)
            raise TaskError("AddressRefused", f"{host}: {text}")
        if number or response is None:
            raise from_curl_code(host, number or pycurl.E_GOT_NOTHING)
        return response


class CurlHandles:
    """libcurl handles with at most one open connection each. Safe for threads.

    A connection is kept open for the next request of the same job to the same server.
    """

    def __init__(self, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds
        self._idle: list[tuple[_Owner, Any]] = []  # the most recently used is the last
        self._lock = Lock()
        self._closed = False

    @contextmanager
    def lend(self, checked_url: CheckedUrl, job_id: str | None) -> "Iterator[Any]":
        """Lend a handle for one request.

        Its connection may have served the same job before. If `job_id` is None, the
        connection is new and is closed after the response.
        """
        owner = None if job_id is None else (job_id, checked_url.server)
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
            if len(self._idle) >= _MAX_IDLE_HANDLES:
                # To give it to another owner would give away its connection as well.
                self._idle.pop(0)[1].close()
            return self._make_handle(owner)

    def close_job(self, job_id: str) -> None:
        """Close the idle connections of a job, because one of them delivered wrong bytes.

        That connection may be one response behind. Then it would answer every request with
        the response to the request before.
        """
        with self._lock:
            for owner, curl in [*self._idle]:
                if owner is not None and owner[0] == job_id:
                    self._idle.remove((owner, curl))
                    curl.close()

    def _make_handle(self, owner: _Owner) -> Any:
        curl = pycurl.Curl()
        is_plain = owner is not None and owner[1][0] == "http"
        for option, value in self._options() + ([] if is_plain else _find_certificates()):
            curl.setopt(option, value)
        curl.setopt(pycurl.FORBID_REUSE, int(owner is None))
        return curl

    def _options(self) -> list[tuple[int, Any]]:
        return [
            (pycurl.NOSIGNAL, 1),  # signals and threads do not mix
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            (pycurl.FOLLOWLOCATION, 0),
            # A proxy from the environment would connect to any address, past the guard.
            (pycurl.PROXY, ""),
            (pycurl.NETRC, pycurl.NETRC_IGNORED),
            (pycurl.PATH_AS_IS, 1),
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            (pycurl.HTTP_CONTENT_DECODING, 0),
            (pycurl.USERAGENT, "holdfast"),
            (pycurl.BUFFERSIZE, _BUFFER_BYTES),
            (pycurl.MAXCONNECTS, 1),
            (pycurl.TCP_KEEPALIVE, 1),
            (pycurl.NOPROGRESS, 0),  # enables XFERINFOFUNCTION, which stops the transfer
            (pycurl.CONNECTTIMEOUT, _CONNECT_SECONDS),
            (pycurl.LOW_SPEED_LIMIT, _MIN_BYTES_PER_SECOND),
            (pycurl.LOW_SPEED_TIME, max(1, round(self._stall_seconds))),
        ]

    def close(self) -> None:
        """Close the idle handles now, and the lent ones when they are returned."""
        with self._lock:
            self._closed = True
            for _, curl in self._idle:
                curl.close()
            self._idle.clear()


def _find_certificates() -> list[tuple[int, Any]]:
    """Return the options for the certificates of this machine.

    A wheel's libcurl knows those of the machine it was built on.
    """
    import ssl  # only here, because it is slow to import and http needs none of it

    paths = ssl.get_default_verify_paths()
    options = [(pycurl.CAINFO, paths.cafile), (pycurl.CAPATH, paths.capath)]
    return [(option, path) for option, path in options if path]


def _is_quiet(curl: Any) -> bool:
    """Return whether a connection can be used again.

    It cannot after the server closed it or sent more bytes.
    """
    if (fd := curl.getinfo(pycurl.ACTIVESOCKET)) < 0:
        return True
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return not poller.poll(0)
