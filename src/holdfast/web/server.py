"""The server of `holdfast web`: uvicorn with deadlines for requests and few connections."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.applications import Starlette

REQUEST_TIMEOUT_SECONDS = 10.0  # for a whole request, head and body
MAX_CONNECTIONS = 256  # fewer than the files a process may open
_CLOSE_SECONDS = 5  # for requests that are being answered
_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)


class BoundedConnection(H11Protocol):
    """A connection that is closed if a request is not complete in time.

    uvicorn itself waits forever for the rest of a request. The deadline counts from the
    connection, or from the first byte of a later request, so single bytes do not move it. It
    ends with the request, so a response may take as long as it likes.
    """

    def __init__(
        self, *args: Any, request_timeout_seconds: float, max_connections: int, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self._request_timeout_seconds = request_timeout_seconds
        self._max_connections = max_connections
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_deadline()
        if len(self.connections) > self._max_connections:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._start_deadline()
        super().data_received(data)
        if self.conn.their_state not in _INCOMPLETE:
            self._end_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        super().connection_lost(exc)

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(
            self._request_timeout_seconds, self.transport.abort
        )

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def make_server(
    app: "Starlette",
    *,
    request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    max_connections: int = MAX_CONNECTIONS,
) -> uvicorn.Server:
    """Return a server of a console, which a signal or its `should_exit` ends."""
    connection = partial(
        BoundedConnection,
        request_timeout_seconds=request_timeout_seconds,
        max_connections=max_connections,
    )
    config = uvicorn.Config(
        app,
        access_log=False,
        http=connection,  # type: ignore[arg-type]  # uvicorn only calls it
        log_config=None,
        proxy_headers=False,  # the guard must see the real client
        server_header=False,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
        ws="none",
    )
    return uvicorn.Server(config)
