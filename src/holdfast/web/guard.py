"""The guard in front of every request: host, origin, session, and the headers of responses.

a host that is not ours   400    a page of another site must not reach a console on loopback
a POST of another origin  403
no session                303 to the login, if there is a token

A session is a signed text in a cookie, so the console keeps nothing about viewers.
"""

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection
from hashlib import sha256
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import ConfigError
from holdfast.lease.clock import Clock

COOKIE = "holdfast_console"
MAX_AGE_SECONDS = 12 * 3600
MIN_TOKEN_LENGTH = 16
_MAX_AUTHOR_LENGTH = 64
AUTHOR = "holdfast.author"  # the key of the session in a scope
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


class Sessions:
    """Makes and checks the cookies of a console with a token. They outlive a restart.

    A session is the name that a user gave when logging in.
    """

    def __init__(self, token: str | None, clock: Clock) -> None:
        if token is not None and len(token) < MIN_TOKEN_LENGTH:
            raise ConfigError(
                f"the console's token must have {MIN_TOKEN_LENGTH} characters or more, it has "
                f"{len(token)}: make one with `openssl rand -hex 16`"
            )
        self._token = token
        self._clock = clock
        self._key = sha256((token or "").encode()).digest()

    @property
    def needs_login(self) -> bool:
        """Whether a browser must send the token first."""
        return self._token is not None

    def is_token(self, given: str) -> bool:
        """Return whether this is the console's token, in a time that reveals nothing."""
        expected = self._token or ""
        return hmac.compare_digest(given.encode(), expected.encode()) and bool(expected)

    def to_cookie(self, author: str) -> str:
        """Return the value of the cookie that proves the session of a user."""
        facts = [author.strip()[:_MAX_AUTHOR_LENGTH], int(self._clock.time())]
        content = urlsafe_b64encode(json.dumps(facts).encode()).decode()
        return f"{content}.{self._sign(content)}"

    def from_cookie(self, cookie: str | None) -> str | None:
        """Return the author of a cookie; None for one that is missing, old or forged.

        Without a token each browser that may connect has a session, without a name.
        """
        if not self.needs_login:
            return ""
        content, _, signature = (cookie or "").partition(".")
        if not hmac.compare_digest(self._sign(content).encode(), signature.encode()):
            return None
        author, issued_at = json.loads(urlsafe_b64decode(content))
        is_current = 0 <= self._clock.time() - issued_at < MAX_AGE_SECONDS
        return str(author) if is_current else None

    def _sign(self, content: str) -> str:
        return hmac.new(self._key, content.encode(), sha256).hexdigest()


class Guard:
    """An ASGI middleware that lets only requests pass that the console may answer."""

    def __init__(self, app: ASGIApp, sessions: Sessions, hosts: Collection[str]) -> None:
        self._app, self._sessions = app, sessions
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = Headers(scope=scope)
            cookies = cookie_parser(headers.get("cookie", ""))
            author = self._sessions.from_cookie(cookies.get(_get_cookie_name(scope)))
            scope[AUTHOR] = author
            response = self._refuse(scope, headers, author)
            await (response or self._app)(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope, headers: Headers, author: str | None) -> Response | None:
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
        if author is None and not path.startswith(_OPEN_PATHS):
            return RedirectResponse(f"{root}/login", 303)
        return None


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
