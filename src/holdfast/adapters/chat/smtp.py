"""Replies sent as mail, through a server that takes them.

channel_config: sender, subject, host, port, tls (starttls, tls or none). Secret: username
and password, if the server wants them.

SMTP has one moment of doubt: after the text was handed over, and before the server's last
word. Nobody can be asked about it later.
"""

import re
import smtplib
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.adapters.chat.mail import MailMessage, mail_message
from holdfast.conversations.errors import (
    AuthenticationFailed,
    PermanentError,
    SendStatusUnknown,
    SendUnclear,
    TransientError,
)
from holdfast.conversations.outbox import SentPart
from holdfast.conversations.ports import ReplyPart
from holdfast.conversations.secret import Secret
from holdfast.core.clock import SYSTEM_CLOCK, Clock

_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_GO_ON = 354  # the server waits for the text


@dataclass(frozen=True, slots=True)
class _Server:
    host: str
    port: int
    tls: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "_Server":
        host, tls = str(config.get("host") or ""), str(config.get("tls") or "starttls")
        if tls not in _PORTS:
            raise PermanentError("channel_config: tls is starttls, tls or none")
        try:
            port = int(config.get("port") or _PORTS[tls])
        except (TypeError, ValueError):
            port = 0
        if not host or not host.isprintable() or not 0 < port < 65_536:
            raise PermanentError("channel_config: host or port is missing or wrong")
        return cls(host, port, tls)


class SmtpSender:
    """Safe for threads: a connection for each mail."""

    secret_fields: tuple[str, ...] = ()  # many servers of one's own ask for none
    repeatable = False

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> Iterator[Callable[[], SentPart]]:
        """Go as far as the recipient, whom the server may refuse: only the text is left."""
        server, letter = _Server.of(part.config), mail_message(part, self._clock.time())
        with _connected(server, letter.domain, timeout_seconds) as smtp:
            _log_in(smtp, secret)
            _address(smtp, letter)
            yield partial(_hand_over, smtp, letter)

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        raise SendStatusUnknown("a mail server does not say what it took")


@contextmanager
def _connected(server: _Server, name: str, seconds: float) -> Iterator[smtplib.SMTP]:
    """A connection, greeted, and secured as wished: a server that offers no TLS gets
    neither the password nor the text."""
    with _before_the_text("no connection to the mail server"):
        smtp = _opened(server, name, seconds)
    try:
        with _before_the_text("the mail server's greeting"):
            if server.tls == "starttls":
                smtp.starttls(context=ssl.create_default_context())
            smtp.ehlo_or_helo_if_needed()
        yield smtp
    finally:
        with suppress(OSError):  # what it took, it took; smtplib's errors are OSErrors
            smtp.quit()
        smtp.close()


def _opened(server: _Server, name: str, seconds: float) -> smtplib.SMTP:
    if server.tls == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(
            server.host, server.port, local_hostname=name, timeout=seconds, context=context
        )
    return smtplib.SMTP(server.host, server.port, local_hostname=name, timeout=seconds)


@contextmanager
def _before_the_text(doing: str) -> Iterator[None]:
    """Whatever fails in here, nothing was sent. Only codes are told: servers repeat the
    address, and some the password."""
    try:
        yield
    except smtplib.SMTPResponseException as error:
        raise _refused(doing, error.smtp_code) from None
    except (OSError, ValueError) as error:
        raise TransientError(f"{doing}: {type(error).__name__}") from None


def _log_in(smtp: smtplib.SMTP, secret: Secret) -> None:
    if "username" not in secret and "password" not in secret:
        return
    name, word = secret.reveal("username"), secret.reveal("password")
    if not f"{name}{word}".isascii():
        raise PermanentError("the secret has characters that SMTP cannot carry")
    try:
        with _before_the_text("logging in to the mail server"):
            smtp.login(name, word)
    except PermanentError as refused:  # it may have been rotated
        raise AuthenticationFailed(str(refused)) from None


def _address(smtp: smtplib.SMTP, letter: MailMessage) -> None:
    if letter.international and not smtp.has_extn("smtputf8"):
        raise PermanentError("the mail server takes no addresses with such letters")
    options = ["SMTPUTF8", "BODY=8BITMIME"] if letter.international else []
    with _before_the_text("the mail server and the sender"):
        _expect(smtp.mail(letter.sender, options))
    with _before_the_text("the mail server and the customer's address"):
        _expect(smtp.rcpt(letter.recipient))


def _expect(reply: tuple[int, bytes]) -> None:
    if not 200 <= reply[0] < 300:
        raise smtplib.SMTPResponseException(reply[0], "")


def _hand_over(smtp: smtplib.SMTP, letter: MailMessage) -> SentPart:
    # A call of its own: a server that closed the connection meanwhile has no text.
    with _before_the_text("the mail server and the text"):
        code, _ = smtp.docmd("DATA")
        if code != _GO_ON:
            raise smtplib.SMTPResponseException(code, "")
    try:
        smtp.send(_dotted(letter.data))
        code, _ = smtp.getreply()
    except (OSError, ValueError) as error:
        text = f"the mail server did not answer: {type(error).__name__}"
        raise SendUnclear(text) from None
    if not 200 <= code < 300:
        raise _refused("the mail server and the text", code)
    return SentPart(letter.message_id, "accepted")


def _dotted(data: bytes) -> bytes:
    """Return the text as SMTP wants it: a line with one dot is its end, and nothing else."""
    whole = data if data.endswith(b"\r\n") else data + b"\r\n"
    return re.sub(rb"(?m)^\.", b"..", whole) + b".\r\n"


def _refused(doing: str, code: int) -> TransientError | PermanentError:
    said = f"{doing}: {code}"
    return PermanentError(said) if 500 <= code < 600 else TransientError(said)
