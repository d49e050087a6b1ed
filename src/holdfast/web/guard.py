"""The guard in front of every request: host, origin, session, and the headers of responses.

a host that is not ours   400    a page of another site must not reach a console on loopback
a POST of another origin  403
no session                303 to the login if there is a token, otherwise a new session
"""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.web.sessions import COOKIE, MAX_AGE_SECONDS, Session, Sessions

SESSION = "holdfast.session"  # its key in a scope; an application has a session of its own
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
_OPEN_PATHS = ("/login", "/static/")  # without a session
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # With `no-referrer` a browser would send no origin with a form, either.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """An ASGI middleware that lets only requests pass that the console may answer."""

    def __init__(self, app: ASGIApp, sessions: Sessions, hosts: Collection[str]) -> None:
        self._app, self._sessions = app, sessions
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = Headers(scope=scope)
            session = self._find_session(scope, headers)
            is_new = session is None and not self._sessions.needs_login
            if is_new:
                session = self._sessions.create()
            scope[SESSION] = session
            guarded_send = _HeaderSender(send, scope, self._sessions if is_new else None)
            response = self._refuse(scope, headers, session)
            await (response or self._app)(scope, receive, guarded_send)

    def _find_session(self, scope: Scope, headers: Headers) -> Session | None:
        cookies = cookie_parser(headers.get("cookie", ""))
        return self._sessions.from_cookie(cookies.get(_get_cookie_name(scope)))

    def _refuse(
        self, scope: Scope, headers: Headers, session: Session | None
    ) -> Response | None:
        """Return the response to a request that must not pass, or None."""
        host = headers.get("host", "")
        if _strip_port(host) not in self._hosts:
            return PlainTextResponse(
                f"This console does not answer for the host {host[:100]!r}. Open it at the "
                "address that it printed.\n",
                400,
            )
        if scope["method"] not in ("GET", "HEAD") and not _is_same_origin(headers, host):
            return PlainTextResponse("The form is that of another site.\n", 403)
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root)
        if session is None and not path.startswith(_OPEN_PATHS):
            return RedirectResponse(f"{root}/login", 303)
        return None


class _HeaderSender:
    """Sends a response with the headers of the guard, and with the cookie of a new session."""

    def __init__(self, send: Send, scope: Scope, sessions: Sessions | None) -> None:
        self._send, self._scope, self._sessions = send, scope, sessions

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            if self._sessions is not None:
                cookie = self._sessions.to_cookie(self._scope[SESSION])
                headers.append("Set-Cookie", format_cookie(self._scope, cookie))
        await self._send(message)


def _get_cookie_name(scope: Scope) -> str:
    """Return the cookie's name. Browsers share cookies between the ports of a host.

    Without the port in it, two consoles on a machine would end each other's sessions.
    """
    _, port = scope.get("server") or ("", None)
    return f"{COOKIE}_{port}" if port else COOKIE


def format_cookie(scope: Scope, value: str) -> str:
    """Return the header that sets the session's cookie for the console's paths."""
    path = scope.get("root_path", "") or "/"
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return (
        f"{_get_cookie_name(scope)}={value}; Path={path}; Max-Age={MAX_AGE_SECONDS}; HttpOnly; "
        f"SameSite=Strict{secure}"
    )


def _strip_port(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() else host.lower()


def _is_same_origin(headers: Headers, host: str) -> bool:
    """Return whether a form comes from the console itself. Every browser sends its origin."""
    try:
        origin = urlsplit(headers.get("origin", "")).netloc
    except ValueError:  # it is not an address
        return False
    return origin.lower() == host.lower() != ""
