"""Replies sent as mail through an SMTP server.

channel_config: sender, subject, host, port, tls (starttls, tls or none). Secret: username
and password, if the server requires them.

After the text is handed over and before the server's final response, it is unknown whether
the mail was accepted. The server cannot be queried about it later.

No text of a customer or a config can become a header or a second recipient, because an
address that is more than one address is refused.
"""

import re
import smtplib
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.errors import MessageError
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, parseaddr
from functools import partial
from typing import Any

from holdfast.chat.errors import (
    AuthenticationFailed,
    PermanentError,
    SendStatusUnknown,
    SendUnclear,
    TransientError,
)
from holdfast.chat.model import digest_texts
from holdfast.chat.outbox import SentPart
from holdfast.chat.ports import ReplyPart, Secret
from holdfast.lease.clock import SYSTEM_CLOCK, Clock, to_utc

_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_START_DATA = 354  # the server is ready for the text
_WORD = r"""[^\s@<>(),;:\\"\[\]\x00-\x1f\x7f]+"""
_ADDRESS = re.compile(f"{_WORD}@{_WORD}")


@dataclass(frozen=True, slots=True)
class _Mail:
    """The envelope of a mail and its content."""

    sender: str = field(repr=False)
    recipient: str = field(repr=False)
    message_id: str
    data: bytes = field(repr=False)

    @property
    def domain(self) -> str:
        """Return the sender's domain for the greeting.

        It is used because looking up the name of this host may be slow.
        """
        return self.sender.rpartition("@")[2]


class SmtpSender:
    """A sender of mails. It is safe for threads, because each mail has its own connection."""

    secret_fields: tuple[str, ...] = ()  # many private servers require none
    repeatable = False

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> Iterator[Callable[[], SentPart]]:
        """Proceed until the server accepted the recipient, so that only the text is left."""
        mail = _build_mail(part, self._clock.time())
        with _open_session(part.config, mail.domain, timeout_seconds) as smtp:
            _log_in(smtp, secret)
            _set_addresses(smtp, mail)
            yield partial(_hand_over, smtp, mail)

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        """Raise SendStatusUnknown, because SMTP has no lookup."""
        raise SendStatusUnknown("a mail server does not report what it accepted")


@contextmanager
def _open_session(
    config: Mapping[str, Any], name: str, seconds: float
) -> Iterator[smtplib.SMTP]:
    """Connect, greet, and secure the connection as configured.

    A server that does not offer TLS receives neither the password nor the text.
    """
    host, tls = str(config.get("host") or ""), str(config.get("tls") or "starttls")
    if tls not in _PORTS:
        raise PermanentError("channel_config: tls must be starttls, tls or none")
    port = str(config.get("port") or _PORTS[tls])
    if not host or not host.isprintable() or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise PermanentError("channel_config: host or port is missing or wrong")
    context = ssl.create_default_context()
    connect = partial(smtplib.SMTP_SSL, context=context) if tls == "tls" else smtplib.SMTP
    with _before_text("no connection to the mail server"):
        smtp = connect(host, int(port), local_hostname=name, timeout=seconds)
    try:
        with _before_text("the mail server's greeting"):
            if tls == "starttls":
                smtp.starttls(context=context)
            smtp.ehlo_or_helo_if_needed()
        yield smtp
    finally:
        with suppress(OSError):  # the mail is settled by now; smtplib's errors are OSErrors
            smtp.quit()
        smtp.close()


@contextmanager
def _before_text(step: str) -> Iterator[None]:
    """Translate the errors of a step that comes before the text, so nothing was sent.

    The errors contain only codes, because servers repeat the address, and some the password.
    """
    try:
        yield
    except smtplib.SMTPResponseException as error:
        raise _translate_code(step, error.smtp_code) from None
    except (OSError, ValueError) as error:
        raise TransientError(f"{step}: {type(error).__name__}") from None


def _log_in(smtp: smtplib.SMTP, secret: Secret) -> None:
    if "username" not in secret and "password" not in secret:
        return
    name, password = secret.reveal("username"), secret.reveal("password")
    if not f"{name}{password}".isascii():
        raise PermanentError("the secret has characters that SMTP cannot transmit")
    try:
        with _before_text("logging in to the mail server"):
            smtp.login(name, password)
    except PermanentError as refused:  # the secret may have been rotated
        raise AuthenticationFailed(str(refused)) from None


def _set_addresses(smtp: smtplib.SMTP, mail: _Mail) -> None:
    with _before_text("the mail server and the sender's address"):
        _expect_success(smtp.mail(mail.sender))
    with _before_text("the mail server and the customer's address"):
        _expect_success(smtp.rcpt(mail.recipient))


def _expect_success(response: tuple[int, bytes]) -> None:
    if not 200 <= response[0] < 300:
        raise smtplib.SMTPResponseException(response[0], "")


def _hand_over(smtp: smtplib.SMTP, mail: _Mail) -> SentPart:
    # DATA is a separate call: if the server closed the connection meanwhile, it has no text.
    with _before_text("the mail server and the text"):
        code, _ = smtp.docmd("DATA")
        if code != _START_DATA:
            raise smtplib.SMTPResponseException(code, "")
    try:
        smtp.send(mail.data + b".\r\n")  # no line of base64 begins with a dot
        code, _ = smtp.getreply()
    except (OSError, ValueError) as error:
        text = f"the mail server did not respond: {type(error).__name__}"
        raise SendUnclear(text) from None
    if not 200 <= code < 300:
        raise _translate_code("the mail server and the text", code)
    return SentPart(mail.message_id, "accepted")


def _translate_code(step: str, code: int) -> TransientError | PermanentError:
    text = f"{step}: {code}"
    return PermanentError(text) if 500 <= code < 600 else TransientError(text)


# -- the mail


def _build_mail(part: ReplyPart, now: float) -> _Mail:
    """Return the mail for a part. The same part always has the same Message-ID.

    Raises PermanentError if an address, the subject or the text cannot be used in a mail.
    """
    origin = str(part.config.get("sender") or "")
    sender = _check_address(parseaddr(origin)[1], "channel_config: sender")
    recipient = _check_address(part.key.primary_channel, "the customer's address")
    domain = sender.rpartition("@")[2]
    message_id = f"<{digest_texts(part.reference)}@{domain}>"
    headers = {
        "From": origin,
        "To": recipient,
        "Subject": str(part.config.get("subject") or "Your message"),
        "Date": format_datetime(to_utc(now)),
        "Message-ID": message_id,
        "Auto-Submitted": "auto-replied",  # prevents two machines from answering each other
    }
    return _Mail(sender, recipient, message_id, _encode(headers, part.text))


def _encode(headers: dict[str, str], text: str) -> bytes:
    message = EmailMessage(SMTP)
    try:
        for name, value in headers.items():
            message[name] = value
        # Use base64, so that lines arrive unchanged which begin with a dot, are too long, or
        # run from right to left.
        message.set_content(text, charset="utf-8", cte="base64")
        return message.as_bytes()
    except (ValueError, MessageError, IndexError):
        # A header has a line break, or a text has an incomplete character. The error's text is
        # not used, because it would quote them.
        raise PermanentError("subject, sender or text cannot be put into a mail") from None


def _check_address(address: str, name: str) -> str:
    if not _ADDRESS.fullmatch(address) or not address.isascii() or len(address) > 254:
        raise PermanentError(f"{name} is not one mail address in ASCII")
    return address
