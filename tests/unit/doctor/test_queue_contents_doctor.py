"""doctor: its results for the contents of a queue."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.doctor.checks import CheckLevel, CheckResult, run_checks
from holdfast.doctor.file_queue import CONTENTS, QueueContents
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.queue.message import AnyMessage
from holdfast.queues.files import FilesystemQueue, FsOps
from holdfast.testing import ManualClock


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[FilesystemQueue[AnyMessage]]:
    with FilesystemQueue(tmp_path, queue="q") as queue:
        yield queue  # type: ignore[misc]


def look_inside(
    folder: Path, clock: Clock = SYSTEM_CLOCK, fs: FsOps | None = None
) -> dict[str, list[CheckResult]]:
    """Return the results by check."""
    contents = QueueContents(folder, fs or FsOps(), clock)
    results: dict[str, list[CheckResult]] = {}
    for result in run_checks(contents, *CONTENTS):
        results.setdefault(result.check, []).append(result)
    contents.close()
    return results


def test_foreign_files_are_named_with_what_to_do(queue: FilesystemQueue[AnyMessage]) -> None:
    (queue.folder / "leased" / "notes.txt").write_text("mine")
    (queue.folder / "backup.tar").write_text("mine")
    (queue.folder / "pending" / "drafts").mkdir()
    [result] = look_inside(queue.folder)["foreign files"]
    assert result.level is CheckLevel.WARN
    for name in ("leased/notes.txt", "backup.tar", "pending/drafts"):
        assert name in result.found
    assert "move them out" in result.remedy


class Manual:
    """A queue with a manual clock, which its file server uses too."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.fs = FsOps(server_time=self.clock.time)
        self.queue: FilesystemQueue[AnyMessage] = FilesystemQueue(
            root, queue="q", lease_seconds=10, clock=self.clock, fs=self.fs
        )

    def workers(self) -> CheckResult:
        return look_inside(self.queue.folder, self.clock, self.fs)["workers"][0]

    def seen_now(self) -> None:
        """Stamp the cards, because the real server does not follow the test's clock."""
        for card in (self.queue.folder / "workers").glob("*.json"):
            os.utime(card, (self.clock.time(), self.clock.time()))


@pytest.fixture
def manual(tmp_path: Path) -> Iterator[Manual]:
    manual = Manual(tmp_path)
    yield manual
    manual.queue.close()


def test_expired_leases_without_a_polling_worker_are_reported(manual: Manual) -> None:
    manual.queue.push(AnyMessage())
    manual.queue.poll()
    manual.seen_now()
    assert manual.workers().level is CheckLevel.OK
    manual.clock.advance(300)
    result = manual.workers()
    assert result.level is CheckLevel.WARN
    assert "1 expired lease" in result.found
    assert "holdfast work" in result.remedy
    manual.seen_now()  # a worker was seen, which will take over
    assert manual.workers().level is CheckLevel.OK


def test_waiting_messages_without_any_worker_are_pointed_out(manual: Manual) -> None:
    manual.queue.push(AnyMessage())
    result = manual.workers()
    assert result.level is CheckLevel.WARN
    assert "none seen yet" in result.found


def test_a_lease_from_the_future_is_a_failure_whose_remedy_works(manual: Manual) -> None:
    """The remedy is followed exactly, and the message is delivered again."""
    manual.queue.push(AnyMessage(id="a"))
    manual.queue.poll()
    leased = manual.queue.folder / "leased"
    [path] = leased.iterdir()
    stem, _, _ = path.name.rpartition("~")
    path.rename(leased / f"{stem}~9999999999999+0+60000.json")
    [result] = look_inside(manual.queue.folder, manual.clock, manual.fs)["leases"]
    assert result.level is CheckLevel.FAIL
    _, source, target = result.remedy.rsplit(" ", 2)
    os.rename(manual.queue.folder / source, manual.queue.folder / target)
    manual.clock.advance(11)
    [message] = manual.queue.poll()
    assert (message.id, message.attempts) == ("a", 2)
