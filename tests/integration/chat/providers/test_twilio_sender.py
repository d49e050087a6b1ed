"""The Twilio sender, against a local server with the same API.

It is known whether a
reply was sent, surely not sent, or in doubt; and what is in doubt is found again when
Twilio has it (MS-06, MS-22, I-MS-2)."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import pytest

from holdfast.chat.errors import (
    AuthenticationFailed,
    PermanentError,
    SendStatusUnknown,
    SendUnclear,
    TransientError,
)
from holdfast.chat.model import ConversationKey
from holdfast.chat.ports import ReplyPart, Secret
from holdfast.chat.providers.twilio import TwilioSender
from support.vendors import Ask, Fault, VendorServer, send

SECRET = Secret("twilio", {"account_sid": "AC1", "auth_token": "token"})
NUMBER = "whatsapp:+491510000001"
SENDER = "whatsapp:+4930000000"
NOW = 1_800_000_000.5
WAIT = 20.0


@pytest.fixture
def vendors() -> Iterator[VendorServer]:
    with VendorServer() as server:
        server.books.now = lambda: NOW
        yield server


@pytest.fixture(scope="module")
def sender() -> TwilioSender:
    return TwilioSender()


def part(
    vendors: VendorServer, text: str = "hello", to: str = NUMBER, index: int = 0, **more: Any
) -> ReplyPart:
    config = {"sender": SENDER, "base_url": vendors.twilio, **more}
    return ReplyPart(ConversationKey(to, "c1"), config, text, f"batch-{index}", index)


@pytest.mark.requirement("R002-059", "R002-060", "R002-061", "R002-062")
def test_a_reply_is_sent_to_the_customer(sender: TwilioSender, vendors: VendorServer) -> None:
    text = "Grüße 👋🏽 & mehr=\nשלום"
    sent = send(sender, part(vendors, text), SECRET, timeout_seconds=WAIT)
    (message,) = vendors.books.messages
    assert (sent.message_sid, sent.status) == (message["sid"], "queued")
    assert (message["to"], message["from"], message["body"]) == (NUMBER, SENDER, text)
    (asked,) = vendors.books.asks
    assert asked.path == "/2010-04-01/Accounts/AC1/Messages.json"
    assert asked.user == "AC1:token"


def test_a_messaging_service_or_an_api_key_may_stand_in(
    sender: TwilioSender, vendors: VendorServer
) -> None:
    secret = Secret("t", {"account_sid": "AC1", "api_key": "SK1", "api_secret": "word"})
    where = part(vendors, to="+491510000001", messaging_service_sid="MG1")
    sent = send(sender, where, secret, timeout_seconds=WAIT)
    (message,) = vendors.books.messages
    assert (message["messaging_service_sid"], message["from"]) == ("MG1", None)
    assert vendors.books.asks[0].user == "SK1:word"
    assert sender.find(where, secret, since=NOW, known=()) == sent


OUTCOMES = [
    (Fault(status=400, code="21211"), PermanentError, "21211: the number is not valid"),
    (Fault(status=400, code="63016"), PermanentError, "63016"),
    (Fault(status=400, code="99999"), PermanentError, "error 99999$"),
    (Fault(status=404, code="20404"), PermanentError, "20404"),
    (Fault(status=302), PermanentError, "302"),
    (Fault(status=307), PermanentError, "307"),
    (Fault(status=401, code="20003"), AuthenticationFailed, "20003"),
    (Fault(status=403), AuthenticationFailed, "403"),
    (Fault(status=429, code="20429"), TransientError, "20429"),
    (Fault(status=500, acted=True), SendUnclear, "500"),
    (Fault(status=503), SendUnclear, "503"),
    (Fault(status=408), SendUnclear, "408"),
    (Fault(how="close", acted=True), SendUnclear, "did not respond"),
    (Fault(how="cut", acted=True), SendUnclear, "did not respond"),
    (Fault(how="garbage", acted=True), SendUnclear, "cannot be read"),
]


@pytest.mark.requirement("R002-064")
@pytest.mark.parametrize(("fault", "kind", "words"), OUTCOMES)
def test_each_outcome_is_translated_and_nothing_is_sent_twice(
    sender: TwilioSender,
    vendors: VendorServer,
    fault: Fault,
    kind: type[Exception],
    words: str,
) -> None:
    """(MS-22)."""
    vendors.books.order("twilio.send", fault)
    with pytest.raises(Exception, match=words) as caught:
        send(sender, part(vendors), SECRET, timeout_seconds=WAIT)
    assert type(caught.value) is kind
    assert len(vendors.books.asks) == 1


@pytest.mark.requirement("R002-065")
@pytest.mark.parametrize(
    ("number", "words"),
    [("+15005550001", "21211"), ("12", "21211"), ("+15005550004", "21610.* opted out")],
)
def test_a_number_that_cannot_be_written_to_is_refused_for_good(
    sender: TwilioSender, vendors: VendorServer, number: str, words: str
) -> None:
    with pytest.raises(PermanentError, match=words):
        send(sender, part(vendors, to=number), SECRET, timeout_seconds=WAIT)


def test_a_timeout_leaves_an_unclear_send(sender: TwilioSender, vendors: VendorServer) -> None:
    vendors.books.order("twilio.send", Fault(how="hang", acted=True))
    with pytest.raises(SendUnclear, match="Timeout"):
        send(sender, part(vendors), SECRET, timeout_seconds=0.2)


def test_an_unreachable_server_leaves_no_unclear_send(
    sender: TwilioSender, vendors: VendorServer
) -> None:
    """Without a connection nothing was sent, so a retry needs no lookup."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nowhere = part(vendors, base_url=f"http://127.0.0.1:{port}")
    with pytest.raises(TransientError, match="cannot be reached"):
        send(sender, nowhere, SECRET, timeout_seconds=WAIT)


@pytest.mark.parametrize(
    ("text", "config", "values", "words"),
    [
        ("hi", {"sender": None}, {}, "sender"),
        ("hi", {"base_url": "ftp://x"}, {}, "base_url"),
        ("hi", {"base_url": "http://127.0.0.1:port"}, {}, "base_url"),
        ("half \ud83d", {}, {}, "Unicode"),
        ("hi", {}, {"auth_token": ""}, "auth_token"),
        ("hi", {}, {"account_sid": ""}, "account_sid"),
        ("hi", {}, {"auth_token": "ключ"}, "characters"),
    ],
)
def test_an_unsendable_reply_is_refused_before_the_call(
    sender: TwilioSender,
    vendors: VendorServer,
    text: str,
    config: dict[str, Any],
    values: dict[str, str],
    words: str,
) -> None:
    secret = Secret("t", {"account_sid": "AC1", "auth_token": "token", **values})
    with pytest.raises(PermanentError, match=words):
        send(sender, part(vendors, text, **config), secret, timeout_seconds=WAIT)
    assert vendors.books.asks == []


# -- looking up an unclear send


def lay(vendors: VendorServer, **values: Any) -> str:
    """Add a message to Twilio's list."""
    books = vendors.books
    body = {"To": NUMBER, "From": SENDER, "Body": "hello"}
    message = books.send(Ask("twilio.send", "", {}, body, ""))
    message.update(values)
    return str(message["sid"])


def at(seconds: float) -> str:
    return formatdate(NOW + seconds)


def test_a_reply_whose_answer_was_lost_is_found(
    sender: TwilioSender, vendors: VendorServer
) -> None:
    """It still waits in Twilio's queue, so it has no date_sent (MS-06)."""
    vendors.books.order("twilio.send", Fault(how="close", acted=True))
    reply = part(vendors, "hello ✓ ")
    with pytest.raises(SendUnclear):
        send(sender, reply, SECRET, timeout_seconds=WAIT)
    sent = sender.find(reply, SECRET, since=NOW, known=())
    assert sent is not None
    assert sent.message_sid == vendors.books.messages[0]["sid"]
    assert len(vendors.books.messages) == 1


def test_a_reply_that_was_not_sent_is_not_found(
    sender: TwilioSender, vendors: VendorServer
) -> None:
    vendors.books.order("twilio.send", Fault(how="close"))
    with pytest.raises(SendUnclear):
        send(sender, part(vendors), SECRET, timeout_seconds=WAIT)
    lay(vendors, body="something else")
    lay(vendors, to="whatsapp:+491510000002")
    lay(vendors, **{"from": "whatsapp:+4930000009"})
    lay(vendors, date_created=at(-3600))
    assert sender.find(part(vendors), SECRET, since=NOW, known=()) is None


@pytest.mark.parametrize("status", ["failed", "undelivered", "delivered", "canceled"])
def test_a_reply_that_twilio_took_is_found_whatever_became_of_it(
    sender: TwilioSender, vendors: VendorServer, status: str
) -> None:
    sid = lay(vendors, status=status, date_created=at(-1))
    sent = sender.find(part(vendors), SECRET, since=NOW, known=())
    assert sent is not None
    assert (sent.message_sid, sent.status) == (sid, status)


def test_clocks_may_differ_a_little(sender: TwilioSender, vendors: VendorServer) -> None:
    """Twilio's times are full seconds, and its clock may differ from this one."""
    lay(vendors, date_created=at(-45))
    assert sender.find(part(vendors), SECRET, since=NOW, known=()) is not None


def test_of_equal_parts_the_oldest_unknown_part_is_found(
    sender: TwilioSender, vendors: VendorServer
) -> None:
    sids = [lay(vendors, date_created=at(second)) for second in (1, 3, 2)]
    oldest = sender.find(part(vendors), SECRET, since=NOW, known=())
    third = sender.find(part(vendors), SECRET, since=NOW, known=(sids[0], sids[2]))
    assert oldest is not None
    assert third is not None
    assert (oldest.message_sid, third.message_sid) == (sids[0], sids[1])
    assert sender.find(part(vendors), SECRET, since=NOW, known=sids) is None


def test_all_pages_are_looked_at_and_none_that_is_too_old(
    sender: TwilioSender, vendors: VendorServer
) -> None:
    for _ in range(500):
        lay(vendors, body="old", date_created=at(-7200))
    sid = lay(vendors, date_created=at(-30))
    for second in range(450):
        lay(vendors, body="other", date_created=at(second))
    sent = sender.find(part(vendors), SECRET, since=NOW, known=())
    assert sent is not None
    assert sent.message_sid == sid
    assert len(vendors.books.asked("twilio.list")) == 4  # two more pages are old


def test_the_words_an_account_on_trial_is_given_do_not_hide_a_reply(
    sender: TwilioSender, vendors: VendorServer
) -> None:
    lay(vendors, body="Sent from your Twilio trial account - hello")
    assert sender.find(part(vendors), SECRET, since=NOW, known=()) is not None


def test_texts_that_twilio_did_not_keep_leave_the_send_unclear(
    sender: TwilioSender, vendors: VendorServer
) -> None:
    lay(vendors, body="")
    with pytest.raises(SendStatusUnknown):
        sender.find(part(vendors), SECRET, since=NOW, known=())


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(status=401), AuthenticationFailed),
        (Fault(status=429), TransientError),
        (Fault(status=500), TransientError),
        (Fault(status=400), TransientError),
        (Fault(how="close"), TransientError),
        (Fault(how="cut"), TransientError),
        (Fault(how="garbage"), SendStatusUnknown),
    ],
)
def test_a_question_that_fails_does_not_say_that_nothing_was_sent(
    sender: TwilioSender, vendors: VendorServer, fault: Fault, kind: type[Exception]
) -> None:
    lay(vendors)
    vendors.books.order("twilio.list", fault)
    with pytest.raises(kind) as caught:
        sender.find(part(vendors), SECRET, since=NOW, known=())
    assert type(caught.value) is kind


# -- imports: a process that is killed during one has surely sent nothing


NO_IMPORTS = """
import sys
from holdfast.chat.providers.twilio import TwilioSender
from holdfast.chat.model import ConversationKey
from holdfast.chat.ports import ReplyPart
from holdfast.chat.ports import Secret
config = {"sender": "+4930000000", "base_url": sys.argv[1]}
part = ReplyPart(ConversationKey("+491510000001", "chat"), config, "hello", "reference")
secret = Secret("twilio", {"account_sid": "AC1", "auth_token": "token"})
with TwilioSender().connect(part, secret, timeout_seconds=60) as send:
    imported = []
    sys.addaudithook(lambda event, args: event == "import" and imported.append(args[0]))
    send()
print(imported)
"""


def test_nothing_is_imported_between_the_note_and_the_send(vendors: VendorServer) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", NO_IMPORTS, vendors.twilio],
        capture_output=True,
        text=True,
        timeout=WAIT * 3,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
