"""The guard in front of every request: host, origin, session, and the headers of responses.

a host that is not ours   400    a page of another site must not reach a console on loopback
a POST of another origin  403
no session                303 to the login if there is a token, otherwise a new session

Sessions and form tokens are signed texts, so the console keeps nothing about viewers.
"""

import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Session:
    """A browser: its random id, and the name that its user gave when logging in."""

    id: str
    author: str = ""


class Sessions:
    """Makes and checks the cookies and the form tokens of a console.

    With a token, only a browser that sent it gets a session, and sessions outlive a restart.
    Without one, every browser that may connect gets a session.
    """

    def __init__(self, token: str | None, clock: Clock) -> None:
        if token is not None and len(token) < MIN_TOKEN_LENGTH:
            raise ConfigError(
                f"the console's token must have {MIN_TOKEN_LENGTH} characters or more, it has "
                f"{len(token)}: make one with `openssl rand -hex 16`"
            )
        self._token = token
        self._clock = clock
        self._key = sha256(token.encode()).digest() if token else secrets.token_bytes(32)

    @property
    def needs_login(self) -> bool:
        """Whether a browser must send the token first."""
        return self._token is not None

    def is_token(self, given: str) -> bool:
        """Return whether this is the console's token, in a time that reveals nothing."""
        expected = self._token or ""
        return hmac.compare_digest(given.encode(), expected.encode()) and bool(expected)

    def create(self, author: str = "") -> Session:
        """Return a new session."""
        return Session(secrets.token_urlsafe(16), author.strip()[:_MAX_AUTHOR_LENGTH])

    def to_cookie(self, session: Session) -> str:
        """Return the value of the cookie that proves this session."""
        facts = [session.id, session.author, int(self._clock.time())]
        content = urlsafe_b64encode(json.dumps(facts).encode()).decode()
        return f"{content}.{self._sign('cookie', content)}"

    def from_cookie(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie; None for one that is missing, old or forged."""
        content, _, signature = (cookie or "").partition(".")
        if not content or not self._is_signed(signature, "cookie", content):
            return None
        session_id, author, issued_at = json.loads(urlsafe_b64decode(content))
        if not 0 <= self._clock.time() - issued_at < MAX_AGE_SECONDS:
            return None
        return Session(session_id, author)

    def make_form_token(self, session: Session) -> str:
        """Return a token for a form. It differs each time, so compression reveals nothing."""
        nonce = secrets.token_urlsafe(12)
        return f"{nonce}.{self._sign('form', session.id, nonce)}"

    def is_form_token(self, session: Session, token: str) -> bool:
        """Return whether a form of this session has this token."""
        nonce, _, signature = token.partition(".")
        return self._is_signed(signature, "form", session.id, nonce)

    def _sign(self, *parts: str) -> str:
        return hmac.new(self._key, json.dumps(parts).encode(), sha256).hexdigest()

    def _is_signed(self, signature: str, *parts: str) -> bool:
        return hmac.compare_digest(self._sign(*parts).encode(), signature.encode())


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
