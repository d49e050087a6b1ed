"""`holdfast chat`: commands and their output."""

import json
import re
import smtplib
from typing import Any

import boto3
import pytest
from moto import mock_aws

from holdfast.chat.messages import Inbound
from holdfast.cli.main import CommandTable
from holdfast.queues.opening import open_queue
from support.cli.commands import Cli, Ran, require_one_line
from support.paths import ROOT
from support.waiting import wait_until

NUMBER = "+4930123456789"
CANARY = "body-canary"
ESCAPE = "\x1b]0;owned\x07\x1b[31mred\u202e"
REFERENCE = ROOT / "docs/reference/cli.md"
QUICK = {
    "HOLDFAST_CHAT_WINDOW_SECONDS": "0.2",
    "HOLDFAST_CHAT_QUIET_SECONDS": "0",
    "HOLDFAST_CHAT_MAX_WAIT_SECONDS": "0.2",
}


class Chat:
    """Runs `holdfast chat` in its own folder, with short waits."""

    def __init__(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cli, self.folder, self._monkeypatch = cli, cli.folder, monkeypatch
        self.set(**{name.removeprefix("HOLDFAST_CHAT_"): v for name, v in QUICK.items()})

    def set(self, **settings: str) -> None:
        for name, value in settings.items():
            self._monkeypatch.setenv(f"HOLDFAST_CHAT_{name}", value)

    def __call__(self, *words: str, stdin: bytes = b"") -> Ran:
        return self.cli("chat", *words, stdin=stdin)

    def send(self, text: str, *options: str) -> str:
        """Send a message and return the conversation's id."""
        ran = self("send", text, *options, "--json")
        assert ran.code == 0, ran.err
        name: str = ran.json["conversation"]
        return name

    def work(self, *options: str) -> Ran:
        ran = self("work", "--until-idle", *options)
        assert ran.code == 0, ran.err
        return ran

    def read(self, name: str) -> dict[str, Any]:
        conversation: dict[str, Any] = self("show", name, "--json").json
        return conversation

    def bodies(self, name: str) -> list[str]:
        return [message["body"] for message in self.read(name)["history"]]

    def parked(self) -> list[dict[str, Any]]:
        batches: list[dict[str, Any]] = self("parked", "--json").json
        return batches


@pytest.fixture
def chat(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Chat:
    return Chat(cli, monkeypatch)


# -- the reference

COMMANDS = CommandTable("chat")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_the_reference(name: str) -> None:
    text = REFERENCE.read_text()
    section = re.search(rf"### `holdfast chat {name}.*?(?=\n##)", text, re.DOTALL)
    assert section is not None
    for option in COMMANDS[name].params:
        for written in [*option.opts, *option.secondary_opts]:
            if written.startswith("--") and written != "--help":
                assert written in section[0], written


# -- messages and replies


@pytest.mark.requirement("R002-001", "R002-003", "R002-033", "R002-035")
def test_several_messages_are_answered_once_and_together(chat: Chat) -> None:
    """In the order they came, in lines."""
    name = chat.send("Good morning")
    chat.send("where is my order")
    chat.send("4711?")
    assert chat.read(name)["history"] == []
    assert len(chat.read(name)["staged"]) == 3
    chat.work()
    merged = "Good morning\nwhere is my order\n4711?"
    assert chat.bodies(name) == [merged, f"You said: {merged}"]
    assert chat.read(name)["staged"] == []
    [letter] = chat("outbox", "--json").out.splitlines()
    assert json.loads(letter)["body"] == f"You said: {merged}"


@pytest.mark.requirement("R002-002")
def test_the_same_message_twice_is_answered_once(chat: Chat) -> None:
    """Before the reply and after it (MS-20)."""
    name = chat.send("once", "--sid", "SM1")
    chat.send("once", "--sid", "SM1")
    chat.work()
    chat.send("once", "--sid", "SM1")
    chat.work()
    assert chat.bodies(name) == ["once", "You said: once"]


def test_waiting_for_a_reply_without_a_worker_ends_with_a_hint(chat: Chat) -> None:
    ran = chat("send", "hello", "--wait", "--timeout", "100ms")
    assert ran.code == 1
    assert "run `holdfast chat work`" in require_one_line(ran)
    chat.work()
    assert len(chat("outbox", "--json").out.splitlines()) == 1


@pytest.mark.requirement("R002-004", "R002-010")
def test_each_channel_has_a_queue_and_one_worker_answers_all(chat: Chat) -> None:
    """A queue for each channel."""
    sms = chat.send("by text", "--from", NUMBER)
    mail = chat.send("by mail", "--from", "ada@example.org")
    with open_queue("chat/sms") as queue:
        assert queue.stats().delayed + queue.stats().ready == 1
    chat.work()
    assert [len(chat.bodies(name)) for name in (sms, mail)] == [2, 2]


def test_messages_of_the_inbound_queue_are_staged_and_without_a_profile_parked(
    chat: Chat,
) -> None:
    """No conversation is invented (MS-12), and no message is lost."""
    chat.set(INBOUND_QUEUE="chat/inbound")
    with open_queue("chat/inbound", Inbound) as queue:
        queue.push(Inbound(message_sid="SM1", primary_channel=NUMBER, body=CANARY))
    worked = chat.work("--log-format", "json")
    assert CANARY not in worked.err
    assert NUMBER not in worked.err
    [parked] = chat.parked()
    assert parked["reason"] == "there is no such conversation"
    assert parked["messages"] == [CANARY]


# -- operators


def test_a_conversation_can_be_assigned_to_a_person_and_back(chat: Chat) -> None:
    """The operator's decision stands (MS-30)."""
    name = chat.send("first")
    chat.work()
    assert chat("assign", name, "--to", "person").code == 0
    chat.send("for a person")
    chat.work()
    assert chat.bodies(name) == ["first", "You said: first"]
    [parked] = chat.parked()
    assert "a person" in parked["reason"]
    assert chat("assign", name[:8], "--to", "writer").code == 0
    assert chat("parked", "--retry", parked["parked"]).code == 0
    chat.work()
    assert chat.bodies(name)[2:] == ["for a person", "You said: for a person"]
    assert chat.parked() == []


def test_dropping_a_batch_needs_confirmation_and_removes_it(chat: Chat) -> None:
    name = chat.send("never mind")
    chat("assign", name, "--to", "person")
    chat.work()
    [parked] = chat.parked()
    asked = chat("parked", "--drop", parked["parked"])
    assert (asked.code, len(chat.parked())) == (2, 1)
    assert "--yes" in require_one_line(asked)
    assert chat("parked", "--drop", parked["parked"], "--yes").code == 0
    assert chat.parked() == []
    again = chat("parked", "--drop", parked["parked"], "--yes")
    assert again.code == 1
    assert "there is no parked batch" in require_one_line(again)


def test_a_reply_that_was_never_written_cannot_count_as_sent(chat: Chat) -> None:
    name = chat.send("x")
    chat("assign", name, "--to", "person")
    chat.work()
    [parked] = chat.parked()
    ran = chat("parked", "--sent", parked["parked"])
    assert ran.code == 1
    assert "no reply was written" in require_one_line(ran)


# -- output


def test_numbers_are_masked_until_asked_for_and_bodies_are_harmless(chat: Chat) -> None:
    name = chat.send(f"{CANARY} {ESCAPE}\nnext line", "--from", f"whatsapp:{NUMBER}")
    chat.work()
    chat.send("staged", "--from", f"whatsapp:{NUMBER}")
    for words in (["show"], ["show", name], ["outbox"], ["parked", "--body"]):
        for full in ([], ["--full"], ["--json"]):
            output = chat(*words, *full).out
            assert not set(output) & {"\x1b", "\x07", "\u202e"}
            assert (NUMBER in output) == (full == ["--full"] and words[0] != "parked"), words
    shown = chat("show", name).out
    assert CANARY in shown
    assert "next line" in shown
    assert "whatsapp:+49…89" in shown


def test_an_id_that_is_a_number_is_shown_redacted_and_can_be_looked_up(chat: Chat) -> None:
    chat.send("hello", "--id", NUMBER)
    [row] = chat("show", "--json").json
    assert row["conversation"].startswith("#")
    assert NUMBER not in chat("show", row["conversation"]).out
    assert NUMBER in chat("show", row["conversation"], "--full").out


def test_two_conversations_with_the_same_id_are_distinguished_by_customer(chat: Chat) -> None:
    for address in ("whatsapp:ada", "whatsapp:bob"):
        chat.send(f"I am {address}", "--id", "same", "--from", address)
    ran = chat("show", "same")
    assert ran.code == 2
    assert "whatsapp:ada, whatsapp:bob" in require_one_line(ran)
    assert "I am whatsapp:bob" in chat("show", "same", "--from", "whatsapp:bob").out


# -- refusals


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["send", "x", "--from", "a\x1bb"], 4, "control character"),
        (["send", "x", "--id", "a\nb"], 4, "control character"),
        (["send", " "], 4, "is empty"),
        (["send", "x" * 64_001], 4, "more than 64,000"),
        (["send", "\udcff"], 4, "not valid Unicode"),
        (["show"], 3, "start one with `holdfast chat send`"),
        (["parked"], 3, "there is no conversation store"),
        (["sweep"], 3, "there is no conversation store"),
        (["assign", "x", "--to", "other"], 2, "person or writer"),
        (["work", "--channel", "fax"], 2, "whatsapp, sms, email"),
        (["work", "--inbound"], 2, "HOLDFAST_CHAT_INBOUND_QUEUE"),
        (["tables"], 2, "dynamodb:"),
    ],
)
def test_an_impossible_command_fails_with_one_line(
    chat: Chat, words: list[str], code: int, complaint: str
) -> None:
    ran = chat(*words)
    assert ran.code == code, ran.err
    assert complaint in require_one_line(ran)
    assert not (chat.folder / "data").exists() or words[0] in ("send", "work")


def test_bad_settings_stop_every_command_with_all_of_them(chat: Chat) -> None:
    chat.set(WINDOW_SECONDS="soon", EMAIL_QUEUE="sqs:mail.fifo")
    for words in (["send", "x"], ["work"], ["show"], ["outbox"], ["sweep"], ["tables"]):
        ran = chat(*words)
        line = require_one_line(ran)
        assert ran.code == 2
        assert "HOLDFAST_CHAT_WINDOW_SECONDS" in line
        assert "HOLDFAST_CHAT_EMAIL_QUEUE" in line


def test_an_unused_queue_is_not_opened(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not created either, because a message needs only its own channel's queue."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    chat.set(SMS_QUEUE="sqs:nowhere")
    name = chat.send("hello")
    made = [path.name for path in (chat.folder / "data/queues/chat").iterdir()]
    assert made == ["whatsapp"]
    chat.work("--channel", "whatsapp")
    assert len(chat.bodies(name)) == 2
    ran = chat("send", "hello", "--from", NUMBER)
    assert ran.code == 2
    assert "AWS_REGION" in require_one_line(ran)


# -- maintenance


def test_a_lost_trigger_is_sent_again_by_a_sweep(chat: Chat) -> None:
    """A lost trigger does not lose a message (MS-14)."""
    chat.set(LOCK_SECONDS="0.1", GRACE_SECONDS="0.1")
    name = chat.send("is anything there")
    with open_queue("chat/whatsapp") as queue:
        wait_until(lambda: queue.stats().ready)
        queue.ack(queue.poll()[0])
    swept = wait_until(lambda: (s := chat("sweep", "--json").json)["triggered"] and s)
    assert (swept["waiting"], swept["parked"]) == (1, 0)
    chat.set(LOCK_SECONDS="60")
    chat.work()
    assert len(chat.bodies(name)) == 2


def test_a_worker_finds_lost_triggers_by_itself(chat: Chat) -> None:
    """The worker does not end as idle meanwhile (MS-14)."""
    chat.set(LOCK_SECONDS="0.1", GRACE_SECONDS="1.5")
    name = chat.send("is anything there")
    with open_queue("chat/whatsapp") as queue:
        wait_until(lambda: queue.stats().ready)
        queue.ack(queue.poll()[0])
    chat.set(LOCK_SECONDS="60")  # the window's row has the short lock
    chat.work()
    assert len(chat.bodies(name)) == 2


@pytest.mark.requirement("R002-008", "R002-009")
def test_tables_are_checked_created_and_used(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seed's tables, behind a prefix."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    chat.set(STORE="dynamodb:acme-")
    with mock_aws():
        missing = chat("tables")
        assert missing.code == 1
        assert "holdfast chat tables --create" in missing.out
        assert chat("tables", "--create").code == 0
        names = boto3.client("dynamodb").list_tables()["TableNames"]
        assert {"acme-conversations-stage", "acme-conversations-trigger-lock"} <= set(names)
        name = chat.send("hello")
        assert [row["body"] for row in chat.read(name)["staged"]] == ["hello"]
        assert "fail" not in check_levels(chat).values()


def check_levels(chat: Chat) -> dict[str, str]:
    return {result["check"]: result["level"] for result in chat("doctor", "--json").json}


def test_doctor_passes_a_healthy_setup_and_creates_nothing(chat: Chat) -> None:
    chat.set(
        PROFILES='{"*": {"channel_config": {"provider": "outbox"}, '
        '"ai_config": {"provider": "echo"}}}'
    )
    assert set(check_levels(chat).values()) == {"ok"}
    assert list(chat.folder.iterdir()) == []


def test_doctor_names_wrong_leases_and_missing_secrets(chat: Chat) -> None:
    """The lock outlives the trigger's lease (MS-27), and a secret is missing."""
    secret = {"provider": "openai", "ai_api_key_reference": "env:NO_SUCH_KEY"}
    chat.set(LOCK_SECONDS="600", PROFILES=json.dumps({"*": {"ai_config": secret}}))
    chat.send("hello")
    ran = chat("doctor")
    assert ran.code == 1
    levels = check_levels(chat)
    assert (levels["leases"], levels["profile 1"]) == ("warn", "fail")
    assert "NO_SUCH_KEY" in ran.out


def test_doctor_does_not_take_a_queue_that_cannot_be_used_for_a_new_one(chat: Chat) -> None:
    (chat.folder / "work").write_text("")
    chat.set(WHATSAPP_QUEUE="./work/chat/whatsapp", SMS_QUEUE="./other/chat/sms")
    results = {result["check"]: result for result in chat("doctor", "--json").json}
    assert results["whatsapp queue"]["level"] == "fail"
    assert "'work' is not a folder" in results["whatsapp queue"]["found"]
    assert results["sms queue"]["level"] == "ok"
    assert "does not exist yet" in results["sms queue"]["found"]


@pytest.mark.parametrize("style", ["text", "json"])
def test_an_unexpected_error_is_logged_by_its_type_only(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    """Its text may quote what a customer wrote, so there is no traceback either."""

    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError(f"{CANARY} for {NUMBER}")

    monkeypatch.setattr(smtplib, "SMTP", fail)
    monkeypatch.setenv("HOLDFAST_MAX_ATTEMPTS", "2")
    monkeypatch.setenv("HOLDFAST_BACKOFF", "100ms")
    by_mail = {"provider": "smtp", "host": "127.0.0.1", "tls": "none"}
    profile = {"channel_config": by_mail, "ai_config": {"provider": "echo"}}
    chat.set(PROFILES=json.dumps({"*": profile}))
    chat.send(CANARY, "--from", "ada@example.org", "--to", "shop@example.org")
    worked = chat.work("--log-format", style)
    assert "RuntimeError" in worked.err
    for private in (CANARY, NUMBER, "ada@example.org", "Traceback"):
        assert private not in worked.out + worked.err
