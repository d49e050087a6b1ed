"""doctor: what it says of the things that lie in a queue."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.adapters.local.filesystem import FilesystemQueue, FsOps
from holdfast.adapters.local.filesystem.checks.contents import QueueContents
from holdfast.core.checks import CheckLevel, CheckResult
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.queue.message import AnyMessage
from holdfast.testing import ManualClock


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[FilesystemQueue[AnyMessage]]:
    with FilesystemQueue(tmp_path, queue="q") as queue:
        yield queue  # type: ignore[misc]


def look_inside(
    folder: Path, clock: Clock = SYSTEM_CLOCK, fs: FsOps | None = None
) -> dict[str, list[CheckResult]]:
    """Findings by what they are about."""
    contents = QueueContents(folder, clock, fs or FsOps())
    found: dict[str, list[CheckResult]] = {}
    for finding in contents.check():
        found.setdefault(finding.check, []).append(finding)
    contents.close()
    return found


def test_foreign_files_are_named_with_what_to_do(queue: FilesystemQueue[AnyMessage]) -> None:
    (queue.folder / "leased" / "notes.txt").write_text("mine")
    (queue.folder / "backup.tar").write_text("mine")
    (queue.folder / "pending" / "drafts").mkdir()
    [finding] = look_inside(queue.folder)["foreign files"]
    assert finding.level is CheckLevel.WARN
    for name in ("leased/notes.txt", "backup.tar", "pending/drafts"):
        assert name in finding.found
    assert "move them out" in finding.remedy


def test_leftovers_of_killed_pushes_are_counted_once_they_are_old(
    queue: FilesystemQueue[AnyMessage],
) -> None:
    for name in ("old", "new"):
        (queue.folder / "tmp" / name).write_text("{")
    os.utime(queue.folder / "tmp" / "old", (0, 0))
    [finding] = look_inside(queue.folder)["leftovers"]
    assert "1 files in tmp/" in finding.found


class Manual:
    """A queue whose time stands still, as its file server's does."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.fs = FsOps(server_time=self.clock.time)
        self.queue: FilesystemQueue[AnyMessage] = FilesystemQueue(
            root, queue="q", lease_seconds=10, clock=self.clock, fs=self.fs
        )

    def workers(self) -> CheckResult:
        return look_inside(self.queue.folder, self.clock, self.fs)["workers"][0]

    def seen_now(self) -> None:
        """Cards are stamped by the real server, which does not follow our clock."""
        for card in (self.queue.folder / "workers").glob("*.json"):
            os.utime(card, (self.clock.time(), self.clock.time()))


@pytest.fixture
def manual(tmp_path: Path) -> Iterator[Manual]:
    manual = Manual(tmp_path)
    yield manual
    manual.queue.close()


def test_leases_that_ran_out_with_nobody_polling_are_pointed_out(manual: Manual) -> None:
    manual.queue.push(AnyMessage())
    manual.queue.poll()
    manual.seen_now()
    assert manual.workers().level is CheckLevel.OK
    manual.clock.advance(300)
    finding = manual.workers()
    assert finding.level is CheckLevel.WARN
    assert "1 leases have run out" in finding.found
    assert "holdfast work" in finding.remedy
    manual.seen_now()  # a worker shows itself: it will take over
    assert manual.workers().level is CheckLevel.OK


def test_waiting_messages_without_any_worker_are_pointed_out(manual: Manual) -> None:
    manual.queue.push(AnyMessage())
    finding = manual.workers()
    assert finding.level is CheckLevel.WARN
    assert "none seen yet" in finding.found


def test_a_lease_from_the_future_is_a_failure_whose_way_out_works(manual: Manual) -> None:
    """The advice is followed to the letter, and the message comes back."""
    manual.queue.push(AnyMessage(id="a"))
    manual.queue.poll()
    leased = manual.queue.folder / "leased"
    [path] = leased.iterdir()
    stem, _, _ = path.name.rpartition("~")
    path.rename(leased / f"{stem}~9999999999999+0+60000.json")
    [finding] = look_inside(manual.queue.folder, manual.clock, manual.fs)["leases"]
    assert finding.level is CheckLevel.FAIL
    _, source, target = finding.remedy.rsplit(" ", 2)
    os.rename(manual.queue.folder / source, manual.queue.folder / target)
    manual.clock.advance(11)
    [message] = manual.queue.poll()
    assert (message.id, message.attempts) == ("a", 2)
