"""What the console can do: log in, and redrive or drop dead letters. Every action is a POST."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from holdfast.queue.dead_view import DeadFilter, iterate_dead
from holdfast.web.choices import parse_choices
from holdfast.web.console import Console, WatchedQueue
from holdfast.web.guard import format_cookie
from holdfast.web.live import Endpoint
from holdfast.web.operations import Operation, Operations
from holdfast.web.rendering import Page, Renderer
from holdfast.web.views import QueuePages, parse_filter

MAX_FORM_BYTES = 1024 * 1024
FORM_TIMEOUT_SECONDS = 30.0
_VERBS = ("redrive", "drop")
_FAILED_LOGIN_SECONDS = 1.0


class Form(Mapping[str, str]):
    """The fields of a form. A field that a form has several times is read with `all`."""

    def __init__(self, body: bytes) -> None:
        self._fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)

    def __getitem__(self, name: str) -> str:
        return self._fields[name][0]

    def __iter__(self) -> Any:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return self._fields.get(name, [])


Action = Callable[[Request, Form], Response]


async def read_form(request: Request) -> Form:
    """Return the fields of a form. Raises 413 if it is too large, and 408 if it is too slow.

    Raises 400 if the connection ends before the form does, which would be logged as a failure
    of the console otherwise.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_TIMEOUT_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_FORM_BYTES:
                    raise HTTPException(413, "The form is too large.")
    except TimeoutError:
        raise HTTPException(408, "The form did not arrive in time.") from None
    except ClientDisconnect:
        raise HTTPException(400, "The form did not arrive completely.") from None
    return Form(bytes(body))


class Actions:
    """The actions, each of which checks that it is allowed before anything happens."""

    def __init__(
        self, console: Console, operations: Operations, pages: QueuePages, renderer: Renderer
    ) -> None:
        self._console, self._operations = console, operations
        self._pages, self._renderer = pages, renderer

    # -- logging in

    async def show_login(self, request: Request) -> Response:
        """Show the form that takes the token."""
        return self._renderer.render(
            request, Page("login.html", {"section": "", "wrong": False})
        )

    async def log_in(self, request: Request) -> Response:
        """Exchange the token for a session's cookie."""
        sessions = self._console.sessions
        form = await read_form(request)
        if not sessions.is_token(form.get("token", "")):
            await asyncio.sleep(_FAILED_LOGIN_SECONDS)  # so that tokens cannot be guessed fast
            page = Page("login.html", {"section": "", "wrong": True}, 403)
            return self._renderer.render(request, page)
        session = sessions.create(form.get("author", ""))
        response = RedirectResponse(f"{request.scope.get('root_path', '')}/", 303)
        cookie = format_cookie(request.scope, sessions.to_cookie(session))
        response.headers.append("Set-Cookie", cookie)
        return response

    # -- dead letters

    def make_endpoint(self, action: Action, *, changes: bool = True) -> Endpoint:
        """Return an endpoint that runs an action if its form is ours and, if it changes
        anything, actions are allowed."""

        async def endpoint(request: Request) -> Response:
            if changes and not self._console.allow_actions:
                raise HTTPException(
                    403, "This console is read-only. Start it with --allow-actions."
                )
            form = await read_form(request)
            session = self._console.get_session(request)
            if not self._console.sessions.is_form_token(session, form.get("form_token", "")):
                raise HTTPException(
                    403, "The form is old, or from another site. Go back, reload and try again."
                )
            return await run_in_threadpool(action, request, form)

        return endpoint

    def change_dead_letters(self, request: Request, form: Form) -> Response:
        """Redrive or drop the chosen dead letters, or all that the filter chooses."""
        watched = self._pages.find_queue(request)
        verb, is_all = form.get("verb", ""), form.get("scope") == "all"
        if verb not in _VERBS:
            raise HTTPException(400, "verb must be redrive or drop.")
        wanted, choices = parse_filter(form), form.all("choice")
        chosen = [] if is_all else parse_choices(choices)
        if not is_all and not chosen:
            return self._go_back(request, watched, wanted)
        if verb == "drop" and form.get("confirmed") != "yes":
            return self._ask(request, watched, wanted, choices, is_all)
        counts = watched.watch.counts.get()
        failed = counts.stats.failed if counts and counts.stats else None
        self._console.log_action(
            request,
            f"{verb} dead letters",
            queue=watched.name,
            chosen="all" if is_all else [message.id for message in chosen],
            text=wanted.text,
            kind=wanted.kind,
            field=wanted.field,
        )
        operation = self._operations.start(
            verb,
            watched,
            iterate_dead(watched.watch.get_queue(), wanted) if is_all else [chosen],
            author=self._console.get_author(request),
            total=(failed if wanted.is_empty else None) if is_all else len(chosen),
            on_end=lambda operation: self._log_end(request, operation),
        )
        root = request.scope.get("root_path", "")
        return RedirectResponse(f"{root}/operations/{operation.number}", 303)

    def _log_end(self, request: Request, operation: Operation) -> None:
        self._console.log_action(
            request,
            f"{operation.past_verb} dead letters",
            queue=operation.queue.name,
            count=operation.done,
            problem=operation.problem,
        )

    def _ask(
        self,
        request: Request,
        watched: WatchedQueue,
        wanted: DeadFilter,
        choices: list[str],
        is_all: bool,
    ) -> Response:
        counts = watched.watch.counts.get()
        context = {
            "count": counts.stats.failed if counts and counts.stats else None,
            "filter": wanted,
            "is_all": is_all,
            "choices": choices,
            "queue": watched,
            "section": "queues",
        }
        return self._renderer.render(request, Page("confirm.html", context))

    def _go_back(self, request: Request, watched: WatchedQueue, wanted: DeadFilter) -> Response:
        query = urlencode({"text": wanted.text, "kind": wanted.kind, "field": wanted.field})
        root = request.scope.get("root_path", "")
        return RedirectResponse(f"{root}/queues/{watched.slug}/dead?{query}&chosen=none", 303)
