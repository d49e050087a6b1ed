"""Folders that vanish or become something else, and disks that really are full."""

import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from interleaved_queue import ENDS_IN, VERBS

from holdfast.errors import QueueUnavailable
from holdfast.queue.manager import MessageState
from support.disks import mounted
from support.files import audit
from support.files.crash import run_in_child
from support.files.queue_folder import LEASE, Ground, Queue, drain, make_message
from support.files.watched import WatchedFs

HANGS_AFTER_SECONDS = 10.0
PARTS = ("pending", "leased", "completed", "failed", "history", "workers", "ids", "tmp")


def removed(path: Path) -> None:
    shutil.rmtree(path)


def turned_into_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("")


@pytest.mark.parametrize("gone", [removed, turned_into_a_file])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("fresh", [False, True], ids=["known worker", "fresh worker"])
def test_no_verb_hangs_or_lies_when_a_folder_is(
    fast_path: Path, gone: Callable[[Path], None], part: str, fresh: bool
) -> None:
    run_in_child(lambda say: act_without(fast_path, gone, part, fresh), HANGS_AFTER_SECONDS)


def act_without(root: Path, gone: Callable[[Path], None], part: str, fresh: bool) -> None:
    ground = Ground(root)
    worker = ground.queue()
    worker.push_many([make_message(i) for i in "abcde"])
    held = worker.poll(4)
    gone(ground.folder / part)
    queue = worker
    if fresh:
        with suppress(QueueUnavailable):
            queue = ground.queue(create=False)
    acts: list[Callable[[], object]] = [
        lambda: queue.push(make_message("f")),
        queue.poll,
        lambda: worker.extend(held[0]),
        lambda: worker.ack(held[0]),
        lambda: worker.nack(held[1]),
        lambda: worker.release(held[2]),
        lambda: worker.dead_letter(held[3], "no use"),
        queue.redrive,
        queue.stats,
        queue.operator.sweep,
    ]
    for act in acts:
        with suppress(QueueUnavailable, *LOST.get(part, ())):
            act()


LOST = {"leased": (Exception,)}  # its contents are gone: LeaseLost, TimeoutError


def test_a_worker_whose_queue_was_removed_says_so(fast_path: Path) -> None:
    ground = Ground(fast_path / "root")
    queue = ground.queue()
    queue.push(make_message("a"))
    queue.poll()
    shutil.rmtree(fast_path / "root")
    with pytest.raises(QueueUnavailable):
        queue.push(make_message("b"))
    ground.clock.advance(LEASE)
    with pytest.raises(QueueUnavailable):
        queue.poll()


def test_a_folder_of_checkpoints_that_was_removed_is_made_again(fast_path: Path) -> None:
    ground = Ground(fast_path)
    queue = ground.queue()
    queue.push(make_message("a"))
    [message] = queue.poll()
    shutil.rmtree(ground.folder / "checkpoints")
    queue.save_checkpoint(message, {"page": 1})
    queue.nack(message, delay_seconds=0)
    assert queue.load_checkpoint(queue.poll()[0]) == {"page": 1}


class EmptyingFs(WatchedFs):
    """Empties tmp/ just before a file that was written there moves to its place."""

    folder = Path()

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == "rename" and str(args[0]).startswith("tmp/"):
            for path in (self.folder / "tmp").iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return real(*args, **kwargs)


def test_a_push_that_lost_its_file_says_so(fast_path: Path) -> None:
    ground = Ground(fast_path)
    fs = EmptyingFs(ground.clock.time)
    fs.folder = ground.folder
    queue = ground.queue(fs)
    with pytest.raises(QueueUnavailable, match="push again"):
        queue.push(make_message("a"))
    with pytest.raises(QueueUnavailable, match="push again"):
        queue.push_many([make_message("a"), make_message("b")])
    assert queue.stats().ready == 0


def test_an_id_whose_push_lost_its_file_can_be_pushed_again(fast_path: Path) -> None:
    ground = Ground(fast_path, dedupe=True)
    fs = EmptyingFs(ground.clock.time)
    fs.folder = ground.folder
    with pytest.raises(QueueUnavailable, match="push again"):
        ground.queue(fs).push(make_message("a"))
    queue = ground.queue()
    # The check of records would repair what this test looks for.
    queue._housekeeping._id_check_at = float("inf")
    queue.push(make_message("a"))
    assert queue.stats().ready == 1


def test_a_checkpoint_or_a_reason_that_lost_its_file_says_so(fast_path: Path) -> None:
    """It must not report success if the checkpoint or the reason was lost."""
    ground = Ground(fast_path)
    fs = EmptyingFs(ground.clock.time)
    fs.folder = ground.folder
    ground.queue().push(make_message("a"))
    queue = ground.queue(fs)
    [message] = queue.poll()
    with pytest.raises(QueueUnavailable):
        queue.save_checkpoint(message, {"page": 1})
    with pytest.raises(QueueUnavailable):
        queue.dead_letter(message, "no use")
    assert audit.find_faults(ground.folder) == {}
    assert [view.id for view in queue.peek(MessageState.LEASED)] == ["a"]


def test_a_dead_lettering_that_lost_its_file_does_not_lose_claimed_messages(
    fast_path: Path,
) -> None:
    ground = Ground(fast_path)
    fs = EmptyingFs(ground.clock.time)
    fs.folder = ground.folder
    ground.queue().push(make_message("good"))
    ground.clock.advance(0.01)
    ground.queue().push(make_message("torn"))
    [torn] = [p for p in ground.folder.glob("pending/*/*.json") if b"torn" in p.read_bytes()]
    torn.write_bytes(b"{")
    assert [message.id for message in ground.queue(fs).poll(2)] == ["good"]
    assert audit.find_reasonless(ground.folder) == []


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere")])
def test_an_hour_that_is_no_folder_does_not_hang_the_ack(
    fast_path: Path, make: Callable[[Path], None]
) -> None:
    ground = Ground(fast_path)
    queue = ground.queue()
    queue.push(make_message("a"))
    [message] = queue.poll()
    probe = Ground(fast_path / "probe", ground.clock)
    probe.queue().push(make_message("a"))
    drain(probe.queue())
    [hour] = (probe.folder / "completed").iterdir()
    make(ground.folder / "completed" / hour.name)

    def play(say: Callable[[str], None]) -> None:
        with suppress(QueueUnavailable):
            queue.ack(message)

    run_in_child(play, HANGS_AFTER_SECONDS)
    assert [view.id for view in queue.peek(MessageState.LEASED)] == ["a"]


# -- real disks


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=256k,nr_inodes=200", "tmpfs"):
        ground = Ground(disk)
        queue = ground.queue()
        assert queue.poll() == []  # a worker's card takes space too
        queue.push(make_message("a"))
        pushed = ["a"]
        with pytest.raises(QueueUnavailable, match="the disk is full"):
            push_on(queue, pushed)
        assert audit.find_faults(ground.folder) == {}
        [message] = queue.poll()
        queue.ack(message)
        queue.purge(0)
        queue.push(make_message("after"))
        done = [message_id for message_id, _ in drain(queue)]
        assert sorted([message.id, *done]) == sorted([*pushed, "after"])


def test_a_worker_that_starts_on_a_full_disk_works_and_leaves_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=256k,nr_inodes=200", "tmpfs"):
        ground = Ground(disk)
        producer = ground.queue()
        producer.push_many([make_message("a"), make_message("b"), make_message("torn")])
        [torn] = [p for p in ground.folder.glob("pending/*/*") if b"torn" in p.read_bytes()]
        torn.write_bytes(b"{")
        fill = fill_up(disk)
        worker = ground.queue()
        messages = [poll_or_none(worker) for _ in range(10)]
        assert sorted(m.id for m in messages if m) == ["a", "b"]
        assert list((ground.folder / "tmp").iterdir()) == []
        assert list((ground.folder / "workers").glob("*.json")) == []
        worker.ack_many([m for m in messages if m])
        with pytest.raises(QueueUnavailable, match="the disk is full"):
            producer.push(make_message("c", text="x" * 3000))
        fill.unlink()
        for _ in range(2):  # without a card, its lease is watched
            ground.clock.advance(2 * LEASE)
            assert worker.poll() == []  # it could not dead-letter the torn one before
        assert [view.state for view in worker.dead_letters()] == [MessageState.FAILED]
        assert len(list((ground.folder / "workers").glob("*.json"))) == 1
        assert list((ground.folder / "tmp").iterdir()) == []


def fill_up(disk: Path) -> Path:
    path = disk / "fill"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return path


def poll_or_none(queue: Queue) -> Any:
    with suppress(QueueUnavailable):
        return next(iter(queue.poll()), None)
    return None


def push_on(queue: Queue, pushed: list[str]) -> None:
    for number in range(1000):
        queue.push(make_message(f"{number}", text="x" * 3000))
        pushed.append(f"{number}")


def test_a_folder_that_is_really_read_only(tmp_path: Path) -> None:
    ground = Ground(tmp_path / "root")
    ground.queue().push(make_message("a"))
    with mounted(ground.root, "--bind", str(ground.root)):
        remount = ["mount", "-o", "remount,ro,bind", str(ground.root)]
        if subprocess.run(remount, capture_output=True, check=False).returncode != 0:
            pytest.skip("mounting is not allowed here")
        queue = ground.queue()
        assert queue.stats().ready == 1
        for act in (lambda: queue.push(make_message("b")), queue.poll):
            with pytest.raises(QueueUnavailable, match="read-only"):
                act()
    assert drain(ground.queue()) == [("a", 1)]


@pytest.mark.parametrize("verb", ["ack", "nack", "release"])
def test_a_task_is_settled_into_a_folder_that_was_removed_since_the_last_one(
    fast_path: Path, verb: str
) -> None:
    """A purge, or a worker that found a segment empty, removes folders. No lease is lost."""
    ground = Ground(fast_path)
    queue = ground.queue()
    queue.push_many([make_message("a"), make_message("b")])
    first, second = queue.poll(2)
    VERBS[verb](queue, first)
    [path] = [path for state, _, path in audit.list_tasks(ground.folder) if state != "leased"]
    shutil.rmtree((ground.folder / path).parent)
    VERBS[verb](queue, second)
    [state] = {state for state, _, _ in audit.list_tasks(ground.folder)}
    assert state == ENDS_IN[verb]
