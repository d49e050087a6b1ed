"""`holdfast chat parked --all`: decisions about many batches (MS-30)."""

import os
import pty
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.chat.model import Conversation, ConversationKey, Fragment, ParkedBatch
from holdfast.chat.outbox import Outbox, PreparedReply, SendingReply, WriterAnswer
from holdfast.chat.sqlite_conversations import SQLiteConversations
from support.cli.commands import Cli, clean_env, require_one_line, start

ESCAPE = "\x1b]0;owned\x07\u202e"
DOWN, UNKNOWN = "the provider failed to send the reply 5 times", "it is not known"
ENV = {"HOLDFAST_CHAT_STORE": "chat.db"}


class Desk:
    """A store with parked batches, and the command that decides about them."""

    def __init__(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cli, self.folder = cli, cli.folder
        for name, value in ENV.items():
            monkeypatch.setenv(name, value)
        self.store = SQLiteConversations(cli.folder / "chat.db")

    def park(self, number: int, reason: str, outbox: Outbox | None = None, at: float = 1.0):
        """Park one message of a conversation of its own, under the id `batch-NUMBER`."""
        key = ConversationKey(f"whatsapp:+4915100000{number:03}", f"c{number}")
        self.store.create(Conversation(key))
        message = Fragment(key, f"SM{number}", "hi", received_at=1.0, staged_at=1.0)
        parked = ParkedBatch(f"batch-{number}", key, reason, at, (message,), outbox)
        self.store.park(None, parked, remember_until=9e9)

    def __call__(self, *words: str):
        return self.cli("chat", "parked", *words)

    @property
    def reasons(self) -> list[str]:
        return sorted(batch.reason for batch in self.store.parked())

    def count_staged(self) -> int:
        return sum(entry.fragments for entry in self.store.waiting())


@pytest.fixture
def desk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    desk = Desk(Cli(tmp_path, capsys, monkeypatch), monkeypatch)
    with desk.store:
        yield desk


def test_all_batches_with_a_reason_are_answered_after_all(desk: Desk) -> None:
    for number in range(3):
        desk.park(number, DOWN)
    desk.park(9, UNKNOWN)
    ran = desk("--retry", "--all", "--reason", "FAILED to send", "--yes")
    assert (ran.code, ran.out) == (0, "3 batches: staged again, for `holdfast chat work`\n")
    assert (desk.reasons, desk.count_staged()) == ([UNKNOWN], 3)
    assert desk("--retry", "--all", "--yes", "--json").json == {
        "retry": 1,
        "skipped": 0,
        "failed": {},
    }
    assert desk("--retry", "--all", "--yes").out.startswith("0 batches")


def test_the_reason_also_chooses_what_is_listed(desk: Desk) -> None:
    desk.park(1, DOWN)
    desk.park(2, f"{UNKNOWN} {ESCAPE}")
    assert [row["parked"] for row in desk("--reason", "not KNOWN", "--json").json] == [
        "batch-2"
    ]
    for words in (["--reason", ESCAPE], ["--drop", "--all", "--reason", ESCAPE, "--yes"]):
        ran = desk(*words)
        assert ran.code == 0
        assert not set(ran.out + ran.err) & set(ESCAPE) - {"]", "0", ";", *"owned"}
    assert desk.reasons == [DOWN]


def test_dropping_and_recording_work_for_many_too(desk: Desk) -> None:
    for number in range(2):
        desk.park(number, UNKNOWN, PreparedReply((f"SM{number}",), WriterAnswer("reply")))
    desk.park(2, DOWN)
    ran = desk("--sent", "--all", "--yes")
    assert ran.code == 1
    assert ran.out == "2 batches: recorded as sent\n"
    assert "1 batch could not be decided (batch-2: no reply was written" in ran.err
    assert desk("--drop", "--all", "--yes").out == "1 batch: dropped\n"
    assert (desk.reasons, desk.count_staged()) == ([], 0)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--retry"], "--retry needs the id of a batch"),
        (["--all"], "no decision is given"),
        (["batch-1"], "no decision is given"),
        (["--retry", "--sent", "--all"], "cannot be combined"),
        (["--retry", "batch-1", "--all"], "an id cannot be combined"),
        (["--retry", "batch-1", "--reason", "x"], "an id cannot be combined"),
        (["--retry", "--all"], "add --yes"),
    ],
)
def test_what_is_not_decided_clearly_changes_nothing(
    desk: Desk, words: list[str], complaint: str
) -> None:
    desk.park(1, DOWN)
    ran = desk(*words)
    assert ran.code == 2
    assert complaint in require_one_line(ran)
    assert desk.reasons == [DOWN]


def answer_at_terminal(desk: Desk, answer: bytes, meanwhile=lambda: None) -> tuple[str, str]:
    """Run `--retry --all` at a terminal, and answer its question; return its output."""
    terminal, other_end = pty.openpty()
    command = ("chat", "parked", "--retry", "--all")
    process = start(desk.folder, *command, stdin=other_end, env=clean_env(**ENV))
    os.close(other_end)
    asked = b""
    while b"[y/N]" not in asked and (chunk := os.read(process.stderr.fileno(), 1024)):
        asked += chunk
    meanwhile()
    os.write(terminal, answer)
    out, _ = process.communicate(timeout=60)
    os.close(terminal)
    return asked.decode(), out.decode().strip()  # click writes a blank


def test_a_person_is_asked_and_what_others_decide_meanwhile_is_skipped(desk: Desk) -> None:
    """A batch that was parked again meanwhile was not confirmed, so it stays."""
    for number in range(4):
        desk.park(number, UNKNOWN, SendingReply((f"SM{number}",), WriterAnswer("r"), (), 1.0))
    desk.park(4, DOWN)
    asked, out = answer_at_terminal(desk, b"n\n")
    assert asked.startswith("4 of them may have been sent and would be sent twice. ")
    assert "Answer 5 batches after all?" in asked
    assert (out, len(desk.reasons)) == ("", 5)

    def decide() -> None:
        for number in (0, 1):
            desk.store.unpark(
                f"batch-{number}", back_to_stage=number == 1, now=2.0, expires_at=9e9
            )
        desk.park(1, "parked again", at=3.0)

    _, out = answer_at_terminal(desk, b"y\n", decide)
    assert out.startswith("3 batches: staged again")
    assert out.endswith("2 decided by another operator")
    assert desk.reasons == ["parked again"]


@pytest.mark.parametrize("decision", ["--retry", "--drop"])
def test_a_batch_that_another_operator_decides_at_the_same_moment_is_skipped(
    desk: Desk, decision: str
) -> None:
    """The other operator decides about batch 1 while batch 0 is decided here."""
    for number in range(3):
        desk.park(number, DOWN)
    with sqlite3.connect(desk.folder / "chat.db") as database:
        database.execute(
            "CREATE TRIGGER other AFTER DELETE ON parked WHEN old.parked_id = 'batch-0' "
            "BEGIN DELETE FROM parked WHERE parked_id = 'batch-1'; END"
        )
    ran = desk(decision, "--all", "--yes")
    assert ran.code == 0
    assert ran.out.startswith("2 batches: ")
    assert ran.out.endswith("; 1 decided by another operator\n")
    assert (desk.reasons, desk.count_staged()) == ([], 2 if decision == "--retry" else 0)
