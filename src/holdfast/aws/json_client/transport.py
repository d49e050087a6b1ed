"""Connections to one endpoint: a pool, timeouts, TLS, and one request on one of them.

All addresses of a name are tried within one timeout. Responses are read in responses.py.
"""

import os
import select
import socket
import ssl
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from holdfast.aws.json_client.responses import HttpResponse, InvalidResponse, ResponseReader
from holdfast.lease.clock import Clock

_MAX_IDLE_CONNECTIONS = 32
# Network address translators forget idle connections without notice, some after a few minutes.
# A request on such a connection would wait for its whole timeout.
_MAX_IDLE_SECONDS = 60.0


class CallLimits(NamedTuple):
    """How long connecting may take, then the request with its complete response, and how
    often a request that fails is sent at most."""

    connect_seconds: float
    read_seconds: float
    tries: int = 1


class NoResponse(Exception):
    """No complete response came. `error` is what boto3 would raise.

    may_have_arrived  whether the service may have received the request
    stale             whether the server had closed a connection that it kept open before
    """

    def __init__(
        self, error: Exception, *, may_have_arrived: bool, stale: bool = False
    ) -> None:
        super().__init__(type(error).__name__)
        self.error = error
        self.may_have_arrived = may_have_arrived
        self.stale = stale


# botocore's names of errors while connecting, and after that. The first that fits counts.
_ErrorNames = tuple[tuple[type[Exception], str], ...]
_CONNECT_ERRORS: _ErrorNames = (
    (ssl.SSLError, "SSLError"),
    (TimeoutError, "ConnectTimeoutError"),
    (Exception, "EndpointConnectionError"),
)
_CALL_ERRORS: _ErrorNames = (
    (TimeoutError, "ReadTimeoutError"),
    (InvalidResponse, "ResponseStreamingError"),
    (ssl.SSLEOFError, "ConnectionClosedError"),
    (ssl.SSLError, "SSLError"),
    (Exception, "ConnectionClosedError"),
)

# Since when it is idle, and the connection.
_IdleEntry = tuple[float, socket.socket]


class ConnectionPool:
    """Kept-alive connections to one endpoint. Threads may share it.

    Each request has a connection of its own until its response is complete. A forked child
    calls `forget`, because two processes must not write to one connection.
    """

    def __init__(
        self, endpoint: str, limits: CallLimits, clock: Clock, ca_bundle: str | None = None
    ) -> None:
        self.endpoint = endpoint
        self._ca_bundle = ca_bundle
        self._limits = limits
        self._clock = clock
        parts = urlsplit(endpoint)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)
        self._idle: list[_IdleEntry] = []

    def send(
        self, headers: dict[str, str], body: bytes, *, use_new_connection: bool = False
    ) -> HttpResponse:
        """Send a request and return its response. Raises NoResponse.

        With `use_new_connection` it is not sent on one that the server may be closing. The
        new one is closed afterwards, because many such requests would fill the pool.
        """
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = f"POST / HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n"
        idle = self._idle
        connection = None if use_new_connection else self._take_idle()
        is_reused = connection is not None
        if connection is None:
            connection = self._connect()
        reader = ResponseReader(connection, self._limits.read_seconds, self._clock)
        try:
            reader.sock.settimeout(self._limits.read_seconds)
            reader.sock.sendall(head.encode("latin-1") + body)
            response, is_reusable = reader.read_response()
        except (OSError, InvalidResponse) as error:
            connection.close()
            stale = is_reused and not reader.received and not isinstance(error, TimeoutError)
            translated = self._make_error(_name_error(error, _CALL_ERRORS), error)
            raise NoResponse(translated, may_have_arrived=True, stale=stale) from error
        except BaseException:  # such as KeyboardInterrupt: the response is still to come
            connection.close()
            raise
        is_kept = is_reusable and not use_new_connection
        is_closed = idle is not self._idle  # the pool, while this request was on its way
        if is_kept and not is_closed and len(idle) < _MAX_IDLE_CONNECTIONS:
            idle.append((self._clock.monotonic(), connection))
        else:
            connection.close()
        return response

    def close(self) -> None:
        """Close the connections: idle ones now, the others after their responses.

        The next request opens a new one.
        """
        idle, self._idle = self._idle, []
        while (entry := _pop_entry(idle)) is not None:
            entry[1].close()

    def forget(self) -> None:
        """Drop the connections of the parent process, in a forked child."""
        self._idle = []

    # -- connecting

    def _take_idle(self) -> socket.socket | None:
        while (entry := _pop_entry(self._idle)) is not None:
            since, connection = entry
            is_old = self._clock.monotonic() - since > _MAX_IDLE_SECONDS
            if not is_old and not _is_readable(connection):
                return connection
            connection.close()
        return None

    def _connect(self) -> socket.socket:
        context = self._get_tls_context() if self._secure else None
        try:
            connection = self._open_socket()
            if context is None:
                return connection
            return context.wrap_socket(connection, server_hostname=self._host)
        except (OSError, ValueError) as error:  # the second, if a name cannot be encoded
            translated = self._make_error(_name_error(error, _CONNECT_ERRORS), error)
            raise NoResponse(translated, may_have_arrived=False) from error

    def _open_socket(self) -> socket.socket:
        """Connect to the first address of the name that accepts, within one deadline.

        As `socket.create_connection`, which would give each address the whole timeout. Here
        each but the last has half of what is left, so that an unreachable one leaves time for
        the others. What is left in the end is the timeout of the TLS handshake.
        """
        addresses = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        deadline = self._clock.monotonic() + self._limits.connect_seconds
        error: OSError | None = None
        for number, (family, kind, protocol, _, target) in enumerate(addresses, 1):
            seconds = deadline - self._clock.monotonic()
            if seconds <= 0:
                break
            sock = None
            try:
                sock = socket.socket(family, kind, protocol)
                sock.settimeout(seconds if number == len(addresses) else seconds / 2)
                sock.connect(target)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                sock.settimeout(max(0.001, deadline - self._clock.monotonic()))
                return sock
            except OSError as failed:
                error = failed
                if sock is not None:
                    sock.close()
        raise error or OSError("the name has no address")

    def _get_tls_context(self) -> ssl.SSLContext:
        ca_path = self._ca_bundle or _find_ca_path()
        try:
            return make_tls_context(ca_path)
        except OSError as error:
            reason = f"the CA bundle {ca_path!r} cannot be read: {error}"
            translated = self._make_error("SSLError", reason)
            raise NoResponse(translated, may_have_arrived=False) from error

    def _make_error(self, name: str, error: object) -> Exception:
        from botocore import exceptions

        made: Exception = getattr(exceptions, name)(endpoint_url=self.endpoint, error=error)
        return made


def _name_error(error: Exception, names: _ErrorNames) -> str:
    return next(name for kind, name in names if isinstance(error, kind))


def _pop_entry(idle: list[_IdleEntry]) -> _IdleEntry | None:
    """Return the connection that was used last, or None. Each is given to one thread only."""
    try:  # `pop` is atomic; asking for the length first would not be
        return idle.pop()
    except IndexError:
        return None


def _is_readable(sock: Any) -> bool:
    """Return whether an idle connection has something to read.

    It is the end of the connection, or bytes that belong to no request.
    """
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


# -- certificates, from the variables that boto3 reads


def _find_ca_path() -> str:
    for variable in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        if path := os.environ.get(variable):
            return path
    try:
        import certifi

        return certifi.where()
    except ImportError:
        import botocore

        return os.path.join(os.path.dirname(botocore.__file__), "cacert.pem")


@cache  # loading the certificates takes longer than many calls
def make_tls_context(ca_path: str) -> ssl.SSLContext:
    """Make a context that checks certificates. Raises OSError if the bundle cannot be read."""
    if os.path.isdir(ca_path):
        return ssl.create_default_context(capath=ca_path)
    return ssl.create_default_context(cafile=ca_path)
