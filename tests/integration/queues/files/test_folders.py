"""The queue's folder as an operator sees it: its folders and file names."""

import errno
import gc
import inspect
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AnyMessage, FilesystemQueue, QueueManager
from holdfast.errors import QueueUnavailable
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.testing import ManualClock
from support.files.watched import CountingFs, RefusingFs, WatchedFs
from support.leftovers import Leftovers


def files(folder: Path) -> list[str]:
    paths = (str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    return sorted(name for name in paths if not name.startswith(("workers/", "history/")))


@pytest.mark.requirement(
    "R001-004",
    "R001-023",
    "R001-025",
    "R001-026",
    "R001-027",
    "R001-029",
    "R001-030",
    "R001-031",
    "R001-032",
    "R001-042",
    "R001-043",
    "R001-045",
)
def test_the_folders_are_readable_for_operators(tmp_path: Path) -> None:
    queue = FilesystemQueue(tmp_path, campaign="acme", queue="enrich", lease_seconds=60)
    assert queue.folder == tmp_path / "queues" / "acme" / "enrich"
    queue.push(AnyMessage(id="a", domain="example.com"))
    [pending] = files(queue.folder)
    assert pending.startswith("pending/")
    pushed = (queue.folder / pending).read_bytes()
    assert json.loads(pushed)["domain"] == "example.com"

    [message] = queue.poll()
    [leased] = files(queue.folder)
    assert leased.startswith("leased/")
    key, fence, worker, span = Path(leased).stem.split("~")
    assert fence == "1"
    assert (
        json.loads((queue.folder / f"workers/{worker}.json").read_text())["pid"] == os.getpid()
    )
    assert span.endswith("+0+60000")

    queue.ack(message)
    [completed] = files(queue.folder)
    assert completed.startswith(f"completed/{message.created_at:%Y-%m-%d}T")
    assert key in completed
    assert (queue.folder / completed).read_bytes() == pushed

    queue.push(AnyMessage(id="b"))
    queue.dead_letter(queue.poll()[0], "no such company")
    failed = [name for name in files(queue.folder) if name.startswith("failed/")]
    assert len(failed) == 2
    reason = json.loads((queue.folder / failed[1]).read_text())
    assert (reason["message_id"], reason["reason"]) == ("b", "no such company")


@pytest.mark.requirement("R001-008", "R001-010")
def test_the_contract_is_an_abstract_class_with_the_seeds_four_verbs() -> None:
    assert inspect.isabstract(QueueManager)
    assert inspect.signature(QueueManager.poll).parameters["batch_size"].default == 1
    assert all(
        callable(getattr(QueueManager, verb)) for verb in ("push", "poll", "ack", "nack")
    )


@pytest.mark.requirement("R001-022", "R001-057")
def test_the_seeds_names_are_public() -> None:
    assert holdfast.LocalFileQueue is holdfast.FilesystemQueue
    assert [getattr(holdfast, name) for name in holdfast.__all__] != []


@pytest.mark.requirement(
    "R001-013", "R001-014", "R001-016", "R001-017", "R001-018", "R001-019", "R001-021"
)
def test_the_seeds_message_is_part_of_the_package() -> None:
    task = holdfast.EnrichmentMessage(
        domain="example.com", company_slug="ex", campaign_name="spring"
    )
    assert task.schema_version == 1
    assert task.attempts == 0
    assert task.created_at.tzinfo is not None
    assert task.model_dump().keys() >= {"id", "domain", "company_slug", "campaign_name"}
    names = (task.domain, task.company_slug, task.campaign_name)
    assert names == ("example.com", "ex", "spring")
    with pytest.raises(ValueError, match="domain"):
        holdfast.EnrichmentMessage(company_slug="ex", campaign_name="spring")


def test_an_unreferenced_queue_closes_its_folder(tmp_path: Path) -> None:
    leftovers = Leftovers()
    for _ in range(20):
        queue = FilesystemQueue(tmp_path)
        queue.push(AnyMessage())
        queue.ack(queue.poll()[0])
    del queue
    gc.collect()
    assert leftovers.descriptors == set()


def waiting_in(queue: FilesystemQueue[AnyMessage]) -> int:
    return len(list((queue.folder / "pending").iterdir()))


def test_empty_segments_without_a_producer_are_removed(
    tmp_path: Path,
) -> None:
    clock = ManualClock(time=SYSTEM_CLOCK.time())
    queue = FilesystemQueue(tmp_path, clock=clock)

    def work() -> None:
        while messages := queue.poll():
            queue.ack_many(messages)

    queue.push_many([AnyMessage()])
    work()
    assert waiting_in(queue) == 0  # published complete: no producer adds to it
    queue.push(AnyMessage())
    work()
    clock.advance(5)
    work()
    assert waiting_in(queue) == 1  # its producer may be about to add to it
    queue.push(AnyMessage())
    assert waiting_in(queue) == 2  # but not after this time
    clock.advance(20)
    work()
    clock.advance(5)
    work()
    assert waiting_in(queue) == 0


def test_batches_of_one_millisecond_are_segments_of_their_own(tmp_path: Path) -> None:
    queue = FilesystemQueue(tmp_path, clock=ManualClock(time=SYSTEM_CLOCK.time()))
    queue.push_many([AnyMessage()])
    queue.push_many([AnyMessage()])
    assert waiting_in(queue) == 2
    assert len(queue.poll(5)) == 2


def test_one_poll_takes_over_and_claims_with_one_listing_of_each_folder(tmp_path: Path) -> None:
    clock = ManualClock(time=SYSTEM_CLOCK.time())
    fs = CountingFs(clock.time)
    queue = FilesystemQueue(tmp_path, clock=clock, fs=fs)
    queue.push(AnyMessage(id="late"))
    assert len(queue.poll()) == 1
    clock.advance(queue.lease_seconds + 1)
    queue.push_many([AnyMessage(id="a")])
    queue.push_many([AnyMessage(id="b")])
    fs.counted.clear()
    assert [message.id for message in queue.poll(9)] == ["late", "a", "b"]
    assert fs.counted["listdir"] == 5  # leased/, pending/, its empty segment and two with tasks


class RacingFs(WatchedFs):
    """Lets a competitor run just before the first task is claimed."""

    compete: Callable[[], object] | None = None

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.compete and name == "rename" and args[0].startswith("pending/"):
            compete, self.compete = self.compete, None
            compete()
        return real(*args, **kwargs)


def test_a_poll_that_lost_its_race_lists_the_folder_again(tmp_path: Path) -> None:
    competitor, fs = FilesystemQueue(tmp_path), RacingFs()
    competitor.push_many([AnyMessage(id="a")])

    def compete() -> None:
        assert [message.id for message in competitor.poll()] == ["a"]
        competitor.push_many([AnyMessage(id="b")])

    fs.compete = compete
    assert [message.id for message in FilesystemQueue(tmp_path, fs=fs).poll()] == ["b"]


def test_a_redriven_letter_leaves_no_reason_behind(tmp_path: Path) -> None:
    queue = FilesystemQueue(tmp_path)
    queue.push(AnyMessage())
    queue.dead_letter(queue.poll()[0], "no use")
    assert queue.redrive() == 1
    assert list((queue.folder / "failed").iterdir()) == []


def test_a_purge_that_fails_leaves_no_empty_hours(tmp_path: Path) -> None:
    """A later purge would find nothing in them, so they would stay forever."""
    clock = ManualClock(time=SYSTEM_CLOCK.time())
    fs = RefusingFs(
        clock.time,
        errno.EIO,
        at=2,
        concerns=lambda name, args: name == "unlink" and args[0].startswith("completed/"),
    )
    queue = FilesystemQueue(tmp_path, clock=clock, fs=fs)
    for _ in range(2):
        queue.push(AnyMessage())
        queue.ack(queue.poll()[0])
        clock.advance(3600.0)
    fs.refusing = True
    with pytest.raises(QueueUnavailable):
        queue.purge(0)
    [hour] = (queue.folder / "completed").iterdir()
    assert len(list(hour.iterdir())) == 1


def test_purge_keeps_files_that_an_operator_put_aside(tmp_path: Path) -> None:
    queue = FilesystemQueue(tmp_path)
    queue.push(AnyMessage())
    queue.ack(queue.poll()[0])
    [hour] = (queue.folder / "completed").iterdir()
    shutil.copytree(hour, hour.with_name("for the auditors"))
    assert queue.purge(0) == 1
    assert [path.name for path in hour.parent.iterdir()] == ["for the auditors"]
