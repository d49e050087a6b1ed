"""Send the changing part of a page again and again, as server-sent events.

A browser asks for the page's own address and accepts `text/event-stream`. One without
server-sent events asks for the same address with `part=1`, every few seconds.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.web.rendering import Page, Renderer, wants_part, wants_stream

SECONDS = 1.0
MAX_STREAMS = 64  # more viewers than this poll
_KEEP_ALIVE_SECONDS = 15.0
_FIRST_PAUSE_SECONDS = 0.1  # what was being counted for the first view follows soon

View = Callable[[Request], Page]
Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


class _CountedStream(StreamingResponse):
    """A stream that is counted from its creation, so that many at once are not too many."""

    def __init__(self, parts: AsyncIterator[str], streams: "set[_CountedStream]") -> None:
        super().__init__(parts, media_type="text/event-stream")
        self._open_streams = streams
        streams.add(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._open_streams.discard(self)


class LivePages:
    """Makes endpoints of views."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._streams: set[_CountedStream] = set()

    def make_endpoint(self, view: View) -> Endpoint:
        """Return an endpoint that answers with the page, its live part, or a stream of it."""

        async def endpoint(request: Request) -> Response:
            if wants_stream(request):
                await run_in_threadpool(view, request)  # answers 404 before the stream begins
                return self._make_stream(request, view)
            page = await run_in_threadpool(view, request)
            if wants_part(request):
                return HTMLResponse(self._renderer.render_live(request, page))
            return self._renderer.render(request, page)

        return endpoint

    def _make_stream(self, request: Request, view: View) -> Response:
        if len(self._streams) >= MAX_STREAMS:
            return PlainTextResponse("too many viewers at once\n", 503)
        return _CountedStream(self._send(request, view), self._streams)

    async def _send(self, request: Request, view: View) -> AsyncIterator[str]:
        last, quiet_seconds, pause_seconds = "", 0.0, _FIRST_PAUSE_SECONDS
        while not (request.app.state.console.is_closing or await request.is_disconnected()):
            try:
                part = await run_in_threadpool(self._render, request, view)
            except HTTPException:  # what the page showed is gone
                return
            if part != last or quiet_seconds >= _KEEP_ALIVE_SECONDS:
                yield format_event(part)
                last, quiet_seconds = part, 0.0
            await asyncio.sleep(pause_seconds)
            quiet_seconds += pause_seconds
            pause_seconds = min(2 * pause_seconds, SECONDS)

    def _render(self, request: Request, view: View) -> str:
        return self._renderer.render_live(request, view(request))


def format_event(text: str) -> str:
    """Return an event of the stream. A line break in the text begins a new line of data."""
    return "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
