"""The outbox folder: a reply is either complete or absent, and exists once.

MS-06, I-MS-2: sending a part again sends nothing twice.
"""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.chat.errors import PermanentError, TransientError
from holdfast.chat.model import ConversationKey
from holdfast.chat.ports import NO_SECRET, ReplyPart
from holdfast.chat.providers.local import OutboxSender, read_outbox
from holdfast.testing.clock import ManualClock
from support import vendors

KEY = ConversationKey("+491510000001", "c1")


def part(text: str = "hello", reference: str = "r1", index: int = 0) -> ReplyPart:
    return ReplyPart(KEY, {"sender": "+4930"}, text, reference, index)


def send(sender: OutboxSender, reply: ReplyPart) -> str:
    return vendors.send(sender, reply, NO_SECRET, timeout_seconds=1).message_sid


def test_a_letter_is_laid_down_when_it_is_handed_over_and_not_before(tmp_path: Path) -> None:
    sender = OutboxSender(tmp_path / "out")
    with sender.connect(part(), NO_SECRET, timeout_seconds=1) as hand_over:
        assert list((tmp_path / "out").iterdir()) == []
        hand_over()
    assert len(read_outbox(tmp_path / "out")) == 1


def test_replies_are_laid_down_and_listed_the_oldest_first(tmp_path: Path) -> None:
    clock = ManualClock()
    sender = OutboxSender(tmp_path / "new" / "outbox", clock)
    for number, text in enumerate(("zwei 👋🏽", "אחת", "")):
        send(sender, part(text, f"r{number}", number))
        clock.advance(1)
    laid = read_outbox(tmp_path / "new" / "outbox")
    assert [reply.text for reply in laid] == ["zwei 👋🏽", "אחת", ""]
    assert {(reply.to, reply.sender, reply.conversation_id) for reply in laid} == {
        ("+491510000001", "+4930", "c1")
    }
    assert "+4915" not in repr(laid)
    assert "zwei" not in repr(laid)


def test_the_same_part_is_laid_down_once_and_stays_as_it_was(tmp_path: Path) -> None:
    sender = OutboxSender(tmp_path, ManualClock())
    first = send(sender, part())
    assert send(sender, part("another text")) == first
    assert [reply.text for reply in read_outbox(tmp_path)] == ["hello"]
    assert OutboxSender.repeatable


def test_a_part_that_is_there_is_found_and_another_is_not(tmp_path: Path) -> None:
    sender = OutboxSender(tmp_path / "outbox", ManualClock())
    assert sender.find(part(), NO_SECRET, since=0, known=()) is None
    sid = send(sender, part())
    sent = sender.find(part(), NO_SECRET, since=0, known=())
    assert sent is not None
    assert sent.message_sid == sid
    assert sender.find(part(reference="r2"), NO_SECRET, since=0, known=()) is None


@pytest.mark.parametrize(
    "reference", ["../../escape", "/etc/passwd", "a" * 5000, "", "\x00", "\ud83d", "+49151"]
)
def test_no_reference_leads_out_of_the_folder(tmp_path: Path, reference: str) -> None:
    folder = tmp_path / "outbox"
    send(OutboxSender(folder, ManualClock()), part(reference=reference))
    (name,) = os.listdir(folder)
    assert name.removesuffix(".json").isalpha()
    assert os.listdir(tmp_path) == ["outbox"]


def test_only_the_owner_can_read_the_replies(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "outbox"
    send(OutboxSender(folder, ManualClock()), part())
    (file,) = folder.iterdir()
    assert folder.parent.stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o077 == 0
    assert file.stat().st_mode & 0o077 == 0


def test_many_senders_at_once_leave_one_complete_reply(tmp_path: Path) -> None:
    senders = [OutboxSender(tmp_path, ManualClock()) for _ in range(8)]
    texts = [f"{number} " * 20_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda pair: send(pair[0], part(pair[1])), zip(senders, texts, strict=True)
            )
        )
    (laid,) = read_outbox(tmp_path)
    assert laid.text in texts
    assert len(os.listdir(tmp_path)) == 1


def test_a_letter_that_could_not_be_finished_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full while the reply is written; later it has space again."""
    sender = OutboxSender(tmp_path, ManualClock())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TransientError):
            send(sender, part())
    assert os.listdir(tmp_path) == []
    send(sender, part())
    assert [reply.text for reply in read_outbox(tmp_path)] == ["hello"]


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def other_kind(path: Path) -> None:
    data = json.loads(path.read_bytes())
    path.write_text(json.dumps({**data, "text": 7}))


@pytest.mark.parametrize("damage", [torn, emptied, other_kind])
def test_a_damaged_letter_is_not_listed(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    send(OutboxSender(tmp_path, ManualClock()), part())
    (file,) = tmp_path.iterdir()
    damage(file)
    assert read_outbox(tmp_path) == []


def test_files_of_other_programs_in_the_folder_are_not_listed(tmp_path: Path) -> None:
    send(OutboxSender(tmp_path, ManualClock()), part())
    (file,) = tmp_path.iterdir()
    (tmp_path / "copy.json").write_bytes(file.read_bytes())  # not under its own name
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / ".x.part").write_bytes(file.read_bytes())
    assert len(read_outbox(tmp_path)) == 1
    assert read_outbox(tmp_path / "none") == []


def test_a_folder_that_is_no_folder_is_passing(tmp_path: Path) -> None:
    (tmp_path / "outbox").write_text("a file")
    with pytest.raises(TransientError):
        send(OutboxSender(tmp_path / "outbox", ManualClock()), part())


def test_half_a_character_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="Unicode"):
        send(OutboxSender(tmp_path, ManualClock()), part("\ud83d"))
