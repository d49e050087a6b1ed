"""A reply as a mail. Nothing a customer or a config says can become a header or a second
recipient: an address that is more than one address is refused."""

import re
from dataclasses import dataclass, field
from email.errors import MessageError
from email.message import EmailMessage
from email.policy import SMTP, SMTPUTF8
from email.utils import format_datetime, parseaddr

from holdfast.conversations.errors import PermanentError
from holdfast.conversations.model import mark_of
from holdfast.conversations.ports import ReplyPart
from holdfast.core.clock import utc

_WORD = r"""[^\s@<>(),;:\\"\[\]\x00-\x1f\x7f]+"""
_ADDRESS = re.compile(f"{_WORD}@{_WORD}")


@dataclass(frozen=True, slots=True)
class MailMessage:
    """The envelope and what is in it."""

    sender: str = field(repr=False)
    recipient: str = field(repr=False)
    message_id: str
    data: bytes = field(repr=False)

    @property
    def domain(self) -> str:
        """Ours, for the greeting: this host's own name may take long to find out."""
        domain = self.sender.rpartition("@")[2]
        return domain if domain.isascii() else "localhost"

    @property
    def international(self) -> bool:
        return not (self.sender + self.recipient).isascii()


def mail_message(part: ReplyPart, now: float) -> MailMessage:
    """Its Message-ID is the same for the same part. Raises PermanentError."""
    origin = str(part.config.get("sender") or "")
    sender = _checked(parseaddr(origin)[1], "channel_config: sender")
    recipient = _checked(part.key.primary_channel, "the customer's address")
    domain = sender.rpartition("@")[2]
    message_id = f"<{mark_of(part.reference)}@{domain}>"
    headers = {
        "From": origin,
        "To": recipient,
        "Subject": str(part.config.get("subject") or "Your message"),
        "Date": format_datetime(utc(now)),
        "Message-ID": message_id,
        "Auto-Submitted": "auto-replied",  # or two machines might answer each other for ever
    }
    plain = (sender + recipient).isascii()
    return MailMessage(sender, recipient, message_id, _data(headers, part.text, plain))


def _data(headers: dict[str, str], text: str, plain: bool) -> bytes:
    message = EmailMessage(SMTP if plain else SMTPUTF8)
    try:
        for name, value in headers.items():
            message[name] = value
        # Base64: lines that begin with a dot, that are too long or that run from right to
        # left arrive as they are.
        message.set_content(text, charset="utf-8", cte="base64")
        return message.as_bytes()
    except (ValueError, MessageError, IndexError):
        # A line break in a header, or half a character somewhere. Its text would tell.
        raise PermanentError("subject, sender or text cannot be put into a mail") from None


def _checked(address: str, what: str) -> str:
    if not _ADDRESS.fullmatch(address) or len(address) > 254:
        raise PermanentError(f"{what} is not one mail address")
    return address
