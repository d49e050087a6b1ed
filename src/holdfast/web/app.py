"""The application: its routes, and the rules about who may open it."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from holdfast.bootstrap.chats import ChatApp, build_chat
from holdfast.bootstrap.exports import open_jobs
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError
from holdfast.core.queue.manager import QueueManager
from holdfast.core.urls import require_store
from holdfast.jobs.ports import JobStateRepository
from holdfast.web.actions import Action, Actions
from holdfast.web.console import Console
from holdfast.web.conversations import ConversationPages
from holdfast.web.decisions import Decisions
from holdfast.web.guard import HEADERS, LOOPBACK_HOSTS, Guard
from holdfast.web.jobs import JobPages
from holdfast.web.live import LivePages, View
from holdfast.web.operations import Operations
from holdfast.web.rendering import Page, Renderer
from holdfast.web.sessions import Sessions
from holdfast.web.views import QueuePages

_STATIC = Path(__file__).parent / "static"


def web_app(
    queues: Sequence[str | QueueManager[Any]],
    *,
    jobs: str | JobStateRepository | None = None,
    chat: str | ChatApp | None = None,
    allow_actions: bool = False,
    show_bodies: bool = True,
    token: str | None = None,
    hosts: Sequence[str] = (),
    protected: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Starlette:
    """Return the console as an application, to be served or mounted in another one.

    `queues` are URLs as open_queue takes them, or open queues, and `jobs` is a store of jobs,
    or its URL. `chat` is an application of conversations, or the URL of its store; the other
    settings are then those of the environment. It answers for the loopback,
    and for `hosts`, which need a `token`: a browser sends it once and gets a cookie. If the
    application around it lets only users in that may see everything, say `protected=True`
    instead. Without `allow_actions` it changes nothing; with `show_bodies=False` it never
    shows the body of a message, or the number and the texts of a customer. Raises ConfigError.
    """
    others = [host for host in hosts if host.lower() not in LOOPBACK_HOSTS]
    if others and token is None and not protected:
        raise ConfigError(
            f"the console would answer for {', '.join(others)} without a login: give a token, "
            "or protected=True if the application around it has a login"
        )
    sessions = Sessions(token, clock)
    console = Console(
        queues, sessions, allow_actions=allow_actions, show_bodies=show_bodies, clock=clock
    )

    @asynccontextmanager
    async def close_at_end(app: Starlette) -> AsyncIterator[None]:
        console.start()
        yield
        console.close()
        for pages in (job_pages, chat_pages):
            if pages is not None:
                pages.close()

    job_pages = None if jobs is None else JobPages(partial(_open_jobs, jobs), clock)
    chat_pages = None
    if chat is not None:
        chat_pages = ConversationPages(partial(_open_chat, chat, clock), console)
    renderer = Renderer(console, has_jobs=jobs is not None, has_chat=chat is not None)
    app = Starlette(
        routes=_make_routes(console, renderer, job_pages, chat_pages),
        middleware=[
            Middleware(Guard, sessions=sessions, hosts={*LOOPBACK_HOSTS, *hosts}),
            Middleware(GZipMiddleware, minimum_size=1000),
        ],
        exception_handlers={
            HTTPException: _make_error_handler(renderer),
            Exception: _make_error_handler(renderer),
        },
        lifespan=close_at_end,
    )
    app.state.console = console
    return app


def _open_jobs(store: str | JobStateRepository) -> JobStateRepository:
    """Open a store of jobs that exists. A console never creates one."""
    if isinstance(store, JobStateRepository):
        return store
    remedy = "check the name, or run an export first"
    return open_jobs(require_store(store, "there is no job store", remedy))


def _open_chat(chat: str | ChatApp, clock: Clock) -> ChatApp:
    """Open an application with a store that exists. A console never creates one."""
    if isinstance(chat, ChatApp):
        return chat
    remedy = "check the name, or start one with `holdfast chat send`"
    store = require_store(chat, "there is no conversation store", remedy)
    return build_chat({**os.environ, "HOLDFAST_CHAT_STORE": store}, clock=clock)


def _make_routes(
    console: Console,
    renderer: Renderer,
    jobs: JobPages | None,
    chat: ConversationPages | None,
) -> list[Route | Mount]:
    operations = Operations(console.clock)
    pages, live = QueuePages(console, operations), LivePages(renderer)
    actions = Actions(console, operations, pages, renderer)

    def show(path: str, view: View) -> Route:
        return Route(path, live.make_endpoint(view), methods=["GET"])

    def act(path: str, action: Action, *, changes: bool = True) -> Route:
        endpoint = actions.make_endpoint(action, changes=changes)
        return Route(path, endpoint, methods=["POST"])

    more: list[Route] = []
    if jobs is not None:
        more += [show("/jobs", jobs.show_jobs), show("/jobs/job", jobs.show_job)]
    if chat is not None:
        decisions = Decisions(console, chat, renderer)
        more += [
            show("/conversations", chat.show_conversations),
            show("/conversations/conversation", chat.show_conversation),
            show("/conversations/parked", chat.show_parked),
            show("/conversations/batch", chat.show_batch),
            act("/conversations", decisions.search, changes=False),
            act("/conversations/conversation", decisions.assign),
            act("/conversations/batch", decisions.decide),
        ]
    has_queues = bool(console.queues) or not more
    home = show("/", pages.show_queues) if has_queues else _redirect("/", more[0].path)
    return [
        *more,
        home,
        show("/queues/{slug}", pages.show_queue),
        show("/queues/{slug}/messages", pages.show_messages),
        show("/queues/{slug}/message", pages.show_message),
        show("/queues/{slug}/dead", pages.show_dead_letters),
        show("/operations/{number}", pages.show_operation),
        act("/queues/{slug}/dead", actions.change_dead_letters),
        Route("/login", actions.show_login, methods=["GET"]),
        Route("/login", actions.log_in, methods=["POST"]),
        Mount("/static", StaticFiles(directory=_STATIC), name="static"),
    ]


def _redirect(path: str, target: str) -> Route:
    async def redirect(request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}{target}")

    return Route(path, redirect, methods=["GET"])


def _make_error_handler(renderer: Renderer) -> Any:
    async def show_error(request: Request, error: Exception) -> Response:
        status, text = 500, "The console itself failed; its log says why."
        if isinstance(error, HTTPException):
            status, text = error.status_code, error.detail
        page = Page("error.html", {"section": "", "status": status, "text": text}, status)
        response = renderer.render(request, page)
        response.headers.update(HEADERS)  # Starlette sends a 500 past the guard
        return response

    return show_error
