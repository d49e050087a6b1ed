"""The file of a running queue is migrated, removed, replaced, copied or restored."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from holdfast.errors import ConfigError, LeaseLost, QueueUnavailable
from holdfast.queues.sqlite.schema import QUEUES
from holdfast.store.sqlite.database import Database
from support.files.crash import die, run_in_child
from support.files.queue_folder import LEASE, make_message
from support.sqlite.queue_file import Queue, QueueFile, find_faults

CHECK_SECONDS = 0.05  # a queue looks whether the file is still the same more often than this

VERBS: dict[str, Callable[[Queue, Any], object]] = {
    "push": lambda queue, held: queue.push(make_message("new")),
    "push_many": lambda queue, held: queue.push_many([make_message("new")] * 3),
    "poll": lambda queue, held: queue.poll(),
    "extend": lambda queue, held: queue.extend(held),
    "ack": lambda queue, held: queue.ack(held),
    "nack": lambda queue, held: queue.nack(held),
    "release": lambda queue, held: queue.release(held),
    "dead_letter": lambda queue, held: queue.dead_letter(held, "no use"),
    "save_checkpoint": lambda queue, held: queue.save_checkpoint(held, 1),
    "stats": lambda queue, held: queue.stats(),
    "redrive": lambda queue, held: queue.redrive(),
    "purge": lambda queue, held: queue.purge(0),
    "cancel": lambda queue, held: queue.cancel("held"),
}
every_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)


def hold(ground: QueueFile) -> tuple[Queue, Any]:
    queue = ground.queue()
    queue.push_many([make_message("held"), make_message("waiting")])
    return queue, queue.poll()[0]


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


# -- versions of the schema


def migrate(path: Path) -> None:
    """Do what a newer version must do, so that the statements of this one find no table."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ALTER TABLE messages RENAME TO messages_2")
        connection.execute(f"PRAGMA user_version = {QUEUES.version + 1}")
        connection.execute("COMMIT")


def test_the_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    hold(QueueFile(tmp_path))
    migrate(tmp_path / "work.db")
    with pytest.raises(ConfigError, match=r"schema 2, but this version .* 1: update holdfast"):
        QueueFile(tmp_path).queue()


@every_verb
def test_a_process_that_has_the_file_open_is_refused_after_a_newer_one_migrated_it(
    tmp_path: Path, verb: Callable[[Queue, Any], object]
) -> None:
    queue, held = hold(QueueFile(tmp_path))
    migrate(tmp_path / "work.db")
    before = dump(tmp_path / "work.db")
    for _ in range(2):
        with pytest.raises(ConfigError, match="update holdfast"):
            verb(queue, held)
    assert dump(tmp_path / "work.db") == before


def test_the_file_of_an_older_version_is_refused(tmp_path: Path) -> None:
    hold(QueueFile(tmp_path))
    path, newer = tmp_path / "work.db", replace(QUEUES, version=QUEUES.version + 1)
    before = dump(path)
    with pytest.raises(ConfigError, match=r"has schema 1, which this version .* no longer"):
        Database(path, newer, "process", 1.0)
    assert dump(path) == before


# -- another file


def remove(path: Path) -> None:
    for file in path.parent.iterdir():
        file.unlink()


def replace_file(path: Path) -> None:
    """Put another file in its place, in which other queues have the same numbers."""
    remove(path)
    for name in ("another", "default"):
        other = QueueFile(path.parent).queue(queue=name)
        other.push_many([make_message("held"), make_message("waiting")])
        other.poll()


@every_verb
@pytest.mark.parametrize("change", [remove, replace_file])
def test_a_verb_on_a_file_that_was_removed_or_replaced_is_an_error(
    tmp_path: Path, change: Callable[[Path], None], verb: Callable[[Queue, Any], object]
) -> None:
    """Message 1 under fence 1 of one file is not that of the other."""
    queue, held = hold(QueueFile(tmp_path))
    change(tmp_path / "work.db")
    sleep(CHECK_SECONDS)
    before = dump(tmp_path / "work.db") if change is replace_file else []
    with pytest.raises((QueueUnavailable, LeaseLost), match=r"gone|replaced"):
        verb(queue, held)
    assert before == (dump(tmp_path / "work.db") if change is replace_file else [])


# -- copies


def use_in_child(folder: Path) -> None:
    """Push until killed, with much in the log."""

    def push(say: Callable[[str], None]) -> None:
        queue = QueueFile(folder).queue()
        for n in range(50):
            queue.push(make_message(f"{n}"))
        queue.poll(5)
        die()

    assert run_in_child(push).killed


def copy_with_log(source: Path, target: Path) -> None:
    shutil.copy(source, target)
    shutil.copy(f"{source}-wal", f"{target}-wal")


def copy_by_backup(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as of, closing(sqlite3.connect(target)) as to:
        of.backup(to)


def copy_by_vacuum(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("VACUUM INTO ?", (str(target),))


@pytest.mark.parametrize("copy", [copy_with_log, copy_by_backup, copy_by_vacuum])
def test_a_copy_of_the_file_with_its_log_is_complete(
    tmp_path: Path, copy: Callable[[Path, Path], None]
) -> None:
    use_in_child(tmp_path / "used")
    (tmp_path / "copy").mkdir()
    copy(tmp_path / "used" / "work.db", tmp_path / "copy" / "work.db")
    ground = QueueFile(tmp_path / "copy")
    assert find_faults(ground.path) == []
    queue = ground.queue()
    assert (queue.stats().ready, queue.stats().leased) == (45, 5)
    ground.clock.advance(LEASE + 1)
    assert len(queue.poll(100)) == 50


def test_a_copy_of_the_file_alone_is_sound_and_older(tmp_path: Path) -> None:
    use_in_child(tmp_path / "used")
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "used" / "work.db", tmp_path / "copy" / "work.db")
    ground = QueueFile(tmp_path / "copy")
    assert ground.queue().stats().ready < 50
    assert find_faults(ground.path) == []


@pytest.mark.parametrize("copy", [copy_by_backup, copy_by_vacuum])
def test_a_backup_beside_busy_workers_has_all_that_was_pushed_before_it(
    fast_path: Path, copy: Callable[[Path, Path], None]
) -> None:
    def work(say: Callable[[str], None]) -> None:
        queue = QueueFile(fast_path).queue()
        while os.getppid() == parent:
            queue.push_many([make_message("x", text="x" * 2_000)] * 20)
            queue.ack_many(queue.poll(20))

    parent = os.getpid()
    queue = QueueFile(fast_path).queue()
    pids = [fork(work) for _ in range(2)]
    try:
        for number in range(5):
            queue.push(make_message(f"before-{number}"))
            target = fast_path / f"{number}" / "work.db"
            target.parent.mkdir()
            copy(fast_path / "work.db", target)
            restored = QueueFile(target.parent).queue()
            assert find_faults(target) == []
            assert len(restored.find(f"before-{number}")) == 1
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def fork(play: Callable[[Callable[[str], None]], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            play(lambda word: None)
        finally:
            os._exit(1)
    return pid


def test_claims_that_are_newer_than_a_restored_copy_are_refused(tmp_path: Path) -> None:
    """Work that was done since the copy is done again, and no claim settles another's work."""
    ground = QueueFile(tmp_path)
    queue = ground.queue()
    queue.push(make_message("old"))
    copy_by_backup(ground.path, tmp_path / "copy")
    queue.push(make_message("since"))
    stale = {message.id: message for message in queue.poll(2)}
    for name in ("work.db-wal", "work.db-shm"):
        (tmp_path / name).unlink()
    (tmp_path / "copy").rename(ground.path)
    restarted = ground.queue()
    restarted.push(make_message("new"))  # gets the number that "since" had
    assert sorted(message.id for message in restarted.poll(2)) == ["new", "old"]
    sleep(CHECK_SECONDS)
    for message in stale.values():
        with pytest.raises((LeaseLost, QueueUnavailable)):
            queue.ack(message)
    assert restarted.stats().leased == 2
