"""Sessions and form tokens: signed texts, so that the console keeps nothing about viewers."""

import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256

from holdfast.errors import ConfigError
from holdfast.lease.clock import Clock

COOKIE = "holdfast_console"
MAX_AGE_SECONDS = 12 * 3600
MIN_TOKEN_LENGTH = 16
_MAX_AUTHOR_LENGTH = 64


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
