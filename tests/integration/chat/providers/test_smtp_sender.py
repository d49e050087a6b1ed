"""The mail sender, against a real local mail server.

MS-06, MS-22: after the text was handed over, and only then, a lost connection is a doubt.
"""

import asyncio
import email
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.policy import SMTP as POLICY
from ipaddress import ip_address
from threading import Event, Thread
from typing import Any, Self

import pytest
from aiosmtpd.smtp import SMTP, AuthResult

from holdfast.chat.errors import (
    AuthenticationFailed,
    PermanentError,
    SendStatusUnknown,
    SendUnclear,
    TransientError,
)
from holdfast.chat.model import ConversationKey
from holdfast.chat.ports import NO_SECRET, ReplyPart, Secret
from holdfast.chat.providers.smtp import SmtpSender
from holdfast.testing.clock import ManualClock
from support.vendors import send

LOGIN = Secret("smtp", {"username": "ada", "password": "word"})
WAIT = 20.0


class MailServer:
    """A mail server that keeps accepted mails in `mails`.

    `at_rcpt` and `at_data` are its responses at these steps: a text, `close` or `hang`.
    """

    def __init__(self, **terms: Any) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.at_rcpt = self.at_data = ""
        self.at_login = "535"
        self.logins: list[str] = []
        self._terms = terms
        self._context = terms.pop("implicit", None)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._up, self._over = Event(), asyncio.Event()
        self._thread = Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        assert self._up.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(60)
        self._loop.close()

    async def _serve(self) -> None:
        server = await self._loop.create_server(
            lambda: SMTP(self, hostname="mail.test", loop=self._loop, **self._terms),
            "127.0.0.1",
            0,
            ssl=self._context,
        )
        self.port: int = server.sockets[0].getsockname()[1]
        self._up.set()
        await self._over.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # -- hooks that aiosmtpd calls

    def check(self, *args: Any) -> AuthResult:
        data = args[-1]
        self.logins.append(data.login.decode())
        # Some servers repeat the credentials.
        text = f"{self.at_login} no: {data.login.decode()} {data.password.decode()}"
        return AuthResult(success=data.password == b"word", handled=False, message=text)

    async def handle_RCPT(self, server: Any, s: Any, envelope: Any, to: str, o: Any) -> str:
        if self.at_rcpt:
            return await self._answer(server, self.at_rcpt)
        envelope.rcpt_tos.append(to)
        self._transport = server.transport
        return "250 OK"

    def hang_up(self) -> None:
        """Close the connection that last named a recipient, before the text."""
        closed = Event()
        self._loop.call_soon_threadsafe(lambda: (self._transport.abort(), closed.set()))
        assert closed.wait(60)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if not self.at_data[:1].isdigit():
            self.mails.append(email.message_from_bytes(envelope.content, policy=POLICY))
            self.recipients.append(envelope.rcpt_tos)
        return await self._answer(server, self.at_data or "250 OK")

    async def _answer(self, server: Any, reply: str) -> str:
        if reply == "hang":
            await self._over.wait()
        if reply == "close":
            server.transport.abort()
        return reply


@pytest.fixture
def server() -> Iterator[MailServer]:
    with MailServer() as mail_server:
        yield mail_server


@pytest.fixture
def sender() -> SmtpSender:
    return SmtpSender(ManualClock())


def part(
    server: MailServer, text: str = "hello", to: str = "ada@example.org", **more: Any
) -> ReplyPart:
    config = {"host": "127.0.0.1", "port": server.port, "tls": "none", **more}
    config.setdefault("sender", "Laden <shop@example.com>")
    return ReplyPart(ConversationKey(to, "c1"), config, text, "batch-1-0", 0)


def test_a_reply_arrives_letter_by_letter(sender: SmtpSender, server: MailServer) -> None:
    text = "Grüße 👋🏽\n.\n.leading dot\nשלום " + "long " * 300
    reply = part(
        server, text, subject="Re: Größe 👗 und mehr, viel mehr, als in eine Zeile passt"
    )
    sent = send(sender, reply, NO_SECRET, timeout_seconds=WAIT)
    (mail,) = server.mails
    assert mail.get_content().splitlines() == text.splitlines()
    assert mail["Subject"] == reply.config["subject"]
    assert mail["From"] == "Laden <shop@example.com>"
    assert mail["To"] == "ada@example.org"
    assert mail["Auto-Submitted"] == "auto-replied"
    assert mail["Date"].datetime.timestamp() == 1_800_000_000
    assert "In-Reply-To" not in mail
    assert mail["Message-ID"] == sent.message_sid
    assert server.recipients == [["ada@example.org"]]


def test_the_same_part_has_the_same_id(sender: SmtpSender, server: MailServer) -> None:
    """So a mail program shows a mail that was sent twice only once."""
    ids = {
        send(sender, part(server), NO_SECRET, timeout_seconds=WAIT).message_sid for _ in "12"
    }
    assert len(ids) == 1
    assert not SmtpSender.repeatable  # the server accepts both


def test_a_mail_server_cannot_be_queried_for_sent_mails(
    sender: SmtpSender, server: MailServer
) -> None:
    with pytest.raises(SendStatusUnknown):
        sender.find(part(server), NO_SECRET, since=0, known=())


@pytest.mark.parametrize(
    "address",
    [
        "ada@example.org\r\nBcc: eve@example.org",
        "ada@example.org\nRCPT TO:<eve@example.org>",
        "ada@example.org, eve@example.org",
        "Ada <ada@example.org>",
        "ada@example.org>",
        "ada@@example.org",
        "@example.org",
        "ada@example.org\x00",
        "a" * 250 + "@example.org",
        "юлия@пример.example",
    ],
)
def test_an_address_that_is_more_than_one_address_reaches_no_server(
    sender: SmtpSender, server: MailServer, address: str
) -> None:
    with pytest.raises(PermanentError, match="not one mail address"):
        send(sender, part(server, to=address), NO_SECRET, timeout_seconds=WAIT)
    assert server.recipients == []


@pytest.mark.parametrize(
    "config",
    [
        {"subject": "Hi\r\nBcc: eve@example.org"},
        {"sender": "Shop\r\nBcc: eve@example.org <shop@example.com>"},
        {"sender": ""},
        {"subject": "half \ud83d"},
        {"host": ""},
        {"port": "many"},
        {"port": 70_000},
        {"tls": "perhaps"},
    ],
)
def test_a_config_that_cannot_work_or_carries_a_header_is_refused(
    sender: SmtpSender, server: MailServer, config: dict[str, Any]
) -> None:
    with pytest.raises(PermanentError):
        send(sender, part(server, **config), NO_SECRET, timeout_seconds=WAIT)
    assert server.mails == []


@pytest.mark.parametrize(
    ("at_rcpt", "at_data", "kind", "words"),
    [
        ("550 no such user", "", PermanentError, "550"),
        ("451 later", "", TransientError, "451"),
        ("421 closing", "", TransientError, "421"),
        ("close", "", TransientError, "Disconnected|Reset"),
        ("", "554 spam", PermanentError, "554"),
        ("", "452 full", TransientError, "452"),
        ("", "close", SendUnclear, "did not respond"),
    ],
)
def test_each_outcome_is_translated(
    sender: SmtpSender,
    server: MailServer,
    at_rcpt: str,
    at_data: str,
    kind: type[Exception],
    words: str,
) -> None:
    """(MS-22)"""
    server.at_rcpt, server.at_data = at_rcpt, at_data
    with pytest.raises(Exception, match=words) as caught:
        send(sender, part(server), NO_SECRET, timeout_seconds=WAIT)
    assert type(caught.value) is kind


@pytest.mark.parametrize("refusal", ["550 no such user", "451 later", "close"])
def test_a_recipient_is_refused_before_the_mail_is_handed_over(
    sender: SmtpSender, server: MailServer, refusal: str
) -> None:
    """So SendingReply is not noted for a mail that was certainly not sent."""
    server.at_rcpt = refusal
    with (
        pytest.raises((PermanentError, TransientError)),
        sender.connect(part(server), NO_SECRET, timeout_seconds=WAIT),
    ):
        pytest.fail("it is connected all the same")


def test_a_connection_that_is_not_used_sends_nothing(
    sender: SmtpSender, server: MailServer
) -> None:
    with sender.connect(part(server), NO_SECRET, timeout_seconds=WAIT):
        pass
    send(sender, part(server, "the next one"), NO_SECRET, timeout_seconds=WAIT)
    assert [mail.get_content().strip() for mail in server.mails] == ["the next one"]


def test_a_server_that_disconnects_before_the_text_leaves_no_unclear_send(
    sender: SmtpSender, server: MailServer
) -> None:
    with sender.connect(part(server), NO_SECRET, timeout_seconds=WAIT) as hand_over:
        server.hang_up()
        with pytest.raises(TransientError):
            hand_over()
    assert server.mails == []


def test_a_server_that_does_not_confirm_the_text_leaves_an_unclear_send(
    sender: SmtpSender, server: MailServer
) -> None:
    server.at_data = "hang"
    with pytest.raises(SendUnclear):
        send(sender, part(server), NO_SECRET, timeout_seconds=0.3)
    assert len(server.mails) == 1


def test_an_unreachable_server_is_a_transient_error(sender: SmtpSender) -> None:
    with MailServer() as gone:
        pass
    with pytest.raises(TransientError, match="no connection"):
        send(sender, part(gone), NO_SECRET, timeout_seconds=WAIT)


def test_the_server_is_logged_in_to_when_there_is_a_name(sender: SmtpSender) -> None:
    with MailServer(auth_require_tls=False) as server:
        server._terms["authenticator"] = server.check
        send(sender, part(server), LOGIN, timeout_seconds=WAIT)
        assert (len(server.mails), server.logins) == (1, ["ada"])
        wrong = Secret("smtp", {"username": "ada", "password": "old"})
        with pytest.raises(AuthenticationFailed, match="535"):
            send(sender, part(server), wrong, timeout_seconds=WAIT)
        server.at_login = "454"
        with pytest.raises(TransientError, match="454") as caught:
            send(sender, part(server), wrong, timeout_seconds=WAIT)
        assert type(caught.value) is TransientError
        with pytest.raises(PermanentError, match="'username'"):
            send(sender, part(server), Secret("s", {"password": "x"}), timeout_seconds=WAIT)
        assert len(server.mails) == 1


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a key and a self-signed certificate for 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mail")])
    host = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    serial = x509.random_serial_number()
    times = (now - timedelta(days=1), now + timedelta(days=1))
    builder = x509.CertificateBuilder(name, name, key.public_key(), serial, *times)
    made = builder.add_extension(host, critical=False).sign(key, hashes.SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(private + made.public_bytes(Encoding.PEM))
    return str(path)


def context_of(certificate: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_a_server_is_believed_only_with_a_good_certificate(
    sender: SmtpSender, certificate: str, monkeypatch: pytest.MonkeyPatch, tls: str
) -> None:
    """Otherwise neither the password nor the text is sent."""
    key = "tls_context" if tls == "starttls" else "implicit"
    terms = {key: context_of(certificate), "auth_require_tls": tls == "starttls"}
    with MailServer(**terms) as server:
        server._terms["authenticator"] = server.check
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        with pytest.raises(TransientError, match="SSLCertVerificationError"):
            send(sender, part(server, tls=tls), LOGIN, timeout_seconds=WAIT)
        assert (server.mails, server.logins) == ([], [])

        monkeypatch.setenv("SSL_CERT_FILE", certificate)
        send(sender, part(server, tls=tls), LOGIN, timeout_seconds=WAIT)
        assert (len(server.mails), server.logins) == (1, ["ada"])


def test_a_server_that_offers_no_tls_gets_nothing_unless_that_is_wished(
    sender: SmtpSender,
) -> None:
    with MailServer(auth_require_tls=False) as server:
        server._terms["authenticator"] = server.check
        with pytest.raises(TransientError):
            send(sender, part(server, tls="starttls"), LOGIN, timeout_seconds=WAIT)
        assert (server.mails, server.logins) == ([], [])
