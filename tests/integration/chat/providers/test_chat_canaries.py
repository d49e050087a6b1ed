"""No key, number, address or text gets into an error or a log line.

MS-28, I-MS-9. The vendors repeat all that was sent in their error texts.
"""

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import boto3
import pytest
from moto import mock_aws
from test_smtp_sender import MailServer

from holdfast.chat.errors import PermanentError
from holdfast.chat.model import ConversationKey
from holdfast.chat.ports import NO_SECRET, ReplyPart, ReplyRequest, Secret
from holdfast.chat.providers.openai import OpenAIWriter
from holdfast.chat.providers.secrets import SecretResolver
from holdfast.chat.providers.smtp import SmtpSender
from holdfast.chat.providers.twilio import TwilioSender
from support.vendors import Fault, VendorServer, send

CANARY = "canary-7f3a"  # in every key, password and text
NUMBER = "+49151555000111"


def render_error(error: BaseException) -> str:
    """Return everything a log could show of an error, including its causes."""
    lines = traceback.format_exception(error)
    return "".join([repr(error), str(error), *lines])


OPENAI_SECRET = Secret("openai", {"api_key": f"sk-{CANARY}"})
TWILIO_SECRET = Secret("twilio", {"account_sid": "ACcanary-7f3a", "auth_token": CANARY})
SMTP_SECRET = Secret("smtp", {"username": f"u{CANARY}", "password": CANARY})

FAULTS = [
    *(Fault(status=status) for status in (400, 401, 403, 404, 409, 429, 500)),
    Fault(status=400, code=f"+49 {CANARY}", param=CANARY),
    Fault(how="close"),
    Fault(how="cut"),
    Fault(how="garbage"),
    Fault(how="hang"),
]


@cache
def shared_writer() -> OpenAIWriter:
    return OpenAIWriter()


def openai_calls(vendors: VendorServer, fault: Fault) -> list[Callable[[], Any]]:
    writer, config = shared_writer(), {"model": "m", "base_url": vendors.openai}
    thread = writer.open_thread(config, OPENAI_SECRET)
    for on in ("openai.write", "openai.list", "openai.open"):
        vendors.books.order(on, fault)
    text = f"{CANARY} {NUMBER}"

    def write(again: bool) -> Any:
        question = ReplyRequest(thread, "", text, again)
        seconds = 0.1 if fault.how == "hang" else 20.0
        return writer.write(question, config, OPENAI_SECRET, timeout_seconds=seconds)

    calls: list[Callable[[], Any]] = [lambda: write(True), lambda: write(False)]
    if fault.how != "hang":
        calls.append(lambda: writer.open_thread(config, OPENAI_SECRET))
    return calls


def twilio_calls(vendors: VendorServer, fault: Fault) -> list[Callable[[], Any]]:
    sender, known = TwilioSender(), fault.code.isdigit() or not fault.code
    fault = fault if known else Fault(fault.status, "21211")
    for on in ("twilio.send", "twilio.list"):
        vendors.books.order(on, fault)
    config = {"sender": "+4930", "base_url": vendors.twilio}
    part = ReplyPart(ConversationKey(NUMBER, "c1"), config, CANARY, "r1")
    seconds = 0.1 if fault.how == "hang" else 20.0
    calls: list[Callable[[], Any]] = [
        lambda: send(sender, part, TWILIO_SECRET, timeout_seconds=seconds)
    ]
    if fault.how != "hang":
        calls.append(lambda: sender.find(part, TWILIO_SECRET, since=0, known=()))
    return calls


@pytest.mark.requirement("R002-049")
@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("calls", [openai_calls, twilio_calls])
def test_no_error_and_no_log_line_tells_a_key_a_number_or_a_text(
    caplog: pytest.LogCaptureFixture, calls: Callable[..., Any], fault: Fault
) -> None:
    """The vendors' texts repeat everything that was sent (I-MS-9, MS-28).

    All log lines are checked, including those of the vendors' libraries.
    """
    caplog.set_level(logging.DEBUG)
    failures = []
    with VendorServer() as vendors:
        for call in calls(vendors, fault):
            try:
                call()
            except Exception as error:
                failures.append(render_error(error))
    assert failures
    assert not told_on("".join(failures))
    assert not told_on(caplog.text)


def test_no_error_of_a_mail_server_tells_a_password_or_an_address() -> None:
    """(I-MS-9)"""
    failures = []
    address = f"{CANARY}@example.org"
    for at_rcpt, at_data, at_login in (
        (f"550 {address}", "", ""),
        ("", f"451 {address}", ""),
        ("", "close", ""),
        ("", "", "535"),
        ("", "", "454"),
    ):
        with MailServer(auth_require_tls=False) as server:
            server._terms["authenticator"] = server.check
            server.at_rcpt, server.at_data, server.at_login = at_rcpt, at_data, at_login
            config = {"host": "127.0.0.1", "port": server.port, "tls": "none"}
            config["sender"] = "shop@example.com"
            part = ReplyPart(ConversationKey(address, "c1"), config, CANARY, "r1")
            secret = SMTP_SECRET if at_login else NO_SECRET
            with pytest.raises(Exception) as caught:
                send(SmtpSender(), part, secret, timeout_seconds=20)
            failures.append(render_error(caught.value))
    assert not told_on("".join(failures))


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield boto3.client("secretsmanager", "eu-central-1")


def test_a_secret_of_secrets_manager_is_in_no_log(
    manager: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Botocore's debug lines contain each response (I-MS-9)."""
    caplog.set_level(logging.DEBUG)
    manager.create_secret(Name="key", SecretString="other")
    manager.put_secret_value(SecretId="key", SecretString=f'{{"api_key": "{CANARY}"}}')
    secrets = SecretResolver({}, lambda: manager)
    caplog.clear()
    secret = secrets.get("key")
    assert CANARY in secret.reveal("api_key")
    assert not told_on(caplog.text)


@pytest.mark.requirement("R002-049")
def test_a_secret_is_neither_printed_nor_pickled() -> None:
    """(MS-28)"""
    secret = Secret("twilio", {"auth_token": CANARY})
    assert CANARY not in f"{secret} {secret!r} {[secret]}"
    with pytest.raises(TypeError, match="must not be pickled"):
        pickle.dumps(secret)
    with pytest.raises(PermanentError, match="'twilio' has no 'account_sid'"):
        secret.reveal("account_sid")


def told_on(text: str) -> bool:
    return CANARY in text or NUMBER.removeprefix("+") in text
