"""The application: its routes, and the rules about who may open it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from holdfast.errors import ConfigError
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.products import find_products, load_part
from holdfast.queue.manager import QueueManager
from holdfast.web.actions import Actions
from holdfast.web.console import Console
from holdfast.web.guard import HEADERS, LOOPBACK_HOSTS, Guard, Sessions
from holdfast.web.rendering import Action, Page, ProductPages, Renderer, View, redirect
from holdfast.web.views import QueuePages

if TYPE_CHECKING:
    from holdfast.chat.building import ChatApp
    from holdfast.exports.ports import JobStateRepository

_STATIC = Path(__file__).parent / "static"


def web_app(
    queues: Sequence[str | QueueManager[Any]],
    *,
    jobs: "str | JobStateRepository | None" = None,
    chat: "str | ChatApp | None" = None,
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
        for pages in products:
            pages.close()

    products = _open_pages({"jobs": jobs, "chat": chat}, console)
    renderer = Renderer(console, products)
    app = Starlette(
        routes=_make_routes(console, renderer, products),
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


def _open_pages(stores: Mapping[str, Any], console: Console) -> list[ProductPages]:
    """Return the pages of each store that is given. Raises ConfigError."""
    products = {product.store: product for product in find_products()}
    given = {name: store for name, store in stores.items() if store is not None}
    if missing := given.keys() - products.keys():
        raise ConfigError(f"this installation of Holdfast has no {', '.join(sorted(missing))}")
    return [load_part(products[name].pages)(store, console) for name, store in given.items()]


def _make_routes(
    console: Console, renderer: Renderer, products: Sequence[ProductPages]
) -> list[Route | Mount]:
    pages = QueuePages(console)
    actions = Actions(console, pages, renderer)

    def show(path: str, view: View) -> Route:
        return Route(path, renderer.make_endpoint(view), methods=["GET"])

    def act(path: str, action: Action, *, changes: bool = True) -> Route:
        endpoint = actions.make_endpoint(action, changes=changes)
        return Route(path, endpoint, methods=["POST"])

    more: list[Route] = []
    for product in products:
        more += [show(path, view) for path, view in product.list_views().items()]
        more += [
            act(path, action, changes=changes)
            for path, (action, changes) in product.list_actions().items()
        ]
    has_queues = bool(console.queues) or not more
    home = show("/", pages.show_queues)
    if not has_queues:
        home = Route("/", partial(redirect, path=more[0].path), methods=["GET"])
    return [
        *more,
        home,
        show("/queues/{slug}", pages.show_queue),
        show("/queues/{slug}/messages", pages.show_messages),
        show("/queues/{slug}/message", pages.show_message),
        show("/queues/{slug}/dead", pages.show_dead_letters),
        show("/operations/{number}", actions.show_operation),
        act("/queues/{slug}/dead", actions.change_dead_letters),
        Route("/login", actions.show_login, methods=["GET"]),
        Route("/login", actions.log_in, methods=["POST"]),
        Mount("/static", StaticFiles(directory=_STATIC), name="static"),
    ]


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
