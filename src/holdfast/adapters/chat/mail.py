"""A reply as a mail.

No text of a customer or a config can become a header or a second recipient, because an
address that is more than one address is refused.
"""

import re
from dataclasses import dataclass, field
from email.errors import MessageError
from email.message import EmailMessage
from email.policy import SMTP, SMTPUTF8
from email.utils import format_datetime, parseaddr

from holdfast.conversations.errors import PermanentError
from holdfast.conversations.model import digest_texts
from holdfast.conversations.ports import ReplyPart
from holdfast.core.clock import to_utc

_WORD = r"""[^\s@<>(),;:\\"\[\]\x00-\x1f\x7f]+"""
_ADDRESS = re.compile(f"{_WORD}@{_WORD}")


@dataclass(frozen=True, slots=True)
class MailMessage:
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
        domain = self.sender.rpartition("@")[2]
        return domain if domain.isascii() else "localhost"

    @property
    def is_international(self) -> bool:
        """Check whether an address has characters beyond ASCII."""
        return not (self.sender + self.recipient).isascii()


def build_mail(part: ReplyPart, now: float) -> MailMessage:
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
    is_ascii = (sender + recipient).isascii()
    return MailMessage(sender, recipient, message_id, _encode(headers, part.text, is_ascii))


def _encode(headers: dict[str, str], text: str, is_ascii: bool) -> bytes:
    message = EmailMessage(SMTP if is_ascii else SMTPUTF8)
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
    if not _ADDRESS.fullmatch(address) or len(address) > 254:
        raise PermanentError(f"{name} is not one mail address")
    return address
