"""What the console can do: log in, and redrive or drop dead letters. Every action is a POST.

Dead letters are changed in a thread, and a page reports how far it is.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock, Thread
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from holdfast.errors import HoldfastError
from holdfast.lease.clock import to_utc
from holdfast.queue.info import MessageInfo
from holdfast.queue.watch import QueueWatch, iterate_dead
from holdfast.web.console import Console
from holdfast.web.guard import format_cookie
from holdfast.web.rendering import (
    Action,
    Endpoint,
    Form,
    Page,
    Renderer,
    parse_number,
    redirect,
)
from holdfast.web.views import QueuePages, parse_choices, parse_filter

MAX_FORM_BYTES = 1024 * 1024
FORM_TIMEOUT_SECONDS = 30.0
MAX_KEPT = 100  # operations
_PAST_VERBS = {"redrive": "redriven", "drop": "dropped"}
_FAILED_LOGIN_SECONDS = 1.0


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
    return Form(body.decode("utf-8", "replace"))


@dataclass(slots=True)
class Operation:
    """One action on many dead letters. Its counts grow until `is_done`."""

    number: int
    verb: str  # redrive | drop
    queue: QueueWatch
    author: str
    started: datetime
    total: int | None  # None if it is unknown how many will be chosen
    seen: int = 0
    done: int = 0
    is_done: bool = False
    problem: str = ""

    @property
    def past_verb(self) -> str:
        """The verb in the past tense."""
        return _PAST_VERBS[self.verb]

    def run(self, batches: Iterable[Sequence[MessageInfo]]) -> None:
        """Apply the verb to all batches."""
        try:
            queue = self.queue.get_queue()
            apply = queue.redrive_many if self.verb == "redrive" else queue.drop_many
            for batch in batches:
                self.done += apply(batch)
                self.seen += len(batch)
        except (HoldfastError, OSError) as error:
            self.problem = str(error)
        except Exception as error:
            self.problem = f"this is a bug in Holdfast: {type(error).__name__}"
            raise
        finally:
            self.is_done = True
            self.queue.expire()


class Actions:
    """The actions, each of which checks that it is allowed before anything happens."""

    def __init__(self, console: Console, pages: QueuePages, renderer: Renderer) -> None:
        self._console, self._pages, self._renderer = console, pages, renderer
        self._operations: dict[int, Operation] = {}  # the last of them
        self._last, self._lock = 0, Lock()

    # -- logging in

    async def show_login(self, request: Request) -> Response:
        """Show the form that takes the token."""
        return self._renderer.render(request, _make_login(200))

    async def log_in(self, request: Request) -> Response:
        """Exchange the token for a session's cookie."""
        sessions = self._console.sessions
        form = await read_form(request)
        if not sessions.is_token(form.get("token", "")):
            await asyncio.sleep(_FAILED_LOGIN_SECONDS)  # so that tokens cannot be guessed fast
            return self._renderer.render(request, _make_login(403))
        response = redirect(request, "/")
        cookie = format_cookie(request.scope, sessions.to_cookie(form.get("author", "")))
        response.headers.append("Set-Cookie", cookie)
        return response

    # -- dead letters

    def make_endpoint(self, action: Action, *, changes: bool = True) -> Endpoint:
        """Return an endpoint that runs an action. One that changes anything must be allowed."""

        async def endpoint(request: Request) -> Response:
            if changes and not self._console.allow_actions:
                raise HTTPException(
                    403, "This console is read-only. Start it with --allow-actions."
                )
            form = await read_form(request)
            result = await run_in_threadpool(action, request, form)
            return (
                self._renderer.render(request, result) if isinstance(result, Page) else result
            )

        return endpoint

    def change_dead_letters(self, request: Request, form: Form) -> Response | Page:
        """Redrive or drop the chosen dead letters, or all that the filter chooses."""
        watched = self._pages.find_queue(request)
        verb, is_all = form.get("verb", ""), form.get("scope") == "all"
        if verb not in _PAST_VERBS:
            raise HTTPException(400, "verb must be redrive or drop.")
        wanted, choices = parse_filter(form), form.getlist("choice")
        chosen = [] if is_all else parse_choices(choices)
        if not is_all and not chosen:
            query = urlencode({"text": wanted.text, "kind": wanted.kind, "field": wanted.field})
            return redirect(request, f"/queues/{watched.slug}/dead?{query}&chosen=none")
        if verb == "drop" and form.get("confirmed") != "yes":
            context = {
                "count": watched.view(0.0).failed,
                "filter": wanted,
                "is_all": is_all,
                "choices": choices,
                "queue": watched,
            }
            return Page("confirm.html", context)
        total: int | None = len(chosen)
        batches: Iterable[Sequence[MessageInfo]] = [chosen]
        if is_all:
            total = watched.view(0.0).failed if wanted.is_empty else None
            batches = iterate_dead(watched.get_queue(), wanted)
        self._console.log_action(
            request,
            f"{verb} dead letters",
            queue=watched.name,
            chosen="all" if is_all else [message.id for message in chosen],
            text=wanted.text,
            kind=wanted.kind,
            field=wanted.field,
        )
        operation = self._add_operation(request, verb, watched, total)
        Thread(
            target=self._run,
            args=(request, operation, batches),
            name="holdfast-web-operation",
            daemon=True,
        ).start()
        return redirect(request, f"/operations/{operation.number}")

    def _add_operation(
        self, request: Request, verb: str, watched: QueueWatch, total: int | None
    ) -> Operation:
        author, started = self._console.get_author(request), to_utc(self._console.clock.time())
        with self._lock:
            self._last += 1
            operation = Operation(self._last, verb, watched, author, started, total)
            self._operations[self._last] = operation
            self._operations.pop(self._last - MAX_KEPT, None)
        return operation

    def _run(
        self, request: Request, operation: Operation, batches: Iterable[Sequence[MessageInfo]]
    ) -> None:
        try:
            operation.run(batches)
        finally:
            self._console.log_action(
                request,
                f"{operation.past_verb} dead letters",
                queue=operation.queue.name,
                count=operation.done,
                problem=operation.problem,
            )

    def show_operation(self, request: Request) -> Page:
        """Show how far an action on many dead letters is."""
        number = parse_number(request.path_params["number"])
        operation = None if number is None else self._operations.get(number)
        if operation is None:
            raise HTTPException(404, "This console does not know that action any more.")
        return Page("operation.html", {"operation": operation})


def _make_login(status: int) -> Page:
    return Page("login.html", {"section": "", "wrong": status != 200}, status)
