"""A power cut at any write: the file is sound, and holds what was promised.

Every write and sync that SQLite asks for is recorded. After each of them the power may fail.
The disk then holds what was synced, and any part of the rest. The tables must be exactly as
they were after one of the verbs. With "power" that is the last one that returned, or the one in
progress. With "process" it may be an earlier one. So no message is half written or in two
states.

The disk is simulated: it keeps what it confirmed, and does not damage sectors that are not
written. A disk that breaks these promises can damage any database.
"""

import os
import sqlite3
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.queue.message import get_lease
from holdfast.store.sqlite.connection import Durability
from support.files.queue_folder import LEASE, make_message
from support.sqlite.disk import FOLDER, Disk, Image, Op, watch
from support.sqlite.queue_file import Queue, QueueFile, find_faults

Tables = tuple[list[Any], ...]
SECTOR = 512


# -- the disks that a power cut could leave


def list_cuts(
    disk: Disk,
    chosen: Callable[[int], bool],
    deaf_to: Callable[[int, Op], bool],
) -> Iterator[tuple[int, list[Image]]]:
    """Yield each chosen moment, as the number of calls made before it, with the disks that a
    power cut could leave then.

    `deaf_to(number, op)`: that sync is ignored, as if SQLite had not called it. A sync of the
    folder makes deletes before it survive.
    """
    files = {name: File(bytearray(data)) for name, data in disk.base.items()}
    for number, op in enumerate(disk.ops, 1):
        if op.name == FOLDER:
            for file in files.values():
                file.sync_deletes()
        elif op.kind != "sync":
            files.setdefault(op.name, File(None)).pending.append(op)
        elif op.name in files and not deaf_to(number, op):
            files[op.name].sync()
        if chosen(number):
            yield number, list(make_images(files, Random(number)))


@dataclass
class File:
    synced: bytearray | None  # None: the file does not exist
    pending: list[Op] = field(default_factory=list)

    def sync(self) -> None:
        self.synced = apply(self.synced, self.pending)
        self.pending = []

    def sync_deletes(self) -> None:
        deletes = [number for number, op in enumerate(self.pending) if op.kind == "delete"]
        if deletes:
            self.synced, self.pending = None, self.pending[deletes[-1] + 1 :]


def apply(content: bytearray | None, ops: Sequence[Op]) -> bytearray | None:
    content = None if content is None else bytearray(content)
    for op in ops:
        if op.kind == "delete":
            content = None
            continue
        content = bytearray() if content is None else content
        if op.kind == "truncate":
            del content[op.offset :]
        content.extend(bytes(max(0, op.offset - len(content))))
        content[op.offset : op.offset + len(op.data)] = op.data
    return content


def make_images(files: dict[str, File], random: Random) -> Iterator[Image]:
    """Yield the least, the most, and two mixtures in which some sectors were written."""
    choices: list[Callable[[list[Op]], list[Op]]] = [lambda ops: [], lambda ops: ops]
    choices += [lambda ops: list(tear(ops, random))] * 2
    for choose in choices:
        contents = {n: apply(file.synced, choose(file.pending)) for n, file in files.items()}
        yield {
            name: bytes(content) for name, content in contents.items() if content is not None
        }


def tear(ops: list[Op], random: Random) -> Iterator[Op]:
    for op in ops:
        if op.kind != "write":
            if random.random() < 0.5:
                yield op
            continue
        for start in range(0, len(op.data), SECTOR):
            if random.random() < 0.5:
                yield op._replace(
                    offset=op.offset + start, data=op.data[start : start + SECTOR]
                )


# -- what the verbs promise


def read_tables(path: Path) -> Tables:
    """Read what the verbs promise. A file without tables has no rows."""
    names = ("messages", "attempts", "checkpoints")
    tables: dict[str, list[Any]] = {name: [] for name in names}
    if path.exists():
        with closing(sqlite3.connect(path)) as connection:
            for name in names:
                with suppress(sqlite3.OperationalError):  # it has no tables yet
                    tables[name] = connection.execute(f"SELECT * FROM {name}").fetchall()
    return tuple(tables.values())


@dataclass
class Recording:
    """What SQLite did to the disk, and the tables after each verb."""

    disk: Disk
    path: Path
    tables: list[Tables] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # calls made when each verb returned

    def note_return(self) -> None:
        self.ends.append(len(self.disk.ops))
        self.tables.append(read_tables(self.path))

    def find_allowed(self, number: int, durability: Durability) -> list[Tables]:
        """Return the states that a power cut after so many calls may leave."""
        returned = bisect(self.ends, number)
        first = max(0, returned - 1) if durability == "power" else 0
        nothing: list[Tables] = [([], [], [])] if first == 0 else []
        return nothing + self.tables[first : returned + 1]


def record(
    folder: Path, durability: Durability, act: Callable[[QueueFile, Queue, Any], None]
) -> Recording:
    ground = QueueFile(folder, durability=durability)
    with watch(folder) as disk:
        recording = Recording(disk, ground.path)
        queue = ground.queue()
        recording.note_return()
        act(ground, queue, recording.note_return)
        queue.close()
    return recording


def use_all_verbs(ground: QueueFile, queue: Queue, returned: Callable[[], None]) -> None:
    """Call every verb; copy the log into the file in between, so that the log is reused."""

    def step(result: object) -> None:
        returned()

    queue.push(make_message("a"))
    returned()
    step(queue.push_many([make_message(i, text="x" * 5_000) for i in "bcdefgh"]))
    batch = queue.poll(8)
    returned()
    step(queue.renew([get_lease(message) for message in batch], 2 * LEASE))
    copy_log_into_file(ground.path)
    step(queue.ack_many(batch[:3]))
    step(queue.nack(batch[3], delay_seconds=0, reason="later"))
    step(queue.release(batch[4]))
    step(queue.dead_letter(batch[5], "no use"))
    step(queue.dead_letter(batch[6], "no use"))
    step(queue.save_checkpoint(batch[7], {"page": 2}))
    copy_log_into_file(ground.path)
    step(queue.redrive(batch[5].id))
    step(queue.drop(batch[6].id))
    ground.clock.advance(3 * LEASE)
    step(queue.poll(1))
    step(queue.purge(1))
    step(queue.push(make_message("z")))


def copy_log_into_file(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = NORMAL")
        assert connection.execute("PRAGMA wal_checkpoint").fetchone()[0] == 0


def fill(ground: QueueFile, queue: Queue, returned: Callable[[], None]) -> None:
    """Push so much that the queue itself copies the log into the file."""
    for batch in range(4):
        queue.push_many([make_message(f"{batch}-{n}", text="x" * 20_000) for n in range(100)])
        returned()


def check_cuts(
    folder: Path,
    recording: Recording,
    durability: Durability,
    chosen: Callable[[int], bool] = lambda number: True,
    deaf_to: Callable[[int, Op], bool] = lambda number, op: False,
) -> int:
    """Check every disk that a power cut could leave; return how many there were."""
    seen: set[tuple[int, int]] = set()
    for number, images in list_cuts(recording.disk, chosen, deaf_to):
        allowed = recording.find_allowed(number, durability)
        for image in images:
            mark = (bisect(recording.ends, number), hash(tuple(sorted(image.items()))))
            if mark not in seen:
                seen.add(mark)
                check_image(folder / f"{len(seen)}", image, allowed, number)
    return len(seen)


def check_image(folder: Path, image: Image, allowed: list[Tables], number: int) -> None:
    folder.mkdir(parents=True)
    for name, content in image.items():
        (folder / name).write_bytes(content)
    path = folder / "work.db"
    tables = read_tables(path)
    assert tables in allowed, f"cut after call {number}"
    if path.exists():
        assert find_faults(path) == []
    for name in image:
        (folder / name).unlink(missing_ok=True)


@pytest.mark.parametrize("durability", ["power", "process"])
def test_a_power_cut_at_any_write_leaves_the_tables_as_after_a_verb(
    fast_path: Path, durability: Durability
) -> None:
    recording = record(fast_path / "play", durability, use_all_verbs)
    assert check_cuts(fast_path, recording, durability) > 100


@pytest.mark.parametrize("durability", ["power", "process"])
def test_a_power_cut_while_the_queue_copies_its_log_loses_nothing(
    fast_path: Path, durability: Durability
) -> None:
    recording = record(fast_path / "play", durability, fill)
    ops = recording.disk.ops
    copied = [n for n, op in enumerate(ops) if op.name == "work.db" and op.kind == "write"]
    assert len(copied) > 1_000
    near = {copied[0], copied[0] + 1, copied[-1], copied[-1] + 1, copied[-1] + 3}
    every = len(ops) // 12
    assert check_cuts(fast_path, recording, durability, lambda n: n in near or n % every == 0)


@pytest.mark.parametrize("name", ["work.db-wal", "work.db"])
def test_a_promise_breaks_without_the_sync_of(fast_path: Path, name: str) -> None:
    recording = record(fast_path / "play", "power", use_all_verbs)

    def is_deaf_to(number: int, op: Op) -> bool:
        return op.name == name and number > recording.ends[0]

    assert any(is_deaf_to(n, op) for n, op in enumerate(recording.disk.ops))
    with pytest.raises((AssertionError, sqlite3.DatabaseError)):
        check_cuts(fast_path, recording, "power", deaf_to=is_deaf_to)


def test_process_durability_does_not_wait_for_the_disk(fast_path: Path) -> None:
    """The promise of "power" has its price, so this one must not pay it."""
    recording = record(fast_path / "play", "process", use_all_verbs)
    with pytest.raises(AssertionError):
        check_cuts(fast_path, recording, "power")


def test_the_folders_of_a_new_file_are_on_the_disk(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite syncs the file's own folder with the first sync of its log."""
    synced: set[int] = set()
    fsync = os.fsync

    def watch_fsync(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    folder = fast_path / "new" / "folders"
    QueueFile(folder, durability="power").queue().push(make_message("a"))
    assert {fast_path.stat().st_ino, folder.parent.stat().st_ino} <= synced
